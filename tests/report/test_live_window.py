"""What the latest steps of a job say, by steps of ranks that are given as numbers."""

from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from evenstep.trace.spool.layout import Phase
from evenstep.watch.findings import KEPT, Journal, live_findings
from evenstep.watch.frame import MOST_ROWS, LiveFinding, frame, lateness_ns, pacing, shares_of
from evenstep.watch.run import (
    FEWEST_STEPS,
    WINDOW_NS,
    WINDOW_STEPS,
    FollowedRun,
    SeenRank,
    merge_steps,
    rank_window,
    step_table,
)
from evenstep.watch.spool import LIVE, Inside
from evenstep.watch.terminal import (
    View,
    cells,
    lines,
    more_text,
    pacing_text,
    sparkline,
    status_line,
    where_text,
)
from evenstep.watch.tree import decode, encode
from evenstep.watch.web import page_frame

MS = 1_000_000
STEP = 100 * MS


def steps(
    own_ms, *, first=1, blocked=None, gap_ms=0, known=1, input_ms=0, checkpoint_ms=0, step_ms=100,
    **counted,
):  # fmt: skip
    """Steps of a rank: `own_ms` of backward, the rest it is blocked, `gap_ms` between them;
    `counted` are counters of each step in ms."""
    rows = np.zeros(len(own_ms), LIVE)
    own = np.array(own_ms) * MS
    rows["first_step"] = first + np.arange(len(own))
    rows["start_ns"] = np.arange(len(own)) * (STEP + gap_ms * MS)
    rows["end_ns"], rows["step_sum_ns"] = rows["start_ns"] + STEP, step_ms * MS
    rows["phase_ns"][:, Phase.BACKWARD] = own - (input_ms + checkpoint_ms) * MS
    rows["phase_ns"][:, Phase.INPUT] = input_ms * MS
    rows["phase_ns"][:, Phase.CHECKPOINT] = checkpoint_ms * MS
    rows["phase_ns"][:, Phase.SYNC] = STEP - own if blocked is None else blocked * MS
    rows["wait_known"] = known
    for name, value in counted.items():
        rows[name] = np.array(value) * MS
    return rows


def followed(*ranks, hosts=("a",), facts=None, **state):
    """A run of ranks with these steps, on hosts in turn."""
    states = [
        SeenRank(rank, hosts[rank % len(hosts)], (facts or {}).get(rank, {}))
        for rank in range(len(ranks))
    ]
    some = {rank: rows for rank, rows in enumerate(ranks) if len(rows)}
    return FollowedRun(
        Path("run"), attempt=0, attempts=1, world=len(ranks), states=states,
        window=rank_window(some), steps=step_table(list(some.values())), **state,
    )  # fmt: skip


def told(run):
    return [(each.mode, each.ranks) for each in live_findings(run)]


# -- the window ------------------------------------------------------------------------------------


def test_a_window_has_the_means_of_each_rank():
    first = steps([60, 80, 70], wait_ns=10, held_ns=5, pause_ns=2)
    second = steps([90, 90, 90], known=[0, 1, 0], wait_ns=[0, 60, 0], first=4)
    window = rank_window({3: first, 7: second})
    assert (window.ranks.tolist(), window.counts.tolist()) == ([3, 7], [3, 3])
    assert window.last_step.tolist() == [3, 6]
    assert window.step_ns.tolist() == [STEP, STEP]
    assert window.work_ns.tolist() == [65 * MS, 90 * MS]  # without what pacing held
    assert window.sync_ns.tolist() == [30 * MS, 10 * MS]
    assert window.wait_ns.tolist() == [10 * MS, 10 * MS]  # 60 ms of 10 that it was blocked
    assert (window.held_ns.tolist(), window.pause_ns.tolist()) == ([5 * MS, 0], [2 * MS, 0])
    assert window.phase_ns[:, Phase.BACKWARD].tolist() == [70 * MS, 90 * MS]
    assert np.isnan(rank_window({0: steps([60], known=0)}).wait_ns).all()


def test_blocking_and_pacing_longer_than_a_step_leave_no_work():
    assert rank_window({0: steps([60], blocked=90, held_ns=20)}).work_ns.tolist() == [0.0]


def test_the_error_of_a_mean_is_that_of_what_ranks_do_not_share():
    own = [[60, 80, 64], [70, 90, 86]]
    window = rank_window({rank: steps(values) for rank, values in enumerate(own)})
    for rank, values in enumerate(own):
        apart = [value - sum(values) / 3 for value in values]
        shared = [sum(one[at] - sum(one) / 3 for one in own) / 2 for at in range(3)]
        squares = sum(((a - b) * sqrt(2)) ** 2 for a, b in zip(apart, shared, strict=True)) / 3
        assert window.error_ns[rank] == pytest.approx(sqrt(squares / 2) * MS)
    alone = rank_window({0: steps([60, 80, 64])}).error_ns[0]
    assert alone == pytest.approx(np.std([60, 80, 64], ddof=1) / sqrt(3) * MS)
    assert np.isnan(rank_window({0: steps([60])}).error_ns).all()


@pytest.mark.parametrize(
    ("rows", "gap_ms", "count"),
    [(7, 0, 7), (40, 0, WINDOW_STEPS), (40, 2_000, FEWEST_STEPS), (40, 900, 10), (40, 890, 11)],
)
def test_a_window_has_the_steps_of_its_time_but_some_at_least(rows, gap_ms, count):
    """Of 10 s and steps of 1 s the ten that began no earlier; of 0.99 s the eleventh."""
    assert WINDOW_NS == 10_000 * MS
    window = rank_window({0: steps([60] * rows, gap_ms=gap_ms)})
    assert window.counts.tolist() == [count]


@pytest.mark.parametrize(("first", "rows", "count"), [(0, 3, 2), (0, 1, 1), (1, 3, 3)])
def test_step_0_is_left_out_of_a_window_and_a_table(first, rows, count):
    mine = steps([60] * rows, first=first)
    assert rank_window({0: mine}).counts.tolist() == [count]
    assert len(step_table([mine]).step) == count


def test_a_table_has_the_median_rank_and_the_most_work_of_each_step():
    own = [[60, 70], [62, 90], [64, 50]]
    table = step_table([steps(values, held_ns=4) for values in own])
    assert (table.step.tolist(), table.ranks.tolist()) == ([1, 2], [3, 3])
    assert table.time_ns.tolist() == [STEP, STEP]
    assert table.work_ns.tolist() == [58 * MS, 66 * MS]
    assert table.most_work_ns.tolist() == [60 * MS, 86 * MS]


def test_nodes_count_by_their_ranks_in_the_median_of_a_step():
    one, three = step_table([steps([90])]), step_table([steps([60])] * 3)
    assert merge_steps([one, three]).work_ns.tolist() == [60 * MS]
    assert merge_steps([one, step_table([steps([60])])]).work_ns.tolist() == [75 * MS]


# -- findings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "found"), [(2, []), (3, [("straggler", (1,))])])
def test_three_steps_tell_a_late_rank(count, found):
    run = followed(steps([60] * count), steps([90] * count), steps([60] * count))
    assert told(run) == found


def test_a_late_rank_is_named_with_its_host_where_there_are_several():
    late = [steps([60] * 8), steps([90] * 8), steps([60] * 8)]
    text = "is late by 30 ms, 30 % of a step; the other 2 wait for it"
    assert live_findings(followed(*late))[0].text == f"rank 1 {text}"
    assert live_findings(followed(*late, hosts=("a", "b")))[0].text == f"rank 1 (b) {text}"
    both = [steps([own] * 8) for own in (60, 90, 60, 88, 60)]
    [found] = live_findings(followed(*both, hosts=("a", "b")))
    assert found.ranks == (1, 3)
    assert (
        found.text == "ranks 1 and 3 are late by 30 ms, 30 % of a step; the other 3 wait for them"
    )
    pair = live_findings(followed(*late[:2]))[0].text
    assert pair == "rank 1 is late by 30 ms, 30 % of a step; the other waits for it"


@pytest.mark.parametrize(("blocked", "hidden"), [(3, True), (4, False)])
def test_waits_that_work_hides_are_said_to_be_hidden(blocked, hidden):
    others = [steps([60] * 8, blocked=blocked) for _ in range(2)]
    [found] = live_findings(followed(*others, steps([60] * 8, blocked=0, step_ms=120)))
    assert found.ranks == (2,)
    assert found.text.endswith("the others' waits are hidden behind their work") is hidden


def turns(count, excess_ms, before=0):
    """Four ranks that are late in turns, after steps without."""
    return [
        [60] * before + [60 + excess_ms * (step % 4 == rank) for step in range(count)]
        for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("count", "excess_ms", "found"), [(8, 30, True), (7, 30, False), (8, 5, False), (8, 6, True)]
)
def test_turns_are_told_of_eight_steps_that_lose_more_than_a_twentieth(count, excess_ms, found):
    modes = [mode for mode, _ in told(followed(*map(steps, turns(count, excess_ms))))]
    assert modes == ["synchronization_amplification"] * found


def test_turns_are_those_of_the_latest_steps_that_all_have_finished():
    first, *others = turns(WINDOW_STEPS, 30, before=8)
    run = followed(steps([*first, 60, 60, 60, 60]), *map(steps, others))
    [found] = live_findings(run)
    assert (found.mode, found.ranks) == ("synchronization_amplification", ())
    assert found.share == pytest.approx(0.3)
    assert found.text == "ranks are late in turns, which costs 30 % of a step"


@pytest.mark.parametrize(
    ("spent", "mode", "text"),
    [({"input_ms": 10}, None, ""), ({"checkpoint_ms": 5}, None, ""), ({"pause_ns": 2}, None, ""),
     ({"input_ms": 11}, "input_pipeline", "waiting for input takes 11 % of a step on"),
     ({"checkpoint_ms": 6}, "checkpoint_stall", "checkpoints take 6 % of a step on"),
     ({"pause_ns": 3}, "runtime_jitter", "garbage collection takes 3 % of a step on")],
)  # fmt: skip
@pytest.mark.parametrize("all_ranks", [True, False])
def test_what_takes_much_of_a_step_is_told_with_the_ranks_that_it_takes_it_of(
    spent, mode, text, all_ranks
):
    other = spent if all_ranks else {}
    found = live_findings(followed(steps([60] * 8, **other), steps([60] * 8, **spent)))
    where = "every rank" if all_ranks else "rank 1"
    ranks = () if all_ranks else (1,)
    assert [(one.mode, one.ranks, one.text) for one in found] == [
        (mode, ranks, f"{text} {where}")
    ] * (mode is not None)


def test_what_takes_of_a_step_is_told_of_eight_steps_and_the_most_first():
    spent = {"input_ms": 20, "pause_ns": 30, "checkpoint_ms": 10}
    ranks = [steps([60] * 8, **spent), steps([60] * 8, **spent)]
    assert [one.share for one in live_findings(followed(*ranks))] == pytest.approx([0.3, 0.2, 0.1])
    assert told(followed(ranks[0], ranks[1][:7])) == []


def test_attempts_and_lost_nodes_are_told():
    run = followed(steps([60] * 8))
    run.attempts, run.lost_nodes = 2, {"n2": 3.0, "n1": 5.0}
    assert [one.text for one in live_findings(run)] == [
        "no summary of n1 and 1 more for 5 s: evenstep watch --aggregate has ended there",
        "the run was restarted: 2 attempts so far",
    ]
    run.attempts, run.lost_nodes = 1, {"n1": 5.0}
    [found] = live_findings(run)
    assert (found.mode, found.text.partition(" for")[0]) == ("agent", "no summary of n1")


@pytest.mark.parametrize(
    ("facts", "text"),
    [({1: {"ended": {"exit_code": 3}}}, "rank 1 has died: exit code 3"),
     ({1: {"raised": {}}}, "rank 1 has died: an end without a word"),
     ({0: {"ended": {"signal": "SIGKILL"}}, 1: {"raised": {}}}, "ranks 0 and 1 have died")],
)  # fmt: skip
def test_ranks_that_died_are_told_with_how_where_it_is_one(facts, text):
    run = followed(*[steps([60] * 8)] * 3, facts=facts)
    assert [(one.mode, one.text) for one in live_findings(run)] == [("rank_failed", text)]


def silent(run, *ranks, inside=()):
    for rank in ranks:
        run.states[rank].silent_s = 10.0 + rank
    for rank in inside:
        run.states[rank].inside = Inside("all_reduce", 7, 1)
    return [(one.ranks, one.text) for one in live_findings(run)]


def test_of_silent_ranks_those_are_named_that_did_not_enter():
    ranks = [steps([60] * 8)] * 3
    found = "rank 1 did not enter: no step for 12 s; rank 2 waits in all_reduce"
    assert silent(followed(*ranks), 1, 2, inside=[2]) == [((1,), found)]
    found = "ranks 0-2: no step for 12 s"
    assert silent(followed(*ranks), 0, 1, 2) == [((), found)]
    assert silent(followed(*ranks), 0, 1, 2, inside=[0, 1, 2]) == [
        ((), f"{found}; wait in all_reduce")
    ]
    assert silent(followed(*ranks), 1) == [((1,), "rank 1: no step for 11 s")]
    run = followed(*ranks)
    run.states[1].gone = True
    assert silent(run, 0, 1) == [
        ((), "rank 1 has died: no such process now"), ((0,), "rank 0: no step for 10 s")
    ]  # fmt: skip


def test_an_agent_that_failed_is_told_with_why():
    run = followed(*[steps([60] * 8)] * 2, facts={1: {"failure": "disk full"}})
    [found] = live_findings(run)
    assert (found.ranks, found.text) == ((1,), "rank 1 not recorded any more: disk full")


def test_a_journal_tells_since_when_findings_are_and_until_when_they_were():
    journal = Journal()
    late, other = (LiveFinding("straggler", (rank,), 0.1, f"rank {rank}") for rank in (1, 2))
    assert journal.note([late], 5) == [late]
    assert journal.since(late) is None  # it may have begun at any time before
    assert journal.note([late, other], 7) == [other]
    assert journal.note([late, other], 8) == []
    assert (journal.since(late), journal.since(other)) == (None, 7)
    assert journal.note([], 9) == []
    assert journal.past == ["steps ?-9: rank 1", "steps 7-9: rank 2"]
    assert journal.since(other) is None
    for step in range(10, 12 + 2 * KEPT):
        journal.note([other] if step % 2 else [], step)
    assert KEPT == 5
    assert journal.past == [f"steps {step}-{step + 1}: rank 2" for step in (11, 13, 15, 17, 19)]


# -- the frame -------------------------------------------------------------------------------------


def test_shares_of_a_step_are_of_what_is_known_and_of_the_rest():
    rows = steps([60] * 8, input_ms=20, checkpoint_ms=10, wait_ns=15)
    assert shares_of(rank_window({0: rows})) == pytest.approx(
        np.array([[0.30, 0.25, 0.15, 0.20, 0.10]])
    )
    longer = steps([60] * 8, blocked=140)  # of overlapping phases
    assert shares_of(rank_window({0: longer})) == pytest.approx(np.array([[0.3, 0.7, 0, 0, 0]]))
    assert not shares_of(rank_window({0: np.zeros(1, LIVE)})).any()


def test_a_frame_of_ranks_has_their_rows_the_late_first_and_at_most_so_many():
    run = followed(*[steps([60] * 8) for _ in range(MOST_ROWS)], steps([90] * 8, held_ns=5), [])
    shown = frame(run, [])
    assert len(shown.rows) == MOST_ROWS
    assert [row.rank for row in shown.rows[:3]] == [65, 64, 0]  # the first has no step yet
    assert (shown.rows[0].step, shown.rows[0].late_ns, shown.rows[0].held) == (None, None, None)
    assert shown.rows[0].shares == {}
    assert (shown.rows[1].step, shown.rows[1].late_ns) == (8, 25 * MS)
    assert shown.rows[1].held == pytest.approx(0.05)
    assert (shown.ranks_seen, shown.hosts, shown.step) == (66, 1, 8)
    assert shown.steps_per_s == pytest.approx(10.0)


def test_a_curve_has_sixty_steps_and_its_pace_is_that_of_the_latest():
    rows = steps([60] * 64)
    rows["step_sum_ns"][-WINDOW_STEPS:] *= 2
    shown = frame(followed(rows), [])
    assert (len(shown.curve_ns), shown.curve_ns[0], shown.curve_ns[-1]) == (60, STEP, 2 * STEP)
    assert shown.steps_per_s == pytest.approx(5.0)
    nothing = frame(followed(np.zeros(2, LIVE)), [])
    assert nothing.steps_per_s is None


@pytest.mark.parametrize(
    ("queued_ms", "workers", "late"), [(30, 2, 0), (30, 0, 30), (9, 2, 30), (10, 2, 0)]
)
def test_waits_for_own_workers_make_no_rank_late_where_all_wait(queued_ms, workers, late):
    facts = {rank: {"loader_workers": workers} for rank in range(3)}
    ranks = [steps([60 + more] * 8, input_ms=queued_ms + more) for more in (0, 30, 0)]
    assert lateness_ns(followed(*ranks, facts=facts)).max() == late * MS


@pytest.mark.parametrize(
    ("first", "blocked", "said"),
    [(0, 0, "Hosts do not wait; evenstep diagnose can tell what devices wait for"),
     (0, 40, "No rank is late, and there are no findings in the latest steps")],
)  # fmt: skip
def test_a_verdict_of_nothing_says_whether_hosts_wait(first, blocked, said):
    ranks = [steps([60] * 8, blocked=blocked) for _ in range(2)]
    assert frame(followed(*ranks), []).verdict == said
    alone = frame(followed(steps([60] * 8, blocked=0)), []).verdict
    assert alone == "No rank is late, and there are no findings in the latest steps"


def test_a_verdict_is_that_of_the_worst_finding_but_a_restart():
    run = followed(steps([60] * 8))
    restart = LiveFinding("restart_amplification", (), None, "the run was restarted")
    late = LiveFinding("straggler", (0,), 0.1, "rank 0 is late")
    assert frame(run, [restart, late]).verdict == "Rank 0 is late"
    assert frame(run, [restart]).verdict.startswith("No rank is late")
    run.states[0].closed = True
    assert frame(run, [late]).verdict == "the run has ended"
    dead = LiveFinding("rank_failed", (), None, "rank 0 has died")
    shown = frame(run, [late, dead])
    assert (shown.state, shown.verdict) == ("ended", "Rank 0 has died")
    begun = followed([], [])
    assert frame(begun, []).verdict == ("2 of 2 ranks have started; none has finished a step yet")


def test_pacing_is_told_by_ranks_that_report_it():
    assert pacing(followed(steps([60] * 8))) == {}
    pace = {"pace": {"mode": "even", "threshold": 0.1, "max_delay": 0.2, "request": 3}}
    facts = {0: pace, 1: {"pace": {"mode": "off", "request": 2}}, 2: {"pacing": "slow"}}
    ranks = [steps([60] * 8, held_ns=held) for held in (10, 0, 0)]
    run = followed(*ranks, facts=facts)
    run.request = {"number": 3, "mode": "even"}
    assert pacing(run) == {
        "modes": {"even": 1, "off": 1}, "threshold": 0.1, "max_delay": 0.2,
        "held": pytest.approx(10 / 300), "held_ranks": 1, "request": 3, "requested": "even",
        "requested_mode": "even", "followed_by": 1, "note": "slow",
    }  # fmt: skip
    run.request = {}
    assert (pacing(run)["request"], pacing(run)["followed_by"]) == (None, None)


# -- the view --------------------------------------------------------------------------------------


@pytest.fixture
def late():
    """Four ranks of a second attempt, one late by 29 ms of 100, which pacing holds for 1 ms."""
    rows = [*[steps([60] * 8, wait_ns=30)] * 3, steps([90] * 8, input_ms=20, held_ns=1)]
    pace = {"pace": {"mode": "even", "threshold": 0.1, "max_delay": 0.2, "request": 1}}
    run = followed(*rows, hosts=("a", "b"), facts=dict.fromkeys(range(4), pace))
    run.request, run.attempt, run.attempts = {"number": 2, "mode": "off"}, 1, 2
    return run


VIEW = """\
run · attempt 1 (2 attempts so far) · 4 ranks on 2 nodes · step 8 · 10 steps/s
Rank 3 (b) is late by 29 ms, 29 % of a step; the other 3 wait for it
latest 8 steps: 100 ms mean, 100 ms p99, CV 0 %   ▁▁▁▁▁▁▁▁
█ compute 62 %  ▓ communication 10 %  ▒ wait 22 %  ░ input 5 %

rank host             step     late its step
   3 b                   8    29 ms ███████████████████████████████▓▓▓▓░░░░░░░░░
   0 a                   8        0 ██████████████████████████▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒
   1 b                   8        0 ██████████████████████████▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒
{last}

pacing even (threshold 10 %, max delay 20 %): delays 1 rank by 0.25 % of all
       step time; requested: off; 0 of 4 ranks follow so far

 ! restart amplification: the run was restarted: 2 attempts so far
 ! straggler: rank 3 (b) is late by 29 ms, 29 % of a step; the other 3 wait for
   it
 ! input pipeline: waiting for input takes 20 % of a step on rank 3
   steps ?-20: rank 1 was late"""


@pytest.mark.parametrize(
    ("height", "last"),
    [(20, "   2 a                   8        0 ██████████████████████████▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒"),
     (19, "the 3 latest of 4 ranks"), (2, "the 3 latest of 4 ranks")],
)  # fmt: skip
def test_a_view_has_its_verdict_and_as_many_ranks_as_there_is_room_for(late, height, last):
    found = live_findings(late)
    shown = frame(late, found)
    journal = Journal(past=["steps ?-20: rank 1 was late"])
    text = "\n".join(lines(shown, journal, View(width=80, height=height)))
    assert text.replace("\u00a0", " ") == VIEW.format(last=last)
    assert status_line(shown) == (
        "step 8 · 100 ms · Rank 3 (b) is late by 29 ms, 29 % of a step; the other 3 wait for it"
    )


def test_a_run_before_its_first_step_is_told_in_few_words():
    shown = frame(followed([]), [])
    assert "\n".join(lines(shown, Journal(), View())) == (
        "run · 1 rank on 1 node\n1 of 1 ranks have started; none has finished a step yet\n\n"
        "rank host             step     late its step\n   0 a                   -        - "
    )
    assert status_line(shown).startswith("no step yet · 1 of 1 ranks")
    waiting = frame(FollowedRun(Path("run")), [])
    assert (waiting.state, where_text(waiting)) == ("waiting", "run")
    assert lines(waiting, Journal(), View())[-1] == "waiting for the first rank"


def test_where_a_run_is_says_how_many_of_its_ranks_are_seen():
    run = followed(*[steps([60] * 8)] * 2)
    run.world = 5
    assert where_text(frame(run, [])) == "run · 2 of 5 ranks on 1 node · step 8 · 10 steps/s"
    run.world = 2
    for state in run.states:
        state.silent_s = 12.0
    assert where_text(frame(run, [])) == "run · 2 ranks on 1 node · step 8"


def test_waits_that_some_ranks_cannot_tell_are_said_to_be_in_communication():
    said = "communication includes waits: not every rank can tell the two apart yet"
    for known, there in ((0, True), (1, False)):
        ranks = [steps([60] * 8), steps([60] * 8, known=known)]
        assert (said in lines(frame(followed(*ranks), []), Journal(), View())) is there
    alone = lines(frame(followed(steps([60] * 8, known=0)), []), Journal(), View())
    assert said not in alone


@pytest.mark.parametrize(
    ("state", "said"),
    [({"gone": True}, "its process has ended"), ({"closed": True}, ""),
     ({"facts": {"failure": "x"}}, "not recorded any more"),
     ({"silent_s": 12.0}, "no step for 12 s"),
     ({"silent_s": 12.0, "inside": Inside("broadcast", 1, 1)}, "no step for 12 s, in broadcast")],
)  # fmt: skip
def test_a_rank_without_progress_says_why(state, said):
    run = followed(*[steps([60] * 8)] * 2)
    for name, value in state.items():
        setattr(run.states[1], name, value)
    row = next(row for row in frame(run, []).rows if row.rank == 1)
    assert cells(row) == ("1", "a", "8", "0", said)


def test_pacing_is_said_in_as_many_words_as_it_needs():
    def said(*modes, held=0, followed_by=None, **more):
        facts = {rank: {"pace": {"mode": mode, **more}} for rank, mode in enumerate(modes)}
        ranks = [steps([60] * 8, held_ns=held)] * len(modes)
        return pacing_text(frame(followed(*ranks, facts=facts), []))

    none = ": no rank is delayed"
    assert said("even", "even") == f"even{none}"
    assert said("even", "off", "even") == f"even on 2 ranks, off on 1 rank{none}"
    bounds = "even (threshold 10 %, max delay 50 %)"
    assert said("even", threshold=0.1, max_delay=0.5) == bounds + none
    assert said("even", held=10) == "even: delays 1 rank by 10 % of all step time"
    run = followed(steps([60] * 8), facts={0: {"pace": {"mode": "even", "request": 3}}})
    run.request = {"number": 3, "mode": "even"}
    assert pacing_text(frame(run, [])) == "even: no rank is delayed"
    run.states[0].facts = {**run.states[0].facts, "pacing": "slow"}
    assert pacing_text(frame(run, [])) == "even: no rank is delayed; slow"


def test_more_ranks_than_are_shown_are_counted():
    shown = frame(followed(*[steps([60] * 8)] * 3), [])
    assert (more_text(shown, 3), more_text(shown, 2)) == ("", "the 2 latest of 3 ranks")


def test_a_curve_is_flat_within_a_fiftieth():
    assert sparkline([98.0, 100.0], 2) == "▁▁"
    assert sparkline([97.9, 100.0], 2) == "▁█"
    assert sparkline([0.0, 3.0, 7.0], 3) == "▁▄█"
    assert sparkline([1.0, 2.0], -1) == ""


def test_a_page_shows_the_words_of_the_terminal(late):
    found = live_findings(late)
    journal = Journal(past=["steps ?-20: rank 1 was late"])
    page = page_frame(frame(late, found), journal)
    assert page["texts"]["time"] == (
        "latest 8 steps: 100 ms mean, 100 ms p99, CV 0 %; curve: the latest 8 steps, from zero"
    )
    assert page["texts"]["more"] == ""
    assert page["rows"][0][1] == ["3", "b", "8", "29 ms", ""]
    assert page["rows"][0][0][0][0] == "compute"
    assert [value for *_, value in page["rows"][0][0]] == pytest.approx(
        [0.7, 0.1, 0.2]
    )  # no wait, nor other
    assert page["found"][1].startswith("straggler: rank 3 (b)")
    assert page["past"] == journal.past
    nothing = page_frame(frame(followed([]), []), Journal())
    assert nothing["texts"]["time"] == "no step yet"
    assert nothing["texts"]["pacing"] == "no rank reports a pacing state"
    assert nothing["found"] == ["none at the moment"]
    assert all(value == 0.0 for *_, value in nothing["shares"])


def test_what_a_node_sums_up_comes_back(late):
    late.states[0].facts = {**late.states[0].facts, "loader_workers": 2, "other": 1}
    found = decode(encode(late, "n1"))
    assert (found.node, found.attempt, found.attempts, found.world) == ("n1", 1, 2, 4)
    assert [state.host for state in found.states] == ["n1"] * 4
    assert found.states[0].facts.keys() == {"pace", "loader_workers"}
    for name in ("ranks", "work_ns", "phase_ns", "counts"):
        assert getattr(found.window, name).tolist() == getattr(late.window, name).tolist()
    assert found.steps.step.tolist() == late.steps.step.tolist()
    decode(encode(followed([]), "n1"))
