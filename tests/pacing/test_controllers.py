import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing import Reason, Slowest, StepObservation
from evenstep.pacing.paper import SHORTEST_WINDOW, PaperRule
from evenstep.pacing.slack import UNKNOWN_STEPS, LocalSlack, SharedSlack, caution

MS = 1_000_000
THRESHOLD, BOUND = 3 * MS, 10 * MS


def feed(rule: Any, waits: list[int | None], **fields: object) -> Reason:
    """Steps of 100 ms with these waits; the rule's own delay is realised and shortens nothing."""
    for step, wait in enumerate(waits):
        delay = propose(rule)[0]
        seen = StepObservation(step, 100 * MS, 90 * MS, wait, delay_ns=delay, **fields)
        rule.learn(seen, due=True)
    return propose(rule)[1]


def propose(rule: Any) -> tuple[int, Reason]:
    return rule.propose(threshold_ns=THRESHOLD, bound_ns=BOUND)


def shared(work_ns: list[int], slowest_ns: int, *, world: int = 4, lag: int = 1) -> SharedSlack:
    rule = SharedSlack(world)
    for step, work in enumerate(work_ns):
        past = step - lag
        news = Slowest(past, past, slowest_ns) if past >= 0 else None
        rule.learn(StepObservation(step, 100 * MS, work, slowest=news), due=True)
    return rule


@given(st.lists(st.one_of(st.none(), st.integers(-(10**10), 10**10)), max_size=120))
@pytest.mark.parametrize("rule", [lambda: LocalSlack(4), PaperRule])
def test_no_proposal_is_negative_or_above_the_bound(rule, waits: list) -> None:
    made = rule()
    for step, wait in enumerate(waits):
        made.learn(StepObservation(step, 100 * MS, 1, wait, delay_ns=5 * MS), due=step % 3 > 0)
        assert 0 <= propose(made)[0] <= BOUND


@pytest.mark.parametrize("rule", [LocalSlack(4), PaperRule()])
def test_without_waits_nothing_is_held(rule: Any) -> None:
    feed(rule, [0] * 100)
    assert propose(rule)[0] == 0


@pytest.mark.parametrize("rule", [LocalSlack(4), PaperRule()])
def test_waits_that_cannot_be_told_hold_nothing(rule: Any) -> None:
    assert feed(rule, [None] * 100) is Reason.CANNOT_TELL
    assert propose(rule)[0] == 0


@pytest.mark.parametrize("rule", [LocalSlack(4), PaperRule()])
def test_once_the_imbalance_is_gone_so_is_the_delay(rule: Any) -> None:
    feed(rule, [8 * MS] * 80)
    assert propose(rule)[0] > 0
    feed(rule, [0] * 80)
    assert propose(rule)[0] == 0


def test_shared_slack_that_never_changes_is_spent_to_four_fifths() -> None:
    # s = 10 ms always: lo = med = 10, d = .8 * 10
    assert propose(shared([90 * MS] * 40, 100 * MS)) == (8 * MS, Reason.SLACK)


def test_slack_that_comes_and_goes_is_left_alone() -> None:
    # lo = 4, med = 12: d = .8 * 4 - .5 * 8 < 0
    work = [88 * MS, 88 * MS, 88 * MS, 96 * MS] * 10
    assert propose(shared(work, 100 * MS))[0] == 0


def test_the_slowest_rank_is_never_held() -> None:
    assert propose(shared([100 * MS] * 40, 100 * MS)) == (0, Reason.LAST)


def test_slack_below_the_threshold_is_left_alone() -> None:
    assert propose(shared([98 * MS] * 40, 100 * MS)) == (0, Reason.BALANCED)


def test_slack_is_learned_for_as_many_steps_as_two_per_rank() -> None:
    # window max(32, 2n) <= 256; the news is one step late
    for world, window in ((4, 32), (32, 64), (1000, 256)):
        assert propose(shared([90 * MS] * window, 100 * MS, world=world))[1] is Reason.LEARNING
        enough = shared([90 * MS] * (window + 1), 100 * MS, world=world)
        assert propose(enough)[1] is not Reason.LEARNING


def test_a_window_shared_at_once_counts_for_each_of_its_steps() -> None:
    rule = SharedSlack(4)
    for step in range(40):
        news = Slowest(0, 39, 100 * MS) if step == 39 else None
        rule.learn(StepObservation(step, 100 * MS, 90 * MS, slowest=news), due=True)
    assert propose(rule)[0] == 8 * MS


def test_caution_grows_with_the_job() -> None:
    assert [caution(n) for n in (1, 16, 32, 64, 4096)] == [0.5, 0.5, 0.75, 1.0, 1.0]


def test_a_local_delay_grows_by_a_fifth_of_the_wait_that_is_left() -> None:
    rule = LocalSlack(4)
    feed(rule, [5 * MS] * 63)
    assert propose(rule) == (0, Reason.LEARNING)
    feed(rule, [5 * MS])
    assert propose(rule) == (1 * MS, Reason.SLACK)


def test_a_step_without_wait_ends_a_local_delay_at_once() -> None:
    rule = LocalSlack(4)
    feed(rule, [5 * MS] * 70)
    assert feed(rule, [0]) is Reason.LAST


def test_the_only_rank_of_a_job_waits_for_nobody() -> None:
    # what looks like 5 ms of wait in every step is another job on its links
    rule = LocalSlack(1)
    feed(rule, [5 * MS] * 70)
    assert propose(rule) == (0, Reason.LAST)


def test_what_the_host_overslept_does_not_creep_into_the_delay() -> None:
    rule = LocalSlack(4)
    feed(rule, [5 * MS] * 64)
    rule.learn(StepObservation(64, 100 * MS, 90 * MS, 5 * MS, delay_ns=9 * MS), due=True)
    assert propose(rule)[0] == 2 * MS  # 1 ms proposed, not 9 slept, and a fifth of 5


def test_unpaced_blocks_leave_a_local_delay_as_it_was() -> None:
    rule = LocalSlack(4)
    feed(rule, [5 * MS] * 64)
    before = propose(rule)
    rule.learn(StepObservation(64, 100 * MS, 90 * MS, 0), due=False)
    assert propose(rule) == before


def test_the_paper_holds_half_of_the_wait_when_arrivals_are_spread() -> None:
    rule = PaperRule()
    assert feed(rule, [8 * MS] * 32) is Reason.SPREAD
    assert propose(rule)[0] == 4 * MS


@pytest.mark.parametrize(
    ("wait_ms", "held", "reason"),
    [(8, 32, Reason.BALANCED), (4, 32, Reason.SPREAD), (8, 16, Reason.SPREAD)],
)
def test_the_papers_threshold_rises_by_half_where_holding_most_steps_did_not_help(
    wait_ms: int, held: int, reason: Reason
) -> None:
    rule = PaperRule()
    for step in range(64):  # two windows of 32: waits of 8 ms held in all steps, then these
        wait, delay = (8, MS) if step < 32 else (wait_ms, MS * (step < 32 + held))
        seen = StepObservation(step, 100 * MS, 90 * MS, wait * MS, delay_ns=delay)
        rule.learn(seen, due=True)
    rule.learn(StepObservation(64, 100 * MS, 90 * MS, 4 * MS), due=True)
    assert propose(rule)[1] is reason  # 4 ms are above 3 and below 4.5


def test_the_paper_acts_on_waits_that_vary_even_when_the_last_spread_is_small() -> None:
    rule = PaperRule()
    feed(rule, [0, 8 * MS] * 16, spread_ns=2 * MS)
    assert propose(rule) == (4 * MS, Reason.VARIABILITY)  # deviation 4 ms > 3 ms


def test_the_paper_leaves_ranks_alone_that_are_not_early() -> None:
    rule = PaperRule()
    assert feed(rule, [2 * MS] * 32, spread_ns=20 * MS) is Reason.LAST


def test_the_paper_backs_off_now_and_then_where_its_delay_does_not_help() -> None:
    # Waits stay as they are however long the rank is held: the threshold rises above them.
    rule = PaperRule()
    assert Reason.BALANCED in [feed(rule, [4 * MS] * 20) for _ in range(50)]


def test_what_may_be_an_error_of_the_wait_is_not_spent() -> None:
    rule = LocalSlack(4)
    feed(rule, [5 * MS] * 64, margin_ns=2 * MS)
    assert propose(rule) == (3 * MS // 5, Reason.SLACK)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=80))
def test_the_papers_deviation_is_that_of_its_window(waits: list[int]) -> None:
    rule = PaperRule()
    for step, wait in enumerate(waits):
        rule.learn(StepObservation(step, 100 * MS, 90 * MS, wait), due=False)
    last = waits[-len(rule._waits) :]
    assert len(last) >= min(len(waits), SHORTEST_WINDOW)
    assert abs(rule._deviation - statistics.pstdev(last)) < 1e-3


@pytest.mark.parametrize(("held", "reason"), [(16, Reason.LAST), (17, Reason.BALANCED)])
def test_a_window_grows_while_the_rule_holds_in_half_of_its_steps_at_most(held, reason) -> None:
    """A single long wait counts as long as the window reaches back to it."""
    rule = PaperRule()
    waits = [0] * (SHORTEST_WINDOW - 1) + [100 * MS] + [0] * SHORTEST_WINDOW
    for step, wait in enumerate(waits):
        delay = MS if step < held else 0
        rule.learn(StepObservation(step, 100 * MS, 90 * MS, wait, delay_ns=delay), due=True)
    assert propose(rule) == (0, reason)


def test_a_papers_window_doubles_while_passive_and_halves_while_holding() -> None:
    rule, step, seen = PaperRule(), 0, []
    for held in [False] * 5 + [True] * 4:
        for _ in range(rule._size):
            delay = MS if held else 0
            rule.learn(StepObservation(step, 100 * MS, 90 * MS, 9, delay_ns=delay), due=True)
            step += 1
        seen.append(rule._size)
    assert seen == [64, 128, 256, 256, 256, 128, 64, 32, 32]


def test_a_papers_threshold_is_raised_and_lowered_within_its_range() -> None:
    rule, step, seen = PaperRule(), 0, []
    for held, wait in [(True, 8)] * 8 + [(True, 7), (False, 7), (False, 9)]:
        for _ in range(rule._size):
            delay = MS if held else 0
            rule.learn(StepObservation(step, 100 * MS, 90 * MS, wait, delay_ns=delay), due=True)
            step += 1
        seen.append(rule._factor)
    raised = [min(8.0, 1.5**n) for n in range(8)]  # the first has none before it
    assert seen == pytest.approx([*raised, 8.0, 7.2, 6.48])


def test_a_few_steps_of_unknown_wait_hold_a_rank_as_before_and_more_end_it() -> None:
    rule = LocalSlack(4)
    feed(rule, [5 * MS] * 64)
    held = propose(rule)
    assert feed(rule, [None] * (UNKNOWN_STEPS - 1)) is Reason.SLACK
    assert feed(rule, [None]) is Reason.CANNOT_TELL
    assert feed(rule, [5 * MS]) is Reason.SLACK
    assert held[0] > 0
