"""Links of known bandwidth: t = alpha + S / B is given, and so is what the bytes cost."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import When, Where
from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.measure.transfers import shapes, transfers
from evenstep.diagnose.sentences import make_finding
from evenstep.statistics.interval import Share
from evenstep.trace.spool.layout import Kind, Op, Phase
from evenstep.trace.trace import UNKNOWN
from tests.diagnose.programs import pipeline, staged
from tests.diagnose.synthetic import MS, World

MB = 1_000_000
SIZES = (25 * MB, 25 * MB, 25 * MB, 8 * MB)
ALPHA_NS = 0.05 * MS
WORLD = World(noise=0.01, bucket_bytes=SIZES, fabric=lambda move: ALPHA_NS + move.size_bytes / 1.5)
WITHOUT_BYTES = replace(WORLD, fabric=lambda move: ALPHA_NS)


def bound(world, *, facts=None, run=None):
    trace = world.trace()
    for info in trace.ranks.values():
        info.facts.update(facts or {})
    trace.run.update(run or {})
    return next(f for f in diagnose(trace).findings if f.mode == "bandwidth_bound")


@pytest.mark.parametrize("nanoseconds_per_byte", [1 / 1.5, 1 / 3.5])
@pytest.mark.parametrize("size", [25 * MB, 100 * MB])
def test_its_best_remedy_gives_back_what_it_costs(size, nanoseconds_per_byte):
    """Whether compute could hide the bytes or not: links may be faster."""
    finding = bound(
        World(
            noise=0.01, bucket_bytes=(size,) * 4, style="blocking",
            fabric=lambda move: ALPHA_NS + move.size_bytes * nanoseconds_per_byte,
        )
    )  # fmt: skip
    assert max(option.gain for option in finding.options) == pytest.approx(finding.severity)
    assert "links" not in finding.options[0].action


@pytest.mark.parametrize("style", ["overlapped", "blocking"])
def test_exposed_bytes_are_what_the_job_is_bound_by(style, worst):
    finding = worst(replace(WORLD, style=style))
    assert (finding.mode, finding.layer, finding.where.ranks) == ("bandwidth_bound", "fabric", ())
    lost = replace(WORLD, style=style).lost_against(replace(WITHOUT_BYTES, style=style))
    assert finding.severity == pytest.approx(lost, rel=0.1)


def test_a_profile_of_eight_steps_tells_it_too(worst):
    world = replace(WORLD, steps=8)
    finding = worst(world)
    assert finding.mode == "bandwidth_bound"
    lost = world.lost_against(replace(WITHOUT_BYTES, steps=8))
    assert finding.severity == pytest.approx(lost, rel=0.1)


def test_bus_bandwidth_is_the_links(evidence):
    # 1.5 GB/s of algorithm bandwidth, times 2 * 3 / 4
    assert evidence(bound(WORLD))["bus_bandwidth"] == pytest.approx(2.25, rel=0.01)


def test_large_buckets_of_one_size_are_bytes_whatever_the_latency(worst):
    world = replace(WORLD, bucket_bytes=(100 * MB,), style="blocking")
    lost = world.lost_against(replace(world, fabric=lambda move: ALPHA_NS))
    finding = worst(world)
    assert (finding.mode, finding.title) == ("bandwidth_bound", "Transfers fill the links")
    assert finding.severity == pytest.approx(lost, rel=0.1)
    assert finding.options[-1].gain == pytest.approx(7 / 8 * lost, rel=0.1)  # once in eight steps


def test_compute_hides_no_more_transfer_than_it_takes_itself():
    # 4 x 66.7 ms of bytes that block, beside 64 ms of work
    world = replace(WORLD, bucket_bytes=(100 * MB,), style="blocking")
    overlap = bound(world).options[0]
    assert overlap.action.startswith("overlap more")
    assert overlap.gain == pytest.approx(64 / (64 + 0.2 + 4 * (100 / 1.5 + 0.05)), rel=0.02)
    assert " → 267 ms a step with this remedy" in diagnose(world.trace()).verdict


def test_what_compute_could_hide_is_said_to_be_so_from_a_fifth_of_the_step_on(worst):
    world = replace(WORLD, fabric=lambda move: move.size_bytes / 3.5, style="blocking")
    finding = worst(world)
    assert finding.title == "Transfer not hidden behind compute"
    lost = world.lost_against(replace(world, fabric=lambda move: 0.0))
    assert finding.severity == pytest.approx(lost, rel=0.1)
    less = replace(WORLD, fabric=lambda move: move.size_bytes / 8, style="blocking")
    assert 0.1 < less.lost_against(replace(less, fabric=lambda move: 0.0)) < 0.2 < lost < 0.3
    assert not diagnose(less.trace()).findings


def test_transfers_are_not_called_exposed_where_compute_beside_them_is_unknown():
    trace = replace(WORLD, style="blocking").trace()
    assert "Exposed transfer is" in diagnose(trace).verdict
    trace.run["beside_calls"] = UNKNOWN
    found = diagnose(trace)
    assert not any(finding.mode == "bandwidth_bound" for finding in found.findings)
    assert "what of them compute hides is unknown" in found.verdict


def test_less_than_nccl_tests_reach_here_is_a_matter_of_tuning(evidence):
    floors = [{"op": "all_reduce", "bytes": 2**30, "busbw_gBps": 12.0, "ranks": 4}]
    finding = bound(WORLD, run={"floors": floors})
    assert "the links deliver less than they should" in finding.cause
    assert "nccl-tests on these nodes" in finding.cause
    tuned = replace(WORLD, fabric=lambda move: ALPHA_NS + move.size_bytes / 8)
    assert finding.options[0].gain == pytest.approx(WORLD.lost_against(tuned), rel=0.1)
    assert finding.severity == pytest.approx(WORLD.lost_against(tuned), rel=0.1)


@pytest.mark.parametrize("place", [{"pci": "0000:04:00.0"}, {"pci": None, "driver": "mlx5_core"}])
def test_links_as_fast_as_their_adapters_need_fewer_bytes_not_tuning(place):
    nic = {"name": "ens1", **place, "speed_gbps": 20.0}
    world = replace(WORLD, ranks_per_node=2)
    finding = bound(world, facts={"locality": {"nics": [nic]}})
    assert "2.5 GB/s expected (the speed of the network adapters)" in finding.cause  # 2.25 reached
    assert "less than they should" not in finding.cause
    assert not any("tune" in option.action for option in finding.options)


def test_more_than_the_adapters_carry_is_no_part_of_it():
    """Messages of a ring that move before its last rank has entered are not in the 2.25 GB/s."""
    nic = {"name": "ens1", "pci": "0000:04:00.0", "speed_gbps": 16.0}
    finding = bound(replace(WORLD, ranks_per_node=2), facts={"locality": {"nics": [nic]}})
    assert "GB/s of bus bandwidth, no less than the 2 GB/s expected (" in finding.cause


@pytest.mark.parametrize("driver", [None, "mlx5_core"])
def test_only_adapters_with_a_device_say_what_links_should_reach(driver):
    nic = {"name": "eth0", "pci": None, "driver": driver, "speed_gbps": 100.0}
    finding = bound(replace(WORLD, ranks_per_node=1), facts={"locality": {"nics": [nic]}})
    assert ("less than they should" in finding.cause) == (driver is not None)


@pytest.mark.parametrize("pci", [None, "0000:04:00.0"])
def test_adapters_are_taken_to_be_shared_by_the_groups_of_their_node(pci):
    """100 Gb/s for two groups are 6.25 GB/s for each at least, also where each has its own."""
    nic = {"name": "eth0", "pci": pci, "driver": "mlx5_core", "speed_gbps": 100.0}
    world = World(ranks=8, style="grid", tensor_parallel=2, ranks_per_node=2, noise=0.005)
    slow = replace(world, fabric=lambda move: 15 * MS)
    finding = bound(slow, facts={"locality": {"nics": [nic]}})
    assert "2.5 GB/s of bus bandwidth of 6.25 GB/s expected" in finding.cause


def test_members_that_are_not_traced_share_no_adapters():
    """Each of four groups has two nodes of its own, and one rank of which there is no trace."""
    world = World(ranks=32, style="grid", tensor_parallel=8, ranks_per_node=4, noise=0.01)
    trace = world.trace()
    gone = [int(rank) for rank in trace.ranks if rank % 8 == 7]
    trace.events = trace.events.select(~np.isin(trace.events["rank"], gone))
    for rank in gone:
        del trace.ranks[rank]
    found = shapes(trace, transfers(step_grid(trace)))
    assert {one.members: one.sharing for one in found} == {7: 1, 4: 4}


def test_of_one_size_the_less_unusual_of_latency_and_bandwidth_is_blamed():
    """16 buckets of 6 MB take 2 ms each on 4 ranks: at 4.5 GB/s of 12.5 GB/s, or 1.28 ms later than
    at those, 21 times the 60 µs of 6 hops."""
    world = World(
        noise=0.01, style="blocking", ranks_per_node=1, buckets=16, bucket_bytes=(6 * MB,)
    )
    world = replace(world, fabric=lambda move: 2 * MS)
    trace = world.trace()
    nic = {"name": "ens1", "pci": "0000:04:00.0", "speed_gbps": 100.0}
    for info in trace.ranks.values():
        info.facts["locality"] = {"nics": [nic]}
    finding = diagnose(trace).findings[0]
    assert finding.mode == "bandwidth_bound"
    # without the 60 µs, bytes take 1.94 ms; at 12.5 GB/s instead of 4.5, 36 % of that
    faster = replace(world, fabric=lambda move: (2 - 1.94 * 0.64) * MS)
    assert finding.severity == pytest.approx(world.lost_against(faster), rel=0.1)


@pytest.mark.parametrize(("reached", "mode"), [(0.375, "bandwidth_bound"), (0.75, None)])
def test_slow_transfers_are_short_of_what_is_expected_to_take_longest(reached, mode):
    """4 blocking buckets of 1 MB on 8 ranks: 140 µs of latency, 1.75 MB at .75 GB/s 2.33 ms; at
    half of that 4.67 ms. The 4.2 ms that the hops of TCP need at most would explain it, too."""
    world = World(
        ranks=8, noise=0.01, style="blocking", ranks_per_node=1, buckets=4,
        bucket_bytes=(1 * MB,), fabric=lambda move: 0.14 * MS + 1.75 * MB / reached,
    )  # fmt: skip
    nic = {"name": "ens1", "pci": "0000:04:00.0", "speed_gbps": 6.0}
    trace = world.trace()
    for info in trace.ranks.values():
        info.facts["locality"] = {"nics": [nic]}
    found = diagnose(trace).findings
    assert [finding.mode for finding in found if finding.severity > 0.05] == [mode] * bool(mode)
    usual = replace(world, fabric=lambda move: 0.14 * MS + 1.75 * MB / 0.75)
    lost = world.lost_against(usual)
    assert sum(one.severity for one in found if one.mode == mode) == pytest.approx(lost, rel=0.1)


def test_beside_a_late_rank_bytes_that_only_cost_what_they_must_are_no_fault(worst):
    # 49.8 ms of bytes exposed beside 64 ms of work, and a rank 12 ms late
    blocking = replace(WORLD, style="blocking").slow(2, Phase.BACKWARD, 12 * MS)
    assert (worst(blocking).mode, worst(blocking).where.ranks) == ("straggler", [2])


def test_transfer_that_hides_behind_compute_binds_nobody():
    world = replace(WORLD, fabric=lambda move: ALPHA_NS + move.size_bytes / 10)
    assert "bandwidth_bound" not in [f.mode for f in diagnose(world.trace()).findings]


def test_without_all_ranks_transfer_is_not_told_from_waiting():
    trace = WORLD.trace()
    trace.world = 5
    assert "bandwidth_bound" not in [f.mode for f in diagnose(trace).findings]


def test_a_group_of_a_name_that_others_have_is_told_by_its_ranks():
    world = World(ranks=16, style="grid", tensor_parallel=4, ranks_per_node=1, noise=0.005)
    slow = (2, 6, 10, 14)
    trace = replace(world, fabric=lambda move: (8 if move.members == slow else 2) * MS).trace()
    trace.groups = tuple(
        replace(group, name=group.name.rstrip("0123456789")) for group in trace.groups
    )
    finding = diagnose(trace).findings[0]
    assert list(finding.where.groups) == ["dp of ranks 2, 6, 10 and 14"]


def test_a_node_is_no_culprit_for_having_no_group_of_another_kind():
    # all groups across nodes are slow; only node 0 has one inside
    def took_ns(move):
        return (1 if move.members[1] == move.members[0] + 1 else 8) * MS

    world = World(ranks=16, style="grid", tensor_parallel=4, ranks_per_node=4, noise=0.005)
    trace = replace(world, fabric=took_ns).trace()
    others = [n for n, group in enumerate(trace.groups) if group.name in ("tp1", "tp2", "tp3")]
    left_out = (trace.events.kind == int(Kind.COLLECTIVE)) & np.isin(trace.events.group, others)
    trace.events = trace.events.select(~left_out)
    trace.run["floors"] = [{"op": "all_reduce", "bytes": 2**30, "busbw_gBps": 12.0, "ranks": 4}]
    finding = next(f for f in diagnose(trace).findings if f.mode == "bandwidth_bound")
    assert (list(finding.where.groups), list(finding.where.nodes)) == (
        ["dp0", "dp1", "dp2", "dp3"], [],
    )  # fmt: skip


def test_a_remedy_that_gives_back_a_small_part_of_the_cost_is_none():
    """Of transfers that fill the links hardly any can be hidden: that is no advice."""
    small, large = Share(0.02, 0.01, 0.03), Share(0.3, 0.29, 0.31)
    finding = make_finding(
        "input_pipeline.everybody", Share(0.4, 0.39, 0.41), where=Where(), when=When(),
        numbers={"usual": MS, "who": "every rank", "short": ""},
        options={"workers": small, "storage": large},
    )  # fmt: skip
    assert [option.gain for option in finding.options] == [0.3]


def two_stages(message_ms, replicas):
    """Messages of 4 MB, and of two replicas 25 MB summed in 5 ms: at 5 GB/s."""

    def took_ns(do, step):
        return MS * (message_ms if do.what in ("send", "receive") else 5)

    return pipeline(stages=2, replicas=replicas, noise=0.01, transfer=took_ns).run()


@pytest.mark.parametrize(("replicas", "usual_ms"), [(1, 0.01), (2, 4 / 5)])
def test_messages_that_all_are_slow_cost_what_collectives_would_not_take(replicas, usual_ms):
    """At .5 GB/s; without collectives to compare with, all but a hop of 10 µs."""
    slow = two_stages(8, replicas)
    trace = slow.trace()
    if replicas == 1:
        trace.ranks[1].identity["hostname"] = "node1"
    finding = diagnose(trace).findings[0]
    assert finding.mode == "bandwidth_bound"
    assert list(finding.where.links) == ["node0-node1"] * (replicas == 1)
    lost = 1 - two_stages(usual_ms, replicas).length_ns / slow.length_ns
    assert finding.severity == pytest.approx(lost, rel=0.05)
    assert ("between such ranks" in finding.cause) == (replicas == 2)


def two_nodes(between_ms):
    """A pipeline of two stages on each of two nodes, within which messages take .2 ms."""

    def took_ns(ends, _step):
        return MS * (between_ms if len({rank // 4 for rank in ends}) == 2 else 0.2)

    trace, length_ns = staged(took_ns, replicas=2)
    for rank, info in trace.ranks.items():
        info.identity["hostname"] = f"node{rank // 4}"
    return trace, length_ns


def test_messages_between_nodes_count_where_collectives_within_tell_only_of_those_within():
    trace, length_ns = two_nodes(between_ms=8)
    finding = diagnose(trace).findings[0]
    assert finding.mode == "bandwidth_bound"
    assert finding.severity == pytest.approx(1 - two_nodes(0.01)[1] / length_ns, rel=0.1)


def test_messages_that_take_a_minor_part_of_the_step_are_the_price_of_a_pipeline():
    well, free = two_stages(0.8, 2), two_stages(0.01, 2)
    assert 0.01 < 1 - free.length_ns / well.length_ns < 0.1
    assert "bandwidth_bound" not in [f.mode for f in diagnose(well.trace()).findings]


def test_tokens_that_experts_exchange_are_no_gradients():
    tokens = replace(
        WORLD, bucket_bytes=(1000,), after_backward=((Op.ALL_TO_ALL, 100 * MB),), style="blocking"
    )
    actions = " ".join(option.action for option in bound(tokens).options)
    assert "micro-batches in turn" in actions
    assert "gradient" not in actions
    assert "bucket" not in actions
