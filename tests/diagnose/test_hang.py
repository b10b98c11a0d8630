import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.trace import Trace
from tests.diagnose.synthetic import MS, World, with_rows

SECOND = 1_000_000_000
LONG = 30 * SECOND


def hung(world: World, rows: dict[int, dict], *, closed: bool = False, heard: int = LONG) -> Trace:
    """The run, and after it one collective per rank of `rows` that does not end."""
    trace = world.trace()
    end = int(trace.events.exit_ns.max())
    for rank, row in rows.items():
        usual = {"kind": Kind.COLLECTIVE, "op": Op.ALL_REDUCE, "group": 0, "group_seq": 10**6}
        times = {"step": world.steps, "enter_ns": end + MS, "bytes_in": 4096}
        trace = with_rows(trace, rank=rank, **{**usual, **times, **row})
    trace = with_rows(trace, kind=Kind.SAMPLE, rank=0, enter_ns=end + heard, step=world.steps)
    for info in trace.ranks.values():
        info.closed = closed
    return trace


def hang_of(trace: Trace):
    found = [item for item in diagnose(trace).findings if item.mode == "hang"]
    assert len(found) == 1
    return found[0]


def test_the_rank_that_never_came_is_named():
    finding = hang_of(hung(World(), {0: {}, 2: {}, 3: {}}))
    assert finding.where.ranks == [1]
    assert finding.cause.startswith("rank 1 (node node0) never entered it; the last it entered was")
    assert finding.observation.startswith("ranks 0, 2 and 3 hung in all_reduce 1000000")


def test_what_a_hang_costs_is_the_time_stood_still():
    trace = hung(World(), {0: {}, 2: {}, 3: {}})
    ran = 60 * 64.7 * MS  # the diagnosed steps of the undisturbed program
    assert hang_of(trace).severity == pytest.approx((LONG - MS) / (LONG - MS + ran), rel=0.01)


def test_time_stood_still_is_not_charged_to_a_straggler_as_well():
    trace = hung(World().slow(2, Phase.BACKWARD, 50 * MS), {0: {}, 2: {}, 3: {}})
    found = {finding.mode: finding.severity for finding in diagnose(trace).findings}
    assert set(found) == {"hang", "straggler"}
    assert sum(found.values()) <= 1


@pytest.mark.parametrize("odd", range(4))
def test_the_rank_that_called_another_operation_is_named(odd):
    finding = hang_of(hung(World(), {**{r: {} for r in range(4)}, odd: {"op": Op.BARRIER}}))
    assert finding.where.ranks == [odd]
    odd_call, others = finding.cause.split(", the others ")
    assert odd_call == f"rank {odd} (node node0) entered barrier"
    assert others.startswith("all_reduce")
    assert finding.title == f"Rank {odd} entered another call"


def test_where_halves_make_different_calls_each_half_is_told_with_its_call():
    calls = {rank: {"op": Op.ALL_GATHER} if rank > 3 else {} for rank in range(8)}
    finding = hang_of(hung(World(ranks=8), calls))
    assert finding.cause.startswith(
        "ranks 0-3 entered all_reduce of 4096 B, ranks 4-7 entered all_gather of 4096 B"
    )


def test_ranks_that_never_came_are_told_in_the_plural():
    trace = hung(World(ranks=8), {rank: {} for rank in range(6)})
    for info in trace.ranks.values():
        beat = trace.events.exit_ns.max() if info.rank > 5 else trace.events.enter_ns.max()
        info.facts["heartbeat_ns"] = int(beat)
    finding = hang_of(trace)
    assert "ranks 6 and 7 never entered it, and were not heard of for 30 s: they" in finding.cause
    assert finding.options[0].action.startswith("find what holds the ranks that did not come")


def test_the_rank_that_brought_another_size_is_named():
    finding = hang_of(hung(World(), {0: {"bytes_in": 8}, 1: {}, 2: {}, 3: {}}))
    assert finding.where.ranks == [0]


@pytest.mark.parametrize(
    ("op", "side"),
    [
        (Op.BROADCAST, "bytes_in"),
        (Op.ALL_GATHER, "bytes_in"),
        (Op.REDUCE_SCATTER, "bytes_out"),
        (Op.GATHER, "bytes_in"),
        (Op.SCATTER, "bytes_out"),
    ],
)
def test_the_side_that_must_agree_is_compared(op, side):
    usual = {"op": op, "bytes_in": 64, "bytes_out": 64}
    finding = hang_of(hung(World(), {0: usual, 1: usual, 2: {**usual, side: 8}, 3: usual}))
    assert finding.where.ranks == [2]


def test_sizes_of_an_all_to_all_may_differ():
    rows = {rank: {"op": Op.ALL_TO_ALL, "bytes_in": 8 * rank} for rank in range(4)}
    assert hang_of(hung(World(), rows)).where.ranks == []


def test_a_receive_waits_for_the_rank_that_never_sent():
    receive = {"kind": Kind.POINT_TO_POINT, "op": Op.RECV, "peer_or_root": 2, "group_seq": 0}
    finding = hang_of(hung(World(), {1: receive}))
    assert finding.where.ranks == [2]
    assert finding.title == "Rank 2 never sent"
    assert "never called the matching send" in finding.cause


def test_of_a_circle_its_ranks_are_named_and_not_who_waits_for_them():
    """Ranks 2 and 3 both receive first; the others are in an all-reduce."""
    rows = {rank: {"kind": Kind.POINT_TO_POINT, "op": Op.RECV, "group_seq": 0} for rank in (2, 3)}
    rows[2]["peer_or_root"], rows[3]["peer_or_root"] = 3, 2
    finding = hang_of(hung(World(), {0: {}, 1: {}, **rows}))
    assert finding.title == "Ranks 2 and 3 wait for each other"
    assert finding.where.ranks == [2, 3]


def test_ranks_that_wait_for_each_other_apart_from_others_are_a_finding_of_their_own():
    wait = {"kind": Kind.POINT_TO_POINT, "op": Op.RECV, "group_seq": 0}
    trace = hung(World(), {rank: {**wait, "peer_or_root": rank ^ 1} for rank in range(4)})
    titles = [one.title for one in diagnose(trace).findings if one.mode == "hang"]
    assert titles == ["Ranks 0 and 1 wait for each other", "Ranks 2 and 3 wait for each other"]


def test_who_left_out_a_message_that_it_makes_in_other_steps_keeps_the_others_waiting():
    """A step is two messages from rank 0 to rank 1, and one back. In the last, rank 1 receives one
    and sends, so that each waits in a send for the other."""
    trace, last = World().trace(), World().steps
    end, calls = int(trace.events.exit_ns.max()), [(Op.SEND, Op.RECV)] * 2 + [(Op.RECV, Op.SEND)]
    for step in range(last - 4, last + 1):
        for turn, ops in enumerate(calls):
            at, done = end + (100 * (step - last) + 10 * turn) * MS, step < last or turn == 0
            for rank in (0, 1) if done else (turn - 1,):
                trace = with_rows(
                    trace, kind=Kind.POINT_TO_POINT, rank=rank, peer_or_root=1 - rank, op=ops[rank],
                    step=step, group_seq=step * 2 + turn if turn < 2 else step,
                    bytes_in=4096, enter_ns=at, exit_ns=(at + 5 * MS) * done,
                )  # fmt: skip
    trace = with_rows(trace, kind=Kind.SAMPLE, rank=0, enter_ns=end + LONG, step=last)
    for info in trace.ranks.values():
        info.closed = False
    finding = hang_of(trace)
    assert finding.where.ranks == [1]
    assert finding.title == "Rank 1 never received"


def test_who_keeps_several_waiting_is_told_once():
    waits = {"kind": Kind.POINT_TO_POINT, "peer_or_root": 2, "group_seq": 0}
    rows = {1: {**waits, "op": Op.RECV}, 3: {**waits, "op": Op.SEND}}
    finding = hang_of(hung(World(), rows))
    assert finding.where.ranks == [2]
    assert "elsewhere, for the same" in finding.observation


def test_a_message_that_both_called_is_laid_to_the_transport():
    pair = {
        1: {"kind": Kind.POINT_TO_POINT, "op": Op.RECV, "peer_or_root": 2, "group_seq": 0},
        2: {"kind": Kind.POINT_TO_POINT, "op": Op.SEND, "peer_or_root": 1, "group_seq": 0},
    }
    finding = hang_of(hung(World(), pair))
    assert (finding.where.ranks, finding.layer) == ([], "fabric")


def test_of_two_that_differ_neither_is_called_wrong():
    finding = hang_of(hung(World(ranks=2), {0: {}, 1: {"op": Op.BARRIER}}))
    assert finding.where.ranks == [0, 1]
    assert finding.cause.startswith("rank 0 (node node0) entered all_reduce of 4096 B, rank 1 ")


TWO = World(ranks=2, buckets=2, bucket_bytes=(25_000_000, 16_000_000))  # in turn; 25 MB is due


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ({"op": Op.BARRIER}, [0, 1]),  # made by 1 alone, or left out by 0
        ({"bytes_in": 8}, [0, 1]),  # likewise
        ({"bytes_in": 16_000_000}, [1]),  # the next bucket's: one was left out
    ],
)
def test_of_two_the_one_that_left_out_a_call_is_named(call, wrong):
    finding = hang_of(hung(TWO, {0: {"bytes_in": 25_000_000}, 1: call}))
    assert finding.where.ranks == wrong
    assert ("Ranks 0 and 1" in finding.title) == (len(wrong) > 1)


def test_of_two_that_make_different_calls_the_title_names_the_one_and_the_other():
    """Both all-gather what they do not all-reduce; rank 1 does so where rank 0 reduces."""
    trace = hung(TWO, {0: {"bytes_in": 25_000_000}, 1: {"bytes_in": 16_000_000}})
    ops = np.where(trace.events.bytes_in == 16_000_000, int(Op.ALL_GATHER), trace.events.op)
    trace.events = trace.events.with_column("op", ops)
    assert hang_of(trace).title == "Rank 1 entered another call than rank 0"


@pytest.mark.parametrize(
    ("step", "said"),
    [(TWO.steps, "left that call out"), (TWO.steps - 1, "made the call before a second time")],
)
def test_the_call_before_again_in_another_step_means_that_one_was_left_out(step, said):
    rows = {0: {"bytes_in": 25_000_000}, 1: {"bytes_in": 16_000_000}}
    finding = hang_of(hung(TWO, {rank: row | {"step": step} for rank, row in rows.items()}))
    assert finding.cause.endswith(f"rank 1 seems to have {said}")


@pytest.mark.parametrize("left_out", [1, 0])
def test_who_left_out_a_call_in_an_earlier_step_is_told_with_that_step(left_out):
    """Its later calls ended those of the others' earlier steps, and at last it made none more."""
    calls = World().trace().of_kind(Kind.COLLECTIVE)
    last = {"group_seq": int(calls.group_seq[calls.group == 0].max()) + 1 - left_out, "step": 59}
    trace = hung(World(), {0: last, 1: last, 3: last})
    events = trace.events
    mine = (events["rank"] == 2) & (events.kind == int(Kind.COLLECTIVE)) & (events.group == 0)
    at = events.group_seq[mine & (events.step == 20)].max()
    numbers = events.group_seq - left_out * (mine & (events.group_seq > at))
    gone = (mine & (events.group_seq == at)) | (~mine & (events.group_seq == last["group_seq"]))
    kept = ~gone | (left_out == 0) | (events.exit_ns == 0)
    trace.events = events.with_column("group_seq", numbers).select(kept)
    finding = hang_of(trace)
    assert finding.where.ranks == [2]
    assert ("; it left out 1 call in step 20, which rank 0 made" in finding.cause) == left_out
    assert finding.options[0].action.startswith("let all ranks make the same calls") == left_out


def test_a_call_that_another_thread_made_a_step_later_was_not_left_out():
    calls = World().trace().of_kind(Kind.COLLECTIVE)
    last = {"group_seq": int(calls.group_seq[calls.group == 0].max()) + 1, "step": 59}
    trace = hung(World(), {0: last, 1: last, 3: last})
    events = trace.events
    mine = (events["rank"] == 2) & (events.kind == int(Kind.COLLECTIVE)) & (events.group == 0)
    at = events.group_seq[mine & (events.step == 20)].max()
    trace.events = events.with_column("step", events.step + (mine & (events.group_seq == at)))
    finding = hang_of(trace)
    assert finding.where.ranks == [2]
    assert "left out" not in finding.cause


def test_calls_without_a_place_have_that_of_the_latest_call_alike():
    trace = hung(TWO, {0: {"bytes_in": 25_000_000}, 1: {"bytes_in": 16_000_000}})
    calls = (trace.events.kind == Kind.COLLECTIVE) & (trace.events.bytes_in == 25_000_000)
    early = calls & (trace.events.step < 2)
    trace.events = trace.events.with_column("name", early.astype(trace.events.name.dtype))
    trace.names = ("", "train.py:31 mean_loss")
    cause = hang_of(trace).cause
    assert "rank 0 all_reduce of 25000000 B in train.py:31 mean_loss" in cause
    assert "16000000 B in" not in cause


@pytest.mark.parametrize(("site", "wrong"), [(1, [1]), (2, [0, 1])])
def test_of_two_a_size_that_nobody_ever_brought_is_wrong_in_the_same_line_only(site, wrong):
    calls = {0: {"bytes_in": 25_000_000, "name": 1}, 1: {"bytes_in": 8, "name": site}}
    trace = hung(TWO, calls)
    trace.names = ("", "train.py:31 step", "train.py:40 log")
    finding = hang_of(trace)
    assert finding.where.ranks == wrong
    assert finding.cause.endswith("never brought that size or type before") == (wrong == [1])


def test_a_smaller_last_batch_is_told_by_its_sizes_and_what_mends_it():
    calls = {0: {"bytes_in": 25_000_000, "name": 1}, 1: {"bytes_in": 8}}  # no look at rank 1
    trace = hung(TWO, calls)
    trace.names = ("", "train.py:31 gather")
    finding = hang_of(trace)
    assert finding.title == "Ranks 0 and 1 brought different sizes to all_reduce"
    assert "brought 8 B in train.py:31 gather; rank 1 never brought that size" in finding.cause
    assert "drop_last" in finding.options[0].action


def test_a_call_that_one_rank_alone_makes_is_no_smaller_batch_for_sure():
    """As an all-reduce of a metric under `if rank == 1`, while the others reduce gradients."""
    calls = {rank: {"bytes_in": 12 if rank == 1 else 25_000_000} for rank in range(4)}
    finding = hang_of(hung(World(ranks=4), calls))
    assert finding.title == "Rank 1 brought another size to all_reduce"
    assert finding.options[0].action.startswith("let all ranks make that call, or none, with one")


def test_sizes_that_are_both_new_are_mended_as_sizes():
    """Nothing tells whose is wrong, and the cause ends with the sizes."""
    finding = hang_of(hung(TWO, {0: {"bytes_in": 4000}, 1: {"bytes_in": 8}}))
    assert finding.title == "Ranks 0 and 1 brought different sizes to all_reduce"
    assert "drop_last" in finding.options[0].action


def test_who_hangs_in_another_group_is_a_victim():
    world = World(ranks=4, style="grid", tensor_parallel=2)
    # dp0 = (0, 2), dp1 = (1, 3), tp0 = (0, 1), tp1 = (2, 3): 0 waits for 2 in dp0, and so 1 for 0
    finding = hang_of(hung(world, {0: {"group": 0}, 1: {"group": 2}}))
    assert finding.where.ranks == [2]


def test_where_everybody_came_the_fabric_or_an_untraced_rank_is_at_fault():
    finding = hang_of(hung(World(), {rank: {} for rank in range(4)}))
    assert (finding.where.ranks, finding.layer) == ([], "fabric")


def test_a_collective_that_timed_out_is_a_hang_too():
    rows = {rank: {"flags": int(Flag.FAILED)} for rank in (0, 1, 2)}
    trace = hung(World(), rows, closed=True)
    failed = (trace.events.flags & int(Flag.FAILED)) != 0
    ends = np.where(failed, trace.events.enter_ns + LONG, trace.events.exit_ns)
    trace.events = trace.events.with_column("exit_ns", ends)
    assert hang_of(trace).where.ranks == [3]


def test_a_live_run_in_the_middle_of_a_step_does_not_hang():
    trace = hung(World(), {0: {}, 2: {}}, heard=100 * MS)
    diagnosis = diagnose(trace)
    assert not diagnosis.findings
    assert any("rank 0 did not end its trace" in limit for limit in diagnosis.limits)


@pytest.mark.parametrize(("steps_long", "found"), [(0.9, False), (1.5, True), (15, True)])
def test_differing_calls_hang_once_they_outlast_the_longest_step(steps_long, found):
    """Nothing completes them: to be told from ranks on their way they need no 20 steps."""
    world, step_ns = World(pace=10), 650 * MS
    rows = {**{rank: {} for rank in range(4)}, 2: {"op": Op.BARRIER}}
    trace = hung(world, rows, heard=int(steps_long * step_ns))
    named = [item.where.ranks for item in diagnose(trace).findings if item.mode == "hang"]
    assert named == ([[2]] if found else [])
    only_late = hung(world, {0: {}, 1: {}, 3: {}}, heard=int(steps_long * step_ns))
    assert "hang" not in {item.mode for item in diagnose(only_late).findings}


def test_a_run_that_hung_in_its_first_step_is_diagnosed():
    trace = hung(World(steps=1), {0: {}, 2: {}, 3: {}})
    trace.events = trace.events.select(trace.events.kind != int(Kind.STEP))
    assert diagnose(trace).verdict.startswith(
        "Rank 1 never came to all_reduce: ranks 0, 2 and 3 hung in all_reduce"
    )
