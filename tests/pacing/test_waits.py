import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing import WaitEstimator
from evenstep.pacing.waits import Collective, StepWait

MS, US = 1_000_000, 1_000
DP, ALL_REDUCE, MB = 0, 1, 10**6


def one(enter: float, exit_: float, nbytes: int = MB, *, exact: bool = False) -> Collective:
    """A collective with times in ms."""
    return (DP, ALL_REDUCE, nbytes, round(enter * MS), round(exit_ * MS), not exact)


def after(steps: int, collectives: list[Collective]) -> tuple[WaitEstimator, StepWait]:
    """An estimator that has seen the same step so many times, and what it said last."""
    estimator = WaitEstimator()
    for _ in range(steps):
        told = estimator.step(collectives)
    return estimator, told


def test_the_wait_is_what_the_first_collective_took_beyond_its_floor() -> None:
    # in flight 52 ms, then the same again back to back in 2 ms: 50 ms of wait
    _, told = after(5, [one(0, 52), one(52.1, 54.1)])
    assert told.first_ns == told.total_ns == 50 * MS


def test_a_rank_that_is_never_early_waits_for_nobody() -> None:
    _, told = after(5, [one(0, 2), one(2.1, 4.1)])
    assert (told.first_ns, told.total_ns) == (0, 0)


def test_one_collective_per_step_cannot_be_told_from_slow_transfer() -> None:
    _, told = after(50, [one(0, 52)])
    assert (told.first_ns, told.total_ns) == (None, None)


def test_overlapped_buckets_share_one_wait() -> None:
    # Measured on gloo, two ranks, rank 1 asleep for 50 ms (entry, in flight in ms).
    rank_0 = [one(0.9, 53.3), one(1.1, 53.4), one(1.3, 54.3)]
    _, told = after(20, rank_0)
    assert told.total_ns == pytest.approx(50 * MS, rel=0.1)
    assert told.first_ns == told.total_ns


def test_of_three_overlapped_buckets_the_late_rank_waits_for_none() -> None:
    rank_1 = [one(51.5, 53.0), one(51.8, 53.2), one(52.4, 54.2)]
    _, told = after(20, rank_1)
    assert told.total_ns is not None
    assert told.total_ns < 2 * MS


@pytest.mark.parametrize(("apart", "total"), [(3, 0), (1, 2 * MS)])
def test_what_two_overlapped_entries_are_apart_is_told_from_no_wait(apart: int, total: int) -> None:
    # a burst of two takes 2 ms from its last entry on, or 2 more that may be the other's start
    usual = [one(0, apart + 2), one(apart, apart + 2)]
    again = [one(apart + 2.05, 2 * apart + 4.05), one(2 * apart + 2.05, 2 * apart + 4.05)]
    estimator, _ = after(5, usual + again)
    told = estimator.step([one(0, apart + 4), one(apart, apart + 4)])
    assert (told.first_ns, told.total_ns) == (2 * MS, total)


def test_exact_ends_that_queue_behind_each_other_are_no_wait() -> None:
    # Eight buckets entered at once, 10 ms each, one after the other on the wire.
    queued = [one(0.001 * i, 10 * (i + 1), exact=True) for i in range(8)]
    alone = [one(100 + 10.1 * i, 110 + 10.1 * i, exact=True) for i in range(4)]
    _, told = after(5, queued + alone)
    assert told.total_ns == 0


@pytest.mark.parametrize(("start", "end"), [(100, 352.5), (100, 351.5)])
def test_an_end_in_or_right_after_a_collector_pause_is_no_wait(start: float, end: float) -> None:
    estimator, _ = after(5, [one(0, 2), one(2.1, 4.1)])
    told = estimator.step([one(50, 352)], [(int(start * MS), int(end * MS), False)])
    assert (told.first_ns, told.in_flight_ns, told.total_ns) == (None, None, None)


def test_a_pause_long_before_the_end_is_harmless() -> None:
    estimator, _ = after(5, [one(0, 2), one(2.1, 4.1)])
    assert estimator.step([one(50, 102)], [(0, 10 * MS, False)]).first_ns == 50 * MS


def test_an_end_after_the_own_next_entry_is_no_wait() -> None:
    # The callback of the first came up to 25 ms late while this rank computed for 20 ms: no wait.
    estimator, _ = after(5, [one(0, 2), one(2.1, 4.1)])
    told = estimator.step([one(10, 35), one(30, 32.1)])
    assert (told.first_ns, told.total_ns) == (0, 0)


def test_a_device_end_is_believed_even_beside_a_pause() -> None:
    estimator, _ = after(5, [one(0, 2), one(2.1, 4.1)])
    told = estimator.step([one(50, 102, exact=True)], [(60 * MS, 101 * MS, False)])
    assert told.first_ns == 50 * MS


def test_time_since_the_last_collective_is_the_own_work_and_delay() -> None:
    estimator, _ = after(1, [one(0, 2), one(2.1, 4)])
    assert estimator.step([one(34, 36)]).since_last_ns == 30 * MS


def test_the_wait_of_a_step_without_collectives_is_unknown() -> None:
    assert WaitEstimator().step([]) == (None, None, None, None, 0, None)


@st.composite
def steps(draw: st.DrawFn) -> list[Collective]:
    now, found = 0, []
    for _ in range(draw(st.integers(0, 12))):
        now += draw(st.integers(0, 3 * MS))
        end = now + draw(st.integers(0, 60 * MS))
        group, size = draw(st.integers(0, 1)), draw(st.sampled_from([0, 8, MB]))
        found.append((group, ALL_REDUCE, size, now, end, draw(st.booleans())))
    return found


def test_a_burst_inside_what_is_in_flight_is_not_counted_twice() -> None:
    estimator = WaitEstimator()
    estimator.step([(0, 1, 0, 0, 0, False)] * 5)
    told = estimator.step(
        [(0, 1, 0, 0, 20_001, False), (0, 1, 0, 0, 1, True), (0, 1, 0, 0, 20_001, False)]
    )
    assert told.total_ns == 20_001


@given(st.lists(steps(), max_size=20))
def test_no_wait_is_longer_than_the_collectives_were_in_flight(history: list) -> None:
    estimator = WaitEstimator()
    for collectives in history:
        told = estimator.step(collectives)
        busy = max((c[4] for c in collectives), default=0)
        busy -= min((c[3] for c in collectives), default=0)
        assert 0 <= (told.total_ns or 0) <= busy
        assert 0 <= (told.first_ns or 0) <= (told.in_flight_ns or 0)


@given(st.integers(0, 200), st.integers(1, 40))
def test_the_wait_follows_the_truth_for_a_rank_always_early(wait_ms: int, transfer: int) -> None:
    step = [one(0, wait_ms + transfer), one(wait_ms + transfer, wait_ms + 2 * transfer)]
    _, told = after(4, step)
    assert told.first_ns == wait_ms * MS
