"""Transfer times, and what shorter ones give back, against worlds run again with them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.measure.transfers import Shape
from evenstep.trace.spool.layout import Op, Phase
from tests.diagnose.synthetic import MS, World

STYLES = [
    World(style="overlapped"),
    World(style="blocking"),
    World(style="gathered"),
    World(style="grid", ranks=8, tensor_parallel=2),
]
styles = pytest.mark.parametrize("world", STYLES, ids=lambda world: world.style)


@styles
def test_a_transfer_is_what_passes_after_the_last_entry(world):
    slow = replace(world, transfer_ns=3 * MS).slow(1, Phase.BACKWARD, 30 * MS)
    rows = open_case(slow.trace()).transfers.rows
    assert rows.transfer_ns == pytest.approx(3 * MS, abs=5)


@pytest.mark.parametrize(("floors_ns", "gbps"), [([0, 0], 0), ([0, 2e6], 1.5), ([1e6, 2e6], 1.5)])
def test_a_transfer_that_takes_no_time_says_nothing_of_its_links(floors_ns, gbps):
    """4 ranks pass 1.5 times the size of an all-reduce; 2 MB in 2 ms are 1.5 GB/s of the bus."""
    sizes, rows = np.array([1e6, 2e6]), np.ones(2, bool)
    shape = Shape(Op.ALL_REDUCE, 4, 1, 0, (0,), rows, sizes, np.array(floors_ns, float), None)
    assert shape.busbw_gBps == pytest.approx(gbps)


@pytest.mark.parametrize(
    ("members", "trees", "hops"), [(64, False, 126), (64, True, 12), (2, True, 2)]
)
def test_the_usual_latency_is_that_of_a_ring_or_of_a_lower_tree(members, trees, hops):
    """2(n - 1) hops, or up and down the log₂ n levels; each of `USUAL_HOP_NS`, 10 µs."""
    nothing = np.zeros(0)
    shape = Shape(Op.ALL_REDUCE, members, 2, 0, (0,), nothing, nothing, nothing, None, trees)
    assert shape.usual_latency_ns == pytest.approx(hops * 10_000)


def test_a_collective_in_a_queue_does_not_move_yet():
    rows = open_case(World(transfer_ns=25 * MS).trace()).transfers.rows
    # entered 10 ms apart, 25 ms each: the second to fourth wait for the one before
    assert rows.transfer_ns == pytest.approx(25 * MS, abs=5)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(STYLES),
    st.sampled_from([6 * MS, 15 * MS, 40 * MS]),
    st.sampled_from([1 * MS, 5 * MS]),
)
def test_shorter_transfers_give_back_what_the_world_gains_with_them(world, transfer_ns, less_ns):
    world = replace(world, steps=20, transfer_ns=transfer_ns)
    shorter = replace(world, transfer_ns=transfer_ns - less_ns)
    case = open_case(world.trace())
    gained = case.saved(case.transferred(np.full(len(case.transfers.rows), less_ns))).sum()
    assert gained == pytest.approx(world.length_ns() - shorter.length_ns(), rel=0.02)


@styles
def test_transfers_that_stay_as_long_give_nothing_back(world):
    case = open_case(world.trace())
    assert case.saved(case.transferred(np.zeros(len(case.transfers.rows)))).max() == 0


def test_the_quiet_level_is_not_raised_by_slow_episodes():
    world = World(steps=100, fabric=lambda move: 5 * MS * (4 if move.step % 2 else 1))
    assert open_case(world.trace()).transfers.kinds.quiet_ns == pytest.approx(5 * MS, abs=5)


def test_sizes_are_those_of_the_whole_buffer():
    world = World(style="gathered", after_backward=((Op.GATHER, 1000), (Op.ALL_TO_ALL, 1000)))
    kinds = open_case(world.trace()).transfers.kinds
    found = {Op(op): size for op, size in zip(kinds.op, kinds.size_bytes, strict=True)}
    # of four ranks each holds a part of what is gathered; nccl-tests counts the whole
    assert found[Op.GATHER] == 4000
    assert found[Op.ALL_TO_ALL] == 1000
    assert found[Op.ALL_GATHER] == 100_000_000
