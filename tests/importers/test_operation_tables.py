import gzip
import json
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.jobs.pipeline import NAMES, Pipeline
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.case import open_case
from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile
from evenstep.importers.operations import operation_tables
from evenstep.trace.operations import Role
from evenstep.trace.spool.layout import Kind, Op, Phase
from evenstep.trace.trace import match_messages

DATA = Path(__file__).parents[2] / ".." / "shared" / "data" / "what-if"
HEADER = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,gmc,mb_id"
PLACES = HEADER.split(",")


def lines(pipeline, columns=PLACES):
    """The run as lines of a CSV file."""
    table = pipeline.table()
    values = {name: table[name] for name in PLACES if name in table}
    values |= {"start_ts": table.start_s, "duration": table.duration_s}
    values["optype"] = np.array(NAMES)[table.optype]
    rows = zip(*(values[name].tolist() for name in columns), strict=True)
    return [",".join(columns), *(",".join(map(str, row)) for row in rows)]


def source(path):
    data = path.read_bytes()
    return SourceFile(path, (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)[: 1 << 16])


def opened(*paths):
    return operation_tables.read([source(path) for path in paths])


def as_parquet(plain, path):
    duckdb.sql(f"COPY (SELECT * FROM read_csv('{plain}')) TO '{path}' (FORMAT parquet)")
    return path


@pytest.fixture
def written(tmp_path):
    """A function that writes lines to a file and gives its path."""

    def write(rows, name="trace-X.csv"):
        path = tmp_path / name
        path.write_text("\n".join(rows) + "\n")
        return path

    return write


def test_what_is_asked_for_before_a_step_does_not_begin_it(written):
    header, *rows = lines(Pipeline(steps=2, following=True, seed=3))
    first = opened(written([header, *rows])).of_kind(Kind.STEP)
    ahead = []
    for row in rows:  # all that is received has been asked for from the very beginning
        cells = row.split(",")
        if cells[4].endswith("recv"):
            start, took = float(cells[5]), float(cells[6])
            cells[5:7] = ["-9", str(start + took + 9)]
        ahead.append(",".join(cells))
    steps = opened(written([header, *ahead])).of_kind(Kind.STEP)
    length = steps.exit_ns - steps.enter_ns
    assert length.tolist() == (first.exit_ns - first.enter_ns).tolist()


# -- what is read ----------------------------------------------------------------------------------


def test_a_table_is_recognised_by_its_columns(written):
    assert operation_tables.recognises(source(written(lines(Pipeline()))))
    assert not operation_tables.recognises(source(written(["rank,step,time", "0,0,1.5"])))


def test_every_operation_becomes_a_record(written):
    pipeline = Pipeline(dp=2, pp=2, micro=3, steps=2)
    trace = opened(written(lines(pipeline)))
    workers, steps = 4, 2
    assert len(trace.of_kind(Kind.STEP)) == workers * steps
    # on each of two stages a data-parallel rank sends 3 messages and receives 3
    assert len(trace.of_kind(Kind.POINT_TO_POINT)) == 2 * 2 * 6 * steps
    phases = trace.of_kind(Kind.PHASE)
    assert np.count_nonzero(phases.op == int(Phase.FORWARD)) == workers * 3 * steps


def test_collectives_know_their_members(written):
    trace = opened(written(lines(Pipeline(dp=2, pp=2, steps=1))))
    groups = {group.name: group.ranks for group in trace.groups}
    assert groups == {
        "stage 0 data-parallel": (0, 2),
        "stage 1 data-parallel": (1, 3),
        "dp 0 embedding": (0, 1),
        "dp 1 embedding": (2, 3),
        "all": (0, 1, 2, 3),
    }
    gathers = trace.of_kind(Kind.COLLECTIVE)
    gathers = gathers.select(gathers.op == int(Op.ALL_GATHER))
    assert {trace.groups[group].name for group in gathers.group} == {
        "stage 0 data-parallel",
        "stage 1 data-parallel",
    }


def test_messages_know_their_peer(written):
    trace = opened(written(lines(Pipeline(dp=1, pp=3, steps=1))))
    messages = trace.of_kind(Kind.POINT_TO_POINT)
    assert set(messages.peer_or_root[messages["rank"] == 0].tolist()) == {1}
    assert set(messages.peer_or_root[messages["rank"] == 1].tolist()) == {0, 2}


@pytest.mark.parametrize("stages", [2, 4])
def test_every_message_of_every_step_has_both_ends(written, stages):
    trace = opened(written(lines(Pipeline(dp=2, pp=stages, micro=3, steps=3))))
    rows = trace.of_kind(Kind.POINT_TO_POINT)
    pairs = match_messages(rows)
    assert len(pairs.send) == len(rows) / 2 > 0
    assert (rows.step[pairs.send] == rows.step[pairs.receive]).all()
    assert (rows.exit_ns[pairs.receive] > rows.enter_ns[pairs.send]).all()


def test_what_is_neither_computed_nor_recorded_is_no_wait(written):
    pipeline = Pipeline(dp=1, pp=2, steps=1)
    trace = opened(written(lines(pipeline)))
    phases = trace.of_kind(Kind.PHASE)
    blocked = phases.select((phases.op == int(Phase.SYNC)) & (phases["rank"] == 1))
    # the second stage waits for its first message from the beginning of the step
    assert blocked.enter_ns[0] == trace.of_kind(Kind.STEP).enter_ns[0]


def test_steps_that_lie_on_one_another_are_laid_end_to_end(written):
    steps = opened(written(lines(Pipeline(steps=3)))).of_kind(Kind.STEP)
    mine = steps.select(steps["rank"] == 0)
    assert (mine.enter_ns[1:] > mine.exit_ns[:-1]).all()


@pytest.mark.parametrize("form", ["csv.gz", "parquet"])
def test_all_forms_are_one_trace(written, tmp_path, form):
    plain = written(lines(Pipeline()))
    other = tmp_path / f"other.{form}"
    if form == "parquet":
        as_parquet(plain, other)
    else:
        other.write_bytes(gzip.compress(plain.read_bytes()))
    assert operation_tables.recognises(source(other))
    one, two = opened(plain), opened(other)
    assert one.names == two.names
    for name in one.operations:
        assert one.operations[name] == pytest.approx(two.operations[name])


def test_columns_that_follow_from_others_may_be_left_out(written):
    pipeline = Pipeline(dp=1, pp=2)
    needed = [name for name in PLACES if name not in ("rank", "seq_id", "gmc")]
    whole, short = opened(written(lines(pipeline))), opened(written(lines(pipeline, needed), "b"))
    for name in ("rank", "seq_id", "gmc"):
        assert sorted(whole.operations[name]) == sorted(short.operations[name])


def test_a_name_that_looks_like_a_pattern_is_one_file(written):
    path = written(lines(Pipeline()), "trace-[a]*.csv")
    assert len(opened(path).ranks) == 8


def test_parts_of_a_table_are_one_trace(written):
    rows = lines(Pipeline())
    half = len(rows) // 2
    parts = [written(rows[:half], "a.csv"), written([rows[0], *rows[half:]], "b.csv")]
    assert len(opened(*parts).operations) == len(rows) - 1


# -- what is beside it -----------------------------------------------------------------------------


def test_the_description_beside_a_table_is_read(written):
    written(["trial_name: bert", "tp_size: 2  # per worker", "", "note"], "meta-X.yaml")
    trace = opened(written(lines(Pipeline())))
    assert trace.run["run_id"] == "bert"
    assert trace.run["layout"]["tp_size"] == 2
    assert any("line 4" in limit and "'note'" in limit for limit in trace.limits)


def test_a_description_that_contradicts_the_table_gives_way(written):
    written(["dp_size: 7"], "meta-X.yaml")
    trace = opened(written(lines(Pipeline(dp=2))))
    assert any("dp_size 7, the table has 2" in limit for limit in trace.limits)


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("duration", "-0.5", "duration must be seconds, not negative"),
        ("start_ts", "soon", "start_ts must be seconds"),
        ("step", "1.5", "step must be a whole number"),
        ("stage", "", "stage must be a whole number"),
        ("rank", "99999999999", "rank must be a whole number"),
        ("optype", "", "optype must be a name"),
    ],
)
def test_rows_that_cannot_be_are_left_out_and_named(written, column, value, said):
    rows = lines(Pipeline())
    broken = rows[5].split(",")
    broken[PLACES.index(column)] = value
    rows[5] = ",".join(broken)
    trace = opened(written(rows))
    assert len(trace.operations) == len(rows) - 2
    assert any(said in limit and "row 5" in limit for limit in trace.limits)


def test_an_operation_counts_once(written):
    rows = lines(Pipeline())
    trace = opened(written([*rows, rows[1]]))
    assert len(trace.operations) == len(rows) - 1
    assert any("1 rows repeat an operation" in limit for limit in trace.limits)


def test_a_table_without_a_usable_row_says_why(written):
    with pytest.raises(TraceError, match=r"nothing to read: .*start_ts"):
        opened(written([HEADER, "0,0,0,0,gc,never,1,0,0,0,0"]))


def test_steps_that_took_no_time_are_left_out(written):
    rows = lines(Pipeline(steps=1))
    trace = opened(written([*rows, "0,0,0,9,gc,0.5,0.0,0,-1,-1,-1"]))
    assert 9 not in trace.operations.step
    assert any("1 steps were left out" in limit for limit in trace.limits)


def test_times_in_another_unit_are_refused_with_the_file(written):
    rows = [HEADER, "0,0,0,0,gc,0,3e9,0,0,0,0", "0,0,0,1,gc,0,3e9,0,0,0,0"]
    path = written(rows)
    assert f"{path}: its steps take 6e+09 seconds" in operations_or_refusal(path)


def operations_or_refusal(path):
    try:
        return len(opened(path).operations)
    except TraceError as error:
        return str(error)


@settings(max_examples=40)
@given(st.lists(st.text("0123456789.,-eE \"'\nabc\t;", max_size=60), max_size=8))
def test_any_lines_give_a_trace(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("fuzz") / "trace.csv"
    path.write_text("\n".join([HEADER, "0,0,0,0,gc,0.0,1.0,0,0,0,0", *rows]))
    assert operations_or_refusal(path) >= 1


@pytest.mark.parametrize("kept", [4, 5, 100, 1000, 3000])
def test_a_parquet_file_cut_anywhere_is_one_sentence(tmp_path, written, kept):
    whole = as_parquet(written(lines(Pipeline())), tmp_path / "whole.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:kept])
    assert f"{cut} cannot be read" in operations_or_refusal(cut)


# -- as published ----------------------------------------------------------------------------------


@pytest.mark.skipif(not DATA.is_dir(), reason="the published trace is not beside this checkout")
def test_the_published_trace_loads():
    trace = opened(DATA / "trace-ST.parquet")
    assert sorted(trace.ranks) == list(range(8))
    assert trace.run["layout"] | {"dp_size": 2, "pp_size": 4, "vpp_size": 1} == trace.run["layout"]
    assert len(np.unique(trace.of_kind(Kind.STEP).step)) == 32  # data/README.md
    assert trace.limits == []


@pytest.mark.skipif(not DATA.is_dir(), reason="the published trace is not beside this checkout")
def test_the_published_measures_stand_in_the_summary():
    found = diagnose(opened(DATA / "trace-ST.parquet")).summary["stragglers"]
    for name in ("ms", "mw"):
        want = json.loads((DATA / f"{name}-ST.json").read_text())
        assert found[name] == pytest.approx(want, rel=1e-3)


def test_the_world_is_what_the_description_says(tmp_path):
    path = tmp_path / "trace-X.csv"
    names = ",".join(("dp_rank", "stage", "step", "optype", "start_ts", "duration"))
    path.write_text(f"{names}\n0,0,1,forward-compute,0,1\n0,0,1,backward-compute,1,1\n")
    (tmp_path / "meta-X.yaml").write_text("world_size: 16\ntp_size: 16\n")
    trace = opened(path)
    assert (trace.world, trace.run["world"]) == (16, 16)


def test_nothing_is_nested_in_a_phase(written):
    phases = opened(written(lines(Pipeline(dp=1, pp=2, steps=1)))).of_kind(Kind.PHASE)
    assert (phases.group_seq.astype(np.int64) == phases.exit_ns - phases.enter_ns).all()


def test_every_compute_says_which_message_it_waits_for(written):
    trace = opened(written(lines(Pipeline(dp=2, pp=3, micro=4, steps=2))))
    phases = trace.of_kind(Kind.PHASE)
    calls = trace.of_kind(Kind.POINT_TO_POINT)
    received = calls.select(calls.op == int(Op.RECV))
    for rank in (0, 4):
        waits = phases.parent[(phases["rank"] == rank) & (phases.op == int(Phase.SYNC))].tolist()
        mine = received.seq[received["rank"] == rank].tolist()
        assert [waits.count(seq) for seq in mine] == [1] * len(mine)


def test_what_a_rank_stands_idle_between_its_steps_is_in_the_second(written):
    begins = {0: (0, 10, 20), 1: (0, 11, 21), 2: (0, 12, 22)}
    rows = [f"{rank},0,{rank},{step},forward-compute,{begin},{10 - 3 * (rank == 2)},0,0,0,0"
            for rank, each in begins.items() for step, begin in enumerate(each)]  # fmt: skip
    steps = opened(written([HEADER, *rows])).of_kind(Kind.STEP)
    idle = steps.select(steps["rank"] == 2)
    assert ((idle.exit_ns - idle.enter_ns) / 1e9).tolist() == [7.0, 12.0, 10.0]


def sharded(slow, steps=16, layers=4):
    """Lines of a job whose layers are gathered within (0, 1) and (2, 3) before each is computed,
    and whose gradients are reduced over all at the end; and how long it took, seconds."""
    now, rows = [0.0] * 4, [HEADER]
    for step in range(steps):
        count = dict.fromkeys(("params-all-gather", "forward-compute", "backward-compute"), 0)

        def add(rank, kind, begin, number, step=step):
            cells = f"{rank},0,{rank},{step},{kind},{begin:.6f},{now[rank] - begin:.6f},{number}"
            rows.append(f"{cells},0,0,{number if 'compute' in kind else -1}")

        for place in range(2 * layers):
            kind = "forward-compute" if place < layers else "backward-compute"
            for shard in ((0, 1), (2, 3)):
                ready = max(now[rank] for rank in shard) + 0.001
                for rank in shard:
                    begin, now[rank] = now[rank], ready
                    add(rank, "params-all-gather", begin, count["params-all-gather"])
            for rank in range(4):
                begin = now[rank]
                noise = (7 * rank + 3 * place + 5 * step) % 11 / 20
                now[rank] += (slow.get(rank, 10) + noise) / 1e3
                add(rank, kind, begin, count[kind])
            count[kind] += 1
            count["params-all-gather"] += 1
        ready = max(now) + 0.004
        for rank in range(4):
            begin, now[rank] = now[rank], ready
            add(rank, "grads-sync", begin, 0)
    return rows, now[0]


def test_who_is_slow_in_a_shard_is_told_from_those_it_holds_up(written):
    rows, took = sharded({3: 13})
    finding = diagnose(opened(written(rows))).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [3])
    assert finding.severity == pytest.approx(1 - sharded({})[1] / took, abs=0.01)


def test_groups_are_those_that_leave_together(written):
    groups = {group.ranks for group in opened(written(sharded({3: 13})[0])).groups}
    assert {(0, 1), (2, 3), (0, 1, 2, 3)} <= groups


def test_a_lane_reduces_with_its_own_on_other_data_parallel_ranks(written):
    rows = [HEADER]
    for rank, lane in enumerate((0, 1, 0, 1)):
        place = f"{rank // 2},0,{rank},0"
        rows += [f"{place},backward-compute,0,{3 + lane},0,0,0,0",
                 f"{place},grads-sync,{3 + lane},{1 + lane},0,0,0,0"]  # fmt: skip
    groups = {group.ranks for group in opened(written(rows)).groups}
    assert {(0, 2), (1, 3)} <= groups


def test_what_is_reduced_behind_backward_is_asked_for_when_it_begins(written):
    rows = [HEADER]
    for rank, slower in enumerate((0, 3)):
        place = f"{rank},0,{rank},0"
        rows += [f"{place},backward-compute,0,{8 + slower},0,0,0,0",
                 f"{place},grads-sync,{4 + slower},{5 - slower},0,0,0,0"]  # fmt: skip
    calls = opened(written(rows)).of_kind(Kind.COLLECTIVE)
    calls = calls.select(calls.op == int(Op.REDUCE_SCATTER)).sorted_by("rank")
    assert (np.diff(calls.enter_ns) / 1e9).tolist() == [3.0]


@pytest.mark.parametrize("following", [False, True])
def test_the_run_s_graph_replays_a_table_as_it_ran(written, following):
    pipeline = Pipeline(dp=2, pp=3, micro=4, steps=3, following=following, seed=2)
    case = open_case(opened(written(lines(pipeline))))
    assert case.costs.length_ns == pytest.approx(case.costs.seen_ns)


@pytest.mark.parametrize(("begins", "asked"), [(6.00004, 4.0), (6.0001, 6.0001)])
def test_what_queues_behind_another_reduction_is_asked_for_when_that_was(written, begins, asked):
    rows = [HEADER, "0,0,0,0,backward-compute,0,8,0,0,0,0", "1,0,1,0,backward-compute,0,8,0,0,0,0"]
    for rank in (0, 1):
        rows += [f"{rank},0,{rank},0,grads-sync,4,2,0,0,0,0",
                 f"{rank},0,{rank},0,grads-sync,{begins},2,1,0,0,0"]  # fmt: skip
    trace = opened(written(rows))
    calls = trace.of_kind(Kind.COLLECTIVE)
    calls = calls.select((calls.op == int(Op.REDUCE_SCATTER)) & (calls["rank"] == 1))
    first = trace.of_kind(Kind.STEP).enter_ns[0]
    assert ((calls.enter_ns - first) / 1e9).tolist() == pytest.approx([4.0, asked], abs=1e-7)


def buckets(slow, names, layers=4, steps=4):
    """Lines of a data-parallel job that reduces each layer behind backward, one reduction after the
    other: rows begin when it is their turn. How long it took, seconds, and when rank 0 was done
    with the backward of each layer."""
    rows, begin, done = [HEADER], 0.0, []
    for step in range(steps):
        issued = np.zeros((layers, 3))
        for rank in range(3):
            now = begin
            for layer in range(2 * layers):
                took = 0.010 * slow.get(rank, 1.0) + 1e-5 * ((3 * rank + layer + step) % 7)
                kind, number = names[layer >= layers], layer % layers
                rows.append(f"{rank},0,{rank},{step},{kind},{now},{took},{number},0,0,{number}")
                now += took
                if layer >= layers:
                    issued[number, rank] = now
        over = np.full(3, begin)
        for number in range(layers):
            starts = np.maximum(issued[number], over)
            over = np.full(3, starts.max() + 0.001)
            for rank in range(3):
                length = over[rank] - starts[rank]
                cells = f"{rank},0,{rank},{step},{names[2]},{starts[rank]},{length}"
                rows.append(f"{cells},{number},0,0,-1")
        ends = f"optimizer,{over[0]},0.005,0,0,0,-1"
        rows += [f"{rank},0,{rank},{step},{ends}" for rank in range(3)]
        done.append(issued[:, 0])
        begin = over[0] + 0.005
    return rows, begin, np.array(done)


@pytest.mark.parametrize(
    "names",
    [
        ("forward-compute", "backward-compute", "grads-all-reduce"),
        ("fwd", "bwd_layer", "ddp.grad_allreduce"),
    ],
)
def test_what_queues_was_asked_for_where_it_did_not_queue_on_another_rank(written, names):
    rows, took, done = buckets({2: 1.5}, names)
    trace = opened(written(rows))
    calls = trace.of_kind(Kind.COLLECTIVE)
    mine = calls.select((calls["rank"] == 0) & (calls.op == int(Op.ALL_REDUCE)))
    asked = mine.enter_ns / 1e9 - 1  # the importer's origin is a second
    assert asked == pytest.approx(done.reshape(-1), abs=2e-4)
    finding = diagnose(trace).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [2])
    assert finding.severity == pytest.approx(1 - buckets({}, names)[1] / took, abs=0.01)


@pytest.mark.parametrize(("slow_s", "load_s", "cost"), [(0.005, 0, 20 / 66), (0, 0.020, 20 / 66)])
def test_a_collective_of_an_unknown_kind_is_of_those_who_leave_it_together(
    written, slow_s, load_s, cost
):
    """Four computes of 10 ms with a sum of 1 ms each, and a reduction of 2 ms; rank 3 is late with
    each, or once a step: the pairs leave sums at a constant distance, but not the reduction."""
    rows, now = [HEADER], np.zeros(4)
    for step in range(12):
        now[3] += load_s
        for call in range(4):
            kind = ("forward-compute", "backward-compute")[call >= 2]
            for rank in range(4):
                took = 0.010 + slow_s * (rank == 3) + 1e-5 * ((rank * 3 + call + step * 5) % 7)
                place = f"{rank // 2},0,{rank},{step}"
                rows.append(f"{place},{kind},{now[rank]},{took},{call % 2},0,{call % 2},0")
                now[rank] += took
            over = np.repeat(now.reshape(2, 2).max(axis=1) + 0.001, 2)
            for rank in range(4):
                place = f"{rank // 2},0,{rank},{step}"
                length = over[rank] - now[rank]
                rows.append(f"{place},tp-all-reduce,{now[rank]},{length},{call},0,-1,0")
            now = over
        for rank in range(4):
            length = now.max() + 0.002 - now[rank]
            rows.append(f"{rank // 2},0,{rank},{step},grads-sync,{now[rank]},{length},0,0,-1,0")
        now[:] = now.max() + 0.002
    trace = opened(written(rows))
    assert {(0, 1), (2, 3)} <= {group.ranks for group in trace.groups}
    finding = diagnose(trace).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [3])
    assert finding.severity == pytest.approx(cost, abs=0.01)


@pytest.mark.parametrize(("recv", "since"), [(0.015, 0.015), (0.010, 0.0)])
def test_a_rank_waits_for_what_was_sent_only_once_it_asks_for_it(written, recv, since):
    """A forward of 10 ms on stage 0, sent to stage 1, which asks for it 5 ms late or in time."""
    end = recv + 0.001
    rows = [HEADER, "0,0,0,0,forward-compute,0.0,0.010,0,0,0,0",
            f"0,0,0,0,forward-send,0.010,{end - 0.010},0,0,0,-1",
            f"0,1,1,0,forward-recv,{recv},0.001,0,0,1,-1",
            f"0,1,1,0,forward-compute,{end},0.010,0,0,1,0"]  # fmt: skip
    phases = opened(written(rows)).of_kind(Kind.PHASE)
    waits = phases.select((phases["rank"] == 1) & (phases.op == int(Phase.SYNC)))
    assert waits.enter_ns[0] - phases.enter_ns.min() == pytest.approx(since * 1e9, abs=1e3)


def test_tensor_parallel_ranks_send_what_they_have_summed(written):
    """Forwards of 10 and 13 ms on stage 0, summed by 14 ms, then sent to stage 1 in 1 ms."""
    rows = [HEADER]
    for rank, took in ((0, 0.010), (1, 0.013)):
        rows += [f"0,0,{rank},0,forward-compute,0.0,{took},0,0,0,0",
                 f"0,0,{rank},0,tp-all-reduce,{took},{0.014 - took},0,0,-1,-1",
                 f"0,0,{rank},0,forward-send,0.014,0.001,0,0,-1,-1",
                 f"0,1,{rank + 2},0,forward-recv,0.0,0.015,0,0,-1,-1",
                 f"0,1,{rank + 2},0,forward-compute,0.015,0.010,0,0,1,0"]  # fmt: skip
    sent = opened(written(rows)).of_kind(Kind.POINT_TO_POINT)
    sent = sent.select(sent.op == int(Op.SEND))
    assert sent["rank"].tolist() == [0, 1]
    assert (sent.enter_ns - 1e9).tolist() == [14e6, 14e6]


@pytest.mark.parametrize(
    ("kind", "begin", "role"),
    [("expert-grads-sync", 0.010, Role.GRADS), ("replicate-all-reduce", 0.012, Role.GRADS),
     ("replicate-all-reduce", 0.022, Role.MEETING)],
)  # fmt: skip
def test_what_runs_during_backward_reduces_gradients(written, kind, begin, role):
    """A reduction of 4 ms, during the second of two backwards of 10 ms or after it."""
    rows = [HEADER]
    for rank in (0, 1):
        rows += [f"{rank},0,{rank},0,backward-compute,0.0,0.010,0,0,0,0",
                 f"{rank},0,{rank},0,backward-compute,0.010,0.010,1,0,0,1",
                 f"{rank},0,{rank},0,{kind},{begin},0.004,0,0,-1,-1"]  # fmt: skip
    trace = opened(written(rows))
    assert trace.operations.role.tolist().count(int(role)) == 2


def test_lanes_that_always_leave_together_are_one_group(written):
    """Shards (0, 1) and (2, 3) labelled as lanes, whose gradients are reduced layer by layer over
    (0, 2) and (1, 3): all leave at once, and whoever is late is so for all."""
    header, *rows = sharded({3: 13})[0]
    ends = np.array([float(row.split(",")[5]) + float(row.split(",")[6]) for row in rows])
    lines_, over = [header], 0.0
    for row, end in zip(rows, ends, strict=True):
        cells = row.split(",")
        rank, kind = int(cells[2]), cells[4]
        cells[0] = str(rank % 2)
        if kind == "grads-sync":
            begin, over = float(cells[5]), end
            middle = max(begin, over - 0.002)
            tail = [f"{begin:.6f}", f"{middle - begin:.6f}", "0", "0", "0", "-1"]
            lines_.append(",".join([*cells[:4], "grads-all-reduce", *tail]))
            tail = [f"{middle:.6f}", "0.002000", "1", "0", "0", "-1"]
            lines_.append(",".join([*cells[:4], "grads-all-reduce", *tail]))
            continue
        lines_.append(",".join(cells))
    trace = opened(written(lines_))
    assert (0, 1, 2, 3) in {group.ranks for group in trace.groups}
    finding = diagnose(trace).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [3])
    assert finding.severity == pytest.approx(1 - sharded({})[1] / sharded({3: 13})[1], abs=0.02)


def test_a_pause_before_each_step_in_which_only_receives_wait_is_the_first_stages(written):
    """The first stage begins 10 ms after the step before has ended, of 130 ms; the second asks for
    the next micro-batch when it has returned the last one's gradients."""
    rows = [HEADER]
    for step in range(8):
        begin = 0.13 * step
        for place, kind, since, until in (
            ("0,0,0", "forward-compute", 0.01, 0.04),
            ("0,0,0", "forward-send", 0.04, 0.041),
            ("0,0,0", "backward-recv", 0.041, 0.101),
            ("0,0,0", "backward-compute", 0.101, 0.13),
            ("0,1,1", "forward-recv", -0.029 if step else 0.0, 0.041),
            ("0,1,1", "forward-compute", 0.041, 0.071),
            ("0,1,1", "backward-compute", 0.071, 0.1),
            ("0,1,1", "backward-send", 0.1, 0.101),
        ):
            rows.append(f"{place},{step},{kind},{begin + since},{until - since},0,0,-1,0")
    worst = diagnose(opened(written(rows))).findings[0]
    assert (worst.mode, list(worst.where.ranks)) == ("straggler", [0])
    assert worst.severity == pytest.approx(10 / 130, abs=0.005)
