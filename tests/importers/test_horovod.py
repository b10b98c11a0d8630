"""Timelines as Horovod's coordinator writes them: who was ready for which tensor when."""

import json

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.errors import TraceError
from evenstep.importers.opening import open_trace
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


def test_a_timeline_without_marks_is_a_sentence(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text('[{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 1}]')
    with pytest.raises(TraceError, match="has no negotiation"):
        open_trace([path])
