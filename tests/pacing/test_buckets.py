"""What bucket durations say, against worlds made by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.buckets import FEWEST_STEPS, SAMPLE, WINDOW, Buckets

MS = 1_000_000
ALONE = (10 * MS,) * 8


def taught(steps: list[tuple[int | None, ...]], sizes: tuple[int, ...] = ()) -> Buckets:
    made = Buckets()
    for durations in steps:
        made.learn(durations, sizes)
    return made


def test_buckets_that_always_take_the_same_are_never_contended() -> None:
    made = taught([ALONE] * 50)
    found = made.learn(ALONE, ())
    assert found is not None
    assert (made.reference_ns, found.lead_ns, found.total_ns) == (10 * MS, 0, found.alone_ns)


def test_nothing_is_said_before_enough_steps_were_seen() -> None:
    assert taught([ALONE] * (FEWEST_STEPS - 1)).reference_ns == 0


def test_a_step_with_an_untold_bucket_is_left_out() -> None:
    assert taught([ALONE] * 50).learn((None, *ALONE[1:]), ()) is None


def test_few_buckets_say_nothing() -> None:
    assert taught([(10 * MS,) * 3] * 100).reference_ns == 0


def test_the_lead_is_the_leading_run_of_contended_buckets() -> None:
    # three buckets of twice the time at the start, one at the end that is not part of the run
    made = taught([ALONE] * 50)
    found = made.learn((20 * MS,) * 3 + ALONE[:4] + (20 * MS,), ())
    assert found is not None
    assert (found.lead_ns, found.whole) == (30 * MS, False)


def test_a_first_bucket_that_alone_is_long_is_wait_not_contention() -> None:
    # an early rank waits 15 ms for the others in every step: no later bucket confirms contention
    made = taught([(25 * MS, *ALONE[1:])] * 100)
    found = made.learn((25 * MS, *ALONE[1:]), ())
    assert found is not None
    assert (found.lead_ns, made.first_is_trusted) == (0, False)


def test_contention_that_sweeps_over_the_exchange_is_trusted_in_the_first_bucket() -> None:
    swept = [tuple(20 * MS if b <= turn % 8 else 10 * MS for b in range(8)) for turn in range(200)]
    assert taught(swept).first_is_trusted


@pytest.mark.parametrize("second", [10 * MS, 20 * MS])
def test_a_step_is_clouded_where_the_second_bucket_is_contended_too(second: int) -> None:
    # 25 ms of the first bucket are wait if the link was free after it, else nobody knows
    found = taught([ALONE] * 50).learn((25 * MS, second, *ALONE[2:]), ())
    assert found is not None
    assert found.clouded == (second > 10 * MS)


def test_what_contention_cannot_have_done_is_wait() -> None:
    # the link adds 2 ms to a bucket where it adds anything; the first one took 20 ms longer
    made = taught([ALONE] * 50)
    found = made.learn((30 * MS, 12 * MS, *ALONE[2:]), ())
    assert found is not None
    assert not found.clouded


def test_buckets_are_judged_by_their_size() -> None:
    # half of them are twice as large and take twice as long: nobody is on the links
    sizes = (100, 200) * 4
    made = taught([(10 * MS, 20 * MS) * 4] * 50, sizes)
    found = made.learn((10 * MS, 20 * MS) * 4, sizes)
    assert found is not None
    assert (found.lead_ns, found.whole) == (0, False)


def test_noise_of_the_buckets_themselves_is_no_contention() -> None:
    rng = random.Random(1)
    noisy = [tuple(int(10 * MS * rng.gauss(1, 0.08)) for _ in range(8)) for _ in range(600)]
    made = taught(noisy[:300])
    over = [t > made.threshold_ns for step in noisy[300:] for t in step]
    assert sum(over) / len(over) < 0.2  # above the least of 8 by 10 %: about nine in ten


@given(st.lists(st.integers(1, 10**12), min_size=4, max_size=12), st.integers(2, 60))
def test_excess_is_never_negative_nor_more_than_what_was_taken(took: list[int], n: int) -> None:
    made = taught([tuple(took)] * (n + FEWEST_STEPS))
    found = made.learn(tuple(took), ())
    assert found is None or 0 <= found.lead_ns <= found.total_ns


@given(st.lists(st.lists(st.sampled_from([1.0, 1.02, 1.6, 3.0]), min_size=6, max_size=6)))
def test_a_bucket_too_small_to_tell_anything_changes_no_verdict(steps: list[list[float]]) -> None:
    sizes = (1000,) * 8 + (1,)
    even, uneven = taught([ALONE] * 50), taught([(*ALONE, MS)] * 50, sizes)
    for factors in steps:
        took = ALONE[:2] + tuple(int(10 * MS * factor) for factor in factors)
        found, same = even.learn(took, ()), uneven.learn((*took, 5 * MS), sizes)
        assert found is not None
        # to some nanoseconds: a reference is a whole number of them
        assert tuple(found) == pytest.approx(tuple(same or ()), abs=16)


def test_memory_is_bounded() -> None:
    made = taught([ALONE] * (2 * WINDOW))
    assert len(made._least) == WINDOW // SAMPLE
