from dataclasses import replace

import numpy as np
import pytest

from evenstep.report.page.timeline import LATEST_STEPS, SLOWEST_STEPS, slowest, timeline
from evenstep.trace.clocks.bounds import OffsetLine
from evenstep.trace.clocks.clocks import Clocks, align
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace
from tests.report.small_run import (
    FIRST_STEP,
    LATE_RANK,
    MS,
    STEP_NS,
    STEPS,
    events,
    record,
)

LAST_STEP = FIRST_STEP + STEPS - 1
PER_STEP = 30  # records of all ranks: 4 × (5 phases + 2 collectives), a pause, a pacing decision


def of(records: Columns, **values: int) -> Columns:
    chosen = np.ones(len(records), bool)
    for name, value in values.items():
        chosen &= records[name] == value
    return records.select(chosen)


def test_times_count_from_the_start_of_the_step(trace: Trace, steps: Columns) -> None:
    shown = timeline(trace, steps, align(trace)).records
    forward = of(shown, kind=Kind.PHASE, op=Phase.FORWARD)
    assert set(forward.enter_us.tolist()) == {5_000.0}
    assert set(forward.exit_us.tolist()) == {35_000.0}


def test_waiting_ends_when_the_last_rank_enters(trace: Trace, steps: Columns) -> None:
    shown = of(timeline(trace, steps, align(trace)).records, kind=Kind.COLLECTIVE)
    late = shown.rank == LATE_RANK
    assert set(shown.wait_us[late].tolist()) == {0.0}
    assert set(shown.wait_us[~late].tolist()) == {40_000.0}  # its 40 ms of lateness


def test_wait_is_unknown_when_a_member_left_no_trace(trace: Trace, steps: Columns) -> None:
    trace.events = trace.events.select(trace.events.rank != LATE_RANK)
    del trace.ranks[LATE_RANK]
    shown = of(timeline(trace, steps, align(trace)).records, kind=Kind.COLLECTIVE)
    assert np.isnan(shown.wait_us).all()


HOUR_NS = 3_600_000 * MS
EXACT, AN_HOUR_AHEAD = (
    OffsetLine(np.zeros(1), np.array([float(offset)]), np.zeros(1)) for offset in (0, -HOUR_NS)
)


def with_rank_2_an_hour_ahead(trace: Trace) -> Trace:
    ahead = np.where(trace.events.rank == 2, HOUR_NS, 0)
    moved = trace.events.with_column("enter_ns", trace.events.enter_ns + ahead)
    return replace(trace, events=moved.with_column("exit_ns", moved.exit_ns + ahead))


def test_a_rank_on_another_clock_is_moved_to_the_common_one(trace: Trace, steps: Columns) -> None:
    clocks = Clocks("one", {0: EXACT, 1: EXACT, 2: AN_HOUR_AHEAD, 3: EXACT})
    before = timeline(trace, steps, align(trace)).records
    after = timeline(with_rank_2_an_hour_ahead(trace), steps, clocks).records
    for name in ("enter_us", "exit_us", "wait_us"):
        assert np.array_equal(after[name], before[name], equal_nan=True)


def test_a_rank_without_a_place_in_time_begins_at_its_own_zero(
    trace: Trace, steps: Columns
) -> None:
    clocks = Clocks("one", {0: EXACT, 1: EXACT, 2: None, 3: EXACT})
    ahead = np.where(steps.rank == 2, HOUR_NS, 0)
    for name in ("start_ns", "end_ns"):
        steps = steps.with_column(name, steps[name] + ahead)
    shown = timeline(with_rank_2_an_hour_ahead(trace), steps, clocks).records
    assert set(of(shown, kind=Kind.PHASE, op=Phase.INPUT).enter_us.tolist()) == {0.0}


def test_of_a_run_too_large_to_read_the_same_steps_are_shown(
    trace: Trace, steps: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = timeline(trace, steps, align(trace), budget=5 * PER_STEP)
    read, window = [], Trace.window
    monkeypatch.setattr(Trace, "window", lambda *of: read.append(of[1]) or window(*of))
    picked = timeline(trace, steps, align(trace), budget=5 * PER_STEP, most_at_hand=0)
    assert len(read) <= 5 + 2  # what fits, one that does not, and what never ended
    assert picked.steps.step.tolist() == whole.steps.step.tolist()
    for name in whole.records:
        assert np.array_equal(picked.records[name], whole.records[name], equal_nan=True)


def test_the_step_a_killed_rank_hung_in_is_shown_with_its_open_collective(
    trace: Trace, steps: Columns
) -> None:
    hung = record(
        rank=0, step=LAST_STEP + 1, kind=Kind.COLLECTIVE, op=1, group=0, group_seq=999,
        enter_ns=int(steps.end_ns.max()) + 7 * MS,
    )  # fmt: skip
    began = {**hung, "kind": Kind.PHASE, "op": Phase.INPUT, "enter_ns": int(steps.end_ns.max())}
    trace.events = Columns.concatenate([trace.events, events([began, hung])])
    shown = of(
        timeline(trace, steps, align(trace)).records, step=LAST_STEP + 1, kind=Kind.COLLECTIVE
    )
    assert shown.enter_us.tolist() == [7_000.0]
    assert np.isnan(shown.exit_us).all()


def test_the_latest_steps_and_the_slowest_are_kept(trace: Trace, steps: Columns) -> None:
    slow = FIRST_STEP + 3
    steps = steps.with_column("end_ns", steps.end_ns + (steps.step == slow) * STEP_NS)
    kept = timeline(trace, steps, align(trace), budget=2 * PER_STEP).steps.step.tolist()
    assert kept == [slow, LAST_STEP]


@pytest.mark.parametrize("budget", [PER_STEP, 3 * PER_STEP, 10**6])
def test_no_more_records_are_kept_than_the_budget(
    trace: Trace, steps: Columns, budget: int
) -> None:
    shown = timeline(trace, steps, align(trace), budget=budget)
    assert PER_STEP <= len(shown.records) <= budget
    assert len(shown.steps) <= LATEST_STEPS + SLOWEST_STEPS


def test_of_too_many_ranks_some_are_kept_and_the_culprits_always(
    trace: Trace, steps: Columns
) -> None:
    shown = timeline(trace, steps, align(trace), culprits=[LATE_RANK], budget=PER_STEP // 2)
    assert np.unique(shown.records.rank).tolist() == [0, 2, LATE_RANK]
    assert not np.isnan(of(shown.records, kind=Kind.COLLECTIVE).wait_us).any()


def test_a_trace_without_records_has_an_empty_timeline(trace: Trace, steps: Columns) -> None:
    bare = replace(trace, events=trace.events.select(slice(0, 0)))
    assert len(timeline(bare, steps, align(bare)).records) == 0
    assert len(timeline(bare, steps.select(slice(0, 0)), align(bare)).steps) == 0


def test_the_slowest_steps_come_longest_first_and_once() -> None:
    steps = Columns(
        {
            "step": np.array([1, 1, 2, 2, 3]),
            "start_ns": np.zeros(5, np.int64),
            "end_ns": np.array([5, 9, 7, 8, 1]),
        }
    )
    assert slowest(steps, 2) == [1, 2]
