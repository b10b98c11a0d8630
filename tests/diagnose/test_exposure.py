"""What a step's communication cost it: messages between stages, and devices seen computing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.measure.intervals import Intervals, difference
from evenstep.diagnose.measure.overview import time_shares
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from tests.diagnose.synthetic import BOOT_NS, MS, World, with_missing, with_rows

STEPS = 5
ALONE = World(ranks=2, steps=STEPS, collectives=False)
STEP_NS = 64.2 * MS  # input, forward, backward, optimizer


def begin(step):
    return int(BOOT_NS + step * STEP_NS)


def with_message(trace, sent_ms, received_ms, done_ms, **receiver):
    """In every step rank 0 sends at one time and rank 1 receives from another to a third."""
    for step in range(STEPS):
        same = {"kind": int(Kind.POINT_TO_POINT), "step": step, "group": 0, "group_seq": step}
        sent, received, done = (begin(step) + t * MS for t in (sent_ms, received_ms, done_ms))
        trace = with_rows(
            trace, **same, rank=0, peer_or_root=1, op=int(Op.SEND), enter_ns=[sent],
            exit_ns=[sent + MS],
        )  # fmt: skip
        trace = with_rows(
            trace, **{**same, **receiver}, rank=1, peer_or_root=0, op=int(Op.RECV),
            enter_ns=[received], exit_ns=[done],
        )  # fmt: skip
    return trace


def test_a_receiver_waits_until_its_message_is_sent():
    grid = step_grid(with_message(ALONE.trace(), 30, 10, 32))
    assert grid.wait_ns.tolist() == [[0, 20 * MS]] * STEPS
    assert grid.blocked_ns.tolist() == [[0, 22 * MS]] * STEPS


def test_a_message_already_sent_is_only_transfer():
    grid = step_grid(with_message(ALONE.trace(), 5, 10, 12))
    assert not grid.wait_ns.any()
    assert grid.blocked_ns.tolist() == [[0, 2 * MS]] * STEPS


def test_a_receive_that_does_not_block_hides_its_transfer():
    flags = int(Flag.ASYNC)
    grid = step_grid(with_message(ALONE.trace(), 30, 10, 32, flags=flags))
    assert not grid.blocked_ns.any()
    assert grid.hidden_ns.tolist() == [[0, 2 * MS]] * STEPS


def test_a_sender_waits_only_where_its_record_says_so():
    trace = with_message(ALONE.trace(), 10, 30, 32)
    events = trace.events
    sends = (events.kind == int(Kind.POINT_TO_POINT)) & (events.op == int(Op.SEND))
    blocked = np.where(sends, int(Flag.HOST_BLOCKED), events.flags)
    ended = np.where(sends, events.exit_ns + 21 * MS, events.exit_ns)
    rendezvous = events.with_column("flags", blocked).with_column("exit_ns", ended)
    assert not step_grid(trace).wait_ns[:, 0].any()
    assert (step_grid(replace(trace, events=rendezvous)).wait_ns[:, 0] == 20 * MS).all()


def computing(world, start_ms, end_ms):
    """The world's trace with its devices on the hosts' clock, computing in part of each step."""
    trace = world.trace()
    events = trace.events
    for name in ("enter", "exit"):
        on_device = (events.flags & int(Flag.ON_DEVICE)) != 0
        own = np.where(on_device, events[f"{name}_ns"], 0)
        events = events.with_column(f"device_{name}_ns", own)
    trace = replace(trace, events=events, names=("", "compute"))
    for info in trace.ranks.values():
        info.facts["device_clock"] = "host"
    starts = step_grid(trace)
    for row, step in enumerate(starts.steps):
        for rank in range(world.ranks):
            zero = int(starts.start_ns[row, rank])
            trace = with_rows(
                trace, kind=int(Kind.SPAN), rank=rank, step=int(step), name=1, device=0,
                flags=int(Flag.ON_DEVICE), enter_ns=[zero + start_ms * MS],
                exit_ns=[zero + end_ms * MS],
            )  # fmt: skip
    return trace


def test_on_a_device_what_is_not_behind_compute_is_exposed():
    # One bucket is in flight from 60.2 ms, when backward ends, for 10 ms.
    world = World(on_device=True, buckets=1, steps=STEPS, transfer_ns=10 * MS)
    grid = step_grid(computing(world, 0, 64))
    assert grid.exposure_known
    assert np.abs(grid.blocked_ns - 6.2 * MS).max() <= 2
    assert np.abs(grid.hidden_ns - 3.8 * MS).max() <= 2


def test_without_phases_compute_is_what_the_device_computed():
    # Kernels run from 0 to 64 ms of every step, whatever its length.
    world = World(on_device=True, buckets=1, steps=STEPS, transfer_ns=10 * MS, phases=False)
    grid = step_grid(computing(world, 0, 64))
    expected = 64 * MS / grid.duration_ns.mean()
    assert time_shares(grid)["compute"] == pytest.approx(expected, rel=1e-3)


def test_a_profile_of_one_rank_alone_still_shows_what_was_exposed():
    world = World(on_device=True, buckets=1, steps=STEPS, transfer_ns=10 * MS)
    grid = step_grid(with_missing(computing(world, 0, 64), 1, 2, 3))
    assert grid.ranks.tolist() == [0]
    assert not grid.wait_ns.any()
    assert np.abs(grid.blocked_ns - 6.2 * MS).max() <= 2
    assert np.abs(grid.hidden_ns - 3.8 * MS).max() <= 2


def test_without_compute_to_be_seen_exposure_stays_a_guess():
    assert not step_grid(World(on_device=True).trace()).exposure_known


def test_no_finding_is_sure_where_exposure_is_a_guess():
    slow = World(steps=60, on_device=True, style="blocking").slow(1, Phase.BACKWARD, 30 * MS)
    guessed, seen = diagnose(slow.trace()), diagnose(replace(slow, on_device=False).trace())
    assert guessed.findings[0].mode == seen.findings[0].mode == "straggler"
    assert guessed.findings[0].confidence <= 0.5 < seen.findings[0].confidence


def test_a_device_far_from_its_hosts_clock_is_placed_on_the_common_time():
    world = World(
        ranks=4, ranks_per_node=2, on_device=True, style="blocking", clocks={1: (2e9, 0.0)}
    ).slow(1, Phase.BACKWARD, 50 * MS)
    one_host = replace(world, ranks_per_node=64, clocks={})
    near, far = step_grid(one_host.trace()), step_grid(world.trace())
    assert far.wait_ns.sum() == pytest.approx(near.wait_ns.sum(), rel=0.01)


SPAN = st.integers(-12, 12)
ROWS = st.lists(st.tuples(st.integers(0, 2), SPAN, SPAN), max_size=10)


def intervals(rows):
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return Intervals(*(np.array(column, np.int64) for column in columns))


@given(ROWS, ROWS)
def test_a_difference_is_what_only_the_first_covers(one, other):
    def covered(rows):
        return {(cell, t) for cell, start, end in rows for t in range(start, end)}

    found = list(zip(*difference(intervals(one), intervals(other)), strict=True))
    assert covered(found) == covered(one) - covered(other)
    assert sum(max(end - start, 0) for _, start, end in found) == len(covered(found))


def test_where_no_wait_was_recorded_the_last_bucket_of_a_step_shows_it():
    slow = World(phases=False, noise=0.005).slow(1, Phase.BACKWARD, 10 * MS)
    finding = diagnose(slow.trace()).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])
    assert finding.severity == pytest.approx(slow.injected_share(), rel=0.1)
