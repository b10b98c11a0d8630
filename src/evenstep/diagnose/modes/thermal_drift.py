"""`thermal_drift`: one rank's or one node's own work grows slowly while the others' does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, When
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import above_others
from evenstep.diagnose.levels import ERRORS, SURE
from evenstep.diagnose.measure import recurrence
from evenstep.diagnose.measure.samples import sampled
from evenstep.diagnose.sentences import found, say
from evenstep.statistics.interval import MAD_SIGMA, Share
from evenstep.statistics.trend import Trend, isotonic, thinned, trend
from evenstep.trace.spool.layout import Phase

Array = npt.NDArray[Any]

SUDDEN = 0.6  # of the growth within three neighbouring blocks: then it is no drift
WARMER_CELSIUS = 3.0
SLOWER_CLOCK = 0.97
THROTTLES = ("gpu.thermal_throttle_flag", "gpu.power_throttle_flag", "gpu.hardware_slowdown_flag")


@dataclass(slots=True, frozen=True)
class Drift:
    """One rank's growth of own work above the others'."""

    rank: int
    column: int
    growth_ns: float  # from the beginning to the end
    start_ns: float  # usual own work at the beginning
    onset: int  # row of the grid
    per_hour: Trend  # of the excess, ns per hour


def drifts(case: Case) -> list[Drift]:
    """Ranks whose own work grows gradually, against the others' and by itself."""
    grid = case.grid
    if grid.shape[1] < 2 or not len(grid.steps):
        return []
    work = grid.work_ns - grid.phase_ns[Phase.INPUT]
    work = np.maximum(work - grid.phase_ns[Phase.CHECKPOINT] - grid.phase_ns[Phase.EVALUATION], 0)
    hours = (np.cumsum(grid.step_ns) - grid.step_ns[0]) / 3.6e12
    at, excess = thinned(hours, above_others(work))
    own = thinned(hours, work)[1]
    rows = np.array([part[0] for part in np.array_split(np.arange(len(hours)), len(at))])
    found_ = []
    for column in range(grid.shape[1]):
        risen = isotonic(excess[:, column])
        if not _gradual(excess[:, column], risen):
            continue
        rate = trend(at, excess[:, column], excess[:, column] - risen)
        if rate.p * grid.shape[1] > SURE or trend(at, own[:, column]).slope <= 0:
            continue
        first = _onset(excess[:, column], risen)
        if 2 * float((risen[first:] - risen[0]).mean()) < float(excess[first:, column].mean()):
            continue  # late before it grew: most of it is not the trend's
        onset = int(rows[first])
        start = float(np.median(own[: max(len(own) // 8, 1), column]))
        growth = float(risen[-1] - risen[0])
        found_.append(Drift(int(grid.ranks[column]), column, growth, start, onset, rate))
    return found_


def _gradual(excess: Array, risen: Array) -> bool:
    """Whether it grows out of the noise, not within a few blocks, and hardly ever falls back."""
    growth = float(risen[-1] - risen[0])
    noise = MAD_SIGMA * float(np.median(np.abs(excess - risen)))
    if growth < ERRORS * noise or len(risen) < 8:
        return False
    jump = float((risen[3:] - risen[:-3]).max())
    return jump < SUDDEN * growth


def _onset(excess: Array, risen: Array) -> int:
    """The block from which the growth stays above a tenth of it and above the noise."""
    noise = MAD_SIGMA * float(np.median(np.abs(excess - risen)))
    least = risen[0] + max(0.1 * (risen[-1] - risen[0]), 2 * noise)
    return int(np.argmax(risen > least))


def find(case: Case) -> list[Finding]:
    """The drifting ranks of a node, or the drifting rank, as one finding per place."""
    findings = []
    for place in _places(case, drifts(case)):
        cells = np.zeros(case.grid.shape, bool)
        for drift in place:
            cells[drift.onset :, drift.column] = True
        mine = case.claims.cells(cells & case.delays.cells(Cause.WORK))
        if mine.any():
            findings.append(_finding(case, place, mine, case.share(case.loss(mine))))
    return findings


def _places(case: Case, found_: list[Drift]) -> list[list[Drift]]:
    """Drifts by node; of ranks whose node nobody knows, all."""
    nodes: dict[str, list[Drift]] = {}
    for drift in found_:
        nodes.setdefault(case.trace.ranks[drift.rank].node, []).append(drift)
    return list(nodes.values())


def _finding(case: Case, place: list[Drift], cells: Array, share: Share) -> Finding:
    steps = case.grid.steps
    worst = max(place, key=lambda drift: drift.growth_ns)
    ranks = [drift.rank for drift in sorted(place, key=lambda one: -one.growth_ns)]
    named, where = case.named(ranks), case.where(ranks)
    rate = worst.per_hour.slope / max(worst.start_ns, 1.0)
    signs, first = _signs(case, ranks[0]), min(drift.onset for drift in place)
    onset = int(steps[first])
    sample = "" if signs else " (first sample its clocks: NVML or amdgpu, as evenstep does)"
    return found(
        "thermal_drift",
        share,
        numbers={
            "whose": f"{named}'s own work" if len(ranks) == 1 else f"the own work of {named}",
            "growth": worst.growth_ns,
            "relative": worst.growth_ns / max(worst.start_ns, 1.0),
            "onset": onset,
            "lasted": float(case.grid.step_ns[first:].sum()),
            "why": _cause(signs),
            "nodes": ", ".join(where.nodes) or words.ranks(ranks),
            "proof": sample,
        },
        where=where,
        when=When([(onset, int(steps[-1]))], "chronic"),
        projected=recurrence.constant(share, len(case.grid.ranks)),
        options={"cool": share, "drain": share},
        evidence=[
            *case.wait_evidence(cells),
            Evidence("growth_of_own_work", round(worst.growth_ns), 0, "ns"),
            Evidence("growth_per_hour", float(f"{rate:.4g}"), 0.0, "share"),
            Evidence("p_value_of_no_trend", float(f"{worst.per_hour.p:.3g}"), None, "1"),
            Evidence("growth_after_as_long_again", round(2 * worst.growth_ns), 0, "ns"),
            *signs,
        ],
        change=case.relieved(cells),
    )


def _cause(signs: list[Evidence]) -> str:
    told = [
        say(f"thermal_drift.{sign.metric}", measured=sign.measured, expected=sign.expected)
        for sign in signs
    ]
    if told:
        return say("thermal_drift.hot", signs=", ".join(told))
    return say("thermal_drift.unproven")


def _signs(case: Case, rank: int) -> list[Evidence]:
    """Temperature, clock and throttling of a rank in the last quarter, beside the first."""
    signs = []
    heat = _quarters(case, "gpu.temperature_celsius", rank)
    if heat and heat[1] - heat[0] >= WARMER_CELSIUS:
        signs.append(Evidence("temperature", round(heat[1], 1), round(heat[0], 1), "°C"))
    clock = _quarters(case, "gpu.sm_clock_mhz", rank)
    if clock and clock[1] <= SLOWER_CLOCK * clock[0]:
        signs.append(Evidence("clock", round(clock[1]), round(clock[0]), "MHz"))
    flags = [_of(case, name, rank) for name in THROTTLES]
    shares = [float((flag[len(flag) // 2 :] > 0).mean()) for flag in flags if len(flag)]
    if shares and max(shares) > 0:
        signs.append(Evidence("throttled", round(max(shares), 3), 0.0, "share"))
    return signs


def _of(case: Case, metric: str, rank: int) -> Array:
    """A metric of one rank in order of time."""
    found_ = sampled(case.trace, metric)
    return np.asarray(found_.value[found_.rank == rank])


def _quarters(case: Case, metric: str, rank: int) -> tuple[float, float] | None:
    values = _of(case, metric, rank)
    if len(values) < 4:
        return None
    quarter = max(len(values) // 4, 1)
    return float(np.median(values[:quarter])), float(np.median(values[-quarter:]))
