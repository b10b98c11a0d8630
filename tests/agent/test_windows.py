"""What a rank tells of a window of steps, and who is late by that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.agent.exchange.messages import (
    MESSAGE_BYTES,
    VERSION,
    StepRow,
    WindowReport,
    latest_rank,
    summarize,
    window_steps,
)

MS = 1_000_000
SIGNED = st.integers(-(2**63), 2**63 - 1)
REPORTS = st.builds(
    WindowReport,
    rank=st.integers(0, 2**32 - 1),
    end=st.integers(0, 2**32 - 1),
    steps=st.integers(0, 2**16 - 1),
    waits_known=st.integers(0, 2**32 - 1),
    **dict.fromkeys(WindowReport._fields[4:-1], SIGNED),
    begun=st.integers(0, 1),
)


def report(rank, *, work, step=100, wait=None):
    """A window of steps of `step` ms; who works less waits for the rest unless told otherwise."""
    wait = step - work if wait is None else wait
    rows = [StepRow(step * MS, work * MS, wait * MS, 0, work * MS)] * 16
    return summarize(rows, rank=rank, end=64)


@given(REPORTS)
def test_a_report_survives_the_message_which_stays_within_256_bytes(sent):
    assert WindowReport.unpack(sent.pack()) == sent
    assert len(sent.pack()) == MESSAGE_BYTES <= 256


@given(st.binary(max_size=300))
def test_what_is_no_message_is_none(data):
    if len(data) != MESSAGE_BYTES or data[0] != VERSION:
        assert WindowReport.unpack(data) is None


def test_a_message_of_another_version_is_none():
    assert WindowReport.unpack(b"\x01" + report(0, work=1).pack()[1:]) is None


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=16))
def test_work_is_the_mean_and_quantiles_are_values_that_occurred(works):
    rows = [StepRow(10**9, work, None, work, work) for work in works]
    made = summarize(rows, rank=0, end=64)
    ordered = sorted(works)
    assert made.work_ns == sum(works) // len(works)
    assert ordered[0] <= made.entry_low_ns <= made.delay_ns
    assert made.delay_ns == ordered[(len(works) - 1) // 2]
    assert (made.steps, made.waits_known) == (len(works), 0)


def test_the_mean_wait_is_of_the_steps_where_it_could_be_told():
    rows = [StepRow(9, 1, wait, 0, 1) for wait in (10, None, 20)]
    made = summarize(rows, rank=0, end=64)
    assert (made.wait_ns, made.waits_known) == (15, 2)


def test_the_wait_for_workers_is_a_mean():
    made = summarize([StepRow(9, 5, 0, 0, 5, None, wait) for wait in (2, 4)], rank=0, end=2)
    assert made.queued_ns == 3


def test_loaders_that_are_all_slow_make_no_rank_late():
    """Of a step of 95 ms rank 0 waits 25 for its batch, and rank 1, whose comes later, 70."""
    reports = [
        report(0, work=50)._replace(queued_ns=25 * MS),
        report(1, work=95)._replace(queued_ns=70 * MS),
    ]
    assert latest_rank(reports, threshold=0.1) is None
    one_slow = [reports[0]._replace(queued_ns=MS), reports[1]]
    assert latest_rank(one_slow, threshold=0.1).rank == 1


def test_the_late_rank_is_named_with_what_it_costs():
    late = latest_rank([report(0, work=50), report(1, work=95), report(2, work=50)], threshold=0.1)
    assert (late.rank, late.excess_ns) == (1, 45 * MS)
    assert (late.share, late.waiting_ranks) == (0.45, 2)


def test_of_late_ranks_the_one_is_named_that_is_late_by_most_and_not_who_waits_for_a_loader():
    """All wait for workers of their loaders, rank 3 longest: 40 ms more work than the others, and
    40 of waiting; rank 4 works 70 more."""
    all_ = [(0, 20, 10), (1, 20, 10), (2, 20, 10), (3, 100, 50), (4, 90, 10)]
    reports = [report(r, work=work)._replace(queued_ns=ms * MS) for r, work, ms in all_]
    late = latest_rank(reports, threshold=0.1)
    assert (late.rank, late.excess_ns) == (4, 70 * MS)


def test_a_victim_whose_wait_looks_like_work_is_not_named():
    # Its wait could not be kept apart from its work: it works and waits long at once.
    victim = report(0, work=95, wait=45)
    assert latest_rank([victim, report(1, work=50, wait=0)], threshold=0.1) is None


def test_a_wait_that_only_the_late_rank_can_tell_is_not_held_against_it():
    # The others' waits fill the whole step and cannot be told from transfers: unknown is not zero.
    others = [report(rank, work=20)._replace(waits_known=0, wait_ns=0) for rank in (0, 1)]
    late = latest_rank([*others, report(2, work=80, wait=10)], threshold=0.1)
    assert (late.rank, late.waiting_ranks) == (2, 2)


@given(st.lists(st.integers(48, 52), min_size=1, max_size=9))
def test_a_balanced_job_has_no_late_rank(works):
    reports = [report(rank, work=work) for rank, work in enumerate(works)]
    assert latest_rank(reports, threshold=0.1) is None


def test_one_rank_alone_is_not_late():
    assert latest_rank([report(0, work=99)], threshold=0.01) is None
    assert latest_rank([], threshold=0.01) is None


@given(st.integers(0, 10**11), st.integers(10**7, 10**10))
def test_a_window_lasts_two_periods_and_windows_nest(step_ns, period_ns):
    steps = window_steps(step_ns, period_ns)
    assert steps & (steps - 1) == 0  # a power of two, so that the longer contains the shorter
    assert steps * max(step_ns, 1) >= 2 * period_ns
    assert steps == 1 or steps // 2 * max(step_ns, 1) < 2 * period_ns


@pytest.mark.parametrize(("step_ms", "steps"), [(1, 512), (20, 32), (40, 16), (125, 4), (900, 1)])
def test_steps_of_a_window_where_ranks_exchange_every_quarter_of_a_second(step_ms, steps):
    assert window_steps(step_ms * MS, 10**9 // 4) == steps  # steps x step_ms >= 500


def test_a_window_knows_its_first_step():
    assert report(0, work=1).first == 64 - 16
