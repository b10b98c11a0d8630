"""`thermal_drift`: the own work of one rank or one node grows slowly, that of others does not; or
that of all ranks grows. What comes at once on all is longer batches, as of a curriculum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep.diagnose.finding import Evidence, Finding, When
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import above_others
from evenstep.diagnose.levels import ERRORS, MOST, NAMED, SEVERAL, SIGMAS, SURE
from evenstep.diagnose.measure.hosts import metric_samples
from evenstep.diagnose.modes.intervention import constant, finding_of, finding_of_late
from evenstep.diagnose.sentences import say
from evenstep.statistics.interval import MAD_SIGMA
from evenstep.statistics.trend import FEWEST, Trend, isotonic, thin, trend
from evenstep.trace.columns import Array

SUDDEN = 0.6  # of the growth in jumps, of three neighbouring blocks each: then it is no drift
WARMER_CELSIUS = 3.0  # than at the beginning: sensors have steps of 1
SLOWER_CLOCK = 0.97  # of that at the beginning: steps of 15 MHz are about 1 %
THROTTLES = ("gpu.thermal_throttle_flag", "gpu.power_throttle_flag", "gpu.hardware_slowdown_flag")


class Drift(NamedTuple):
    """Growth of one rank's own work above the others'."""

    rank: int
    growth_ns: float  # from the beginning to the end
    start_ns: float  # usual own work at the beginning
    onset: int  # row of the grid
    per_hour: Trend  # of the excess, ns per hour
    risen_ns: Array = np.zeros(0)  # (steps,): by how much since the beginning


def drifts(case: Case) -> list[Drift]:
    """Ranks whose own work grows gradually, by itself and in proportion to the others', by more
    than theirs changes by chance; of a node as a whole, those that grow with it."""
    grid = case.grid
    if grid.shape[1] < 2 or len(grid.steps) < FEWEST:
        return []
    work, hours = case.program_ns, (np.cumsum(grid.step_ns) - grid.step_ns[0]) / 3.6e12
    usual = np.maximum(np.quantile(work, 0.5, axis=1, method="lower"), 1.0)[:, None]
    above = above_others(work) * np.median(usual) / usual
    (at, excess), own = thin(hours, above), thin(hours, work)[1]
    quarters = (np.array_split(one, 4)[::3] for one in (excess, own))
    changed = [np.median(last, axis=0) - np.median(first, axis=0) for first, last in quarters]
    moved = MAD_SIGMA * np.abs(changed).min(axis=0)
    node = np.array([case.trace.ranks[int(rank)].node for rank in grid.ranks])
    places = [np.flatnonzero(node == name) for name in np.unique(node)]
    units = [*np.arange(len(node))[:, None], *(one for one in places if 1 < len(one) < len(node))]
    found: dict[int, Drift] = {}
    for lanes in units:
        one = _risen(at, excess[:, lanes].mean(axis=1), own[:, lanes].mean(axis=1))
        least = SIGMAS * np.median(np.delete(moved, lanes))
        if one is None or one.growth_ns < least or one.per_hour.p > SURE / len(units):
            continue
        for lane in lanes.tolist():
            if trend(at, excess[:, lane]).slope >= MOST * one.per_hour.slope:
                onset = int(np.array_split(np.arange(len(hours)), len(at))[one.onset][0])
                risen = _rise(hours, above[:, lane]) * usual[:, 0] / np.median(usual)
                mine = one._replace(rank=int(grid.ranks[lane]), onset=onset, risen_ns=risen)
                found.setdefault(lane, mine)
    return list(found.values())


def _rise(hours: Array, excess: Array) -> Array:
    """By how much a series, (steps,), has risen since its beginning: that is no single value's, but
    before the second of its levels by the smaller one of the first two rises."""
    at, level = thin(hours, excess)
    level = isotonic(level)
    begun = level[1] - np.diff(level[:SEVERAL]).min()
    return np.asarray(np.maximum(np.interp(hours, at, level) - begun, 0.0))


def _risen(at: Array, excess: Array, own: Array, jumps: int = 1) -> Drift | None:
    """The growth of a series out of its noise, and the block from which the excess stays above a
    tenth of it; None where so few jumps have most of it, or the series was late before."""
    risen = isotonic(excess)
    growth = float(risen[-1] - risen[0])
    noise = MAD_SIGMA * float(np.median(np.abs(excess - risen)))
    if growth < ERRORS * noise:
        return None
    onset = int(np.argmax(risen > risen[0] + max(0.1 * growth, 2 * noise)))
    rise = trend(at, excess, excess - risen)
    rises, steady = np.diff(risen), np.ones(len(risen) - 1)
    for _ in range(jumps):
        steady[int(np.convolve(rises * steady, np.ones(3), "valid").argmax()) :][:3] = 0.0
    if rises @ steady <= (1 - SUDDEN) * growth * steady.mean():  # beside as much of a steady one
        return None
    if trend(at, own).slope <= MOST * rise.slope:  # the others' work falls instead
        return None
    if 2 * float((risen[onset:] - risen[0]).mean()) < float(excess[onset:].mean()):
        return None
    return Drift(-1, growth, float(np.median(own[: max(len(own) // 8, 1)])), onset, rise)


def find(case: Case) -> list[Finding]:
    """One finding for the drifting ranks of each node (ranks of unknown nodes are one node), those
    that grow by less than half as much as the worst apart; and one for what grows on all ranks."""
    places: dict[int, list[Drift]] = {}  # by the worst rank
    found = sorted(drifts(case), key=lambda one: -one.growth_ns)
    node = {drift.rank: case.trace.ranks[drift.rank].node for drift in found}
    for drift in found:
        near = (one[0] for rank, one in places.items() if node[rank] == node[drift.rank])
        alike = (worst for worst in near if drift.growth_ns > MOST * worst.growth_ns)
        places.setdefault(next(alike, drift).rank, []).append(drift)
    apart = np.isin(case.grid.ranks, [drift.rank for drift in found])
    return [
        *_of_all(case, ~apart | apart.all()),
        *(one for place in places.values() for one in _of_node(case, place)),
    ]


def _of_all(case: Case, others: Array) -> list[Finding]:
    """What the work of most ranks has more than at the beginning, where that grew gradually. It is
    that of `others` (a mask), without a drift of their own: beside ranks with one the middle of all
    moves up among these by itself."""
    work = np.quantile(case.program_ns[:, others], 0.5, axis=1, method="lower")
    at, own = thin(rows := np.arange(len(work)), work)
    start_ns, known = float(np.median(own[:SEVERAL])), case.trace.elapsed_known
    known &= len(own) >= FEWEST and not case.grid.unseen
    one = _risen(at, own - start_ns, own, SEVERAL) if known else None
    if one is None or one.per_hour.p > SURE:
        return []
    more, steps = np.maximum(np.interp(rows, at, isotonic(own)) - start_ns, 0.0), case.grid.steps
    onset = int(steps[int(at[one.onset])])
    found = finding_of(
        case, "thermal_drift.everybody", case.with_less_work(more), options=["common"],
        at=When([(onset, int(steps[-1]))], "chronic"), projected=constant,
        numbers={
            "growth": more[-1], "relative": more[-1] / max(start_ns, 1.0), "onset": onset,
            "those": case.grid.ranks,
        },
    )  # fmt: skip
    return [one for one in found if one.severity >= NAMED]


def _of_node(case: Case, place: list[Drift]) -> list[Finding]:
    """The finding of a node's drifts, the worst first: what their ranks' work has risen by, and all
    their lateness. A process that stands still meanwhile is not slowed down by heat."""
    grid, worst, first = case.grid, place[0], min(drift.onset for drift in place)
    signs, start_ns = _signs(case, worst.rank), max(worst.start_ns, 1.0)
    risen, ranks = np.zeros(grid.shape), [drift.rank for drift in place]
    risen[:, np.searchsorted(grid.ranks, ranks)] = np.stack([one.risen_ns for one in place], axis=1)
    cells = case.delays.cells(Cause.WORK) & np.isin(grid.ranks, ranks)
    if not signs and case.idles(cells):
        return []
    more = np.maximum(risen, case.delays.late_ns[Cause.WORK] * case.claims.claim(cells))
    why = "hot" if signs else "unproven" if case.costs.graph.device.any() else "grows"
    seen = [
        say(f"thermal_drift.{sign.metric}", measured=sign.measured, expected=sign.expected)
        for sign in signs
    ]
    onset, last = int(grid.steps[first]), int(grid.steps[-1])
    return finding_of_late(
        case, "thermal_drift", more > 0, ranks=ranks, change=case.without(more, Cause.WORK),
        at=When([(onset, last)], "chronic"),
        numbers={
            "growth": worst.growth_ns, "relative": worst.growth_ns / start_ns, "onset": onset,
            "lasted": float(grid.step_ns[first:].sum()),
            "why": say(f"thermal_drift.{why}", signs=", ".join(seen)),
            "proof": "" if signs else say("thermal_drift.sample"),
            "per_hour": worst.per_hour.slope / start_ns,
            "how": "step by step" if why == "grows" else "as it heats",
        },
        options=["program", "cool"] if why == "grows" else ["cool", "drain"],
        evidence=signs,
    )  # fmt: skip


def _signs(case: Case, rank: int) -> list[Evidence]:
    """Temperature and clock of a rank in the last quarter of the samples, beside the first; and the
    share of the second half in which it throttles."""

    def values(metric: str) -> Array:
        numbers = metric_samples(case.trace, metric)
        return np.asarray(numbers.value[numbers.rank == rank])

    def quarters(metric: str) -> tuple[float, ...]:
        ends = np.array_split(values(metric), 4)[::3]
        return tuple(float(np.median(part)) if len(part) else np.nan for part in ends)

    signs = []
    before, after = quarters("gpu.temperature_celsius")
    if after - before >= WARMER_CELSIUS:
        signs.append(Evidence("temperature", after, before, "°C"))
    before, after = quarters("gpu.sm_clock_mhz")
    if after <= SLOWER_CLOCK * before:
        signs.append(Evidence("clock", after, before, "MHz"))
    flags = [values(name) for name in THROTTLES]
    shares = [float((flag[len(flag) // 2 :] > 0).mean()) for flag in flags if len(flag)]
    if any(shares):
        signs.append(Evidence("throttled", max(shares), 0.0, "share"))
    return signs
