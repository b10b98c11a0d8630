"""Longer pipeline stages and sequences of different lengths, of known cost."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.jobs.pipeline import NAMES, Pipeline
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.modes.workload_imbalance import (
    _dealt_out,
    _weighted_sum,
    rotating,
    stages_passed,
)
from evenstep.importers.content import SourceFile
from evenstep.importers.draft import Draft
from evenstep.importers.operations import operation_tables
from evenstep.importers.operations.operation_records import trace_of
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Group
from tests.diagnose.programs import Do, Job, pipeline
from tests.diagnose.synthetic import MS, World

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "what-if"
SECONDS = dict.fromkeys(NAMES, 0.001) | {"forward-compute": 0.1, "backward-compute": 0.2}
EVEN = Pipeline(dp=4, pp=4, micro=8, steps=12, seconds=SECONDS)


def trace_from(table):
    draft = Draft()
    numbers = np.array([draft.name(name) for name in NAMES])
    return trace_of(table.with_column("optype", numbers[table.optype]), draft, {})


def found(trace):
    return {finding.mode: finding for finding in diagnose(trace).findings}


def with_lengths(pipeline, spread):
    """Durations with sequences of other lengths for every micro-batch of every dp rank."""
    draw = np.random.default_rng(1)
    _, _, where = pipeline.program()
    size = {}
    durations = pipeline.durations()
    for step, op in durations:
        if "compute" in op[0]:
            batch = (step, op[1], where[op][2])
            durations[step, op] *= size.setdefault(batch, draw.lognormal(0, spread))
    return durations


# -- pipeline stages -------------------------------------------------------------------------------


@pytest.mark.skipif(not DATA.is_dir(), reason="the published trace is not beside this checkout")
def test_the_published_trace_is_the_last_stage_with_the_published_m_s():
    path = DATA / "trace-ST.parquet"
    with path.open("rb") as file:
        trace = operation_tables.read([SourceFile(path, file.read(65536))])
    diagnosis = diagnose(trace)
    finding = diagnosis.findings[0]
    assert (finding.mode, finding.where.ranks) == ("workload_imbalance", [6, 7])
    evidence = {item.metric: item for item in finding.evidence}
    assert diagnosis.summary["stragglers"]["ms"]["Ms"] == pytest.approx(1.2194, rel=1e-3)  # ms-ST
    # every micro-batch waits for the longest stage: a step of 2.2144 s takes all it has beyond them
    longer = evidence["work_of_the_stage"]
    assert finding.severity == pytest.approx(
        (longer.measured - longer.expected) / 2.2144e9, rel=0.05
    )


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("following", [False, True])
def test_a_longer_stage_is_named_with_its_ranks_and_what_it_costs(stage, following):
    pipeline = replace(EVEN, stage_factor={stage: 1.5}, following=following)
    without, there = (
        sum(each.lengths(each.durations()))
        for each in (replace(EVEN, following=following), pipeline)
    )
    finding = found(trace_from(pipeline.table()))["workload_imbalance"]
    assert finding.where.ranks == [dp * 4 + stage for dp in range(4)]
    assert finding.where.groups == [f"stage {stage}"]
    assert finding.severity == pytest.approx(1 - without / there, abs=1e-3)


def test_moving_layers_gives_back_what_equal_stages_save():
    uneven = replace(EVEN, stage_factor={3: 2.0})
    even = replace(EVEN, stage_factor=dict.fromkeys(range(4), 5 / 4))
    now, then = (np.mean(p.lengths(p.durations())) for p in (uneven, even))
    finding = found(trace_from(uneven.table()))["workload_imbalance"]
    as_short, moved = finding.options
    assert as_short.gain == pytest.approx(finding.severity)
    assert moved.gain == pytest.approx(1 - then / now, rel=0.02)


@pytest.mark.parametrize(("dp", "stage"), [(2, 1), (4, 3)])
def test_a_slow_worker_is_no_long_stage(dp, stage):
    pipeline = replace(EVEN, dp=dp)
    durations = pipeline.durations()
    slow = {
        key: value * (1.5 if "compute" in key[1][0] and key[1][1:3] == (1, stage) else 1)
        for key, value in durations.items()
    }
    findings = diagnose(trace_from(pipeline.table(slow))).findings
    assert [(f.mode, f.where.ranks) for f in findings] == [("straggler", [4 + stage])]
    now, then = (np.mean(pipeline.lengths(which)) for which in (slow, durations))
    assert findings[0].severity == pytest.approx(1 - then / now, rel=0.02)


@pytest.mark.parametrize("gathering_last", [False, True])
def test_a_worker_slow_in_turn_is_no_long_data(gathering_last):
    pipeline = replace(EVEN, dp=2, gathering_last=gathering_last)
    durations = pipeline.durations()
    draw = np.random.default_rng(4)
    turns = [(int(draw.integers(2)), int(draw.integers(4))) for _ in range(pipeline.steps)]
    slow = {
        (step, op): value * (1.6 if "compute" in op[0] and op[1:3] == turns[step] else 1)
        for (step, op), value in durations.items()
    }
    findings = diagnose(trace_from(pipeline.table(slow))).findings
    ranks = sorted({dp * 4 + stage for dp, stage in turns})
    assert [(f.mode, sorted(f.where.ranks), f.when.pattern) for f in findings] == [
        ("straggler", ranks, "rotating")
    ]
    now, then = (np.mean(pipeline.lengths(which)) for which in (slow, durations))
    assert findings[0].severity == pytest.approx(1 - then / now, rel=0.02)


@pytest.mark.parametrize(
    ("turns", "dealt"),
    [
        (np.arange(60) % 2, False),
        (np.arange(60) // 3 % 4, False),
        (np.random.default_rng(3).integers(4, size=60), True),
    ],
)
def test_ranks_that_are_slow_in_order_have_no_longer_data(turns, dealt):
    assert rotating(1 + 0.1 * np.eye(turns.max() + 1)[turns]) == dealt


def test_long_data_beside_a_slow_step_of_one_worker_is_both():
    pipeline = replace(EVEN, steps=16)
    durations = with_lengths(pipeline, 0.1)
    slow = {
        (step, op): value * (2 if "compute" in op[0] and (step, *op[1:3]) == (5, 1, 2) else 1)
        for (step, op), value in durations.items()
    }
    where = {f.mode: f.where.ranks for f in diagnose(trace_from(pipeline.table(slow))).findings}
    assert (where["workload_imbalance"], where["straggler"]) == ((), [6])


def test_equal_stages_are_nobody_s_fault():
    assert found(trace_from(EVEN.table())) == {}


def test_a_long_stage_is_seen_by_lateness_where_groups_say_who_is_which():
    # dp × tp of the synthetic grid, with its second kind of group called a pipeline
    grid = World(style="grid", tensor_parallel=2, ranks=8, noise=0.01)
    slow = grid.slow([1, 3, 5, 7], Phase.BACKWARD, 20 * MS)
    trace = slow.trace()
    named = [Group(g.uid, g.name.replace("tp", "pp"), g.ranks, g.backend) for g in trace.groups]
    finding = found(replace(trace, groups=tuple(named)))["workload_imbalance"]
    assert sorted(finding.where.ranks) == [1, 3, 5, 7]
    assert finding.severity == pytest.approx(slow.injected_share(), rel=0.1)


@pytest.mark.parametrize("device", [False, True])
def test_a_long_stage_is_seen_by_who_passes_work_on_to_whom(device):
    job = pipeline(slow=dict.fromkeys((2, 3), 1.5), noise=0.02, seed=5, steps=20, device=device)
    slow, even = job.run(), replace(job, slow={}).run()
    trace = slow.trace()
    whole = Group(9, "pp", tuple(trace.ranks), "nccl")  # all pass work on in one group
    finding = found(replace(trace, groups=(*trace.groups, whole)))["workload_imbalance"]
    assert finding.where.ranks == [2, 3]
    assert finding.where.groups == ["stage 1"]
    assert finding.severity == pytest.approx(1 - even.length_ns / slow.length_ns, rel=0.1)


def test_a_ring_of_messages_has_no_stages():
    job = pipeline(stages=4, replicas=1, steps=12)

    def ring(rank):
        before, after = (rank - 1) % 4, (rank + 1) % 4
        passed = [Do("send", peer=after), Do("receive", peer=before), Do("work", MS)]
        return [Do("work", 8 * MS), *passed, *passed, Do("wait")]

    trace = replace(job, program=ring).run().trace()
    assert (stages_passed(step_grid(trace).graph) == -1).all()


@pytest.mark.parametrize("blocking", [False, True])
def test_two_ranks_that_exchange_what_is_done_have_no_stages(blocking):
    def exchange(rank):
        send, receive = Do("send", peer=1 - rank), Do("receive", peer=1 - rank)
        return [Do("work", 10 * MS), *((receive, send) if rank else (send, receive)), Do("wait")]

    job = Job(ranks=2, groups=[("world", (0, 1))], program=exchange, meets=blocking, steps=30)
    slow, even = replace(job, slow={1: 1.5}).run(), job.run()
    assert (stages_passed(step_grid(slow.trace()).graph) == -1).all()
    finding = found(slow.trace())["straggler"]
    assert finding.where.ranks == [1]
    assert finding.severity == pytest.approx(1 - even.length_ns / slow.length_ns, rel=0.15)


# -- sequences -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "forward"), [("overlapped", 0.25), ("blocking", 1), ("gathered", 1)]
)
def test_sequences_of_different_lengths_cost_what_equal_ones_save(style, forward):
    """Also where forward varies far less with the length than backward does."""
    calm = World(style=style, noise=0.01, ranks=8)
    extra = np.random.default_rng(1).exponential(10 * MS, (calm.steps, calm.ranks))
    mean = extra.mean(axis=1, keepdims=True) + 0 * extra
    varied, even = (
        calm.delayed(Phase.FORWARD, forward * ns, computing=True).delayed(
            Phase.BACKWARD, 2 * ns, computing=True
        )
        for ns in (extra, mean)
    )
    findings = diagnose(varied.trace()).findings
    assert findings[0].mode == "workload_imbalance"
    assert list(findings[0].where.ranks) == []
    want = 1 - even.length_ns() / varied.length_ns()
    assert findings[0].severity == pytest.approx(want, rel=0.1)


@pytest.mark.parametrize("buckets", [4, 20])
def test_lengths_show_between_few_buckets_and_between_many(buckets):
    calm = World(on_device=True, noise=0.002, ranks=8, buckets=buckets)
    batch = np.random.default_rng(1).exponential(30 * MS, (calm.steps, calm.ranks))
    varied = calm.delayed(Phase.FORWARD, batch / 3)
    for bucket in range(buckets):
        varied = varied.delayed(Phase.BACKWARD, 2 / 3 * batch / buckets, bucket=bucket)
    trace = varied.trace()
    trace.events = trace.events.select(trace.events.kind != int(Kind.PHASE))
    finding = diagnose(trace).findings[0]
    assert (finding.mode, list(finding.where.ranks)) == ("workload_imbalance", [])


@pytest.mark.parametrize(
    ("often", "dealt_out"),
    [
        ([14, 0], False),
        ([2, 0], True),
        ([0, 1, 0], True),
        ([17, 5, 5], True),
        ([14, 14, 0, 0], False),
        ([5, 5, 0, 0], True),
    ],
)
def test_long_batches_come_to_all_ranks(often, dealt_out):
    """Two of two to the same rank are chance, fourteen are not (1 in 8,192), nor fourteen to the
    same two of four (6 in 16,384)."""
    assert _dealt_out(np.arange(20)[:, None] < np.array(often)) is dealt_out


@pytest.mark.parametrize("skew", [1.0, 1.02])
@pytest.mark.parametrize(("width", "ranks"), [(4, 16), (8, 16)])
def test_ranks_that_share_a_batch_count_once(width, ranks, skew):
    """Of the ranks of a tensor group one may always be the slowest, by a little."""
    calm = World(style="grid", tensor_parallel=width, ranks=ranks, noise=0.004, steps=80)
    batch = np.random.default_rng(1).lognormal(0, 0.35, (80, ranks // width)) * 20 * MS
    extra = np.repeat(batch, width, axis=1) * np.tile([skew, *[1] * (width - 1)], ranks // width)
    mean = extra.mean(axis=1, keepdims=True) + 0 * extra
    varied, even = (
        calm.delayed(Phase.FORWARD, ns, computing=True).delayed(
            Phase.BACKWARD, 2 * ns, computing=True
        )
        for ns in (extra, mean)
    )
    finding = diagnose(varied.trace()).findings[0]
    assert (finding.mode, finding.where.ranks) == ("workload_imbalance", ())
    want = 1 - even.length_ns() / varied.length_ns()
    assert finding.severity == pytest.approx(want, rel=0.1)


def test_a_stop_beside_sequences_of_different_lengths_stays_a_stop():
    """It is in neither forward nor backward, so no length of data explains it."""
    world = World(noise=0.01, ranks=2)
    extra = np.random.default_rng(1).exponential(10 * MS, (world.steps, world.ranks))
    for phase, ns in ((Phase.FORWARD, extra), (Phase.BACKWARD, 2 * extra)):
        world = world.delayed(phase, ns, computing=True)
    stop = world.everywhere()
    stop[40, 1] = 10_000 * MS
    findings = diagnose(world.delayed(Phase.OTHER, stop).trace()).findings
    assert (findings[0].mode, findings[0].where.ranks) == ("straggler", [1])
    assert list(findings[0].when.steps) == [(40, 40)]
    assert "workload_imbalance" in [finding.mode for finding in findings]


def test_a_burst_of_one_rank_beside_sequences_of_different_lengths_is_no_batch():
    """Four steps of one of 16 ranks (1 in 4,096), of which its two longest alone are chance."""
    world = World(noise=0.01, ranks=16)
    extra = np.random.default_rng(4).uniform(0, 6 * MS, (world.steps, world.ranks))
    extra[30:34, 5] += [30 * MS, 40 * MS, 50 * MS, 60 * MS]
    for phase, ns in ((Phase.FORWARD, extra), (Phase.BACKWARD, 2 * extra)):
        world = world.delayed(phase, ns, computing=True)
    findings = diagnose(world.trace()).findings
    assert (findings[0].mode, findings[0].where.ranks) == ("straggler", [5])
    assert list(findings[0].when.steps) == [(30, 33)]
    assert "workload_imbalance" in [finding.mode for finding in findings]


def test_a_rank_that_is_slow_in_three_steps_of_ten_has_no_longer_data():
    """Without phases, as in logs of calls, beside noise of 5 % in which other ranks are last."""
    world = World(ranks=16, steps=10, noise=0.05, phases=False)
    extra = world.everywhere()
    extra[[4, 6, 8], 5] = 5 * MS
    for phase, ns in ((Phase.FORWARD, extra), (Phase.BACKWARD, 2 * extra)):
        world = world.delayed(phase, ns, computing=True)
    findings = diagnose(world.trace()).findings
    assert (findings[0].mode, findings[0].where.ranks) == ("straggler", [5])
    assert "workload_imbalance" not in [finding.mode for finding in findings]


def test_sequences_are_told_from_a_long_stage_in_a_table():
    pipeline = replace(EVEN, dp=8)
    findings = diagnose(trace_from(pipeline.table(with_lengths(pipeline, 0.3)))).findings
    assert [finding.when.pattern for finding in findings] == ["rotating"]
    assert findings[0].where.ranks == ()


def test_both_causes_are_named_and_add_up_to_no_more_than_the_step():
    pipeline = replace(EVEN, dp=8, stage_factor={3: 1.6})
    findings = diagnose(trace_from(pipeline.table(with_lengths(pipeline, 0.3)))).findings
    assert {finding.when.pattern for finding in findings} == {"rotating", "chronic"}
    assert sum(finding.severity for finding in findings) < 1


def test_a_rank_that_is_always_slow_has_no_long_sequences():
    slow = World(noise=0.02, ranks=8).slow(3, Phase.FORWARD, 20 * MS)
    modes = list(found(slow.slow(3, Phase.BACKWARD, 40 * MS).trace()))
    assert modes[0] == "straggler"
    assert "workload_imbalance" not in modes


def test_two_ranks_in_turns_are_no_sequences_though_these_vary_too():
    """Two of four ranks are slow in turns of three steps. Sequences that vary a little, too, share
    what the run loses to both."""
    random = np.random.default_rng(1)
    turn = np.eye(4)[np.where(random.random(28) < 0.4, 0, 3)].repeat(3, axis=0)
    varied, extra = World(ranks=4, noise=0.002, steps=84), 0.7 * MS * random.gamma(2, 1, (84, 4))
    for phase, share in ((Phase.FORWARD, 1), (Phase.BACKWARD, 2)):
        varied = varied.delayed(phase, share * extra, computing=True)
    slow = varied
    for phase, ns in ((Phase.FORWARD, 6 * MS), (Phase.BACKWARD, 12 * MS)):
        slow = slow.delayed(phase, ns * turn, computing=True)
    stragglers = [one for one in diagnose(slow.trace()).findings if one.mode == "straggler"]
    assert [one.where.ranks for one in stragglers] == [[3], [0]]
    want = 1 - varied.length_ns() / slow.length_ns()
    assert sum(one.severity for one in stragglers) == pytest.approx(want, rel=0.15)


def test_a_machine_that_is_slow_in_turns_has_no_long_sequences():
    world = World(ranks=8, noise=0.005)
    turn = np.eye(8)[np.arange(world.steps) % 8]
    for phase, ns in ((Phase.FORWARD, 10 * MS), (Phase.BACKWARD, 20 * MS)):
        world = world.delayed(phase, ns * turn, computing=True)
    assert "workload_imbalance" not in found(world.trace())


def test_what_makes_the_optimizer_longer_too_is_not_the_data():
    world = World(ranks=8, noise=0.002)
    factor = np.random.default_rng(1).exponential(0.2, (world.steps, world.ranks))
    lengths = ((Phase.FORWARD, 20 * MS), (Phase.BACKWARD, 40 * MS), (Phase.OPTIMIZER, 4 * MS))
    for phase, ns in lengths[:2]:
        world = world.delayed(phase, ns * factor, computing=True)
    assert "workload_imbalance" in found(world.trace())
    slower = world.delayed(Phase.OPTIMIZER, lengths[2][1] * factor, computing=True)
    assert "workload_imbalance" not in found(slower.trace())


def test_lengths_beside_machines_that_vary_cost_what_equal_lengths_save():
    """Half as much of the variance is the machine's, which the optimizer shares."""
    calm = World(ranks=8, steps=160, noise=0.002)
    draw = np.random.default_rng(2)
    machine, lengths = (np.abs(draw.normal(0, share, (160, 8))) for share in (0.14, 0.2))
    for phase, ns in (
        (Phase.FORWARD, 20 * MS),
        (Phase.BACKWARD, 40 * MS),
        (Phase.OPTIMIZER, 4 * MS),
    ):
        calm = calm.delayed(phase, ns * machine, computing=True)
    mean = lengths.mean(axis=1, keepdims=True) + 0 * lengths
    varied, even = (
        calm.delayed(Phase.FORWARD, 20 * MS * more, computing=True).delayed(
            Phase.BACKWARD, 40 * MS * more, computing=True
        )
        for more in (lengths, mean)
    )
    want = 1 - even.length_ns() / varied.length_ns()
    assert found(varied.trace())["workload_imbalance"].severity == pytest.approx(want, rel=0.25)


@pytest.mark.parametrize("noise", [(0.05, 0.05), (0.07, 0.02), (0.02, 0.09)])
def test_the_noise_of_parts_is_what_they_have_not_in_common(noise):
    """A third and two thirds of the work, longer by lengths of 8 %."""
    draw = np.random.default_rng(0)
    parts = draw.normal(1, 0.08, (500, 16, 1)) + draw.normal(0, noise, (500, 16, 2))
    weight = np.array([1, 2]) / 3
    apart = float(weight**2 @ np.square(noise))
    _, found = _weighted_sum(parts, weight)
    assert found == pytest.approx(apart / (apart + 0.08**2), abs=0.03)


def test_data_dealt_out_by_chance_is_told_from_ranks_in_turns():
    """Of 32 ranks 42 draws leave 8.4 out, give or take 2: who is slowest is as often one of few."""
    draw = np.random.default_rng(1)
    drawn = [rotating(1 + 0.1 * np.eye(32)[draw.integers(32, size=42)]) for _ in range(200)]
    assert np.mean(drawn) > 0.97
    assert not rotating(1 + 0.1 * np.eye(32)[draw.integers(14, size=42)])


def test_a_chronic_rank_beside_long_sequences_is_counted_once():
    world = World(ranks=8, noise=0.002)
    extra = np.random.default_rng(1).exponential(10 * MS, (world.steps, world.ranks))
    for phase, share in ((Phase.FORWARD, 1), (Phase.BACKWARD, 2)):
        world = world.delayed(phase, share * extra, computing=True)
    slow = world.slow(2, Phase.OPTIMIZER, 60 * MS)
    assert sum(f.severity for f in diagnose(slow.trace()).findings) < 0.6


def test_noise_is_no_imbalance_of_the_work():
    assert "workload_imbalance" not in found(World(noise=0.1, ranks=8).trace())


# -- whatever is in the table ----------------------------------------------------------------------


@settings(max_examples=15)
@given(
    st.builds(
        Pipeline,
        dp=st.integers(1, 3),
        pp=st.integers(1, 3),
        micro=st.integers(1, 4),
        seed=st.integers(0, 10**6),
    ),
    st.randoms(use_true_random=False),
    st.floats(0, 0.9),
)
def test_any_part_of_a_table_can_be_diagnosed(pipeline, random, lost):
    table = pipeline.table()
    kept = np.array([random.random() >= lost for _ in range(len(table))])
    kept[0] = True
    diagnosis = diagnose(trace_from(table.select(kept)))
    assert sum(finding.severity for finding in diagnosis.findings) <= 1
