"""Timelines as Horovod's coordinator writes them: who was ready for which tensor when."""

import json

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.errors import TraceError
from evenstep.importers import horovod
from evenstep.importers.opening import open_trace
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.layout import Kind, Op

STEP_US, LATE_US, WORLD, STEPS, LATE = 10_000, 2_000, 3, 30, 1


def events():
    """Two gradients a step; rank 1 is late for the first, after which all are in step."""
    for tensor, name in enumerate(("allreduce.a", "allreduce.b")):
        yield {"name": "process_name", "ph": "M", "pid": tensor, "args": {"name": name}}
    for step in range(STEPS):
        for tensor in (0, 1):
            begin = step * STEP_US + 1_000 * tensor * 4
            yield {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": begin, "pid": tensor}
            for rank in range(WORLD):
                late = LATE_US if (rank, tensor) == (LATE, 0) else 0
                yield {"ph": "X", "name": str(rank), "ts": begin + late, "dur": 0, "pid": tensor}
            ready = begin + LATE_US * (tensor == 0)
            yield {"ph": "E", "ts": ready, "pid": tensor}
            yield {"ph": "B", "name": "ALLREDUCE", "ts": ready, "pid": tensor}
            yield {"ph": "B", "name": "NCCL_ALLREDUCE", "ts": ready + 1, "pid": tensor}
            yield {"ph": "E", "ts": ready + 300, "pid": tensor}
            yield {"ph": "E", "ts": ready + 301, "pid": tensor, "args": {"dtype": "float32"}}


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "timeline.json"
    lines = ",\n".join(map(json.dumps, events()))
    path.write_text("[\n" + lines + ",\n")  # the list is not closed: a job may end any time
    return open_trace([path])


def test_every_negotiated_tensor_is_a_collective_of_all_ranks(trace):
    rows = trace.of_kind(Kind.COLLECTIVE)
    assert len(rows) == 2 * STEPS * WORLD
    assert set(rows.op.tolist()) == {int(Op.ALL_REDUCE)}
    assert trace.groups[0].ranks == tuple(range(WORLD))


def test_tensors_are_numbered_in_order_whatever_they_are_called(tmp_path):
    named = [{**event, "pid": f"tensor {event['pid']}"} for event in events()]
    (tmp_path / "timeline.json").write_text(json.dumps(named))
    rows = open_trace([tmp_path / "timeline.json"]).of_kind(Kind.COLLECTIVE)
    assert rows.payload.reshape(WORLD, -1)[:, :4].tolist() == [[0, 1, 0, 1]] * WORLD


def test_a_rank_enters_when_the_coordinator_hears_of_it(trace):
    rows = trace.of_kind(Kind.COLLECTIVE).sorted_by("group_seq", "rank")
    enter = rows.enter_ns.reshape(-1, WORLD)
    late = (enter - enter.min(axis=1, keepdims=True))[::2]
    assert set(late[:, LATE].tolist()) == {LATE_US * 1000}
    assert not late[:, [rank for rank in range(WORLD) if rank != LATE]].any()
    assert set((rows.exit_ns.reshape(-1, WORLD) - enter)[::2, LATE].tolist()) == {301_000}


def test_the_late_rank_is_found(trace):
    finding = diagnose(trace).findings[0]
    assert finding.where.ranks == [LATE]
    assert finding.severity == pytest.approx(LATE_US / STEP_US, rel=0.15)


def test_a_collective_that_ends_at_no_time_of_a_clock_is_left_out(tmp_path, trace):
    rows = list(events())
    rows[-1]["ts"] = 1e300
    (tmp_path / "far.json").write_text(json.dumps(rows))
    found = open_trace([tmp_path / "far.json"])
    assert len(found.of_kind(Kind.COLLECTIVE)) == len(trace.of_kind(Kind.COLLECTIVE)) - WORLD


def timeline(path, rows):
    path.write_text(json.dumps(list(rows)))
    return path


def test_collectives_that_not_all_ranks_are_marked_for_are_left_out_and_counted(tmp_path):
    rows = list(events())
    marks = [at for at, row in enumerate(rows) if row["name" if "name" in row else "ph"] == "2"]
    for at in marks[5:8]:
        rows[at]["name"] = "2b"
    trace = open_trace([timeline(tmp_path / "a.json", rows)])
    assert len(trace.of_kind(Kind.COLLECTIVE)) == (2 * STEPS - 3) * WORLD
    assert f"3 of {2 * STEPS} collectives are not marked by all ranks: left out" in trace.limits


@pytest.mark.parametrize(
    ("rank", "at_us", "counts"),
    [(MOST_RANKS - 1, 0, True), (MOST_RANKS, 0, False), (7, -1, False), (7, 1e300, False)],
)
def test_a_mark_of_no_rank_or_of_no_time_is_none(tmp_path, rank, at_us, counts):
    rows = list(events())
    more = {"ph": "X", "name": str(rank), "ts": at_us, "pid": 0}
    rows[3:3] = [more, {**more, "ts": 5_000}]  # the first mark of a rank counts
    trace = open_trace([timeline(tmp_path / "a.json", rows)])
    seen = rank < MOST_RANKS
    assert (rank in trace.ranks) is seen
    if seen:
        calls = trace.of_kind(Kind.COLLECTIVE)
        entered = calls.enter_ns[calls["rank"] == rank] - calls.enter_ns.min()
        assert entered.tolist() == [0 if counts else 5_000_000]


def test_a_call_ends_with_its_outermost_activity_and_no_earlier_than_all_are_ready(tmp_path):
    rows = [
        {"ph": "B", "name": "NEGOTIATE_BROADCAST", "ts": 10, "pid": "x"},
        {"ph": "X", "name": "0", "ts": 10, "pid": "x"},
        {"ph": "X", "name": "1", "ts": 40, "pid": "x"},
        {"ph": "E", "ts": 40, "pid": "x"},
        {"ph": "E", "ts": 41, "pid": "x"},  # of nothing that is under way
        {"ph": "B", "name": "BROADCAST", "ts": 42, "pid": "x"},
        {"ph": "B", "name": "NCCL_BROADCAST", "ts": 43, "pid": "x"},
        {"ph": "X", "name": "2", "ts": 44, "pid": "x"},  # it is negotiated already
        {"ph": "E", "ts": 60, "pid": "x"},
        {"ph": "E", "ts": 65, "pid": "x"},
        {"ph": "B", "name": "NEGOTIATE_UNHEARD", "ts": 70, "pid": "x"},
        {"ph": "X", "name": "0", "ts": 71, "pid": "x"},
        {"ph": "X", "name": "1", "ts": 99, "pid": "x"},
        {"ph": "E", "ts": 99, "pid": "x"},
        {"ph": "B", "name": "UNHEARD", "ts": 99, "pid": "x"},
        {"ph": "E", "ts": 80, "pid": "x"},
    ]
    trace = open_trace([timeline(tmp_path / "a.json", rows)])
    calls = trace.of_kind(Kind.COLLECTIVE).sorted_by("group_seq", "rank")
    assert sorted(trace.ranks) == [0, 1]
    assert calls.op.tolist() == [int(Op.BROADCAST)] * 2 + [int(Op.OTHER)] * 2
    begun = calls.enter_ns - calls.enter_ns[0]
    assert begun.tolist() == [0, 30_000, 61_000, 89_000]
    assert (calls.exit_ns - calls.enter_ns[0]).tolist() == [55_000, 55_000, 89_000, 89_001]


def test_of_several_timelines_and_of_too_many_calls_the_first_are_read(tmp_path, monkeypatch):
    paths = [timeline(tmp_path / name, events()) for name in ("a.json", "b.json")]
    trace = open_trace(paths)
    assert len(trace.of_kind(Kind.COLLECTIVE)) == 2 * STEPS * WORLD
    assert f"left out: {paths[1]} is a second timeline" in trace.limits
    for most, said in ((2 * STEPS - 1, True), (2 * STEPS, False)):
        monkeypatch.setattr(horovod, "MOST_CALLS", most)
        limits = open_trace(paths[:1]).limits
        assert (f"only the first {2 * STEPS} collectives were read" in limits) is said


def test_a_timeline_without_marks_is_a_sentence(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text('[{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 1}]')
    with pytest.raises(TraceError, match="has no negotiation"):
        open_trace([path])
