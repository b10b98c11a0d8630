"""What rank 0 says while the job runs."""

import json
import logging
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.agent.exchange import live
from evenstep.agent.exchange.live import KEPT, LiveView
from evenstep.agent.exchange.messages import StepRow, latest_rank, summarize
from evenstep.lateness import FEWEST
from tests.agent.test_sharing import report

STEP_NS = 1_000_000_000


@pytest.fixture
def view(tmp_path):
    return LiveView(tmp_path)


@pytest.fixture
def unwritten(monkeypatch):
    """For thousands of windows of which only the log is read."""
    monkeypatch.setattr(live, "write_whole", lambda path, text: None)


def windows(works, *, steps=1):
    """Reports of windows, the share of the step that each rank works given for each."""
    for number, shares in enumerate(works, start=1):
        rows = ([StepRow(STEP_NS, int(own * STEP_NS), STEP_NS - int(own * STEP_NS), 0, 0)] * steps
                for own in shares)  # fmt: skip
        yield [summarize(each, rank=rank, end=number * steps)
               for rank, each in enumerate(rows)]  # fmt: skip


def said_of(view, caplog, works, **how):
    """(window, line) for each line of the log, the windows counted from 1."""
    told = []
    with caplog.at_level(logging.WARNING, logger="evenstep"):
        for number, reports in enumerate(windows(works, **how), start=1):
            caplog.clear()
            view.update(reports, latest_rank(reports, threshold=0.03))
            told += [(number, record.getMessage()) for record in caplog.records]
    return told


def test_the_file_says_who_is_late_in_which_steps_and_how_often(view):
    for end, late in ((80, False), (96, True)):
        reports = [report(0, end), report(1, end, late)]
        view.update(reports, latest_rank(reports, threshold=0.1))
    said = json.loads(view.path.read_text())
    assert said["steps"] == [80, 95]
    assert said["late"]["rank"] == 1
    assert (said["windows"], said["late_windows"]) == (2, {"1": 1})
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1]


def test_a_window_whose_messages_nobody_understands_tells_nothing(view):
    view.update([], None)
    assert json.loads(view.path.read_text())["ranks"] == []


def test_the_file_is_replaced_whole_and_nothing_is_left_beside_it(view):
    view.update([report(0, 1)], None)
    assert [path.name for path in view.path.parent.iterdir()] == ["window.json"]


def test_a_folder_that_is_gone_is_the_callers_to_handle(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        LiveView(tmp_path / "gone").update([report(0, 1)], None)


def noisy(rng, late, noise=0.02):
    """A window of three ranks that work half of the step, rank 2 longer by `late`."""
    return [0.5 + rng.gauss(0, noise) + late * (rank == 2) for rank in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_becomes_late_is_told_after_a_few_steps_and_its_recovery_too(
    view, caplog, seed
):
    rng = random.Random(seed)
    healthy = [noisy(rng, 0.0) for _ in range(20)]
    late = [noisy(rng, 0.4) for _ in range(20)]
    again = [noisy(rng, 0.0) for _ in range(20)]
    (began, first), (ended, second) = said_of(view, caplog, healthy + late + again)
    assert 20 + FEWEST - 1 <= began <= 20 + FEWEST + 2
    assert first.startswith("evenstep: rank 2 is late by ")
    assert 40 + FEWEST - 1 <= ended <= 40 + 2 * FEWEST + 2
    assert second == "evenstep: nobody waits for rank 2 any more"


def test_a_rank_that_is_late_from_the_first_step_is_told_at_once(view, caplog):
    ((number, line),) = said_of(view, caplog, [[0.5, 0.91], [0.5, 0.9], [0.51, 0.9]] * 4)
    # Three measurements hardly tell their scatter: Student's t has 2 degrees of freedom.
    assert number == FEWEST + 2
    assert line.endswith("in 4 steps looked at; ranks waiting for it: 1")


def test_nobody_is_said_to_wait_where_each_waits_for_less_than_half_the_lateness(view, caplog):
    works = [[StepRow(STEP_NS, int(own * STEP_NS), wait, 0, 0)] for own, wait in
             ((0.4, 150_000_000), (0.4, 190_000_000), (0.8, 0))]  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="evenstep"):
        for end in range(1, 9):
            reports = [summarize(rows, rank=rank, end=end) for rank, rows in enumerate(works)]
            view.update(reports, latest_rank(reports, threshold=0.03))
    assert [one.getMessage().rpartition(", ")[2] for one in caplog.records] == [
        "in 3 steps looked at"
    ]


def test_a_lateness_as_small_as_the_noise_takes_more_steps(view, caplog):
    rng = random.Random(1)
    ((number, _),) = said_of(view, caplog, [noisy(rng, 0.08) for _ in range(60)])
    assert FEWEST < number <= KEPT


def test_a_long_step_before_does_not_hide_it(view, caplog):
    works = [[0.5, 0.5, 0.5]] * 5 + [[0.9, 0.1, 0.1]] + [[0.5, 0.5, 0.9]] * 6
    assert [number for number, _ in said_of(view, caplog, works)] == [9]


@pytest.mark.parametrize("seed", range(10))
def test_a_rank_that_is_late_every_other_step_is_told_by_the_mean_and_not_taken_back(
    view, caplog, seed
):
    rng = random.Random(seed)
    works = [noisy(rng, 0.0) for _ in range(20)]
    works += [noisy(rng, 0.3 * (window % 2)) for window in range(60)]
    ((number, line),) = said_of(view, caplog, works)
    assert number <= 20 + 2 * (FEWEST + 2)
    assert line.startswith("evenstep: rank 2 is late by ")


@pytest.mark.parametrize(("ranks", "turns"), [(3, 3), (4, 2)])
def test_ranks_that_take_turns_are_not_worth_a_line(view, caplog, ranks, turns):
    works = [
        [0.5 + 0.4 * (window % turns == rank) for rank in range(ranks)] for window in range(60)
    ]
    assert said_of(view, caplog, works) == []


@pytest.mark.usefixtures("unwritten")
def test_noise_alone_is_not_worth_a_line(view, caplog):
    rng = random.Random(2)
    assert said_of(view, caplog, [noisy(rng, 0.0, noise=0.2) for _ in range(2000)]) == []


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize(("ranks", "lines"), [(2, 0.1), (4, 0.3)])
def test_ranks_that_wait_for_cores_now_and_then_are_seldom_worth_a_line(
    tmp_path, caplog, ranks, lines
):
    """Exponential delays, .08 of a step in the mean, on all ranks alike. With 5 standard errors of
    however few windows, 18 of 60 jobs of 2 ranks got a line, and 26 of 4 ranks."""
    told = 0
    for seed in range(30):
        draw = random.Random(seed)
        works = [[0.4 + draw.expovariate(12.5) for _ in range(ranks)] for _ in range(100)]
        told += bool(said_of(LiveView(tmp_path), caplog, works))
    assert told <= 30 * lines


def test_steps_that_were_looked_at_are_counted(view, caplog):
    ((_, line),) = said_of(view, caplog, [[0.5, 0.9]] * 4, steps=16)
    assert "rank 1 is late by 400 ms, 40 % of a step, in 48 steps looked at" in line


def test_a_rank_that_is_late_in_every_other_step_is_told_with_half_of_that(view, caplog):
    """As with two loader workers that are ready together."""
    told = []
    with caplog.at_level(logging.WARNING, logger="evenstep"):
        for number in range(1, 20):
            late = [StepRow(2 * STEP_NS, own, 2 * STEP_NS - own, 0, 0)
                    for own in (STEP_NS, 2 * STEP_NS) * 4]  # fmt: skip
            calm = [StepRow(2 * STEP_NS, STEP_NS, STEP_NS, 0, 0)] * 8
            reports = [summarize(rows, rank=rank, end=8 * number)
                       for rank, rows in enumerate((late, calm))]  # fmt: skip
            view.update(reports, latest_rank(reports, threshold=0.03))
            told += [record.getMessage() for record in caplog.records]
            caplog.clear()
    (line,) = told
    assert line.startswith("evenstep: rank 0 is late by 500 ms, 25 % of a step")


def test_a_rank_that_is_late_in_every_eighth_window_is_told(view, caplog):
    """As one that writes a checkpoint every so many steps."""
    works = [[0.5, 0.5 + 0.45 * (window % 8 == 0)] for window in range(40)]
    ((_, line),) = said_of(view, caplog, works)
    assert line.startswith("evenstep: rank 1 is late by ")


def test_another_rank_takes_the_place_of_the_one_before(view, caplog):
    told = said_of(view, caplog, [[0.5, 0.9, 0.5]] * 10 + [[0.5, 0.5, 0.9]] * 10)
    assert [line[:23] for _, line in told] == ["evenstep: rank 1 is lat", "evenstep: rank 2 is lat"]


def test_what_steps_show_at_their_first_collective_is_looked_at_beside_its_like(view, caplog):
    """Rank 2 is late from the loader on, in windows that end with a step's first collective; those
    of whole steps show it half a step later, and it is told of once."""
    healthy, late = [0.5, 0.5, 0.5], [0.5, 0.5, 0.9]
    told = []
    with caplog.at_level(logging.WARNING, logger="evenstep"):
        for step, works in enumerate([healthy] * 14 + [late] * 6, start=1):
            for begun in (1, 0):
                (reports,) = windows([works])
                reports = [report._replace(begun=begun, end=step) for report in reports]
                view.update(reports, latest_rank(reports, threshold=0.03))
                told += [(step, begun, record.getMessage()) for record in caplog.records]
                caplog.clear()
    assert [each[:2] for each in told] == [(16, 1)]
    assert json.loads(view.path.read_text())["windows"] == 20


def test_seconds_are_said_as_seconds(view, caplog):
    works = [[0.5, 2.0]] * 4
    ((_, line),) = said_of(view, caplog, works)
    assert "is late by 1.5 s," in line


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**9)), min_size=1, max_size=9),
    st.integers(1, 16),
)
def test_each_rank_is_compared_with_the_median_of_the_others(ranks, steps):
    """Written down once more, with the standard library's median."""
    step_ns = max(work for work, _ in ranks)
    reports = [
        summarize([StepRow(step_ns, work, 0, 0, 0, None, queued)] * steps, rank=3 * n, end=64)
        for n, (work, queued) in enumerate(ranks)
    ]
    window = live._window(reports, None)
    ways = [[work for work, _ in ranks]]
    if min(queued for _, queued in ranks) >= 0.1 * step_ns:
        ways.append([work - queued for work, queued in ranks])
    for n in range(len(ranks)):
        over = [way[n] - (median(way[:n] + way[n + 1 :]) if len(way) > 1 else way[n])
                for way in ways]  # fmt: skip
        assert window.excess[3 * n] == pytest.approx(min(over) / step_ns, abs=1e-12)
    assert (window.late, window.steps) == (None, steps)


def test_of_windows_of_several_lengths_the_longest_step_counts(view):
    reports = [report(0, 80, step_ms=100), report(1, 80, step_ms=200)._replace(steps=8)]
    window = live._window(reports, latest_rank(reports, threshold=0.1))
    assert window.steps == 16
    assert window.excess == {0: -0.25, 1: 0.25}  # 50 and 100 ms of work, of 200


@pytest.mark.parametrize(("late_ms", "said"), [(999.4, "999 ms"), (999.6, "1 s"), (1504, "1.5 s")])
def test_a_length_has_three_digits(view, caplog, late_ms, said):
    share = late_ms / 1e3
    ((_, line),) = said_of(view, caplog, [[0.5, 0.5 + share]] * 4)
    assert f"is late by {said}," in line
    assert f" {100 * share:.0f} % of a step" in line


def test_after_a_line_only_later_windows_lead_to_another(view, caplog):
    """Rank 1 is late in ten windows, then rank 2: the ten are not held against the news."""
    told = said_of(view, caplog, [[0.5, 0.9, 0.5]] * 10 + [[0.5, 0.5, 0.9]] * 10)
    assert [number for number, _ in told] == [FEWEST, 10 + FEWEST - 1]  # its scatter is known
