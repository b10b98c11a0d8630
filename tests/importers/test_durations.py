"""Tables that know how long collectives took on each rank, and nothing else."""

import json
from collections import defaultdict

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.importers.content import SourceFile
from evenstep.importers.nccl.durations import layout_of
from evenstep.importers.opening import open_trace
from evenstep.trace.spool.layout import Kind, Op

LATE_US, MOVED_US, WORLD, CALLS, LATE = 900, 100, 4, 12, 2


def rows():
    """Rank, communicator, place, duration: rank 2 comes late, so that its own is the shortest."""
    for call in range(CALLS):
        for rank in range(WORLD):
            late = LATE_US * (call % 3)
            yield rank, "0xfeed", call, MOVED_US + (0 if rank == LATE else late)


def waits_ns(trace):
    """Own duration less the shortest of each (group, place), counted by rank."""
    events = trace.of_kind(Kind.COLLECTIVE)
    flight = (events.device_exit_ns - events.device_enter_ns).tolist()
    calls = defaultdict(dict)
    for rank, group, place, length in zip(
        events["rank"].tolist(), events.group.tolist(), events.group_seq.tolist(), flight,
        strict=True,
    ):  # fmt: skip
        calls[group, place][rank] = length
    found = defaultdict(int)
    for members in calls.values():
        for rank, length in members.items():
            found[rank] += length - min(members.values())
    return found


@pytest.fixture(params=["csv", "jsonl"])
def trace(request, tmp_path):
    names = ("rank", "comm_hash", "coll_sn", "exec_time_us")
    path = tmp_path / f"timer.{request.param}"
    if request.param == "csv":
        text = "\n".join(",".join(map(str, row)) for row in [names, *rows()])
    else:
        text = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows())
    path.write_text(text + "\n")
    return open_trace([path])


def test_the_wait_is_what_is_above_the_shortest(trace):
    total = sum(LATE_US * 1000 * (call % 3) for call in range(CALLS))
    assert waits_ns(trace) == {rank: 0 if rank == LATE else total for rank in range(WORLD)}
    assert trace.groups[0].ranks == tuple(range(WORLD))


def test_the_rank_that_is_late_is_named_though_no_clock_is_known(trace):
    finding = diagnose(trace).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [LATE])


def test_operations_and_sizes_are_read_where_they_are_given(tmp_path):
    path = tmp_path / "observer.csv"
    path.write_text(
        "global_rank,pg_name,op,seq_id,msg_size,latency (ms)\n"
        "0,dp,ncclAllReduce,1,4096,2\n1,dp,ncclAllReduce,1,4096,1\n"
    )
    events = open_trace([path]).of_kind(Kind.COLLECTIVE)
    assert set(events.op.tolist()) == {int(Op.ALL_REDUCE)}
    assert (events.bytes_in.tolist(), (events.exit_ns - events.enter_ns).tolist()) == (
        [4096, 4096], [2_000_000, 1_000_000]
    )  # fmt: skip


@pytest.mark.parametrize(("column", "unit_s"), [("duration", 1.0), ("duration_us", 1e-6)])
def test_a_duration_without_a_unit_is_in_seconds(tmp_path, column, unit_s):
    file = tmp_path / "table.csv"
    file.write_text(f"rank,seq,op,{column}\n0,1,all_reduce,0.5\n")
    assert layout_of(SourceFile(file, file.read_bytes())).unit_s == unit_s


def test_what_passes_between_calls_is_unknown_and_so_is_a_share_of_it(trace):
    """However long the compute between them, such a table is the same."""
    diagnosis = diagnose(trace)
    summary = diagnosis.summary
    assert [summary[name] for name in ("step_time", "throughput", "shares", "goodput")] == [
        None
    ] * 4
    assert "of the time in collectives" in diagnosis.verdict
    assert any("at most as much" in limit for limit in diagnosis.limits)
    finding = diagnosis.findings[0]
    assert {option.low for option in finding.options if option.gain is not None} == {0.0}


def test_transfers_are_no_finding_where_compute_may_hide_them(tmp_path):
    lines = [f"{rank},c,{call},all_reduce,400000000,{20_000 + 7 * ((rank + call) % 3)}"
             for call in range(40) for rank in range(WORLD)]  # fmt: skip
    path = tmp_path / "timer.csv"
    path.write_text("rank,comm,seq,op,bytes,duration_us\n" + "\n".join(lines) + "\n")
    assert diagnose(open_trace([path])).findings == []
