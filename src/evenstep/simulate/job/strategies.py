"""Pacing between steps, and the staleness of gradients where ranks are not synchronous.

Gradient collectives synchronise ranks themselves; a bound on a rank's lead is part of the graph;
pacing holds ranks before a step. The staleness of a gradient is the number of updates by other
ranks between reading the parameters and applying it. It indicates stability, never accuracy.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from evenstep.documents import Amount, Natural, Portion, Positive
from evenstep.pacing import Pacer, PacerSettings, Reason, Slowest, StepObservation
from evenstep.scenario.scenario import UNSYNCHRONISED, Scenario
from evenstep.simulate.job.graph import FinishedStep
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Actuator, Flag, Kind

MOST_UPDATES = 4_000_000  # kept, the latest; 64 MB
MOST_BINS = 32
SOURCE = "delayed gradient descent on a quadratic, sin(π/(4τ+2)) (Levin and May 1976)"
NOTE = "an indicator of stability, not of accuracy"


class Extra(NamedTuple):
    """A record of one rank alone."""

    rank: int
    kind: Kind
    op: int
    enter_ns: float
    exit_ns: float
    step: int
    held_ns: int = 0
    name: int = 0
    flags: int = 0


class StalenessBin(NamedTuple):
    """Share of updates with a staleness from `first` to `last`."""

    first: Natural
    last: Natural
    share: Portion


class StalenessDistribution(NamedTuple):
    """Distribution of the staleness of updates."""

    mean: Amount
    p50: Amount
    p99: Amount
    max: Amount
    distribution: tuple[StalenessBin, ...]


class Convergence(NamedTuple):
    """Effect of a strategy on the optimisation: staleness, and the share of the step size that
    stays stable at its mean and 99th percentile."""

    staleness: StalenessDistribution | None
    stable_step_share: Amount | None
    stable_step_share_p99: Amount | None
    local_steps: Positive  # between two exchanges
    discarded_share: Portion  # of the gradients
    source: str = SOURCE
    note: str = NOTE


def summed_up(found: Array) -> StalenessDistribution:
    """The distribution of whole numbers in at most `MOST_BINS` bins of equal width."""
    width = -(-(int(found.max()) + 1) // MOST_BINS)
    counts = np.bincount(found // width) / len(found)
    bins = tuple(
        StalenessBin(index * width, index * width + width - 1, float(share))
        for index, share in enumerate(counts)
        if share
    )
    p50, p99 = (float(np.quantile(found, q)) for q in (0.5, 0.99))
    return StalenessDistribution(float(found.mean()), p50, p99, float(found.max()), bins)


def convergence(
    staleness: StalenessDistribution | None, *, local_steps: int = 1, discarded: float = 0.0
) -> Convergence | None:
    """The effect on the optimisation; None where it is that of a synchronous strategy."""
    if staleness is None and local_steps == 1 and not discarded:
        return None
    each = (staleness.mean, staleness.p99) if staleness else ()
    mean, tail = map(stable_step_share, each) if each else (None, None)
    return Convergence(staleness, mean, tail, local_steps, discarded)


def stable_step_share(staleness: float) -> float:
    """Largest stable step size on a quadratic, ÷ that of fresh gradients: sin(π/(4τ+2)).

    Delayed gradient descent x' = x − ηλ x(t−τ) is stable iff ηλ < 2 sin(π/(2(2τ+1))) (Levin and May
    1976); fresh gradients allow 2. An indicator of stability, never of accuracy.
    """
    return math.sin(math.pi / (4 * staleness + 2))


# -- pacing ----------------------------------------------------------------------------------------


MARGIN = 0.02  # of the first collective's duration: a shorter wait cannot be told from none
PACING = ("controller", "objective", "max_delay", "imbalance", "sharing", "guarded")  # settings
REASONS = tuple(str(reason) for reason in Reason)  # names in the trace, from 1


class StepSignals(NamedTuple):
    """Signals of a step on every rank: its first collective, and the end of its last."""

    enter_ns: Array
    last_ns: Array  # when the last rank entered
    end_ns: Array
    floor_ns: float
    over_ns: Array  # when the step's last collective was over


class Pace:
    """No pacing: ranks are synchronised by collectives alone."""

    def after(self, done: FinishedStep, seen: StepSignals | None, ranks: Array) -> None:
        """Take the signals of these ranks, which finished a step."""

    def records(self, step: int, start: Array) -> list[Extra]:  # noqa: ARG002
        return []

    def summary(self) -> dict[str, Any] | None:
        return None

    def staleness(self) -> StalenessDistribution | None:
        """Staleness of gradients; None where ranks are synchronous."""
        return None


class Unsynchronised(Pace):
    """Ranks that do not wait: each reads the parameters as its update is applied."""

    def __init__(self, ranks: int, *, bounded: bool = False) -> None:
        kept = max(8, MOST_UPDATES // ranks)
        self._reads: deque[Array] = deque(maxlen=kept)
        self._applied: deque[Array] = deque(maxlen=kept)
        self._read = np.zeros(ranks)
        self._bounded = bounded  # parameters are read as the next step begins

    def after(self, done: FinishedStep, seen: StepSignals | None, ranks: Array) -> None:
        """Add the step's reading and update of all ranks; remember the next reading."""
        del ranks
        applied = done.over if seen is None else np.array(seen.over_ns)
        self.add(self._read, applied)
        self._read = np.maximum(applied, done.over) if self._bounded else applied

    def add(self, read_ns: Array, applied_ns: Array) -> None:
        """Add when each rank read the parameters for a step, and when its update was applied."""
        self._reads.append(read_ns)
        self._applied.append(applied_ns)

    def staleness(self) -> StalenessDistribution | None:
        """Staleness over the time for which the updates of all ranks are known; None without."""
        if not self._applied:
            return None
        read, applied = np.array(self._reads), np.array(self._applied)
        inside = (read >= applied[0].max()) & (applied <= applied[-1].min())
        if not inside.any():
            return None
        order = np.sort(applied, axis=None)
        done = np.searchsorted(order, applied[inside], side="right")
        found = done - np.searchsorted(order, read[inside], side="right") - 1
        return summed_up(np.maximum(found, 0))


class Paced(Pace):
    """Pacing: one pacer for each rank, of the class that runs in a live job."""

    def __init__(self, scenario: Scenario, run_id: str) -> None:
        settings, ranks = scenario.strategy, scenario.ranks
        named = {name: getattr(settings, name) for name in PACING}
        self._pacers = [
            Pacer(PacerSettings(mode="on", run_id=run_id, rank=rank, world=ranks, **named))
            for rank in range(ranks)
        ]
        self._sharing = settings.sharing
        self._samples = scenario.work.samples_per_rank or None
        self._slowest: Slowest | None = None
        self._ended = np.zeros(ranks)  # when the last collective of the step before ended
        self._observed = np.full(ranks, -1)  # the last step that each pacer knows
        self._work = np.zeros(ranks)  # of that step
        self._said: list[tuple[str, int]] = [("", 0)] * ranks
        self._new: list[tuple[int, int, str, int]] = []

    def before(self, step: int, ranks: Array) -> Array:
        """Delays that the pacers decide; a published plan reaches all pacers at once."""
        decisions = {rank: self._pacers[rank].decide(step) for rank in ranks.tolist()}
        for plan in [one.plan for one in decisions.values() if one.plan is not None]:
            for pacer in self._pacers:
                pacer.adopt(plan)
        for rank, decision in decisions.items():
            said = (str(decision.reason), decision.delay_ns)
            if said != self._said[rank]:
                self._said[rank] = said
                self._new.append((step, rank, *said))
        return np.array([float(decision.delay_ns) for decision in decisions.values()])

    def after(self, done: FinishedStep, seen: StepSignals | None, ranks: Array) -> None:
        """Give the pacers of these ranks its signals; those that have them already do not."""
        step, length = done.number, done.over - done.begin
        if self._sharing and 0 <= self._observed.max() < step:  # arrives a step later
            self._slowest = Slowest(step - 1, step - 1, int(self._work.max()))
        ranks = ranks[self._observed[ranks] < step]
        self._observed[ranks] = step
        work, same, each = self._seen(seen, length - done.held, done.held, ranks)
        self._work[ranks] = work
        for place, rank in enumerate(ranks.tolist()):
            own: dict[str, Any] = {name: int(values[place]) for name, values in each.items()}
            self._pacers[rank].observe(StepObservation(
                step=step, step_ns=int(length[rank]), work_ns=int(work[place]),
                delay_ns=int(done.held[rank]), batch=self._samples, slowest=self._slowest,
                **same, **own,
            ))  # fmt: skip

    def _seen(
        self, seen: StepSignals | None, own_ns: Array, held: Array, ranks: Array
    ) -> tuple[Array, dict[str, Any], dict[str, Array]]:
        """Own work, and what observations of these ranks have alike, and each."""
        if seen is None:
            return own_ns[ranks], {}, {}
        entered, floor = seen.enter_ns[ranks], seen.floor_ns
        work = entered - np.maximum(self._ended[ranks], 0.0) - held[ranks]
        self._ended[ranks] = seen.over_ns[ranks]
        same: dict[str, Any] = {"margin_ns": int(MARGIN * floor), "floor_lower_ns": int(floor)}
        if self._sharing:
            same["spread_ns"] = int(np.fmax.reduce(seen.enter_ns) - np.fmin.reduce(seen.enter_ns))
        wait, flight = np.maximum(seen.last_ns[ranks] - entered, 0.0), seen.end_ns[ranks] - entered
        return np.maximum(work, 0.0), same, {"wait_ns": wait, "in_flight_ns": flight}

    def records(self, step: int, start: Array) -> list[Extra]:
        """Records of decisions that differ from the rank's last."""
        found = [
            Extra(
                rank, Kind.PACING, int(Actuator.BEFORE_STEP if held else Actuator.NONE),
                float(start[rank]), float(start[rank]) + held, step, held,
                REASONS.index(reason) + 1, int(Flag.APPLIED) if held else 0,
            )
            for number, rank, reason, held in self._new
            if number == step
        ]  # fmt: skip
        self._new = [one for one in self._new if one[0] != step]
        return found

    def summary(self) -> dict[str, Any]:
        """Sums over ranks, and the verdict of rank 0's guard."""
        pacers = self._pacers
        return {
            "held_steps": sum(pacer.held_steps for pacer in pacers),
            "held_ns": sum(pacer.held_ns for pacer in pacers),
            "booked_ns": sum(pacer.ledger.loss_ns for pacer in pacers),
            "verdict": pacers[0].trial.word,
        }


def pace_of(scenario: Scenario, run_id: str) -> Pace:
    """The pacing of a scenario's strategy."""
    kind = scenario.strategy.kind
    if kind == "paced":
        return Paced(scenario, run_id)
    if kind in UNSYNCHRONISED:
        return Unsynchronised(scenario.ranks, bounded=kind == "stale_synchronous")
    return Pace()
