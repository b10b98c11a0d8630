"""Staleness as scripts log it, and as it follows from who steps when."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.modes.async_staleness import is_uncoupled, rounds, staleness
from evenstep.statistics.trend import association
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import RankInfo, Trace
from tests.diagnose.synthetic import MS, TYPES, World, with_rows


def serving(*lengths_ms, steps=100, noise=0.05):
    """Ranks that step at their own pace and pass messages to a server; nobody waits for all."""
    random, tables = np.random.default_rng(0), []
    for rank, length in enumerate(lengths_ms):
        number = int(steps * min(lengths_ms) / length)
        end = np.cumsum(length * MS * (1 + noise * random.standard_normal(number)))
        for kind, op in ((Kind.STEP, 0), (Kind.POINT_TO_POINT, Op.SEND)):
            columns = {
                "rank": rank, "kind": kind, "op": op, "step": np.arange(number), "group": -1,
                "enter_ns": 10**9 + np.append(0, end[:-1]), "exit_ns": 10**9 + end,
            }  # fmt: skip
            values = {name: np.asarray(columns.get(name, 0)) for name in EVENT_COLUMNS}
            tables.append(
                Columns(
                    {
                        name: np.broadcast_to(value, number).astype(TYPES[name])
                        for name, value in values.items()
                    }
                )
            )
    ranks = {
        rank: RankInfo(rank, {"rank": rank, "hostname": "h", "boot_id": "b"})
        for rank in range(len(lengths_ms))
    }
    events = Columns.concatenate(tables).sorted_by("rank", "enter_ns")
    return Trace({}, len(ranks), 0, ranks, events)


def logging(world, **tables):
    """The world's trace with numbers (steps, ranks) that its script logs."""
    trace = replace(world.trace(), names=("", *tables))
    for number, values in enumerate(tables.values(), 1):
        for rank in trace.ranks:
            bits = np.ascontiguousarray(values[:, rank], float).view(np.uint64)
            trace = with_rows(
                trace, rank=rank, kind=Kind.MARKER, name=number, step=np.arange(world.steps),
                enter_ns=10**15, bytes_in=bits,
            )  # fmt: skip
    return trace


@pytest.fixture
def asynchrony():
    return lambda trace: diagnose(trace).summary["asynchrony"]


def of_mode(trace):
    return [one for one in diagnose(trace).findings if one.mode == "async_staleness"]


def test_equally_fast_ranks_have_a_staleness_of_one_less_than_their_number():
    trace = serving(50, 53, 48, 51, 52)
    found = staleness(trace, step_grid(trace))
    assert np.median(found.value) == 4
    assert of_mode(trace) == []


def test_a_slow_rank_is_named_with_what_its_updates_lose():
    (finding,) = of_mode(serving(*[50] * 7, 200))
    # others finish 7·200/50 = 28 steps meanwhile, in each of its 25; 7 + 2√(7/25) may be chance; an
    # eighth of all time
    expected = (1 - (7 + 2 * np.sqrt(7 / 25)) / 28) / 8
    assert finding.where.ranks == [7]
    assert finding.severity == pytest.approx(expected, rel=0.1)


def test_of_two_ranks_the_slower_is_named():
    (finding,) = of_mode(serving(50, 150))
    expected = (1 - (1 + 2 * np.sqrt(1 / 33)) / 3) / 2  # three steps of the other in each of its 33
    assert finding.where.ranks == [1]
    assert finding.severity == pytest.approx(expected, rel=0.1)


def test_a_logged_staleness_that_grows_is_a_finding(evidence):
    grows = np.repeat(np.linspace(0, 30, 100)[:, None], 4, axis=1)
    (finding,) = of_mode(logging(World(steps=100), staleness=grows))
    # 300 of 400 updates by 30/99 a step: 30/400 per update
    assert evidence(finding)["staleness_growth_per_1000_updates"] == pytest.approx(75, rel=0.05)
    assert "and it grows" in finding.observation


def test_a_logged_staleness_as_n_ranks_explain_it_is_none():
    table = np.random.default_rng(0).poisson(3, (100, 4))
    assert of_mode(logging(World(steps=100), staleness=table)) == []


def test_a_synchronous_job_has_no_staleness(asynchrony):
    assert asynchrony(World(noise=0.01).trace()) is None


def test_rounds_are_seen_where_ranks_meet_rarely(asynchrony):
    trace = World(steps=80, noise=0.01).trace()
    rare = (trace.events.kind != int(Kind.COLLECTIVE)) | (trace.events.step % 8 == 7)
    found = rounds(step_grid(replace(trace, events=trace.events.select(rare))))
    assert set(found.tolist()) == {8}


def test_what_goes_together_with_the_loss_is_told_with_its_chance(asynchrony):
    random = np.random.default_rng(1)
    stale = random.poisson(3, (100, 4)).astype(float)
    falling = 3 - np.arange(100)[:, None] / 500 + 0.05 * stale.mean(axis=1, keepdims=True)
    found = asynchrony(logging(World(steps=100), staleness=stale, loss=np.tile(falling, 4)))
    related = found["relations"]
    assert related["correlation_of_loss_with_staleness"] > 0.9
    assert related["correlation_of_loss_with_staleness_by_chance"] == 0.01  # 1 of 100 shifts


def test_two_falling_series_do_not_go_together_for_falling():
    random, false = np.random.default_rng(2), 0
    for _ in range(100):
        one, other = (np.linspace(5, 0, 80) + random.standard_normal(80) for _ in range(2))
        false += association(one, other).p <= 0.05
    assert false <= 12  # 5 expected; P(more than 12) is below .002


def test_series_that_are_too_short_or_constant_have_no_association():
    assert association(np.arange(10.0), np.arange(10.0)) is None
    assert association(np.ones(50), np.arange(50.0)) is None


def test_of_ranks_without_a_common_clock_the_slower_is_named():
    trace = serving(50, 150)
    names = [{"hostname": f"h{rank}", "boot_id": f"b{rank}"} for rank in (0, 1)]
    ranks = {rank: RankInfo(rank, {"rank": rank, **name}) for rank, name in enumerate(names)}
    (finding,) = diagnose(replace(trace, ranks=ranks)).findings
    expected = (1 - (1 + 2 * np.sqrt(1 / 33)) / 3) / 2
    assert (finding.mode, finding.where.ranks) == ("async_staleness", [1])
    assert finding.severity == pytest.approx(expected, rel=0.1)


def test_ranks_that_never_meet_and_send_nothing_are_late_for_nobody():
    trace = serving(50, 150)
    steps = trace.events.select(trace.events.kind == int(Kind.STEP))
    assert diagnose(replace(trace, events=steps)).findings == []


def test_ranks_that_run_ahead_by_a_fixed_time_go_in_step():
    """As along a ring whose sends return at once: each rank is some steps ahead of the next."""
    trace = serving(50, 50, 50, noise=0.01)
    ahead = 120 * MS * trace.events["rank"].astype(np.int64)
    steps = trace.events.step.astype(np.int64)
    together = np.where(steps > 0, steps * 50 * MS + ahead, 0) + 10**9
    events = trace.events.with_column("enter_ns", together)
    events = events.with_column("exit_ns", together + 50 * MS)
    assert not is_uncoupled(replace(trace, events=events), step_grid(trace))
