"""How throughput grows with ranks: runs as points of a curve, and the universal scalability law.

X(N) = λN / (1 + σ(N − 1) + κN(N − 1)) (Gunther 1993): σ is the share that is serialised
(contention), κ the cost of all ranks waiting for all others (coherency), and X has its peak at
N* = √((1 − σ)/κ). N/X is linear in N − 1 and N(N − 1), so that the fit is a least-squares problem
with σ, κ >= 0.

The exponent between two sizes is the slope of log X over log N: 1 is linear, 0 a plateau, and below
0 more ranks do less (post-linear). A cliff is a fall that no smooth law explains; an oscillatory
curve goes above and below the law in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.levels import CLEARLY, FEWEST, MINOR, MOST, NAMED, SEVERAL
from evenstep.statistics.interval import SEED, Share, blocks, of_draws
from evenstep.trace.columns import Array, medians_of
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace

WEAK, STRONG = -0.35, -0.65  # slope of log compute per rank over log ranks

FARTHEST = 1e7  # ranks up to which a peak or a knee is looked for


# -- runs as points --------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class ScalingPoint:
    """A run as a point of a scaling curve."""

    ranks: int
    step_ns: Array  # (steps,) of the job: the median over ranks
    samples: float | None  # per step, of all ranks
    compute_ns: float | None  # per rank and step
    bytes_per_rank: float  # through collectives, per step
    script: str
    diagnosis: Diagnosis
    run: dict[str, Any]  # its id, attempt and world


def scaling_point(trace: Trace, diagnosis: Diagnosis) -> ScalingPoint:
    """The point of a run; without a finished step its `step_ns` is empty."""
    steps = trace.of_kind(Kind.STEP)
    done = steps.exit_ns > 0
    length = (steps.exit_ns - steps.enter_ns)[done].astype(float)
    _, place, count = np.unique(steps.step[done], return_inverse=True, return_counts=True)
    middle = medians_of(length, place, len(count))
    whole = middle[count == count.max()] if len(count) else middle
    step_ns = whole[-(diagnosis.summary.get("steps") or 0) :]
    time = diagnosis.summary.get("step_time") or {}
    rate = diagnosis.summary.get("throughput") or {}
    each_s = rate.get("value") if rate.get("unit") == "samples/s" else None
    share = (diagnosis.summary.get("shares") or {}).get("compute") or 0.0
    return ScalingPoint(
        ranks=trace.world, step_ns=step_ns,
        samples=float(each_s) * float(time["mean_ns"]) / 1e9 if each_s else None,
        compute_ns=share * (time.get("mean_ns") or 0.0) or None,
        bytes_per_rank=bytes_per_rank(trace), script=script(trace.run.get("command") or []),
        diagnosis=diagnosis,
        run={"run_id": trace.run.get("run_id"), "attempt": trace.attempt, "world": trace.world},
    )  # fmt: skip


def bytes_per_rank(trace: Trace) -> float:
    """Bytes of a rank's collectives in a step, from the step summaries; 0 unknown."""
    steps = float(trace.summaries["count"].sum())
    return float(trace.summaries["bytes"].sum()) / steps if steps else 0.0


def script(command: Sequence[str]) -> str:
    """The script of a command line: its first Python file or module, else the program's name."""
    for index, word in enumerate(command):
        if word.endswith(".py"):
            return PurePath(word).name
        if word == "-m" and index + 1 < len(command) and "run" not in command[index + 1]:
            return command[index + 1]
    return PurePath(command[0]).name if command else ""


def kind_of(points: Sequence[ScalingPoint]) -> str | None:
    """`weak` where the work of a rank stays, `strong` where the total does; None unknown."""
    ranks = np.log([point.ranks for point in points])
    for values in (
        [point.samples / point.ranks if point.samples else None for point in points],
        [point.compute_ns for point in points],
    ):
        if all(value for value in values):
            logs = np.log(np.array(values, float))
            slope = float(np.polyfit(ranks, logs, 1)[0])
            return "weak" if slope > WEAK else "strong" if slope < STRONG else None
    return None


def differences(scripts: Iterable[str], bytes_per_rank: Iterable[float]) -> list[str]:
    """Reasons why runs may not have done the same work; scripts "" and bytes 0 are unknown."""
    found = []
    known = dict.fromkeys(script for script in scripts if script)
    if len(known) > 1:
        found.append(f"the runs are of different scripts: {', '.join(known)}")
    moved = [each for each in bytes_per_rank if each > 0]
    if moved and max(moved) > (1 + MINOR) * min(moved):
        found.append(
            f"a rank passes {min(moved) / 1e6:,.4g} to {max(moved) / 1e6:,.4g} MB through "
            "collectives per step: the model or its sharding differs between the runs"
        )
    return found


def resample(points: Sequence[ScalingPoint]) -> Array:
    """Mean step time of each run under draws of its blocks of steps. (draws, runs)."""
    random = np.random.default_rng(SEED)
    drawn = [blocks(len(point.step_ns), random) for point in points]
    sums = (each.sums(point.step_ns) for each, point in zip(drawn, points, strict=True))
    sizes = (each.starts.shape[1] * each.length for each in drawn)
    return np.stack([total / size for total, size in zip(sums, sizes, strict=True)], axis=1)


# -- the law ---------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Law:
    """The universal scalability law with these parameters."""

    rate: float  # λ, throughput of one rank
    contention: float  # σ
    coherency: float  # κ

    def throughput(self, ranks: npt.ArrayLike) -> Array:
        """X(N)."""
        n = np.asarray(ranks, float)
        return np.asarray(self.rate * n / self._delay(n))

    def _delay(self, n: Array) -> Array:
        return np.asarray(1 + self.contention * (n - 1) + self.coherency * n * (n - 1))

    def marginal(self, ranks: float) -> float:
        """dX/dN over λ: what an added rank gives, 1 being the throughput of one rank alone."""
        gained = 1 - self.contention - self.coherency * ranks**2  # D − N dD/dN
        return float(gained / self._delay(np.asarray(ranks, float)) ** 2)

    @property
    def peak(self) -> float | None:
        """Ranks at which throughput is highest; None where it never falls."""
        if self.coherency <= 0:
            return None
        ranks = float(np.sqrt(max(1 - self.contention, 0.0) / self.coherency))
        return ranks if ranks < FARTHEST else None

    @property
    def knee(self) -> float | None:
        """Ranks from which an added one gives less than half of what the first gave."""
        if self.marginal(FARTHEST) >= MOST:
            return None
        if self.marginal(1.0) < MOST:
            return 1.0
        from scipy.optimize import brentq  # when first asked: .1 s

        return float(brentq(lambda ranks: self.marginal(ranks) - MOST, 1.0, FARTHEST, rtol=1e-6))


def fit(ranks: Array, throughput: Array, terms: Sequence[int] = (1, 2)) -> Law:
    """The law with the least relative squared error, 0 <= σ <= 1 and κ >= 0; of two sizes with σ,
    or κ where throughput falls. `terms` may be fitted: 1 for σ, 2 for κ.

    N/X = d + σN/λ + κN(N − 1)/λ with d = (1 − σ)/λ, so that all coefficients are at least 0.
    """
    from scipy.optimize import nnls  # when first asked: .1 s

    n, x = np.asarray(ranks, float), np.asarray(throughput, float)
    weight = x / n  # relative errors are alike at all sizes
    columns = np.stack([np.ones(len(n)), n, n * (n - 1)], axis=1) * weight[:, None]
    sizes = len(np.unique(n))
    sets = [(0, *terms)] if sizes > 2 else [(0, one) for one in terms] if sizes > 1 else [(0,)]
    fits = [(chosen, *nnls(columns[:, chosen], np.ones(len(n)))) for chosen in sets]
    chosen, found, _ = min(fits, key=lambda each: round(float(each[2]), 9))
    coefficients = np.zeros(3)
    coefficients[list(chosen)] = found
    if not coefficients[:2].any():  # no rank alone is faster than the fastest run
        coefficients[0] = 1 / x.max()
        rest, growth = 1 - coefficients[0] * columns[:, 0], columns[:, 2]
        coefficients[2] = rest @ growth / (growth @ growth)
    constant, linear, square = coefficients.tolist()
    return Law(1 / (constant + linear), linear / (constant + linear), square / (constant + linear))


@dataclass(frozen=True)  # no slots: laws are fitted once
class Curve:
    """Throughput by ranks, ascending; `draws` (draws, sizes) are throughputs of resampled steps."""

    ranks: Array
    throughput: Array
    draws: Array

    @cached_property
    def law(self) -> Law:
        """The fit to the measured points."""
        return fit(self.ranks, self.throughput)

    @cached_property
    def laws(self) -> list[Law]:
        """The fits to the draws."""
        return [fit(self.ranks, draw) for draw in self.draws]

    @property
    def error(self) -> float:
        """Relative standard error of the least certain point; 0 where nothing was resampled."""
        if not len(self.draws):
            return 0.0
        return float((self.draws.std(axis=0) / self.throughput).max())

    @property
    def efficiency(self) -> float:
        """Throughput of a rank of the largest run over that of one of the smallest."""
        return float(_efficiency(self.ranks, self.throughput))

    @property
    def lost(self) -> Share:
        """Share of the largest run's time that the efficiency of the smallest one would save."""
        value = 1 - self.efficiency
        draws = 1 - _efficiency(self.ranks, self.draws) if len(self.draws) else np.array([value])
        return Share(*(max(each, 0.0) for each in of_draws(value, draws)))

    @property
    def recommended(self) -> int | None:
        """The most ranks worth using, by the peak and the knee; None where no run used more."""
        bounds = [bound for bound in (self.law.peak, self.law.knee) if bound is not None]
        if not bounds or min(bounds) >= self.ranks[-1]:
            return None
        return max(int(min(bounds)), 1)

    def interval(self, name: str) -> dict[str, float | None]:
        """Value, low and high over the draws of `contention`, `coherency`, `peak` or `knee`; None
        where there is no such number of ranks."""
        found: dict[str, float | None] = {"value": getattr(self.law, name)}
        if not len(self.draws):
            return found | {"low": None, "high": None}
        value = np.inf if found["value"] is None else found["value"]
        known = [getattr(law, name) for law in self.laws]
        finite = [np.inf if one is None else one for one in known]
        ends = np.quantile(finite, [0.025, 0.975], method="nearest")
        ends = [min(ends[0], value), max(ends[1], value)]
        low, high = (float(end) if np.isfinite(end) else None for end in ends)
        return found | {"low": low, "high": high}


def _efficiency(ranks: Array, throughput: Array) -> Array:
    """Scaling efficiency of one curve (sizes,), or of many (draws, sizes)."""
    each = throughput / ranks
    return np.asarray(each[..., -1] / each[..., 0])


def curve(ranks: Sequence[int], throughput: Sequence[float], draws: Array | None = None) -> Curve:
    """A curve from a table; sizes measured more than once count by their mean."""
    n, x = np.asarray(ranks, np.int64), np.asarray(throughput, float)
    if len(n) != len(x) or (n < 1).any() or not (np.isfinite(x) & (x > 0)).all():
        raise ValueError("a scaling curve needs a positive throughput for every number of ranks")
    sizes, place = np.unique(n, return_inverse=True)
    repeats = np.bincount(place)
    mean = np.bincount(place, weights=x) / repeats
    if draws is None:
        return Curve(sizes, mean, np.zeros((0, len(sizes))))
    summed = np.stack([np.bincount(place, weights=row) for row in draws])
    return Curve(sizes, mean, summed / repeats)


# -- the shape of a curve --------------------------------------------------------------------------


class Stretch(NamedTuple):
    """A part of a curve with one shape."""

    shape: str  # linear, sublinear, plateau, cliff, oscillatory or post-linear
    begins: int  # ranks
    exponent: float | None  # of its first interval


class Doubling(NamedTuple):
    """The gain from the last growth of a curve."""

    ranks: list[int]  # from, to
    gain: float  # relative growth of throughput
    marginal: float  # throughput of an added rank over that of one in the smallest run
    marginal_cost: float | None  # rank-hours per unit of added work over those there; None: ∞


def stretches(curve: Curve) -> list[Stretch]:
    """The shapes of a curve in order of size; neighbouring intervals of one shape are merged."""
    if len(curve.ranks) < 2:
        return []
    exponent = exponents(curve)
    cliff = _cliff(curve)
    if cliff is None and _oscillates(curve):
        return [Stretch("oscillatory", int(curve.ranks[0]), None)]
    found: list[Stretch] = []
    for index, value in enumerate(exponent):
        shape = "cliff" if index + 1 == cliff else _shape(float(value))
        begins = int(curve.ranks[index + 1] if shape == "cliff" else curve.ranks[index])
        if not found or found[-1].shape != shape:
            found.append(Stretch(shape, begins, round(float(value), 4)))
    return found


def exponents(curve: Curve) -> Array:
    """Slope of log throughput over log ranks between neighbouring sizes."""
    return np.asarray(np.diff(np.log(curve.throughput)) / np.diff(np.log(curve.ranks)))


def _shape(exponent: float) -> str:
    if exponent <= -NAMED:
        return "post-linear"
    if exponent <= MINOR:
        return "plateau"
    return "linear" if exponent >= 1 - MINOR else "sublinear"


def _deviation(curve: Curve, law: Law) -> Array:
    return np.asarray(np.log(curve.throughput / law.throughput(curve.ranks)))


def _oscillates(curve: Curve) -> bool:
    """Whether the curve crosses the law from size to size by more than its error."""
    off = _deviation(curve, curve.law)
    least = max(NAMED, CLEARLY * curve.error)
    clear = off[np.abs(off) > least]
    turns = np.count_nonzero(np.diff(np.sign(clear)) != 0)
    up_and_down = np.count_nonzero(np.diff(np.sign(np.diff(exponents(curve)))) != 0)
    return bool(turns >= SEVERAL and up_and_down >= SEVERAL - 1)


def _cliff(curve: Curve) -> int | None:
    """Index of the first size beyond a fall that the smooth law does not explain."""
    if len(curve.ranks) < FEWEST:
        return None
    smooth = float(np.sqrt((_deviation(curve, curve.law) ** 2).mean()))
    if smooth <= max(NAMED, CLEARLY * curve.error) / 2:
        return None
    fits = [_fit_jump(curve, place) for place in range(1, len(curve.ranks))]
    place = int(np.argmin([error for error, _ in fits]))
    error, factor = fits[place]
    return place + 1 if factor < 1 - MINOR and error < MOST * smooth else None


def _fit_jump(curve: Curve, place: int) -> tuple[float, float]:
    """The least error of a law multiplied by a factor from `place` on, and that factor."""
    best = (np.inf, 1.0)
    for factor in np.geomspace(0.05, 1.0, 61):
        lifted = curve.throughput.copy()
        lifted[place:] /= factor
        flat = fit(curve.ranks, lifted, (1,))  # σ alone: κ would take up a cliff
        error = float(np.sqrt((np.log(lifted / flat.throughput(curve.ranks)) ** 2).mean()))
        best = min(best, (error, float(factor)))
    return best


def last_doubling(curve: Curve) -> Doubling | None:
    """The gain from half the largest size, or the last one before, to the largest."""
    if len(curve.ranks) < 2:
        return None
    half = np.flatnonzero(curve.ranks <= curve.ranks[-1] / 2)
    start = int(half[-1]) if len(half) else len(curve.ranks) - 2
    n, x = curve.ranks.astype(float), curve.throughput
    each = (x[-1] - x[start]) / (n[-1] - n[start])
    marginal = float(each / (x[0] / n[0]))
    return Doubling(
        [int(n[start]), int(n[-1])], float(x[-1] / x[start] - 1), marginal,
        1 / marginal if marginal > 1e-6 else None,
    )  # fmt: skip
