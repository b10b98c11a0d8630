"""Many small collectives of known latency, and the same bytes in one."""

from dataclasses import replace

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.trace.spool.layout import Op
from tests.diagnose.programs import Do, Job
from tests.diagnose.synthetic import MS, World

SIZES = (20_000, 40_000, 160_000)
ALPHA_NS = 0.3 * MS
COUNT = 60
WORLD = World(
    noise=0.01,
    style="blocking",
    buckets=COUNT,
    bucket_bytes=SIZES,
    fabric=lambda move: ALPHA_NS + move.size_bytes / 2,
)
MERGED = replace(WORLD, buckets=1, bucket_bytes=(COUNT * sum(SIZES) // len(SIZES),))


def test_many_small_collectives_cost_their_latency(worst, evidence):
    finding = worst(WORLD)
    assert finding.mode == "latency_bound"
    assert finding.severity == pytest.approx(WORLD.lost_against(MERGED), rel=0.1)
    assert evidence(finding)["latency_of_one"] == pytest.approx(ALPHA_NS, rel=0.05)
    assert evidence(finding)["collectives_per_step"] == COUNT


def test_the_bucket_size_to_set_is_told(worst):
    first = worst(WORLD).options[0]
    assert "bucket_cap_mb=25" in first.action
    assert "1 instead of 60 a step" in first.action


def test_small_ones_beside_large_are_found_in_few_steps(worst):
    """Four in five are small, and most of the time is that of the large."""
    large = 8_000_000
    few = replace(WORLD, steps=8, buckets=20, bucket_bytes=(2_000,) * 4 + (large,))
    merged = replace(few, buckets=5, bucket_bytes=(16 * 2_000,) + (large,) * 4)
    finding = worst(few)
    assert finding.mode == "latency_bound"
    assert finding.severity == pytest.approx(few.lost_against(merged), rel=0.1)


def test_traffic_of_others_is_no_latency():
    """It costs what the run gains without it, although latency takes longer, too, beside it."""
    calm = replace(WORLD, bucket_bytes=(8,))
    busy = replace(calm, fabric=lambda move: ALPHA_NS * (3 if move.step // 4 % 3 == 1 else 1))
    found = {one.mode: one.severity for one in diagnose(busy.trace()).findings}
    want = busy.lost_against(replace(calm, fabric=lambda move: ALPHA_NS))
    assert found["fabric_contention"] == pytest.approx(want, rel=0.1)
    assert found["latency_bound"] > 0


def test_one_tiny_size_needs_no_curve(worst):
    world = replace(WORLD, bucket_bytes=(8,), fabric=lambda move: ALPHA_NS)
    finding = worst(world)
    assert finding.mode == "latency_bound"
    assert finding.severity == pytest.approx(world.lost_against(replace(world, buckets=1)), rel=0.1)


def test_one_size_that_a_slow_link_would_explain_is_not_called_latency():
    # 100 kB in 1.3 ms: over 1 Gb/s its bytes alone take 1.2 ms
    world = replace(WORLD, bucket_bytes=(100_000,), fabric=lambda move: 1.3 * MS)
    assert "latency_bound" not in [f.mode for f in diagnose(world.trace()).findings]


def test_collectives_whose_sizes_nobody_recorded_are_not_called_small():
    trace = replace(WORLD, bucket_bytes=(8,), fabric=lambda move: ALPHA_NS).trace()
    for name in ("bytes_in", "bytes_out"):
        trace.events = trace.events.with_column(name, 0 * trace.events[name])
    assert "latency_bound" not in [f.mode for f in diagnose(trace).findings]


def test_a_few_small_ones_a_step_are_usual():
    world = World(noise=0.01, after_backward=((Op.ALL_REDUCE, 8),) * 3)
    assert "latency_bound" not in [f.mode for f in diagnose(world.trace()).findings]


def test_many_ranks_are_offered_an_algorithm_of_fewer_hops(worst):
    finding = worst(replace(WORLD, ranks=16))
    tree = next(option for option in finding.options if "NCCL_ALGO=Tree" in option.action)
    # 2 log2(16) = 8 hops instead of 2 * 15: 22 of 30 less of the latency
    faster = replace(WORLD, fabric=lambda move: ALPHA_NS * 8 / 30 + move.size_bytes / 2)
    assert tree.gain == pytest.approx(
        replace(WORLD, ranks=16).lost_against(replace(faster, ranks=16)), rel=0.1
    )


def test_collectives_that_work_waits_for_in_turn_cannot_be_merged(worst):
    """Sixteen layers, each followed by a reduction of 4 kB that takes .3 ms whatever its size."""

    def layers(rank):
        return [
            one for _ in range(16) for one in (Do("work", 2 * MS), Do("call", group=0, size=4096))
        ]

    def job(latency_ns):
        world = [("tensor", tuple(range(4)))]
        takes = {"transfer": lambda do, step: latency_ns, "noise": 0.005}
        return Job(ranks=4, groups=world, program=layers, **takes)

    finding = diagnose(job(0.3 * MS).run().trace()).findings[0]
    lost = 1 - job(0.0).run().length_ns / job(0.3 * MS).run().length_ns
    assert finding.mode == "latency_bound"
    assert finding.severity == pytest.approx(lost, rel=0.05)
    assert "larger micro-batches" in finding.options[0].action
