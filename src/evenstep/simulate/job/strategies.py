"""How ranks keep together between steps, not at all or by pacing, and how old gradients are then.

Gradient collectives are barriers in themselves; a bound on how far a rank may be ahead is part of
the step's graph. What pacing does, it does before a step. A rank reads the parameters, works, and
its gradient is applied: it is as stale as the number of updates that others applied in between.
Staleness says something of stability, never of accuracy.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.documents import Amount, Natural, Portion, Positive
from evenstep.pacing import Pacer, PacerSettings, Reason, Slowest, StepObservation
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.formulas.strategies import stable_step_share
from evenstep.simulate.job.recording import Extra
from evenstep.trace.spool.layout import Actuator, Flag, Kind

Array = npt.NDArray[Any]

MOST_UPDATES = 4_000_000  # kept, the latest; 64 MB
MOST_BINS = 32
SOURCE = "delayed gradient descent on a quadratic, sin(π/(4τ+2)) (Levin and May 1976)"
NOTE = "an indicator of stability, not of accuracy"


class StalenessBin(NamedTuple):
    """Updates between which and their reading so many others came, as a share of all."""

    first: Natural
    last: Natural
    share: Portion


class StalenessDistribution(NamedTuple):
    """Distribution over updates of how many others came between reading and applying."""

    mean: Amount
    p50: Amount
    p99: Amount
    max: Amount
    distribution: tuple[StalenessBin, ...]


class Convergence(NamedTuple):
    """What a strategy does to the optimisation: steps of which size stay stable at the mean and at
    the oldest gradients."""

    staleness: StalenessDistribution | None
    stable_step_share: Amount | None
    stable_step_share_p99: Amount | None
    local_steps: Positive  # between two exchanges
    discarded_share: Portion  # of the gradients
    source: str = SOURCE
    note: str = NOTE


class Updates:
    """When each rank read the parameters and when its update was applied, step by step."""

    def __init__(self, ranks: int) -> None:
        kept = max(8, MOST_UPDATES // ranks)
        self._read: deque[Array] = deque(maxlen=kept)
        self._applied: deque[Array] = deque(maxlen=kept)

    def add(self, read_ns: Array, applied_ns: Array) -> None:
        """One step of every rank."""
        self._read.append(read_ns)
        self._applied.append(applied_ns)

    def staleness(self) -> StalenessDistribution | None:
        """Over the time for which every rank's updates are known; None where there is none."""
        if not self._applied:
            return None
        read, applied = np.array(self._read), np.array(self._applied)
        inside = (read >= applied[0].max()) & (applied <= applied[-1].min())
        if not inside.any():
            return None
        order = np.sort(applied, axis=None)
        done = np.searchsorted(order, applied[inside], side="right")
        found = done - np.searchsorted(order, read[inside], side="right") - 1
        return summed_up(np.maximum(found, 0))


def summed_up(found: Array) -> StalenessDistribution:
    """The distribution of whole numbers, in at most `MOST_BINS` bins of one width."""
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
    """None where a strategy computes what waiting for all would."""
    if staleness is None and local_steps == 1 and not discarded:
        return None
    if staleness is None:
        return Convergence(None, None, None, local_steps, discarded)
    stable = stable_step_share(staleness.mean), stable_step_share(staleness.p99)
    return Convergence(staleness, *stable, local_steps, discarded)


# -- how old gradients are -------------------------------------------------------------------------


MARGIN = 0.02  # of the first collective's length: what a rank cannot tell from no wait
REASONS = tuple(str(reason) for reason in Reason)  # names in the trace, from 1


class StepSignals(NamedTuple):
    """What pacing sees of a step on every rank: its first collective, the end of its last."""

    enter_ns: Array
    last_ns: Array  # when the last rank entered
    end_ns: Array
    floor_ns: float
    over_ns: Array  # when the step's last collective was over


class Pace:
    """Nobody is held, nobody is kept: collectives alone keep ranks together."""

    def before(self, step: int) -> Array | None:  # noqa: ARG002
        """Delay of each rank before a step, in ns."""
        return None

    def after(
        self, step: int, seen: StepSignals | None, begin: Array, end: Array, held: Array
    ) -> None:
        """What there was to see of a step, on every rank."""

    def records(self, step: int, start: Array) -> list[Extra]:  # noqa: ARG002
        """Decisions to be recorded."""
        return []

    def summary(self) -> dict[str, Any] | None:
        """What pacing did, for the result."""
        return None

    def staleness(self) -> StalenessDistribution | None:
        """How old gradients were when applied; None where everybody waits for everybody."""
        return None


class Loose(Pace):
    """Nobody waits: a rank reads the parameters as its update is applied."""

    def __init__(self, ranks: int, *, bounded: bool = False) -> None:
        self._updates = Updates(ranks)
        self._read = np.zeros(ranks)
        self._bounded = bounded  # they are read as the next step begins, which may be held

    def after(
        self,
        step: int,  # noqa: ARG002
        seen: StepSignals | None,
        begin: Array,  # noqa: ARG002
        end: Array,
        held: Array,  # noqa: ARG002
    ) -> None:
        """Remember when what was read was applied, and when the next is read."""
        applied = end if seen is None else np.array(seen.over_ns)
        self._updates.add(self._read, applied)
        self._read = np.maximum(applied, end) if self._bounded else applied

    def staleness(self) -> StalenessDistribution | None:
        """Over all updates."""
        return self._updates.staleness()


class Paced(Pace):
    """A pacer for each rank, the same object that runs in a live job."""

    def __init__(self, scenario: Scenario, run_id: str) -> None:
        settings, ranks = scenario.strategy, scenario.ranks
        self._pacers = [
            Pacer(
                PacerSettings(
                    mode="on",
                    controller=settings.controller,
                    objective=settings.objective,
                    max_delay=settings.max_delay,
                    imbalance=settings.imbalance,
                    sharing=settings.sharing,
                    guarded=settings.guarded,
                    run_id=run_id,
                    rank=rank,
                    world=ranks,
                )
            )
            for rank in range(ranks)
        ]
        self._sharing = settings.sharing
        self._samples = scenario.work.samples_per_rank or None
        self._slowest: Slowest | None = None
        self._ended = np.zeros(ranks)  # when the last collective of the step before ended
        self._said: list[tuple[str, int]] = [("", 0)] * ranks
        self._new: list[tuple[int, str, int]] = []

    def before(self, step: int) -> Array:
        """Ask every pacer; a plan that the leader publishes reaches all at once."""
        decisions = [pacer.decide(step) for pacer in self._pacers]
        for plan in [decision.plan for decision in decisions if decision.plan is not None]:
            for pacer in self._pacers:
                pacer.adopt(plan)
        for rank, decision in enumerate(decisions):
            said = (str(decision.reason), decision.delay_ns)
            if said != self._said[rank]:
                self._said[rank] = said
                self._new.append((rank, *said))
        return np.array([float(decision.delay_ns) for decision in decisions])

    def after(
        self, step: int, seen: StepSignals | None, begin: Array, end: Array, held: Array
    ) -> None:
        """Tell every pacer what its rank could see."""
        work, table = self._seen(seen, begin, end, held)
        for rank, pacer in enumerate(self._pacers):
            wait, margin, flight, floor, spread = table[rank]
            pacer.observe(
                StepObservation(
                    step=step,
                    step_ns=int(end[rank] - begin[rank]),
                    work_ns=int(work[rank]),
                    wait_ns=wait,
                    margin_ns=margin or 0,
                    in_flight_ns=flight,
                    floor_lower_ns=floor,
                    delay_ns=int(held[rank]),
                    spread_ns=spread if self._sharing else None,
                    batch=self._samples,
                    slowest=self._slowest,
                )
            )
        if self._sharing:  # what is shared arrives a step later
            most = (work.max(), (work + held).max(), held.max())
            self._slowest = Slowest(step, step, *(int(value) for value in most))

    def _seen(
        self, seen: StepSignals | None, begin: Array, end: Array, held: Array
    ) -> tuple[Array, list[tuple[int | None, ...]]]:
        """Own work, and (wait, margin, in flight, floor, spread) of each rank."""
        if seen is None:
            return end - begin - held, [(None,) * 5] * len(begin)
        work = seen.enter_ns - np.maximum(self._ended, 0.0) - held
        self._ended = seen.over_ns
        margin = int(MARGIN * seen.floor_ns)
        spread = int(seen.enter_ns.max() - seen.enter_ns.min())
        wait = np.maximum(seen.last_ns - seen.enter_ns, 0.0)
        flight = seen.end_ns - seen.enter_ns
        return np.maximum(work, 0.0), [
            (int(w), margin, int(f), int(seen.floor_ns), spread)
            for w, f in zip(wait, flight, strict=True)
        ]

    def records(self, step: int, start: Array) -> list[Extra]:
        """Decisions that differ from the rank's last."""
        found = [
            Extra(
                rank,
                Kind.PACING,
                int(Actuator.BEFORE_STEP if held else Actuator.NONE),
                float(start[rank]),
                float(start[rank]) + held,
                step,
                held,
                REASONS.index(reason) + 1,
                int(Flag.APPLIED) if held else 0,
            )
            for rank, reason, held in self._new
        ]
        self._new = []
        return found

    def summary(self) -> dict[str, Any]:
        """Sums over ranks, and what the guard of rank 0 concluded."""
        accounts = [pacer.account for pacer in self._pacers]
        return {
            "held_steps": sum(account.held_steps for account in accounts),
            "held_ns": sum(account.held_ns for account in accounts),
            "booked_ns": sum(account.booked_ns for account in accounts),
            "verdict": accounts[0].verdict.word,
        }


def pace_of(scenario: Scenario, run_id: str) -> Pace:
    """What a strategy holds and keeps."""
    kind = scenario.strategy.kind
    if kind == "paced":
        return Paced(scenario, run_id)
    if kind == "stale_synchronous":
        return Loose(scenario.ranks, bounded=True)
    if kind == "asynchronous":
        return Loose(scenario.ranks)
    return Pace()
