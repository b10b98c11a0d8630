"""Many-to-one transfers that collapse by a known time."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.levels import NAMED
from evenstep.diagnose.modes.fabric import _below_the_knee
from evenstep.trace.spool.layout import Kind, Op
from tests.diagnose.synthetic import MS, World, with_rows

TIMEOUT_NS = 20 * MS
GATHERS = tuple((Op.GATHER, size) for size in (10_000, 50_000, 200_000, 1_000_000))


def in_bytes(move):
    return 0.2 * MS + len(move.members) * move.size_bytes / 12.5


def knee(move):
    """From 1 MB a sender the queue overflows and a timeout is waited for."""
    lost = move.op is Op.GATHER and move.size_bytes >= 1_000_000
    return in_bytes(move) + (TIMEOUT_NS if lost else 0)


SMALL = World(ranks=8, noise=0.01, bucket_bytes=(1_000_000,), after_backward=GATHERS)


@pytest.mark.parametrize("lag_ns", [0.0, 0.15 * MS])
def test_a_knee_in_the_curve_is_incast_at_the_root(worst, lag_ns):
    """Ends that are seen late hide who is blocked in short transfers, but not in long ones."""
    world = replace(SMALL, fabric=knee, exit_lag_ns=lag_ns)
    finding = worst(world)
    assert (finding.mode, finding.where.ranks) == ("incast", [0])
    lost = world.lost_against(replace(world, fabric=in_bytes))
    assert finding.severity == pytest.approx(lost, rel=0.1)


def test_an_all_to_all_that_collapses_now_and_then_has_no_root(worst):
    hit = np.random.default_rng(0).random(60) < 0.4
    calm = replace(SMALL, after_backward=((Op.ALL_TO_ALL, 1_000_000),), fabric=lambda move: MS)
    world = replace(
        calm,
        fabric=lambda move: MS + (40 * MS if hit[move.step] and move.op is Op.ALL_TO_ALL else 0),
    )
    finding = worst(world)
    assert (finding.mode, finding.where.ranks) == ("incast", [])
    assert finding.severity == pytest.approx(world.lost_against(calm), rel=0.1)


def test_where_others_stall_as_often_at_other_times_it_is_no_incast(worst):
    random, calls = np.random.default_rng(2), ((Op.ALL_TO_ALL, 1_000_000),) * 3
    stalls = iter(random.random(10**5) < 0.04)
    calm = replace(SMALL, steps=120, after_backward=calls, fabric=lambda move: MS)
    world = replace(calm, fabric=lambda move: MS + 100 * MS * bool(next(stalls)))
    finding = worst(world)
    assert finding.mode == "fabric_contention"
    stalls = iter(np.random.default_rng(2).random(10**5) < 0.04)
    assert finding.severity == pytest.approx(world.lost_against(calm), rel=0.15)


def test_all_to_alls_that_all_are_as_much_too_slow_cross_a_slow_link():
    """One of 8 nodes with an adapter of 12.5 GB/s each carries a fifth of that, in every call."""
    calls = ((Op.ALL_TO_ALL, 8_000_000),) * 20
    world = replace(
        SMALL, after_backward=calls, fabric=lambda move: move.size_bytes * 7 / 8 / 12.5 * 5,
        ranks_per_node=1,
    )  # fmt: skip
    trace = world.trace()
    for info in trace.ranks.values():
        nic = {"name": "eth0", "pci": "0000:04:00.0", "speed_gbps": 100.0}
        info.facts["locality"] = {"nics": [nic]}
    first = diagnose(trace).findings[0]
    assert (first.mode, first.title) == ("bandwidth_bound", "Links below their bandwidth")


def test_all_to_alls_that_fill_the_adapters_of_their_nodes_are_none():
    """Each of a node's 8 ranks sends half of its 40 MB to the other node, through 12.5 GB/s."""
    world = World(
        ranks=16,
        ranks_per_node=8,
        noise=0.01,
        bucket_bytes=(1_000_000,),
        after_backward=((Op.ALL_TO_ALL, 40_000_000),),
        fabric=lambda move: 8 * move.size_bytes / 2 / 12.5,
    )
    trace = world.trace()
    for info in trace.ranks.values():
        nic = {"name": "eth0", "pci": "0000:04:00.0", "speed_gbps": 100.0}
        info.facts["locality"] = {"nics": [nic]}
    assert not [finding for finding in diagnose(trace).findings if finding.severity >= NAMED]


def test_all_to_alls_that_one_group_alone_has_slower_are_those_of_its_links():
    """Of four groups of 8 ranks on two nodes each, one takes three times as long."""
    world = World(
        ranks=32,
        style="grid",
        tensor_parallel=8,
        ranks_per_node=4,
        noise=0.01,
        fabric=lambda move: (1 if move.members[0] != 8 or len(move.members) != 8 else 3) * 2 * MS,
    )
    trace = world.trace()
    tensor = np.array([len(group.ranks) == 8 for group in trace.groups])
    calls = (trace.events.kind == int(Kind.COLLECTIVE)) & tensor[trace.events.group]
    op = np.where(calls, int(Op.ALL_TO_ALL), trace.events.op)
    trace.events = trace.events.with_column("op", op)
    nic = {"name": "eth0", "pci": "0000:04:00.0", "speed_gbps": 1600.0}
    for info in trace.ranks.values():
        info.facts["locality"] = {"nics": [nic]}
    assert "incast" not in [finding.mode for finding in diagnose(trace).findings]


def test_a_line_is_not_a_knee():
    found = diagnose(replace(SMALL, fabric=in_bytes).trace()).findings
    assert "incast" not in [finding.mode for finding in found]


def test_where_everything_slows_down_it_is_contention(worst):
    world = replace(
        SMALL,
        steps=100,
        after_backward=((Op.ALL_TO_ALL, 1_000_000),),
        fabric=lambda move: 6 * MS * (3 if 30 <= move.step < 60 else 1),
    )
    assert worst(world).mode == "fabric_contention"
    assert "incast" not in [finding.mode for finding in diagnose(world.trace()).findings]


def test_pacing_is_said_to_harm(worst):
    options = worst(replace(SMALL, fabric=knee)).options
    assert any("pacing would harm" in option.cost for option in options)
    assert all(option.gain is None or option.gain > 0 for option in options)


def test_counters_of_the_collapsed_steps_are_joined(evidence):
    trace = replace(SMALL, fabric=knee).trace()
    trace.names = ("", "tcp.retransmitted_segments")
    times = np.linspace(trace.events.enter_ns.min(), trace.events.exit_ns.max(), 20)
    bits = (np.arange(20) * 100.0).view(np.uint64)
    trace = with_rows(
        trace, kind=int(Kind.SAMPLE), name=1, enter_ns=times.astype(np.int64), bytes_in=bits
    )
    measured = evidence(diagnose(trace).findings[0])["tcp.retransmitted_segments_per_second"]
    # 1900 segments over the run
    assert measured == pytest.approx(1900e9 / (times[-1] - times[0]), rel=0.1)


def test_collectives_that_took_no_time_are_no_division_by_it():
    sizes, times = np.array([1.0, 2, 4, 1000]), np.array([0.0, 0, 0, 1e6])
    line = _below_the_knee(SimpleNamespace(sizes=sizes, floors_ns=times))
    assert np.isfinite(line.gBps)


def test_below_the_knee_collectives_take_their_latency_and_their_bytes():
    """50 µs and 12.5 bytes a ns, up to 4 MB; beyond, a timeout."""
    sizes = np.array([0.0, 1e6, 2e6, 4e6, 8e6])
    times = 50_000 + sizes / 12.5 + np.where(sizes > 4e6, 20 * MS, 0)
    line = _below_the_knee(SimpleNamespace(sizes=sizes, floors_ns=times))
    assert (line.alpha_ns, line.gBps) == (pytest.approx(50_000), pytest.approx(12.5))
    assert _below_the_knee(SimpleNamespace(sizes=sizes[:-1], floors_ns=times[:-1])) is None
