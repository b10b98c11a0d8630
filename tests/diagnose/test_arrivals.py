"""Who waits for whom in a broadcast: by what it means, or by what is seen."""

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.graph.entries import collectives
from evenstep.diagnose.measure.transfers import arrivals
from evenstep.trace.clocks.clocks import align
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from tests.diagnose.synthetic import MS, World

LATE = World(steps=40, buckets=0, after_backward=((Op.BROADCAST, 8),)).slow(
    1, Phase.FORWARD, 30 * MS
)


def recorded(*, blocked=Flag.HOST_BLOCKED, root_leaves_ms=None):
    """Broadcasts from rank 0 that rank 1 enters 30 ms late; by default all leave together."""
    trace = LATE.trace()
    events = trace.events
    moved = events.kind == int(Kind.COLLECTIVE)
    flags = np.where(moved, int(blocked), events.flags)
    leaves = events.exit_ns
    if root_leaves_ms is not None:
        sooner = events.enter_ns + root_leaves_ms * MS
        leaves = np.where(moved & (events["rank"] == 0), sooner, leaves)
    trace.events = events.with_column("flags", flags).with_column("exit_ns", leaves)
    return trace


def waits_ms(trace):
    """What each rank waits in a broadcast."""
    rows = arrivals(trace, align(trace))
    return [float(np.median(rows.wait_ns[rows["rank"] == rank])) / MS for rank in range(4)]


def test_where_a_root_is_seen_to_wait_for_the_others_all_leave_with_the_last():
    assert waits_ms(recorded()) == pytest.approx([30, 0, 30, 30], abs=0.01)


@pytest.mark.parametrize("how", [{"blocked": 0}, {"root_leaves_ms": 1}])
def test_a_root_that_hands_its_data_over_and_leaves_waits_for_nobody(how):
    assert waits_ms(recorded(**how)) == pytest.approx([0, 0, 0, 0], abs=0.01)


@pytest.mark.parametrize("stay", [True, False])
def test_kernels_of_a_broadcast_of_unknown_root_wait_where_none_ends_before_the_last_begins(stay):
    trace = recorded()
    events = trace.events
    moved = events.kind == int(Kind.COLLECTIVE)
    leaves = np.where(moved & (not stay), events.enter_ns + MS, events.exit_ns)
    flags = np.where(moved, int(Flag.ON_DEVICE | Flag.ASYNC), events.flags)
    trace.events = events.with_columns(
        peer_or_root=np.where(moved, -1, events.peer_or_root), flags=flags, exit_ns=leaves,
        device_enter_ns=events.enter_ns * moved, device_exit_ns=leaves * moved,
    )  # fmt: skip
    operations = collectives(trace, align(trace), np.arange(4)).operations
    assert set(operations.members.tolist()) == {4 if stay else 1}


@pytest.mark.parametrize(
    ("flags", "waits"), [(Flag.ASYNC, True), (Flag.ASYNC | Flag.EXIT_UPPER_BOUND, False)]
)
def test_an_asynchronous_root_waits_where_its_end_is_known(flags, waits):
    trace = recorded(blocked=flags)
    rows = collectives(trace, align(trace), np.arange(4)).rows
    assert (rows.waits[rows.lane == 0] == waits).all()


def test_who_the_root_waits_for_is_named_with_what_that_costs():
    found = diagnose(recorded()).findings[0]
    assert (found.mode, list(found.where.ranks)) == ("straggler", [1])
    assert found.severity == pytest.approx(LATE.injected_share(), abs=0.02)
