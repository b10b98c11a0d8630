"""The replay of operation tables, against jobs whose program is known and run event by event."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.jobs.pipeline import NAMES, Pipeline
from evenstep.diagnose.predict.published import job, prepare_table, published_results, replay_job
from evenstep.importers.content import SourceFile
from evenstep.importers.operations import operation_tables
from evenstep.trace.columns import Columns
from evenstep.trace.operation_messages import messages
from evenstep.trace.operations import on_one_line

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "what-if"
TRANSFERS = ("send", "recv", "gather", "scatter", "reduce", "clip")

PIPELINES = st.builds(
    Pipeline,
    dp=st.integers(1, 3),
    pp=st.integers(1, 4),
    micro=st.integers(1, 6),
    overlapping=st.booleans(),
    gathering_last=st.booleans(),
    following=st.booleans(),
    seed=st.integers(0, 10**6),
) | st.builds(
    lambda pp, groups, **rest: Pipeline(pp=pp, micro=pp * groups, **rest),
    pp=st.integers(2, 3),
    groups=st.integers(1, 2),
    vpp=st.integers(2, 3),
    overlapping=st.booleans(),
    seed=st.integers(0, 10**6),
)


def planned(pipeline, durations=None):
    return job(pipeline.table(durations or pipeline.durations()), NAMES)


def unpaired(table):
    """Messages of all steps whose other end is not in the table."""
    return messages(prepare_table(table)).unpaired


def as_it_was(plan, delayed=False):
    held = plan.delay_s[:, None] if delayed else None
    return replay_job(plan, plan.own_s[:, None], held)[:, 0]


def usual(durations):
    """Mean of computes and median of transfers by type: what the ideal is made of."""
    by_type = {}
    for (_, op), value in durations.items():
        by_type.setdefault(op[0], []).append(value)
    middle = {
        name: np.median(values) if any(word in name for word in TRANSFERS) else np.mean(values)
        for name, values in by_type.items()
    }
    return {key: middle[key[1][0]] for key in durations}


# -- against the program ---------------------------------------------------------------------------


@settings(max_examples=40)
@given(PIPELINES)
def test_every_job_replays_as_it_ran(pipeline):
    durations = pipeline.durations()
    assert as_it_was(planned(pipeline)) == pytest.approx(pipeline.lengths(durations))


@settings(max_examples=40)
@given(PIPELINES)
def test_the_ideal_is_the_job_run_again_with_usual_durations(pipeline):
    ideal = published_results(planned(pipeline))["step_t_noblk"]
    assert list(ideal.values()) == pytest.approx(pipeline.lengths(usual(pipeline.durations())))


@settings(max_examples=20)
@given(PIPELINES, st.data())
def test_one_part_as_it_was_is_the_job_run_again_with_only_that_part(pipeline, data):
    durations = pipeline.durations()
    stage = data.draw(st.integers(0, pipeline.pp - 1))
    mixed = {k: durations[k] if k[1][2] == stage else v for k, v in usual(durations).items()}
    found = published_results(planned(pipeline))
    alone = found["blocking_decompose_by_stage_per_step"]
    lengths = [ideal * alone[step][stage] for step, ideal in found["step_t_noblk"].items()]
    assert lengths == pytest.approx(pipeline.lengths(mixed))


@settings(max_examples=30)
@given(PIPELINES, st.randoms(use_true_random=False), st.floats(0, 0.3))
def test_with_its_unrecorded_work_any_part_of_a_table_takes_what_was_measured(
    pipeline, random, lost
):
    table = replace(pipeline, steps=3).table()
    kept = np.array([random.random() >= lost for _ in range(len(table))])
    kept[0] = True
    left = table.select(kept)
    assume(on_one_line(left) == on_one_line(table))  # a few rows may not tell
    plan = job(left, NAMES)
    assert as_it_was(plan, delayed=True) == pytest.approx(plan.measured_s)


@settings(max_examples=20)
@given(PIPELINES, st.integers(0, 10**6))
def test_longer_operations_never_make_a_shorter_step(pipeline, row):
    plan = planned(pipeline)
    longer = plan.own_s.copy()
    longer[row % len(longer)] += 1.0
    assert (replay_job(plan, longer[:, None])[:, 0] >= as_it_was(plan) - 1e-12).all()


# -- closed forms ----------------------------------------------------------------------------------


def exact(forward_s, backward_s, **shape):
    """A job in which nothing else takes time."""
    seconds = dict.fromkeys(NAMES, 0.0)
    seconds |= {"forward-compute": forward_s, "backward-compute": backward_s}
    return Pipeline(seconds=seconds, **shape)


@pytest.mark.parametrize(("pp", "micro"), [(1, 3), (2, 2), (4, 4), (4, 9), (8, 16)])
def test_one_forward_one_backward_takes_micro_batches_and_the_fill(pp, micro):
    # Narayanan et al. 2021, section 2.2.1: (m + p - 1)(f + b)
    plan = planned(exact(1.0, 2.0, dp=1, pp=pp, micro=micro, steps=1))
    assert as_it_was(plan)[0] == pytest.approx((micro + pp - 1) * 3.0)


@pytest.mark.parametrize(("pp", "vpp", "groups"), [(2, 2, 2), (4, 2, 2), (4, 3, 1)])
def test_virtual_stages_divide_the_fill(pp, vpp, groups):
    # Narayanan et al. 2021, section 2.2.2: m (f + b) + (p - 1)(f + b) / v, chunks being 1/v
    micro = pp * groups
    plan = planned(exact(1.0 / vpp, 2.0 / vpp, dp=1, pp=pp, vpp=vpp, micro=micro, steps=1))
    assert as_it_was(plan)[0] == pytest.approx(3.0 * micro + 3.0 * (pp - 1) / vpp)


def test_a_stage_twice_as_long_sets_the_pace():
    # every micro-batch waits for the longest stage: (m - 1) of them in a row there
    pipeline = exact(1.0, 2.0, dp=1, pp=3, micro=6, steps=1)
    pipeline.stage_factor = {2: 2.0}
    assert as_it_was(planned(pipeline))[0] == pytest.approx(6 * 6.0 + 2 * 3.0)


# -- tables that are not whole ---------------------------------------------------------------------


def test_steps_may_have_different_numbers_of_micro_batches():
    short, long = (Pipeline(micro=micro, steps=1, seed=micro) for micro in (3, 5))
    second = long.table()
    tables = [short.table(), second.with_column("step", second.step + 7)]
    plan = job(Columns.concatenate(tables), NAMES)
    want = [pipeline.lengths(pipeline.durations())[0] for pipeline in (short, long)]
    assert plan.steps.tolist() == [0, 7]
    assert as_it_was(plan) == pytest.approx(want)


def test_a_message_without_its_other_end_is_counted():
    table = Pipeline(steps=1, dp=1).table()
    sends = np.flatnonzero(table.optype == NAMES.index("forward-send"))
    assert unpaired(table.select(np.delete(np.arange(len(table)), sends[0]))) == 1


def test_messages_recorded_at_the_ends_of_the_model_have_no_other_end():
    table = Pipeline(steps=1, dp=1, pp=2, vpp=2, micro=2).table()
    extra = table.select(table.optype == NAMES.index("forward-recv")).select(slice(0, 1))
    first = extra.with_column("stage", 0 * extra.stage).with_column("rank", 0 * extra.stage)
    first = first.with_column("start_s", 0 * extra.start_s).with_column("seq_id", -1 - extra.stage)
    first = first.with_column("duration_s", 0 * extra.duration_s)
    whole = Columns.concatenate([table, first])
    plan = job(whole, NAMES)
    assert unpaired(whole) == 0
    assert as_it_was(plan) == pytest.approx(plan.measured_s)


def test_receives_posted_ahead_of_compute_still_begin_with_what_is_sent():
    table = Pipeline(dp=2, pp=4, micro=8, steps=2).table()
    received = np.isin(
        table.optype, [NAMES.index(f"{way}-recv") for way in ("forward", "backward")]
    )
    begun = np.array([table.start_s[table.step == step].min() for step in (0, 1)])[table.step]
    ahead = np.where(received, table.start_s - begun, 0.0)
    table = table.with_column("start_s", table.start_s - ahead)
    table = table.with_column("duration_s", table.duration_s + ahead)
    plan = job(table, NAMES)
    assert unpaired(table) == 0
    assert as_it_was(plan, delayed=True) == pytest.approx(plan.measured_s)


def test_micro_batches_without_a_number_are_paired_in_turn():
    pipeline = Pipeline(pp=2, vpp=2, micro=4, steps=1)
    table = pipeline.table()
    table = table.with_column("mb_id", np.full(len(table), -1))
    plan = job(table, NAMES)
    assert unpaired(table) == 0
    assert as_it_was(plan) == pytest.approx(pipeline.lengths(pipeline.durations()))


def test_an_operation_of_an_unknown_type_takes_its_time_where_it_stood():
    pipeline = Pipeline(dp=1, pp=1, steps=1)
    table = pipeline.table()
    last = table.select(table.optype == NAMES.index("optimizer"))
    unknown = (
        last.with_column("optype", 0 * last.optype + NAMES.index("fused-kernel"))
        .with_column("role", 0 * last.role)
        .with_column("start_s", last.start_s + last.duration_s)
        .with_column("duration_s", last.duration_s + 0.5)
    )
    plan = job(Columns.concatenate([table, unknown]), NAMES)
    added = float(unknown.duration_s[0])
    assert as_it_was(plan)[0] == pytest.approx(pipeline.lengths(pipeline.durations())[0] + added)


# -- as published ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results():
    if not (DATA / "trace-ST.parquet").is_file():
        pytest.skip("the published trace is not beside this checkout")
    path = DATA / "trace-ST.parquet"
    with path.open("rb") as file:
        trace = operation_tables.read([SourceFile(path, file.read(65536))])
    found = published_results(job(trace.operations, trace.names))
    return json.loads(json.dumps(found))


def flat(value, path=""):
    """Numbers of nested tables by their path."""
    if not isinstance(value, dict):
        return {path: value}
    parts = (flat(item, f"{path}/{key}") for key, item in value.items())
    return {name: number for part in parts for name, number in part.items()}


PUBLISHED = ["step_t_base", "step_t_nodelay", "step_t_noblk", "launch_slowdown"]
PUBLISHED += ["blocking_slowdown", "blocking_step_slowdown", "launch_step_slowdown"]
PUBLISHED += [
    f"blocking_decompose_by_{part}{each}"
    for part in ("optype", "stage", "dp_rank")
    for each in ("", "_per_step")
]


@pytest.mark.parametrize("key", PUBLISHED)
def test_every_published_number_comes_out(results, key):
    # Lin et al. (OSDI 2025), result-ST.json of their artifact; the bar is .1 %
    want = flat(json.loads((DATA / "result-ST.json").read_text())[key])
    assert flat(results[key]) == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("name", ["ms", "mw"])
def test_the_published_metrics_come_out(results, name):
    want = json.loads((DATA / f"{name}-ST.json").read_text())
    assert results[name] == pytest.approx(want, rel=1e-3)


def test_work_that_was_not_recorded_is_placed_where_it_stood():
    pipeline = Pipeline(dp=1, pp=1, micro=2, steps=1)
    table = pipeline.table()
    late = table.with_column("start_s", table.start_s + (table.start_s > 0.05) * 0.1)
    found = published_results(job(late, NAMES))
    assert found["launch_slowdown"] > 1.03
    assert max(found["launch_decompose_by_optype"].values()) > 1.03
