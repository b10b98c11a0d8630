"""Bars of progress whose pace is known, read back from their lines."""

from itertools import pairwise
from random import Random

import pytest

from evenstep.importers.steps import progress
from evenstep.importers.steps.progress import ONE_OF_SEVERAL, Tick, rows


def bar(rank, total, pace_s, every, *, first=0, until=None, late_s=0.0):
    """The lines of a bar: after `first` steps, of which it shows none, every so many more, and at
    its end or where it was left."""
    until = total if until is None else until
    numbers = [*range(first, until, every), until]
    return [Tick(rank, n, total, (n - first) * pace_s + late_s * (n > first)) for n in numbers]


@pytest.mark.parametrize("seed", range(12))
def test_epochs_follow_each_other_at_the_pace_of_each_rank(seed):
    random = Random(seed)
    total, every = random.randint(200, 400), random.randint(1, 12)
    ranks, epochs = random.randint(1, 3), random.randint(1, 4)
    paces = [random.uniform(0.4, 2.0) for _ in range(ranks)]
    ticks = [one for _ in range(epochs) for rank in range(ranks)
             for one in bar(rank, total, paces[rank], every)]  # fmt: skip
    limits = []
    found, lost_s = rows(ticks, limits)
    assert (lost_s, limits) == (0, [])
    for rank, pace_s in enumerate(paces):
        mine = [row for row in found if row[0] == rank]
        assert mine[-1][1] == epochs * total
        for _, number, start_s, seconds in mine:
            assert seconds == pytest.approx(pace_s)
            assert start_s + seconds == pytest.approx(number * pace_s)
        before = [0, *(number for _, number, *_ in mine)]
        wide = [(after - number) * pace_s for number, after in pairwise(before)]
        usual = sorted(wide)[len(wide) // 2]
        assert progress.COARSE_S <= usual <= progress.COARSE_S + (every + 1) * pace_s


@pytest.mark.parametrize("seed", range(8))
def test_a_bar_that_begins_anew_before_its_end_does_steps_again(seed):
    """It was left after `done` steps, and goes on from `again`, as from a checkpoint."""
    random = Random(seed)
    pace_s, total = random.uniform(0.5, 1.5), 600
    done, again = random.randint(300, 500), random.randint(0, 250)
    ticks = bar(0, total, pace_s, 5, until=done) + bar(0, total, pace_s, 5, first=again)
    found, lost_s = rows(ticks, [])
    assert lost_s == pytest.approx((done - again) * pace_s)
    numbers = [number for _, number, *_ in found]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == total
    for _, number, start_s, seconds in found:
        assert seconds == pytest.approx(pace_s)
        passed = number if number <= again else number + done - again
        assert start_s + seconds == pytest.approx(passed * pace_s)


def test_what_an_evaluation_takes_inside_the_trainings_bar_is_none_of_its_steps():
    """200 steps of 1 s; after each 50 an evaluation of 40 batches takes 20 s."""
    ticks, paused = [], 0.0
    for number in range(201):
        if number and number % 50 == 1:
            ticks += bar(0, 40, 0.5, 40)
            paused += 20.0
        ticks.append(Tick(0, number, 200, number + paused))
    found, _ = rows(ticks, [])
    assert {round(seconds, 6) for *_, seconds in found} == {1.0}


@pytest.mark.parametrize(
    ("others_s", "next_s", "told_s"),
    [([0.5], 5.75, 5.25), ([0.25, 0.25], 5.75, 5.25), ([3.0], 5.75, 5.0), ([], 5.75, 5.75),
     ([0.5], 4.0, 4.0), ([0.5], 5.0, 5.0)],
)  # fmt: skip
def test_others_take_no_more_of_a_bar_than_passed_between_two_of_its_lines(
    others_s, next_s, told_s
):
    """A clock that falls is that of another run."""
    others = [Tick(0, 40 + n, 40 + n, taken) for n, taken in enumerate(others_s)]
    ticks = [Tick(0, 1, 200, 5.0), *others, Tick(0, 2, 200, next_s)]
    found = [one for one in progress._without_others(ticks, 200) if one.total == 200]
    assert [one.elapsed_s for one in found] == [5.0, told_s]
    after = [*ticks, Tick(0, 3, 200, next_s + 1)]
    assert [*progress._without_others(after, 200)][-1].elapsed_s == told_s + 1


def test_lines_of_several_processes_without_a_rank_are_those_of_one():
    """Of two, one a step ahead: each line of the other is mixed in."""
    one, other = bar(0, 400, 1.0, 4), bar(0, 400, 1.0, 4)
    mixed = [tick for pair in zip(one, other[2:], strict=False) for tick in pair[::-1]]
    limits = []
    rows([*mixed, one[-1]], limits)
    assert limits == [ONE_OF_SEVERAL]
    limits = []
    rows(one[:50] + other[10:12] + one[50:], limits)  # two of a hundred
    assert limits == []


def test_the_training_is_the_bar_of_most_steps_among_those_that_take_long():
    loading, training = bar(0, 1000, 0.01, 100), bar(0, 300, 1.0, 10)
    checks = bar(0, 30, 5.0, 10)
    found, _ = rows(loading + checks + training, [])
    assert found[-1][1] == 300
    (only,) = rows(bar(0, 500, 1.0, 499)[-1:], [])[0]
    assert only[:2] == (0, 500)
    assert only[3] == pytest.approx((500 + 0.5) / 500)  # its clock may be half a second late


@pytest.mark.parametrize(("length_s", "counts"), [(2.9, False), (3.0, True)])
def test_a_bar_that_shows_too_little_time_tells_nothing(length_s, counts):
    found, _ = rows(
        [Tick(0, 0, 10, 0.0), Tick(0, 5, 10, length_s / 2), Tick(0, 9, 10, length_s)], []
    )
    assert bool(found) == counts


@pytest.mark.parametrize("seed", range(8))
def test_steps_shorter_than_a_bars_second_are_told_by_the_seconds_that_pass(seed):
    """Many lines have the same whole second, and are of one process all the same."""
    random = Random(seed)
    pace_s, total = random.uniform(0.05, 0.4), random.randint(400, 900)
    ticks = [Tick(0, n, total, float(int(n * pace_s))) for n in range(total + 1)]
    limits = []
    found, lost_s = rows(ticks, limits)
    assert (lost_s, limits) == (0, [])
    assert found[-1][1] == total
    for _, number, start_s, seconds in found:
        assert seconds == pytest.approx(pace_s, rel=0.35)
        assert start_s + seconds == pytest.approx(number * pace_s, abs=1.0)


def test_a_bar_that_is_shown_again_when_it_has_ended_is_no_second_epoch():
    whole = bar(0, 100, 1.0, 10)
    assert rows(whole + whole[-1:], [])[0] == rows(whole, [])[0]
    twice = rows(whole + whole, [])[0]
    assert twice[-1][1] == 200
