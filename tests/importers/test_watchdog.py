"""What torch's watchdog writes into logs when a collective times out."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.errors import EvenstepError
from evenstep.importers.opening import open_trace


def timed_out(rank, call, op="ALLREDUCE", *, prefix=True, of=None):
    """A rank's word of a call that lasted too long; `of`: its place in the group."""
    tag = f"[rank{rank}]:[E321 02:07:08.4{rank:02d}271257 ProcessGroupNCCL.cpp:607] " * prefix
    return (
        f"{tag}[Rank {rank if of is None else of}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={call}, OpType={op}, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran "
        f"for 6000{rank:02d} milliseconds before timing out.\n"
    )


def status(rank, issued, completed, group="PG ID 0 PG GUID 0(default_pg)", of=None):
    """A rank's word of what it issued and completed last."""
    return (
        f"[rank{rank}]:[E321 02:07:08.900271257 ProcessGroupNCCL.cpp:1785] [{group} Rank "
        f"{rank if of is None else of}] Received a dump signal due to a collective timeout. Last "
        f"enqueued NCCL work: {issued}, last completed NCCL work: {completed}.\n"
    )


@pytest.fixture
def opened(tmp_path):
    """Logs with these texts, as a trace."""

    def of(*texts):
        paths = [tmp_path / f"node{at}.log" for at in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        return open_trace(paths)

    return of


def hang_of(trace):
    (finding,) = diagnose(trace).findings
    assert finding.mode == "hang"
    return finding


STUCK = "".join(timed_out(rank, 11) + status(rank, 13, 10) for rank in (0, 1, 3))


def test_the_rank_that_never_came_is_named_with_what_it_called_last(opened):
    finding = hang_of(opened(STUCK + status(2, 9, 9)))
    assert finding.where.ranks == [2]
    assert "all_reduce" in finding.title
    assert finding.evidence[0].measured == 600e9


@pytest.mark.parametrize(
    "words",
    [
        "[PG 0 Rank {rank}] Timeout at NCCL work: 11, last enqueued NCCL work: {issued}, last "
        "completed NCCL work: {done}.",
        "[PG 0 (default_pg) Rank {rank}] Exception (either an error or timeout) detected by "
        "watchdog at work: 11, last enqueued NCCL work: {issued}, last completed NCCL work: "
        "{done}.",
        "[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work "
        "sequence id: 11 PG status: last enqueued work: {issued}, last completed work: {done}",
    ],
)
def test_versions_of_torch_say_it_in_different_words(opened, words):
    def said(rank, issued, done):
        return f"[rank{rank}]:[E {words.format(rank=rank, issued=issued, done=done)}\n"

    text = "".join(timed_out(rank, 11) + said(rank, 13, 10) for rank in (0, 1, 3))
    behind = status(2, 9, 9, "PG 0" if "[PG 0 Rank" in words else "PG ID 0 PG GUID 0(default_pg)")
    assert hang_of(opened(text + behind)).where.ranks == [2]


def test_logs_of_several_nodes_are_one(opened):
    finding = hang_of(opened(timed_out(0, 11) + status(0, 13, 10), status(8, 9, 9)))
    assert finding.where.ranks == [8]


def test_ranks_that_wrote_nothing_are_told_and_not_accused(opened):
    trace = opened(STUCK)
    assert any("nothing in the log is of these ranks: 2" in limit for limit in trace.limits)
    assert "every traced rank entered it" in hang_of(trace).cause


def test_who_entered_another_operation_is_named(opened):
    odd = timed_out(2, 11, "BROADCAST") + status(2, 13, 10)
    finding = hang_of(opened(STUCK + odd))
    assert finding.where.ranks == [2]
    assert "rank 2 entered broadcast, the others all_reduce" in finding.cause


def test_a_call_whose_group_was_not_told_is_of_the_group_that_is_in_it(opened):
    assert hang_of(opened(STUCK + timed_out(2, 11))).cause == hang_of(opened(STUCK)).cause
    assert 2 in opened(STUCK + timed_out(2, 11)).ranks


def test_a_rank_is_that_in_front_of_the_line_where_groups_count_their_own(opened):
    text = "".join(
        timed_out(rank, 11, of=rank // 2) + status(rank, 11, 10, f"PG 2{rank % 2}", of=rank // 2)
        for rank in range(4)
    )
    trace = opened(text)
    assert sorted(group.ranks for group in trace.groups if group.ranks) == [(0, 2), (1, 3)]


def test_lines_without_groups_are_of_one_unless_a_rank_is_in_several_calls(opened):
    text = "".join(timed_out(rank, 7, prefix=False) for rank in (0, 1, 2))
    assert "every traced rank entered it" in hang_of(opened(text)).cause
    with pytest.raises(EvenstepError, match="of which groups the calls are: give its flight"):
        opened(text + timed_out(1, 9, prefix=False))


def test_the_end_of_a_long_training_log_is_read(opened):
    step = " [2026-05-08 12:00:10] iteration {at:8d}/ 9999 | elapsed time per iteration (ms): 9.5 |"
    steps = "".join(step.format(at=at) + "\n" for at in range(2000))
    assert hang_of(opened(steps + STUCK + status(2, 9, 9))).where.ranks == [2]
    assert opened(steps).run["source"] == "training log (Megatron-LM)"


def test_counters_that_were_never_set_are_left_out(opened):
    text = STUCK + status(1, 1, 76280750235782912, "PG ID 1 PG GUID 1") + status(2, 9, 9)
    assert [group.name for group in opened(text).groups] == ["default_pg"]


@given(st.text(max_size=60), st.integers(0, 3_000), st.integers(0, 3_000))
def test_any_text_gives_a_trace_or_a_sentence(tmp_path_factory, noise, begin, end):
    path = tmp_path_factory.mktemp("any") / "out.log"
    path.write_text(STUCK[:begin] + noise + STUCK[end:])
    with suppress(EvenstepError):
        diagnose(open_trace([path]))


def test_a_rank_in_calls_of_several_groups_is_in_all_of_them(opened):
    text = timed_out(0, 11) + status(0, 13, 10) + timed_out(1, 5) + status(1, 5, 4, "PG 1")
    trace = opened(text + timed_out(2, 11) + timed_out(2, 5))
    assert sorted(group.ranks for group in trace.groups if group.ranks) == [(0, 2), (1, 2)]


def test_a_training_log_whose_timeout_names_no_call_is_read_for_its_steps(opened):
    old = timed_out(0, 11).replace("SeqNum=11, ", "")  # before torch 1.13
    step = "[2026-05-08 12:00:10] iteration {at:8d}/ 9999 | elapsed time per iteration (ms): 9.5 |"
    steps = "".join(step.format(at=at) + "\n" for at in range(9))
    assert opened(steps + old).run["source"] == "training log (Megatron-LM)"
    with pytest.raises(EvenstepError, match="a timeout that names no call: give its flight"):
        opened(old)


def test_a_call_of_several_operations_has_no_name(opened):
    """pytorch/pytorch#117682: both ranks of a coalesced call time out."""
    first = hang_of(opened(*(timed_out(rank, 2, op="COALESCED") for rank in (0, 1))))
    assert first.title == "Ranks 0 and 1 hung in unnamed call"
    assert "hung in unnamed call 2" in first.observation


def test_a_call_lasts_as_long_as_others_say_where_a_ranks_own_line_is_lost(opened):
    """As of a log that was cut, or lines that another process's took the place of."""
    stopped = "[rank0]:[E321 02:07:08.900271257 ProcessGroupNCCL.cpp:2268] " + (
        "[PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by watchdog at work sequence "
        "id: 11 PG status: last enqueued work: 13, last completed work: 10\n"
    )
    one = status(2, 13, 10, "PG ID 0 PG GUID 0(default_pg)")
    finding = hang_of(opened(stopped + timed_out(2, 11) + one))
    assert "every traced rank entered it" in finding.cause
    assert finding.title == "Ranks 0 and 2 hung in all_reduce"
