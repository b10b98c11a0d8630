"""Tables that know how long collectives took on each rank, and nothing else."""

import gzip
import json
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.importers.content import SourceFile
from evenstep.importers.nccl import durations
from evenstep.importers.nccl.durations import layout_of
from evenstep.importers.opening import open_trace
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op

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
    flight = (events.exit_ns - events.enter_ns).tolist()
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


class Clock:
    """Calls of a job, one after the other or behind others: durations of each rank in order."""

    def __init__(self, ranks):
        self.free, self.count, self.rows = [0.0] * ranks, defaultdict(int), []
        self.over = [0.0] * ranks

    def compute(self, cost):
        self.free = [now + cost(rank) for rank, now in enumerate(self.free)]

    def call(self, group, members, moved, behind=False):
        end = max(self.free[rank] for rank in members) + moved
        for rank in members:
            self.rows.append((rank, group, self.count[group], round(end - self.free[rank], 3)))
            self.over[rank] = end
            self.free[rank] = self.free[rank] if behind else end
        self.count[group] += 1

    def wait(self):
        self.free = [max(pair) for pair in zip(self.free, self.over, strict=True)]


def two_dimensions(slow, steps=12, layers=3):
    """4 replicas of 2 ranks: a call of each replica after each layer, then one across them."""
    job = Clock(8)
    for step in range(steps):
        for layer in range(layers):
            job.compute(lambda rank, at=step + layer: slow.get(rank, 10) + (3 * rank + at) % 5 / 20)
            for replica in range(4):
                job.call(f"tp{replica}", (2 * replica, 2 * replica + 1), 1)
        for lane in range(2):
            job.call(f"dp{lane}", range(lane, 8, 2), 2)
    return job.rows


def overlapped(slow, steps=12, layers=4):
    """4 replicas of 2 ranks: after each layer a call of each replica, in the second half of a step
    also one across them, which the replicas wait for at the end of the step only."""
    job = Clock(8)
    for step in range(steps):
        for layer in range(2 * layers):
            job.compute(lambda rank, at=step + layer: slow.get(rank, 10) + (3 * rank + at) % 5 / 20)
            for replica in range(4):
                job.call(f"tp{replica}", (2 * replica, 2 * replica + 1), 1)
            for lane in range(2 * (layer >= layers)):
                job.call(f"dp{lane}", range(lane, 8, 2), 2, behind=True)
        job.wait()
    return job.rows


def told(path, rows):
    lines = [f"{rank},{group},{call},all_reduce,{ms}" for rank, group, call, ms in rows]
    path.write_text("rank,comm,seq,op,duration_ms\n" + "\n".join(lines) + "\n")
    return diagnose(open_trace([path]))


def test_a_damaged_table_among_others_is_left_out(tmp_path):
    told(tmp_path / "a.csv", [(rank, "g", call, 10) for call in range(8) for rank in range(2)])
    rows = [{"rank": 0, "seq": 1, "op": "all_reduce", "duration_us": 5}]
    (tmp_path / "b.jsonl").write_bytes(gzip.compress(json.dumps(rows[0]).encode() * 9_999)[:-9])
    trace = open_trace([tmp_path / "a.csv", tmp_path / "b.jsonl"])
    assert len(trace.of_kind(Kind.COLLECTIVE)) == 16
    assert any("left out" in limit and "b.jsonl" in limit for limit in trace.limits)


@pytest.mark.parametrize("job", [two_dimensions, overlapped])
@pytest.mark.parametrize("slow", [{5: 13}, {2: 12, 3: 12}, {4: 13, 5: 13, 6: 13, 7: 13}])
def test_who_is_late_in_one_group_because_of_another_is_not_to_blame(tmp_path, slow, job):
    (finding,) = told(tmp_path / "timer.csv", job(slow)).findings
    assert (finding.mode, sorted(finding.where.ranks)) == ("straggler", sorted(slow))


def test_calls_behind_others_delay_them_at_the_end_of_a_step_only(tmp_path):
    told(tmp_path / "timer.csv", overlapped({5: 13}))
    trace = open_trace([tmp_path / "timer.csv"])
    calls = trace.of_kind(Kind.COLLECTIVE)
    apart = {trace.groups[group].name for group in calls.group[calls.flags & Flag.ASYNC > 0]}
    assert apart == {"dp0", "dp1"}
    assert len(trace.of_kind(Kind.PHASE)) == 12 * 8


def test_without_slow_ranks_nobody_is(tmp_path):
    assert told(tmp_path / "timer.csv", two_dimensions({})).findings == []
    assert told(tmp_path / "timer.csv", overlapped({})).findings == []


def test_calls_in_no_order_are_said_to_be(tmp_path):
    rows = sorted(two_dimensions({5: 13}), key=lambda row: row[:3])
    limits = told(tmp_path / "timer.csv", rows).limits
    assert any("not in the order in which ranks made their calls" in one for one in limits)


def test_groups_that_share_no_rank_are_all_judged(tmp_path):
    job = Clock(4)
    for _ in range(20):
        job.compute(lambda rank: 14 if rank == 3 else 10)
        job.call("a", (0, 1), 1)
        job.call("b", (2, 3), 1)
    finding = told(tmp_path / "timer.csv", job.rows).findings[0]
    assert finding.where.ranks == [3]


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


@pytest.mark.parametrize(
    "row", ["-1,dp,2,1", "1.5,dp,2,1", "99999999,dp,2,1", "0,dp,-1,1", "0,dp,2,-1", "0,dp,2,",
            "0,dp,2,1e19", "x,dp,2,1", "0,dp,1e19,1"]
)  # fmt: skip
def test_a_row_without_a_rank_a_place_or_a_duration_is_left_out(tmp_path, row):
    path = tmp_path / "observer.csv"
    path.write_text(f"rank,pg_name,seq_id,duration\n0,dp,1,2\n1,dp,1,1\n{row}\n")
    trace = open_trace([path])
    events = trace.of_kind(Kind.COLLECTIVE)
    assert ((events.exit_ns - events.enter_ns) / 1e9).tolist() == [2.0, 1.0]
    assert (events["rank"].tolist(), events.group_seq.tolist()) == ([0, 1], [1, 1])
    assert any("1 rows have no rank, place or duration" in limit for limit in trace.limits)
    assert trace.ranks.keys() == {0, 1}


def test_what_no_column_names_is_an_all_reduce_and_what_nobody_knows_another(tmp_path):
    path = tmp_path / "observer.csv"
    path.write_text("rank,pg_name,seq_id,duration\n0,dp,1,2\n1,dp,1,1\n")
    assert set(open_trace([path]).of_kind(Kind.COLLECTIVE).op) == {int(Op.ALL_REDUCE)}
    path.write_text("rank,op,seq_id,size,duration\n0,,1,-4,2\n1,dance,1,1e30,1\n")
    events = open_trace([path]).of_kind(Kind.COLLECTIVE)
    assert (set(events.op), set(events.bytes_in)) == ({int(Op.OTHER)}, {0})


def test_calls_without_a_place_are_in_the_order_of_the_rows(tmp_path):
    """A timer of messages: the longest duration is of who waits, not of who is slow."""
    path = tmp_path / "timer.csv"
    lines = [f"{call},{rank},1048576,{took / 1e3}\n" for rank, _, call, took in rows()]
    path.write_text("iteration,rank,bytes,duration_ms\n" + "".join(lines))
    finding = diagnose(open_trace([path])).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [LATE])


def test_steps_with_bytes_beside_them_are_steps(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("rank,step,step_duration_ms,bytes\n0,0,100,8\n0,1,200,8\n")
    found = open_trace([path]).of_kind(Kind.STEP)
    assert (found.exit_ns - found.enter_ns).tolist() == [100_000_000, 200_000_000]


ORDERS = st.lists(
    st.tuples(
        st.sets(st.integers(0, 2), min_size=1),
        st.integers(1, 40),
        st.sampled_from([durations.ALONE, durations.BEHIND, durations.AWAITED]),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(ORDERS, st.lists(st.integers(0, 30), min_size=24, max_size=24), st.randoms())
def test_calls_are_entered_as_their_ranks_run_on(order, more, random):
    """By plain loops, call by call: a rank goes on when a call that runs alone has ended; one that
    runs behind others lets it go on at once, but is waited for, with those before it, where it is
    awaited. All members of a call leave it together, the last to enter after the least time."""
    free, over, due = ([0] * 3 for _ in range(3))
    rows, excess = [], 0
    for number, (ranks, shortest, how) in enumerate(order):
        took = {rank: shortest + more[3 * number + rank] for rank in sorted(ranks)}
        for rank in ranks if how == durations.ALONE else ():
            free[rank] = max(free[rank], due[rank])
        end = 1 + max(free[rank] + length for rank, length in took.items())
        for rank, length in took.items():
            if how == durations.ALONE or end - length > over[rank]:
                excess += end - length - free[rank]
                free[rank] = end - length
            rows.append((rank, number, length, how, free[rank], end))
            if how == durations.ALONE:
                free[rank] = end
            else:
                over[rank] = max(over[rank], end)
            due[rank] = over[rank] if how == durations.AWAITED else due[rank]
    rank, call, length, how, enter, end = np.array(rows, np.int64).T
    table = Columns(rank=rank, length=length)
    found = durations._place(table, call, call, how.astype(np.int8))
    assert (found[0].tolist(), found[1].tolist(), found[2]) == (
        enter.tolist(),
        end.tolist(),
        excess,
    )


def test_calls_that_wait_for_each_other_in_a_circle_have_no_place():
    """One rank makes the first call before the second, the other the second before the first."""
    table = Columns(rank=np.array([0, 1, 0, 1]), length=np.array([5, 5, 5, 5]))
    call, turn = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0])
    assert durations._place(table, call, turn, np.zeros(4, np.int8)) is None


@pytest.mark.parametrize(
    ("runs", "kinds"),
    [
        # of two ranks' calls: the others are ".", those of the kind "x"
        ([".x.x...x", "...x"], [".B.A...A", "...A"]),
        (["x.x.x.", "x."], ["0.0.0.", "0."]),  # all runs of others are equally long
        (["x..x.x...x"], ["A..B.A...A"]),
    ],
)
def test_calls_behind_others_are_awaited_before_the_longest_runs_of_these(runs, kinds):
    names = {durations.ALONE: "0", durations.BEHIND: "B", durations.AWAITED: "A"}
    rank = np.repeat(np.arange(len(runs)), list(map(len, runs)))
    kind = np.array([one == "x" for each in runs for one in each])
    found = durations._behind(rank, np.arange(len(rank)), kind).tolist()
    told = [names[one] if of else "." for one, of in zip(found, kind.tolist(), strict=True)]
    assert "".join(told) == "".join(kinds)
    assert {one for one, of in zip(found, kind.tolist(), strict=True) if not of} == {
        durations.ALONE
    }
