"""Tables of step times, made up and public, against counts that read them in another way."""

import csv
import json
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from statistics import mean, median

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.case import open_case
from evenstep.errors import EvenstepError
from evenstep.importers import tables
from evenstep.importers.content import SourceFile
from evenstep.importers.opening import open_trace
from evenstep.importers.steps import step_tables, tensorboard
from evenstep.trace.spool.layout import Kind, Phase

PUBLIC = Path(__file__).parents[2] / ".." / "shared" / "data" / "steps"
real = pytest.mark.skipif(not PUBLIC.is_dir(), reason="../shared/data/steps is not here")


def steps(trace, kind=Kind.STEP):
    """(rank, step, seconds) of each record of a kind."""
    rows = trace.of_kind(kind)
    seconds = ((rows.exit_ns - rows.enter_ns) / 1e9).round(6).tolist()
    return list(zip(rows["rank"].tolist(), rows.step.tolist(), seconds, strict=True))


@pytest.fixture
def opened(tmp_path):
    """A table with this text, as a trace."""

    def of(text, name="table.csv"):
        path = tmp_path / name
        path.write_text(text)
        return open_trace([path])

    return of


@pytest.mark.parametrize("names", [("alpha", "beta"), ("a-2024", "b-2024")])
def test_tables_that_name_no_rank_are_ranks_in_their_order(tmp_path, names):
    for name in names:
        rows = "".join(f"{step},100,5\n" for step in range(4))
        (tmp_path / f"{name}.csv").write_text("step,step_time_ms,data_time_ms\n" + rows)
    trace = open_trace([tmp_path])
    assert (sorted(trace.ranks), trace.world) == ([0, 1], 2)
    assert {rank for rank, *_ in steps(trace, Kind.PHASE)} == {0, 1}


@pytest.mark.parametrize("compressor", ["gzip", "zstandard"])
def test_a_compressed_table_reads_the_same(tmp_path, opened, compressor):
    text = "rank,step,seconds\n0,1,2\n1,1,3\n"
    packed = pytest.importorskip(compressor).compress(text.encode())
    (tmp_path / "packed.csv").write_bytes(packed)
    assert steps(open_trace([tmp_path / "packed.csv"])) == steps(opened(text))


@pytest.mark.parametrize("form", ["csv", "lines"])
def test_a_table_of_too_many_rows_is_said_to_be_read_in_part(opened, monkeypatch, form):
    monkeypatch.setattr(tables, "MOST_ROWS", 6)
    rows = [{"rank": row % 2, "step": row // 2, "seconds": 1.0} for row in range(20)]
    texts = {
        "csv": "rank,step,seconds\n"
        + "".join("{rank},{step},{seconds}\n".format(**r) for r in rows),
        "lines": "\n".join(map(json.dumps, rows)),
    }
    trace = opened(texts[form])
    assert len(steps(trace)) == 6
    assert any("only the first 6 rows were read" in limit for limit in trace.limits)


def test_a_step_lasts_until_the_slowest_worker_is_done(opened):
    trace = opened("rank,step,seconds\n0,1,2\n1,1,3\n0,2,2\n1,2,2\n")
    assert steps(trace) == [(0, 1, 3.0), (0, 2, 2.0), (1, 1, 3.0), (1, 2, 2.0)]
    waits = [round(seconds, 3) for _, _, seconds in steps(trace, Kind.COLLECTIVE)]
    assert waits == [1.0, 0.0, 0.0, 0.0]
    assert any("do not synchronize" in limit for limit in trace.limits)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("worker;iteration;step_time_ms", 2e-3),
        ("global_rank\tstep\tIteration Time (us)", 2e-6),
        ("rank,_step,perf/step_time", 2.0),
        ("rank,step,time_metrics/end_to_end(s)", 2.0),
        ("process|global_step|train_step_timing in s", 2.0),
    ],
)
def test_columns_are_found_by_their_names(opened, header, seconds):
    mark = next(mark for mark in ";\t,|" if mark in header)
    rows = "\n".join(mark.join(row) for row in ("010", "022", "112", "132"))
    found = opened(f"{header}\n{rows}\n")
    assert {length for *_, length in steps(found)} <= {seconds, 0.0}
    assert sorted(found.ranks) == [0, 1]


def test_phases_of_a_table_lie_one_after_the_other(opened):
    trace = opened("rank,step,phase,ms\n" + "".join(
        f"{rank},{step},{part},{10 + 10 * (part == 'backward')}\n"
        for rank in (0, 1) for step in (1, 2) for part in ("forward", "backward")
    ))  # fmt: skip
    phases = trace.of_kind(Kind.PHASE)
    assert phases.op[:2].tolist() == [int(Phase.FORWARD), int(Phase.BACKWARD)]
    assert phases.enter_ns[1] == phases.exit_ns[0]
    assert {seconds for *_, seconds in steps(trace)} == {0.03}


def test_the_time_for_data_is_input_and_durations_nobody_knows_are_told(opened):
    trace = opened("worker,iteration,data_time(s),forward(s),frob_time\n0,1,1,2,9\n0,2,1,2,9\n")
    assert [seconds for _, _, seconds in steps(trace)] == [3.0, 3.0]
    assert trace.of_kind(Kind.PHASE).op.tolist() == [Phase.INPUT, Phase.FORWARD] * 2
    assert any(limit.endswith(": frob_time") for limit in trace.limits)


def test_a_worker_whose_data_comes_late_is_told_by_how_much(opened):
    late = {(rank, step): 4 if rank == 3 else 1 + (rank + step) % 2 / 10
            for step in range(40) for rank in range(4)}  # fmt: skip
    rows = [f"{rank},{step},{ms},6" for (rank, step), ms in late.items()]
    diagnosis = diagnose(opened("\n".join(["worker,step,data_time_ms,forward_ms", *rows])))
    finding = diagnosis.findings[0]
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", [3])
    told = float(finding.cause.partition("batch ")[2].partition(" ms")[0])
    assert told == pytest.approx(2.9, abs=0.15)


@pytest.mark.parametrize(
    "data", ["data_ms", "input_ms", "dataloader_time_ms", "batch_generator_ms"]
)
def test_a_wait_that_is_timed_with_backward_is_told_from_its_work(opened, data):
    late = {
        (rank, step): 64 if rank == 3 else 4 + (rank + step) % 3
        for step in range(40)
        for rank in range(4)
    }
    rows = [f"{rank},{step},{ms},100,{296 - ms},396" for (rank, step), ms in late.items()]
    trace = opened("\n".join([f"rank,step,{data},forward_ms,backward_ms,step_time_ms", *rows]))
    finding = diagnose(trace).findings[0]
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", [3])
    assert finding.severity == pytest.approx(58 / 396, abs=0.01)
    assert any("backward took longer than the shortest is taken" in limit for limit in trace.limits)


def test_a_wait_outside_of_all_parts_is_told_from_work(opened):
    """Compute alone is timed, of which worker 2 needs 90 ms and the others 60: without it, steps
    of 100 ms last 70. Every third step only, it costs 30 of 240 ms."""
    for often, share in ((1, 0.3), (3, 0.125)):
        rows = [
            f"{rank},{step},{0.02 * k:g},{0.04 * k:g},{0.1 if slow else 0.07}"
            for step in range(24)
            for rank in range(4)
            for slow in [step % often == 0]
            for k in [1.5 if slow and rank == 2 else 1.0]
        ]
        text = "\n".join(["rank,step,forward_s,backward_s,step_time_s", *rows])
        found = diagnose(opened(text)).findings
        assert [found[0].where.ranks, found[0].severity] == [[2], pytest.approx(share, abs=0.01)]


def test_of_two_workers_whose_parts_differ_alike_neither_is_named(opened):
    """Worker 1 needs 50 ms more outside of all parts, for which worker 0 waits in backward: that
    differs by as much, but for what forward differs now and then."""
    rows = [
        f"{rank},{step},{0.1 + 0.005 * (rank == step % 2)},{0.25 - 0.05 * rank - shift},0.4"
        for step in range(41)
        for rank in (0, 1)
        for shift in [0.005 * (rank == step % 2)]
    ]
    trace = opened("\n".join(["rank,step,forward_s,backward_s,step_time_s", *rows]))
    assert diagnose(trace).verdict.startswith("Who is slow cannot be told here")
    assert any("in time outside of these parts or in backward" in limit for limit in trace.limits)


def test_waits_lie_outside_of_parts_only_where_all_steps_are_stated(opened):
    """Outside of the parts of worker 1, nothing is left by construction."""
    rows = [f"0,{step},0.3,0.3,1.0\n1,{step},0.5,0.5," for step in range(10)]
    trace = opened("\n".join(["rank,step,forward_s,backward_s,step_time_s", *rows]))
    assert any("what one's backward took longer" in limit for limit in trace.limits)


def test_one_odd_step_does_not_hide_that_steps_are_equally_long(opened):
    """Worker 3 needs 50 ms more in forward; in step 20, worker 0 takes 20 s that none waits for."""
    rows = [
        f"{rank},{step},{0.1 + 0.05 * (rank == 3) + odd},{0.25 - 0.05 * (rank == 3)},{0.38 + odd}"
        for step in range(40)
        for rank in range(4)
        for odd in [20.0 * (step == 20 and rank == 0)]
    ]
    text = "\n".join(["rank,step,forward_s,backward_s,step_time_s", *rows])
    assert [3] in [finding.where.ranks for finding in diagnose(opened(text)).findings]


def test_steps_that_are_longer_now_and_then_are_not_equally_long(opened):
    """Backward of worker 1 takes 60 ms more in every third step, and so does its step."""
    rows = [
        f"{rank},{step},0.1,{0.2 + late},{0.32 + late}"
        for step in range(39)
        for rank in range(4)
        for late in [0.06 * (rank == 1 and step % 3 == 0)]
    ]
    trace = opened("\n".join(["rank,step,forward_s,backward_s,step_time_s", *rows]))
    finding = diagnose(trace).findings[0]
    assert (finding.where.ranks, finding.severity) == ([1], pytest.approx(0.02 / 0.34, abs=0.01))


def test_communication_is_waiting_but_for_what_the_last_to_come_needs(opened):
    rows = [f"{rank},{step},{130 if rank == 1 else 100},{10 if rank == 1 else 40}"
            for step in range(40) for rank in range(4)]  # fmt: skip
    finding = diagnose(opened("\n".join(["rank,step,compute_ms,comm_ms", *rows]))).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])
    assert finding.severity == pytest.approx(30 / 140, abs=0.01)


def test_parts_that_differ_by_chance_hold_no_wait(opened):
    rows = [f"{rank},{step},{4 + (3 * rank + step) % 5},{100 + (7 * rank + 3 * step) % 11}"
            for step in range(40) for rank in range(4)]  # fmt: skip
    trace = opened("\n".join(["rank,step,forward_ms,backward_ms", *rows]))
    assert not any("taken to be waiting" in limit for limit in trace.limits)


def test_steps_that_all_end_together_do_not_tell_who_is_slow(opened):
    took = np.random.default_rng(1).normal(100, 2, 40)
    rows = [f"{rank},{step},{took[step]:.3f}" for step in range(40) for rank in range(4)]
    diagnosis = diagnose(opened("\n".join(["rank,step,step_time_ms", *rows])))
    assert diagnosis.verdict.startswith("Who is slow cannot be told here")
    assert diagnosis.summary["shares"] is None


def test_workers_may_have_names(opened):
    trace = opened("worker,step,seconds\nps-b,1,2\nps-a,1,2\nps-b,2,2\nps-a,2,2\n")
    assert [trace.ranks[rank].identity["place"] for rank in (0, 1)] == ["ps-a", "ps-b"]


def test_times_alone_make_steps_of_what_lies_between_them(opened):
    trace = opened("rank,time\n0,10\n0,12\n0,13\n1,10\n1,12\n1,13\n")
    assert steps(trace)[:2] == [(0, 0, 2.0), (0, 1, 1.0)]
    assert not any("left out" in limit for limit in trace.limits)  # the last time ends a step


def test_a_step_that_comes_again_counts_once_and_is_lost_work(opened):
    trace = opened("rank,step,seconds\n0,1,2\n0,2,3\n0,2,4\n0,3,2\n")
    assert steps(trace) == [(0, 1, 2.0), (0, 2, 4.0), (0, 3, 2.0)]
    assert trace.run["lost_work_s"] == 3.0


def test_an_export_of_a_tracker_has_a_column_per_run(opened):
    trace = opened(
        '"Step","run-0 - perf/step_time","run-0 - perf/step_time__MIN","run-1 - perf/step_time"\n'
        '"0","1.0","1.0","1.5"\n"1","1.0","1.0","1.5"\n'
    )
    assert {seconds for *_, seconds in steps(trace)} == {1.5}
    assert [trace.ranks[rank].identity["place"] for rank in (0, 1)] == ["run-0", "run-1"]


def test_json_lines_and_one_metric_of_a_board_are_tables_too(opened):
    lines = [{"_step": at, "_timestamp": 1.7e9 + at, "step_time_ms": 900 + at} for at in (1, 2)]
    assert steps(opened("\n".join(map(json.dumps, lines)), "history.jsonl")) == [
        (0, 1, 0.901), (0, 2, 0.902)
    ]  # fmt: skip
    board = "Wall time,Step,Value\n1700000000,1,0.5\n1700000001,2,0.6\n"
    assert steps(opened(board, "run-.-tag-iteration-time.csv")) == [(0, 1, 0.5), (0, 2, 0.6)]


def test_parquet_is_read_as_csv_is(tmp_path, opened):
    path = tmp_path / "steps.parquet"
    duckdb.execute(f"COPY (SELECT i % 2 AS rank, i // 2 AS step, 1.5 AS seconds "
                   f"FROM range(8) t(i)) TO '{path}' (FORMAT parquet)")  # fmt: skip
    assert steps(open_trace([path])) == [(r, s, 1.5) for r in (0, 1) for s in range(4)]


def test_a_file_per_rank_is_that_rank(tmp_path):
    for rank in (0, 3):
        (tmp_path / f"rank{rank}.csv").write_text(f"step,seconds\n1,{rank + 1}\n2,{rank + 1}\n")
    trace = open_trace([tmp_path])
    assert sorted(trace.ranks) == [0, 3]
    assert {seconds for *_, seconds in steps(trace)} == {4.0}


@given(st.text(max_size=60), st.sampled_from(["rank,step,seconds\n", "step;step_time\n", ""]))
def test_any_text_is_a_trace_or_a_sentence(tmp_path_factory, text, head):
    path = tmp_path_factory.mktemp("any") / "table.csv"
    path.write_text(head + text)
    with suppress(EvenstepError):
        diagnose(open_trace([path])).to_json()


# -- public ----------------------------------------------------------------------------------------


def times(name):
    """Times by worker, then by sample: as csv reads them."""
    found = defaultdict(dict)
    with (PUBLIC / name).open() as file:
        for row in csv.DictReader(file):
            found[int(row["worker"])][int(row["time"])] = float(row["batch_time_norm"])
    return found


@real
@pytest.mark.parametrize("name", ["pai_job_1.csv", "pai_job_3.csv"])
def test_steps_of_a_public_job_are_those_of_an_independent_count(name):
    table = times(name)
    moments = sorted({moment for rows in table.values() for moment in rows})
    slowest = [max(rows.get(moment, 0) for rows in table.values()) / 1e3 for moment in moments]
    trace = open_trace([PUBLIC / name])
    found = {step: seconds for _, step, seconds in steps(trace)}
    assert [found[step] for step in range(len(moments))] == pytest.approx(slowest, abs=1e-6)
    assert len(steps(trace)) == sum(map(len, table.values()))


@real
@pytest.mark.parametrize(
    ("name", "chronic"), [("pai_job_1.csv", [0, 1, 2]), ("pai_job_3.csv", [0, 1])]
)
def test_workers_that_are_always_slower_are_found(name, chronic):
    usual = {worker: median(rows.values()) for worker, rows in times(name).items()}
    assert sorted(sorted(usual, key=usual.get)[-len(chronic) :]) == chronic
    found = diagnose(open_trace([PUBLIC / name])).findings
    slow = next(one for one in found if one.when.pattern == "chronic" and one.where.ranks)
    assert sorted(slow.where.ranks) == chronic


@real
def test_a_worker_that_emerges_in_the_middle_is_found_with_when():
    rows = times("pai_job_1.csv")[6]
    moments = sorted(rows)
    usual = mean(rows.values())
    late = [at for at, moment in enumerate(moments) if rows[moment] > 1.2 * usual]
    found = diagnose(open_trace([PUBLIC / "pai_job_1.csv"])).findings
    worst = next(one for one in found if one.where.ranks == [6])
    first, last = worst.when.steps[0][0], worst.when.steps[-1][1]
    assert late[0] - 3 <= first <= last <= late[-1] + 3


def test_parquet_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "steps.parquet"
    path.write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(EvenstepError, match=r"steps\.parquet cannot be read: .*; export it again"):
        open_trace([path])


def test_a_part_is_in_seconds_unless_its_name_says_otherwise(opened):
    trace = opened("rank,step,forward_time,backward_ms\n" + "0,1,2,500\n0,2,2,500\n")
    parts = steps(trace, Kind.PHASE)
    assert [seconds for *_, seconds in parts] == [2.0, 0.5] * 2
    assert [seconds for *_, seconds in steps(trace)] == [2.5, 2.5]


@pytest.mark.parametrize("late", [0.0, 0.25])
def test_steps_that_nobody_numbers_are_counted_by_worker_in_order_of_time(opened, late):
    rows = [f"{rank},{10 * step + late * rank},{2 + step}" for step in range(3) for rank in (1, 0)]
    found = steps(opened("\n".join(["rank,timestamp,seconds", *rows]) + "\n"))
    assert found == [(rank, step, 2.0 + step) for rank in (0, 1) for step in range(3)]


def test_lines_of_json_may_name_workers(opened):
    lines = [{"worker": name, "step": step, "seconds": 2} for step in (1, 2) for name in "ba"]
    trace = opened("\n".join(map(json.dumps, lines)) + "\n", "table.jsonl")
    assert {rank: info.identity["place"] for rank, info in trace.ranks.items()} == {0: "a", 1: "b"}


def test_python_writes_json_that_is_none_where_a_number_is_not_finite(opened):
    line = '{"step": %d, "loss": NaN, "grad": [-Infinity, NaN], "note": "is NaN", "step_time": 2}\n'
    trace = opened("".join(line % step for step in (1, 2)), "steps.jsonl")
    assert steps(trace) == [(0, 1, 2.0), (0, 2, 2.0)]


def test_times_since_1970_may_be_in_ms(opened):
    rows = "".join(f"0,{step},{1_795_000_000_000 + 250 * step}\n" for step in range(3))
    for name in ("timestamp", "timestamp_ms"):
        assert steps(opened(f"rank,step,{name}\n" + rows)) == [(0, 0, 0.25), (0, 1, 0.25)]


OWN_MS = {0: (100, 110), 1: (130, 120)}  # of each rank, in steps 0 and 1
ROWS = [
    {"rank": rank, "step": step, "step_time_ms": ms}
    for step in (0, 1) for rank, ms in ((rank, own[step]) for rank, own in OWN_MS.items())
]  # fmt: skip
SLOWEST = [(rank, step, OWN_MS[1][step] / 1e3) for rank in (0, 1) for step in (0, 1)]


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        {"job": "x", "betas": [0.9, 0.95], "world_size": 2, "records": ROWS},
        {"ranks": {str(rank): {"step_times_ms": own} for rank, own in OWN_MS.items()}},
        {f"rank{rank}": [ms / 1e3 for ms in own] for rank, own in OWN_MS.items()},
        [
            {"step": step, "ranks": [{"rank": r, "timings": {"step_time_ms": own[step]}}
                                     for r, own in OWN_MS.items()]}
            for step in (0, 1)
        ],
        [{"step": s, "step_time_ms": [own[s] for own in OWN_MS.values()]} for s in (0, 1)],
        [{"step": s, "step_time_ms": {r: own[s] for r, own in OWN_MS.items()}} for s in (0, 1)],
        {name: [row[name] for row in ROWS] for name in ROWS[0]},
        {name: {str(at): row[name] for at, row in enumerate(ROWS)} for name in ROWS[0]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("indent", [None, 1])
def test_json_is_a_table_however_its_rows_are_nested(opened, value, indent):
    assert steps(opened(json.dumps(value, indent=indent), "steps.json")) == SLOWEST


@pytest.mark.parametrize(
    ("name", "header", "scale"),
    [
        ("table", "step,rank_0_ms,rank_1_ms", 1),
        ("step_time_ms", "step,0,1", 1),
        ("table", "step,rank0,rank1", 1e-3),
        ("table", "step,gpu0.step_time_s,gpu1.step_time_s", 1e-3),
        ("table", "step,step_time_ms (rank 0),step_time_ms (rank 1)", 1),
        ("table", "Step,rank0 - perf/step_time,rank1 - perf/step_time", 1e-3),
    ],
)
def test_a_table_may_have_a_column_per_rank(opened, name, header, scale):
    rows = "".join(f"{s},{OWN_MS[0][s] * scale},{OWN_MS[1][s] * scale}\n" for s in (0, 1))
    trace = opened(f"{header}\n{rows}", f"{name}.csv")
    assert steps(trace) == SLOWEST
    no_unit = any("no unit" in limit for limit in trace.limits)
    assert no_unit == (header == "step,rank0,rank1")


def test_columns_per_rank_may_be_of_parts(opened):
    header = "step,rank4_forward_ms,rank4_backward_ms,rank9_forward_ms,rank9_backward_ms"
    trace = opened(f"{header}\n0,30,70,40,90\n1,30,70,40,90\n")
    assert sorted(steps(trace, Kind.PHASE))[::2] == [
        (4, 0, 0.03), (4, 1, 0.03), (9, 0, 0.04), (9, 1, 0.04)
    ]  # fmt: skip


def test_a_row_may_be_the_value_of_a_metric(opened):
    rows = "".join(
        f"run-{r},loss,2.5,{s}\nrun-{r},step_time_ms,{own[s]},{s}\n"
        for s in (0, 1) for r, own in OWN_MS.items()
    )  # fmt: skip
    assert steps(opened("run_id,key,value,step\n" + rows)) == SLOWEST


def test_results_of_ray_train_are_a_table(opened):
    result = {"training_iteration": 1, "time_this_iter_s": 2.5, "time_total_s": 9, "config": {}}
    lines = [json.dumps(result | {"training_iteration": at}) for at in (1, 2)]
    assert steps(opened("\n".join(lines), "result.json")) == [(0, 1, 2.5), (0, 2, 2.5)]


@pytest.mark.parametrize(("name", "scale"), [("time", 1), ("time_ms", 1e3), ("time (ms)", 1e3)])
@pytest.mark.parametrize("by_step", [False, True])
def test_times_that_no_clock_shows_are_durations(opened, name, scale, by_step):
    took = [2, 3, 2.5, 2]
    rows = [(rank, step, took[step] + rank) for rank in (0, 1) for step in range(4)]
    rows = sorted(rows, key=lambda row: row[1]) if by_step else rows
    text = "".join(f"{rank},{step},{seconds * scale}\n" for rank, step, seconds in rows)
    found = steps(opened(f"rank,step,{name}\n{text}"))
    assert found == [(rank, step, took[step] + 1) for rank in (0, 1) for step in range(4)]


def test_times_of_a_clock_are_none_although_steps_come_again(opened):
    rows = [(1, 10), (2, 12), (3, 14), (2, 20), (3, 21), (4, 24)]
    trace = opened("rank,step,time_s\n" + "".join(f"0,{step},{time}\n" for step, time in rows))
    assert steps(trace) == [(0, 1, 2.0), (0, 2, 1.0), (0, 3, 3.0)]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_times_may_be_dates(tmp_path, form):
    at_noon = [f"12:00:0{at}.500" for at in (0, 2, 3)]
    dates = [f"2026-05-08T{12 + zone}{at[2:]}+0{zone}:00" for zone, at in enumerate(at_noon)]
    path = tmp_path / f"table.{form}"
    if form == "csv":
        path.write_text("step,timestamp\n" + "".join(f"{n},{at}\n" for n, at in enumerate(dates)))
    elif form == "jsonl":
        path.write_text("".join(json.dumps({"step": n, "timestamp": at}) + "\n"
                                for n, at in enumerate(dates)))  # fmt: skip
    else:
        rows = ", ".join(f"({n}, TIMESTAMP '2026-05-08 {at}')" for n, at in enumerate(at_noon))
        duckdb.sql(f"SELECT * FROM (VALUES {rows}) AS t(step, timestamp)").write_parquet(str(path))
    assert steps(open_trace([path])) == [(0, 0, 2.0), (0, 1, 1.0)]


def test_names_in_a_group_of_times_are_of_durations(opened):
    line = {"step": 1, "times_ms": {"forward": 30, "backward": 60}, "loss": {"forward": 2.5}}
    parts = steps(opened(json.dumps(line), "steps.jsonl"), Kind.PHASE)
    assert [seconds for *_, seconds in parts] == [0.03, 0.06]


def test_workers_are_numbered_in_order_where_the_names_of_their_nodes_tell_them_apart(opened):
    names = [f"node{node}-gpu{gpu}_step_time_s" for node in (0, 1) for gpu in (0, 1)]
    trace = opened(f"step,{','.join(names)}\n0,1,2,3,4\n1,1,2,3,4\n")
    assert [trace.ranks[rank].identity["place"] for rank in range(4)] == [
        "node0-gpu0", "node0-gpu1", "node1-gpu0", "node1-gpu1"
    ]  # fmt: skip


def test_parts_that_are_no_whole_nanoseconds_end_where_their_step_does(opened):
    rng = np.random.default_rng(3)
    forward, backward = rng.uniform(0.03, 0.05, (2, 2, 12))
    sync = 0.2 - forward - backward  # all steps are equally long
    rows = "".join(
        f"{r},{s},{forward[r, s]!r},{backward[r, s]!r},{sync[r, s]!r}\n"
        for r in (0, 1) for s in range(12)
    ).replace("np.float64(", "").replace(")", "")  # fmt: skip
    case = open_case(opened("rank,step,forward_s,backward_s,comm_s\n" + rows))
    worked = (forward + backward).T[case.grid.steps] * 1e9
    assert case.grid.work_ns == pytest.approx(worked, abs=10)


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["0", "1", "rank1", "step", "time_s", "steps", ""]), inner
        )
    ),
    max_leaves=20,
)


@given(NESTED, st.sampled_from([None, 1]))
def test_any_json_is_a_trace_or_a_sentence(tmp_path_factory, value, indent):
    path = tmp_path_factory.mktemp("any") / "t.json"
    path.write_text(json.dumps(value, indent=indent))
    with suppress(EvenstepError):
        open_trace([path])


# -- as found in issues and repositories -----------------------------------------------------------


def test_rates_and_norms_of_gradients_are_no_durations(tmp_path):
    """Of a trainer_state.json: 17.69 steps a second were an evaluation of 17.69 s."""
    path = tmp_path / "trainer_state.json"
    told = {"step": 500, "grad_norm": 1.9, "eval_loss": 0.3, "eval_runtime": 28.2633,
            "eval_steps_per_second": 17.691}  # fmt: skip
    path.write_text(json.dumps({"log_history": [told, told | {"step": 1000}]}))
    with pytest.raises(EvenstepError, match="without times of steps: give the log"):
        open_trace([path])


def test_objects_by_number_are_steps_where_their_name_says_so(opened):
    """Of a repository's step_times.json: two ranks were taken, and the first for a straggler."""
    began, took = {"1": 1782513857, "2": 1782513902}, {"1": 43, "2": 26}
    value = {at: {"start": began[at], "end": began[at] + took[at], "duration_s": took[at]}
             for at in took}  # fmt: skip
    assert steps(opened(json.dumps({"step_times": value}), "step_times.json")) == [
        (0, 1, 43.0),
        (0, 2, 26.0),
    ]


def test_a_row_per_epoch_has_the_time_since_the_beginning(opened):
    """The first columns of results.csv of Ultralytics."""
    text = "epoch,time,train/box_loss\n1,93.2846,1.01057\n2,116.739,0.90306\n3,144.906,0.87\n"
    assert steps(opened(text)) == [(0, 1, 23.4544), (0, 2, 28.167)]


def test_the_time_since_the_beginning_may_be_in_hours_and_minutes(opened):
    """Of trainer_log.jsonl in hiyouga/LLaMA-Factory#774: 62 and 58 s for ten steps."""
    rows = [{"current_steps": step, "total_steps": 3235, "epoch": 0.99, "elapsed_time": at}
            for step, at in ((3200, "5:13:22"), (3210, "5:14:24"), (3220, "5:15:22"))]  # fmt: skip
    found = opened("\n".join(map(json.dumps, rows)), "trainer_log.jsonl")
    assert steps(found) == [(0, 3200, 6.2), (0, 3210, 5.8)]


def test_rows_of_one_epoch_are_its_steps(opened):
    trace = opened(
        "epoch,i,step_time_ms\n" + "".join(f"{at // 2},{at % 2},{100 + at}\n" for at in range(4))
    )
    assert steps(trace) == [(0, at, (100 + at) / 1e3) for at in range(4)]
    assert "lost_work_s" not in trace.run


def test_objects_named_after_ranks_are_ranks_also_in_times_of_steps(opened):
    took = {f"rank{rank}": {"forward_s": [1.0, 2.0, 3.0]} for rank in range(2)}
    found = steps(opened(json.dumps({"step_times": took}), "a.json"))
    assert [each[:2] for each in found] == [(rank, at) for rank in range(2) for at in range(3)]


def test_rows_within_epochs_are_steps_though_each_has_another_part_of_its_epoch(opened):
    text = "epoch,step_time_ms\n" + "".join(f"{at / 4},{100 + at}\n" for at in range(8))
    trace = opened(text)
    assert steps(trace) == [(0, at, (100 + at) / 1e3) for at in range(8)]


def test_the_time_that_a_step_took_is_not_when_it_began(opened):
    """The second step takes 30 s after one of 1 s: nothing lies between them."""
    rows = opened("step,elapsed_time\n0,1\n1,30\n2,1\n").of_kind(Kind.STEP)
    assert (rows.enter_ns[1:] - rows.exit_ns[:-1]).tolist() == [0, 0]


@pytest.mark.parametrize("name", ["step_time_norm", "step_duration_norm"])
def test_normalized_times_are_durations_unlike_norms_of_gradients(opened, name):
    trace = opened(f"step,grad_norm,{name}\n0,9,5\n1,9,6\n")
    assert steps(trace) == [(0, 0, 0.005), (0, 1, 0.006)]


def test_accounting_of_jobs_is_no_table_of_steps(opened):
    """`sacct --parsable2`: none of its rows is a step."""
    text = (
        "JobID|JobName|State|Elapsed|ExitCode|Start|End\n"
        "524614|train|COMPLETED|01:00:00|0:0|2026-06-28T10:00:00|2026-06-28T11:00:00\n"
        "524615|train|COMPLETED|01:10:00|0:0|2026-06-28T11:00:00|2026-06-28T12:10:00\n"
    )
    with pytest.raises(EvenstepError, match="no two steps with times"):
        opened(text)


def jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_time_that_grows_less_than_its_parts_is_no_clock(opened):
    """`metrics.json` of detectron2: `time` is an iteration's, of which `data_time` is a part."""
    rows = [{"data_time": 0.0036, "iteration": 19 + 20 * at, "time": took, "total_loss": 1.1}
            for at, took in enumerate((0.335, 0.336, 0.337, 0.336))]  # fmt: skip
    trace = opened(jsonl(*rows), "metrics.json")
    assert [seconds for *_, seconds in steps(trace)] == [0.335, 0.336, 0.337, 0.336]
    assert [seconds for *_, seconds in steps(trace, Kind.PHASE)] == [0.0036] * 4


def test_steps_counted_anew_in_each_epoch_are_steps_of_their_own(opened):
    """mmcv's JSON log, whose first line describes the environment."""
    rows = [{"mode": "train", "epoch": epoch, "iter": at, "data_time": 0.009, "time": 0.39}
            for epoch in (1, 2, 3) for at in (50, 100)]  # fmt: skip
    trace = opened(jsonl({"env_info": "sys.platform: linux", "seed": None}, *rows), "a.log.json")
    assert [number for _, number, _ in steps(trace)] == [50, 100, 151, 201, 252, 302]
    assert "lost_work_s" not in trace.run


def test_time_elapsed_since_the_beginning_is_a_clock(opened):
    """`logging.jsonl` of ms-swift: five steps in 243 s, 212 and 232."""
    shown = (5, "3m 53s"), (10, "7m 56s"), (15, "11m 28s"), (20, "15m 20s")
    rows = [{"global_step/max_steps": f"{at}/60", "elapsed_time": since} for at, since in shown]
    trace = opened(jsonl(*rows), "logging.jsonl")
    assert [(number, seconds) for _, number, seconds in steps(trace)] == [
        (5, 48.6), (10, 42.4), (15, 46.4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step,checkpoint_time_s\n500,12.3\n1000,12.4\n", r"parts of steps only \(checkpoint\)"),
        ("step,data_time\n1,.003\n2,.004\n", r"parts of steps only \(input\)"),
        ("timestamp,rank,gpu_util,power_w\n1,0,90,300\n2,0,91,301\n", "without a column"),
        ("rank,size,time_us,algbw,busbw\n0,8,10,1,1\n0,16,11,1,1\n", "without a column"),
    ],
)
def test_what_is_no_step_is_not_taken_for_one(opened, text, said):
    """A share of 100 % of the step was said of what stands alone in a table."""
    with pytest.raises(EvenstepError, match=said):
        opened(text)


def test_the_time_of_a_run_goes_on_where_the_run_was_resumed(opened):
    """`trainer_log.jsonl`: ten steps in 60 s; the one resumed has its first ten after 70 s."""
    shown = [(10, "0:01:00"), (20, "0:02:00"), (30, "0:03:00"), (30, "0:01:10"), (40, "0:02:10")]
    rows = [{"current_steps": at, "elapsed_time": since} for at, since in shown]
    trace = opened(jsonl(*rows), "trainer_log.jsonl")
    assert [seconds for *_, seconds in steps(trace)] == [6.0, 6.0, 6.0]
    assert trace.run["lost_work_s"] == 70


@pytest.mark.parametrize("more", ["JobID", "busbw"])
def test_a_job_or_a_bandwidth_beside_steps_hides_none(opened, more):
    assert steps(opened(f"{more},rank,step,seconds\n7,0,1,2\n7,0,2,3\n")) == [(0, 1, 2), (0, 2, 3)]


@pytest.mark.parametrize("part", ["eval_time", "checkpoint_time_s", "data_time"])
def test_parts_alone_leave_steps_their_times(opened, part):
    """A step lasts until the next one, also where a row tells how long something beside it took."""
    rows = [{"step": at, "timestamp": 1000 + 2 * at} for at in range(5)]
    trace = opened(jsonl(*rows, {"step": 5, "timestamp": 1010, part: 0.5}), "log.jsonl")
    assert steps(trace) == [(0, at, 2.0) for at in range(5)]


def test_an_event_file_of_loading_alone_has_the_times_of_its_steps(tmp_path, monkeypatch):
    told = {name: [(at, 1000.0 + 2 * at, 0.1) for at in range(3)] for name in ("loss", "data_time")}
    monkeypatch.setattr(tensorboard, "scalars", lambda *_: told)
    monkeypatch.setattr(tensorboard, "recognises", lambda _: True)
    (path := tmp_path / "events.out.tfevents.1").write_bytes(b"\x18")
    trace = step_tables.read([SourceFile(path, b"")])
    assert steps(trace) == [(0, 0, 2.0), (0, 1, 2.0)]
    assert steps(trace, Kind.PHASE) == [(0, 0, 0.1), (0, 1, 0.1)]


ROWS = [(step, rank, 1000 + 234.5 * rank + step) for step in range(3) for rank in range(2)]
#: Both ranks' steps end with rank 1's.
READ = [(rank, step, round(1.2345 + step / 1e3, 4)) for rank in range(2) for step in range(3)]


@pytest.mark.parametrize(
    "head",
    ["# of 12 March\n# two hosts, a and b\n", "# of 12 March\n\n"],
)
def test_comments_above_a_table_are_no_names(opened, head):
    head += "step,rank,step_time_ms\n"
    assert sorted(steps(opened(head + "".join(f"{s},{r},{ms}\n" for s, r, ms in ROWS)))) == READ


def test_the_step_of_a_run_goes_before_that_of_an_epoch(opened):
    text = "".join(f"{at},{at % 3},{at}\n" for at in range(1, 9))
    assert len(steps(opened("global_step,iter,step_time_s\n" + text))) == 8


def test_only_line_feeds_end_the_lines_of_json(opened):
    """A text may hold U+2028, the separator of lines in Unicode."""
    text = '{"step": %d, "seconds": 2, "note": "a\u2028b"}\n'
    assert steps(opened(text % 0 + text % 1)) == [(0, 0, 2), (0, 1, 2)]


def test_a_quoted_value_may_have_several_lines(opened):
    notes = ('"a, b"', '"of two,\nlines"', "none")
    text = "".join(f"{step},{step + 1},{note}\n" for step, note in enumerate(notes))
    assert steps(opened("step,step_time_s,note\n" + text)) == [(0, 0, 1), (0, 1, 2), (0, 2, 3)]


def test_quotes_are_known_where_the_examined_part_ends_within_a_row(opened):
    """Of rows of 1.5 kB, 43 and the beginning of one are in the examined 64 KiB."""
    text = "".join(f'{step},"a, b",2' + 5 * f",{'x' * 300}" + "\n" for step in range(60))
    assert len(steps(opened("step,note,seconds,a,b,c,d,e\n" + text))) == 60


@pytest.mark.parametrize(
    ("names", "place"),
    [("gpu", "{r}"), ("host", "gpu-{r:03d}"), ("node_rank,local_rank", "{r},0"),
     ("hostname,gpu", "a,{r}"), ("device", "cuda:{r}"), ("host,gpu", "a{r},"),
     ("host", "10.0.{r}.77{r}")],
)  # fmt: skip
def test_workers_without_a_number_are_told_apart_by_where_they_run(opened, names, place):
    text = "".join(f"{s},{place.format(r=r)},{ms}\n" for s, r, ms in ROWS)
    assert sorted(steps(opened(f"step,{names},step_time_ms\n{text}"))) == READ


@pytest.mark.parametrize(("names", "host"), [("host,gpu", "n{}-7,"), ("local_rank", "")])
def test_hosts_with_a_table_each_are_told_apart(tmp_path, names, host):
    for node in range(2):
        own = host.format(node)
        text = "".join(f"{s},{own}{r},{1 + node}\n" for s in range(3) for r in range(2))
        (tmp_path / f"{node}.csv").write_text(f"step,{names},seconds\n{text}")
    trace = open_trace([tmp_path])
    assert (sorted(trace.ranks), trace.world, len(steps(trace))) == ([0, 1, 2, 3], 4, 12)


def test_a_measure_of_a_gpu_tells_no_workers_apart(opened):
    """Each value comes in one step."""
    text = "".join(f"{step},{50 + step},100\n" for step in range(9))
    assert {rank for rank, *_ in steps(opened("step,gpu,step_time_ms\n" + text))} == {0}


@pytest.mark.parametrize(
    ("unit", "scale"),
    [
        ("_us", 1e6),
        (" (\u00b5s)", 1e6),
        (" [microseconds]", 1e6),
        ("_minutes", 1 / 60),
        ("_hours", 1 / 3600),
    ],
)
def test_units_are_known_by_their_names_and_signs(opened, unit, scale):
    text = "".join(f"{s},{r},{ms / 1e3 * scale:.15f}\n" for s, r, ms in ROWS)
    assert sorted(steps(opened(f"step,rank,step_time{unit}\n{text}"))) == READ


def test_a_clock_that_passes_midnight_goes_on(opened):
    """Steps of 20 s, few and many after it."""
    for began_s in (86_370, 85_800):
        at = [(began_s + 20 * step) % 86_400 for step in range(60)]
        clocks = [f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}" for s in at]
        for name, times in (("time", clocks), ("timestamp", clocks), ("time", at)):
            text = "".join(f"{time},{step}\n" for step, time in enumerate(times))
            assert steps(opened(f"{name},step\n{text}")) == [(0, step, 20.0) for step in range(59)]


def test_each_workers_clock_passes_midnight_by_itself(opened):
    rows = [
        (rank, (86_370 + rank + 20 * step) % 86_400, step) for rank in range(3) for step in range(9)
    ]
    text = "".join(f"{rank},{time},{step}\n" for rank, time, step in rows)
    told = [(rank, step, 20.0) for rank in range(3) for step in range(8)]
    assert sorted(steps(opened(f"rank,time,step\n{text}"))) == told


def test_validation_of_mmengine_is_no_step(opened):
    """Its rows have the time of a batch and, as `step`, the epoch, but no `iter`."""
    trained = [{"time": 0.4 + at / 1e3, "epoch": 1, "iter": at, "step": at} for at in (1, 2, 3)]
    text = "\n".join(map(json.dumps, [*trained, {"mAP": 0.3, "time": 0.05, "step": 1}]))
    assert steps(opened(text, "scalars.json")) == [(0, at, 0.4 + at / 1e3) for at in (1, 2, 3)]


@pytest.fixture
def tracked(tmp_path):
    """A run in MLflow's file store: 3 steps, begun 500 ms apart."""
    (tmp_path / "metrics" / "system").mkdir(parents=True)
    (tmp_path / "meta.yaml").write_text("artifact_uri: here\nrun_id: 3f\n")
    loss = "".join(f"{1_700_000_000_000 + 500 * at} {9 - at} {at}\n" for at in range(4))
    (tmp_path / "metrics" / "loss").write_text(loss)
    (tmp_path / "metrics" / "system" / "power").write_text("1700000000000 300 0\n" * 9)
    return tmp_path


@pytest.mark.parametrize("warm", ["1", "True"])
def test_rows_of_warm_up_are_no_steps(tmp_path, warm):
    """The first call of rank 0 compiles: 87 % of all its time, and none of the benchmark's."""
    path = tmp_path / "dispatch_latency.csv"
    cold = {"1": "0", "True": "False"}[warm]
    path.write_text(
        "rank,iteration,elapsed_us,is_warmup\n"
        + "".join(
            f"{rank},{at},{(20 if at else 900 - 850 * rank) + rank},{cold if at else warm}\n"
            for rank in (0, 1) for at in range(5)
        )
    )  # fmt: skip
    trace = open_trace([path])
    assert set(trace.of_kind(Kind.STEP).step.tolist()) == {1, 2, 3, 4}
    assert "2 rows are of a warm-up (is_warmup): left out" in trace.limits


def test_rows_of_warm_up_are_left_out_of_a_column_per_worker(tmp_path):
    path = tmp_path / "steps.csv"
    rows = "".join(f"{at},{900 - 880 * (at > 1)},{21},{int(at < 2)}\n" for at in range(6))
    path.write_text("step,rank0_ms,rank1_ms,is_warmup\n" + rows)
    assert set(open_trace([path]).of_kind(Kind.STEP).step.tolist()) == {2, 3, 4, 5}


def test_elapsed_times_in_whole_seconds_are_a_clock_of_shorter_steps_too(tmp_path):
    path = tmp_path / "steps.csv"
    rows = "".join(f"0,{at},{at * 3 // 10}\n" for at in range(60))
    path.write_text("rank,step,elapsed_time\n" + rows)
    steps = open_trace([path]).of_kind(Kind.STEP)
    assert set((steps.exit_ns - steps.enter_ns).tolist()) == {10**9}


@pytest.mark.parametrize("times", [[20, 20, 20, 20], [20, 20, 21, 21]])
def test_elapsed_times_that_stay_are_those_of_steps(tmp_path, times):
    path = tmp_path / "steps.csv"
    rows = "".join(f"0,{at},{ms}\n" for at, ms in enumerate(times))
    path.write_text("rank,step,elapsed_ms\n" + rows)
    steps = open_trace([path]).of_kind(Kind.STEP)
    assert ((steps.exit_ns - steps.enter_ns) / 1e6).tolist() == times


def test_a_column_that_is_warm_up_throughout_leaves_its_rows(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("rank,step,seconds,warmup\n" + "".join(f"0,{at},1.5,1\n" for at in range(5)))
    assert len(open_trace([path]).of_kind(Kind.STEP)) == 5


def test_a_run_of_mlflow_has_the_times_of_its_steps(tracked):
    assert steps(open_trace([tracked])) == [(0, at, 0.5) for at in range(3)]


def test_a_run_of_mlflow_has_the_durations_that_it_logged(tracked):
    (tracked / "metrics" / "perf").mkdir()
    times = "1700000000000 0.25 0\n1700000000500 0.5 1\nno value\n"
    (tracked / "metrics" / "perf" / "step_time").write_text(times)
    trace = open_trace([tracked])
    assert steps(trace) == [(0, 0, 0.25), (0, 1, 0.5)]
    assert any("1 lines that are no values" in limit for limit in trace.limits)


def test_a_run_of_mlflow_without_values_says_so(tracked):
    for file in filter(Path.is_file, (tracked / "metrics").rglob("*")):
        file.write_text("")
    with pytest.raises(EvenstepError, match="nothing to read: no values"):
        open_trace([tracked])


def test_a_metric_of_mlflow_alone_says_what_to_give(tracked):
    with pytest.raises(EvenstepError, match="is a metric of MLflow: give the folder of its run"):
        open_trace([tracked / "metrics" / "loss"])


ASCEND = (
    "Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing"
)


def test_a_table_of_a_cluster_of_ascend_tells_the_rank_whose_device_is_idle(opened):
    rows = "".join(
        f"{step},rank,4,240,120,9,129,300,650,10,110,5\n"
        f"{step},rank,7,240,410,9,419,10,650,10,400,5\n"
        f'{step},stage,"(4, 7)",240,410,9,419,300,650,10,400,5\n'
        for step in range(6)
    )
    trace = opened(f"Step,Type,Index,{ASCEND}\n{rows}", "cluster_step_trace_time.csv")
    assert {(rank, seconds) for rank, _, seconds in steps(trace)} == {(4, 650e-6), (7, 650e-6)}
    first = diagnose(trace).findings[0]
    assert first.where.ranks == [4]
    assert first.severity == pytest.approx(290 / 650, rel=0.1)
    assert any("rows have no worker" in line for line in trace.limits)


def test_tables_of_ascend_of_a_rank_each_are_of_microseconds(tmp_path):
    for rank, free in enumerate((10, 300)):
        folder = tmp_path / f"rank_{rank}"
        folder.mkdir()
        rows = "".join(f"{rank},{at},240,{410 - free},9,9,{free},650,0,{410 - free},5\n"
                       for at in range(6))  # fmt: skip
        (folder / "step_trace_time.csv").write_text(f"Device_id,Step,{ASCEND}\n{rows}")
    trace = open_trace([tmp_path])
    assert {seconds for *_, seconds in steps(trace)} == {650e-6}
    assert diagnose(trace).findings[0].where.ranks == [1]


@pytest.mark.parametrize("name", ["total_time", "t_step_s", "step_total_s", "iteration_s"])
def test_the_whole_of_a_step_by_other_names(opened, name):
    text = f"step,data_time,forward_time,{name}\n" + "1,.04,.05,.1\n2,.03,.06,.1\n3,.04,.05,.1\n"
    assert {seconds for *_, seconds in steps(opened(text))} == {0.1}


def test_a_total_beside_the_time_of_a_step_is_none_of_it(opened):
    text = "step,step_time,total_time\n1,2,2\n2,2,5\n3,2,7\n4,2,10\n"
    assert {seconds for *_, seconds in steps(opened(text))} == {2.0}


def test_a_total_that_grows_is_of_the_run(opened):
    text = "step,total_time\n" + "".join(f"{at},{3 * at}\n" for at in range(1, 9))
    assert {seconds for *_, seconds in steps(opened(text))} == {3.0}


def test_a_counter_of_batches_among_times_is_no_duration(opened):
    rows = "".join(f'{{"step": {at}, "time/batch": {at}, "time/total": {at}e-3}}\n'
                   for at in range(1, 6))  # fmt: skip
    with pytest.raises(EvenstepError, match="nothing to read"):
        opened(rows, "run.jsonl")


def test_few_durations_that_happen_to_grow_are_durations(opened):
    text = "rank,iteration,elapsed_us\n0,0,10\n0,1,10.5\n0,2,11\n1,0,40\n1,1,41\n1,2,42\n"
    assert {seconds for _, at, seconds in steps(opened(text)) if at == 2} == {42e-6}


def test_of_two_totals_that_grow_none_is_of_a_step(opened):
    text = "step,total_time,elapsed_time\n" + "".join(f"{s},{3 * s},{3 * s}.5\n" for s in range(9))
    assert {seconds for *_, seconds in steps(opened(text))} == {3.0}


def test_a_total_among_metrics_is_of_the_run_as_one_in_a_column_is(opened):
    rows = "".join(f"{at},step_time,2\n{at},total_time,{2 * at}\n" for at in range(1, 8))
    assert {seconds for *_, seconds in steps(opened("step,key,value\n" + rows))} == {2.0}


def test_a_total_that_mlflow_has_beside_the_time_of_a_step_is_none_of_it(tracked):
    for name, seconds in (("step_time", 0.5), ("total_time", 0.0)):
        rows = "".join(f"1700000000000 {seconds or at} {at}\n" for at in range(1, 8))
        (tracked / "metrics" / name).write_text(rows)
    assert {seconds for *_, seconds in steps(open_trace([tracked]))} == {0.5}


def test_a_rate_in_a_group_is_no_duration(opened):
    with pytest.raises(EvenstepError, match="nothing to read"):
        opened("step,train/steps/sec\n" + "".join(f"{at},3.5\n" for at in range(1, 8)))


def test_a_latency_of_an_iteration_on_a_rank_is_its_step(opened):
    trace = opened("Rank,Iteration,Latency\n0,0,0.12\n0,1,0.13\n1,0,0.22\n1,1,0.23\n")
    rows = trace.of_kind(Kind.STEP)
    assert set(trace.ranks) == {0, 1}
    assert ((rows.exit_ns - rows.enter_ns) / 1e9).max() == pytest.approx(0.23)


@pytest.mark.parametrize("time", ["step_time_s", "total_s"])
def test_a_latency_beside_the_time_of_a_step_is_none_of_it(opened, time):
    trace = opened(f"step,{time},latency_ms\n" + "".join(f"{n},0.5,3\n" for n in range(1, 8)))
    rows = trace.of_kind(Kind.STEP)
    assert ((rows.exit_ns - rows.enter_ns) / 1e9).min() == pytest.approx(0.5)


def test_a_latency_that_grows_is_no_time_since_the_beginning(opened):
    trace = opened("step,latency_ms\n" + "".join(f"{n},{300 + 40 * n}\n" for n in range(1, 30)))
    rows = trace.of_kind(Kind.STEP)
    assert ((rows.exit_ns - rows.enter_ns) / 1e9).max() == pytest.approx(1.46)


def test_who_ends_a_step_before_the_slowest_waits_in_a_barrier_at_its_end(opened):
    """Steps of 2 and 3 s, and of 5 and 4; the second rank alone has a third."""
    trace = opened("rank,step,seconds\n0,1,2\n1,1,3\n0,2,5\n1,2,4\n1,3,9\n")
    ends = trace.of_kind(Kind.STEP)
    begin = int(ends.enter_ns.min())
    rows = trace.of_kind(Kind.COLLECTIVE).sorted_by("enter_ns", "rank")
    told = zip(rows["rank"], rows.step, rows.enter_ns - begin, rows.exit_ns - begin, strict=True)
    assert [tuple(map(int, one)) for one in told] == [
        (0, 1, 2 * 10**9, 3 * 10**9 + 1), (1, 1, 3 * 10**9, 3 * 10**9 + 1),
        (1, 2, 7 * 10**9, 8 * 10**9 + 1), (0, 2, 8 * 10**9, 8 * 10**9 + 1),
    ]  # fmt: skip
    assert rows.group_seq.tolist() == [0, 0, 1, 1]
    assert ends.sorted_by("step", "rank").enter_ns.tolist() == [
        begin + at * 10**9 for at in (0, 0, 3, 3, 8)
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("perf/step_time_ms", ("", -1, 1e-3)),
        ("run-3 - time_metrics/forward(s)", ("run-3", Phase.FORWARD, 1.0)),
        ("step_time__MAX", None),
        ("rank3", None),
        ("gpu3.step_time_s", ("gpu3", -1, 1.0)),
        ("forward_ms (rank 3)", ("rank 3", Phase.FORWARD, 1e-3)),
        ("data_time", ("", Phase.INPUT, 1.0)),
        ("data", None),
        ("backward_us", ("", Phase.BACKWARD, 1e-6)),
        ("allreduce_time", ("", Phase.SYNC, 1.0)),
        ("compute_ns", ("", Phase.OTHER, 1e-9)),
        ("loss", None),
        ("samples/sec", None),
        ("seconds", ("", -1, 1.0)),
        ("ms", ("", -1, 1e-3)),
        ("t_step_ms", ("", -1, 1e-3)),
    ],
)
def test_a_name_tells_the_part_of_a_step_its_unit_and_its_run(name, told):
    found = step_tables.duration_of(name)
    assert (found and (found.run, found.phase, found.unit_s)) == told


@pytest.mark.parametrize("by", [1, 10**3, 10**6, 10**9])
def test_times_since_1970_may_be_in_any_unit(opened, by):
    at = [1_795_000_000 + 2 * step for step in range(5)]
    found = opened("step,timestamp\n" + "".join(f"{n},{one * by}\n" for n, one in enumerate(at)))
    assert steps(found) == [(0, step, 2.0) for step in range(4)]


def test_a_step_without_the_one_behind_it_lasts_its_share_until_the_next(opened):
    rows = "".join(f"{rank},{n},{10 * n + rank}\n" for n in (0, 1, 4, 6) for rank in (0, 1))
    found = opened("rank,step,time_s\n" + rows)
    assert sorted(steps(found)) == [(rank, n, 10.0) for rank in (0, 1) for n in (0, 1, 4)]


def test_steps_are_counted_over_epochs_that_begin_anew(opened):
    rows = "".join(f"{epoch},{n},{1 + n}\n" for epoch in range(3) for n in range(4))
    found = opened("epoch,step,step_time_s\n" + rows)
    assert steps(found) == [(0, 4 * epoch + n, 1.0 + n) for epoch in range(3) for n in range(4)]


def test_steps_that_go_on_through_epochs_are_counted_as_they_are(opened):
    rows = "".join(f"{n // 4},{n},{1 + n}\n" for n in range(12))
    found = opened("epoch,step,step_time_s\n" + rows)
    assert steps(found) == [(0, n, 1.0 + n) for n in range(12)]


@pytest.mark.parametrize(
    ("kinds", "ranks", "numbers"),
    [
        (["rank 3", "rank 1"], True, [3, 1]),
        (["worker-7.0", "(4, 7)", "worker-2"], True, [7, -1, 2]),
        (["a1", "b1"], True, [1, 2]),  # two of one number: by their names
        (["gpu 3", "gpu 1"], False, [2, 1]),
    ],
)
def test_workers_are_their_numbers_or_their_places_among_all(kinds, ranks, numbers):
    places = ["first"]
    assert step_tables._number_workers(kinds, places, ranks) == numbers
    assert (len(places) == 3) == (1 in numbers and 2 in numbers and "worker-2" not in kinds)


def test_times_of_workers_without_steps_are_those_they_share(opened):
    rows = "".join(f"{rank},{10 * n},{2 + rank}\n" for n in range(5) for rank in (0, 1))
    found = opened("rank,time_s,step_time_s\n" + rows)
    assert sorted(steps(found)) == [(rank, n, 3.0) for rank in (0, 1) for n in range(5)]
    apart = "".join(f"{rank},{10 * n + 3 * rank},{2 + rank}\n" for n in range(5) for rank in (0, 1))
    found = opened("rank,time_s,step_time_s\n" + apart)
    assert sorted({step for _, step, _ in steps(found)}) == list(range(5))


def test_what_keeps_growing_is_of_the_run_and_steps_last_what_lies_between(opened):
    total = [3.0]
    for n in range(1, 9):
        total.append(total[-1] + 2 + n % 2)
    rows = "".join(f"{n},{one}\n" for n, one in enumerate(total))
    found = opened("step,elapsed_time\n" + rows)
    assert [length for _, _, length in steps(found)] == [2.0 + n % 2 for n in range(1, 9)]
    rows = "".join(f"{n},{2 + n % 3}\n" for n in range(9))
    found = opened("step,elapsed_time\n" + rows, "b.csv")
    assert [length for _, _, length in steps(found)] == [2.0 + n % 3 for n in range(9)]


def test_rows_of_a_warm_up_are_left_out_unless_there_are_no_others(opened):
    rows = "".join(f"{n},{n + 1},{str(n < 2).lower()}\n" for n in range(5))
    found = opened("step,step_time_s,warmup\n" + rows)
    assert steps(found) == [(0, n, n + 1.0) for n in range(2, 5)]
    assert "2 rows are of a warm-up (warmup): left out" in found.limits
    every = opened("step,step_time_s,warmup\n0,1,1\n1,2,1\n", "b.csv")
    assert len(steps(every)) == 2


@pytest.mark.parametrize(
    "head",
    ["# of 12 March\n# two hosts, a and b\nstep,rank,step_time_ms\n",
     "# of 12 March\n\n#step,rank,step_time_ms\n", "#step,rank,step_time_ms\n# by hand\n"],
)  # fmt: skip
def test_comments_above_a_table_are_no_names_but_the_last_may_be(opened, head):
    """As numpy.savetxt writes its header."""
    assert sorted(steps(opened(head + "".join(f"{s},{r},{ms}\n" for s, r, ms in ROWS)))) == READ
