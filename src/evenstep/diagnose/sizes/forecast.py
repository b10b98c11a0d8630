"""A forecast of a measured run at other sizes: step time, CV and p99.

A step at n ranks is the sum over its segments of the maximum of n own times, plus a rest. An own
time is a rank's usual time, plus a part that all ranks share in a step, plus independent noise. The
distribution of the maximum follows from the noise's survival function by
P(max <= x) = Π F(x − l_j), so that no rank is drawn one by one. Runs of as many steps as measured
are drawn from it; an interval holds the middle 98 % of them, each with a model fitted to resampled
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from evenstep.diagnose.levels import MINOR, SIGMAS
from evenstep.diagnose.sizes.components import Growth, Segments
from evenstep.statistics import tails
from evenstep.statistics.interval import BLOCK_STEPS, MAD_SIGMA, RESAMPLES, SEED, Estimate, blocks
from evenstep.statistics.tails import TabulatedNoise

Array = npt.NDArray[Any]

#: Low, middle, high. Few resampled exceedances vary too little: on synthetic runs of 117 steps the
#: middle 95 % hold the truth in 83 % of 180 cases, the middle 98 % in 89 %; with 497 steps the
#: middle 95 % do in 97 % of 120.
QUANTILES = (0.01, 0.5, 0.99)
MOST_SEGMENTS = 6  # more are grouped by their length
LOCATIONS = 32  # distinct usual times of a rank; more are merged


@dataclass(slots=True, frozen=True)
class ForecastPoint:
    """The forecast at one size."""

    ranks: int
    step_ns: Estimate
    cv: Estimate
    p99_ns: Estimate


@dataclass(slots=True)
class Segment:
    """The work before one barrier, or before several alike."""

    usual_ns: Array  # (ranks,) each rank's median
    shared_ns: Array  # (steps,) the part that all ranks share
    noise: TabulatedNoise  # independent part
    members: Array  # indices of the step's segments that it stands for

    @property
    def times(self) -> int:
        """Number of segments that it stands for."""
        return len(self.members)


@dataclass(slots=True)
class Model:
    """A run reduced to the parts that decide its step time at another size."""

    parts: list[Segment]
    rest_ns: Array  # (steps,)
    unsteady_ns: Array  # extra time of steps with a checkpoint, 0 in the others
    units: float  # ranks that vary independently
    ranks: int
    coupling: Array  # (segments, segments): makes normal draws as correlated as the maxima are


def fit(cut: Segments, families: Sequence[str] = ()) -> Model:
    """Fit a model to measured segments; `families` fixes the family of each part's noise."""
    parts = []
    for index, members in enumerate(_grouped(cut.own_ns)):
        family = families[index] if families else None
        parts.append(_segment(cut.own_ns, members, family))
    coupling = _coupling(cut.own_ns.max(axis=2))
    return Model(parts, cut.rest_ns, cut.unsteady, cut.units, cut.own_ns.shape[2], coupling)


def _coupling(maxima: Array) -> Array:
    """A root of the correlation between the segments' maxima (steps, segments): a rank that is slow
    in one segment of a step is often slow in the next. Correlations within chance count as none."""
    steps, number = maxima.shape
    spread = maxima.std(axis=0)
    if number < 2 or steps < 2 * BLOCK_STEPS or not (spread > 0).all():
        return np.eye(number)
    matrix = np.corrcoef(maxima, rowvar=False)
    matrix[np.abs(matrix) < 3 / np.sqrt(steps)] = 0.0
    value, vector = np.linalg.eigh(matrix)
    root = vector * np.sqrt(np.maximum(value, 0))
    return np.asarray(root / np.maximum(np.linalg.norm(root, axis=1), 1e-9)[:, None])


def _grouped(own: Array) -> list[Array]:
    """Segments in groups that share one noise: each alone, or neighbours in length."""
    order = np.argsort(own.mean(axis=(0, 2)), kind="stable")
    return [np.sort(part) for part in np.array_split(order, min(len(order), MOST_SEGMENTS))]


def _segment(every: Array, members: Array, family: str | None) -> Segment:
    """The model of some of all segments (steps, segments, ranks)."""
    own = every[:, members, :]
    apart = own - np.median(own, axis=0)
    usual = np.stack([_usual(own[:, i]) for i in range(own.shape[1])])
    shared, apart = zip(*(_common(apart[:, i]) for i in range(own.shape[1])), strict=True)
    noise = tails.fit(np.concatenate(apart, axis=1), family)
    return Segment(usual.mean(axis=0), np.mean(shared, axis=0), noise, members)


def _usual(own: Array) -> Array:
    """Each rank's median, shrunk to the middle by the share of their spread that is chance: medians
    of even and odd blocks of steps have only the ranks' real differences in common."""
    median = np.median(own, axis=0)
    odd = (np.arange(len(own)) // BLOCK_STEPS) % 2 == 1
    if own.shape[1] < 3 or not odd.any():
        return np.asarray(median)
    one, other = np.median(own[odd], axis=0), np.median(own[~odd], axis=0)
    real = float(((one - one.mean()) * (other - other.mean())).mean())
    kept = min(max(real / max(float(median.var()), 1e-9), 0.0), 1.0)
    return np.asarray(np.median(median) + kept * (median - np.median(median)))


def _common(apart: Array) -> tuple[Array, Array]:
    """The part that all ranks share in a step (steps,), and the rest (steps, ranks).

    The mean over ranks varies with the shared part and with 1/n of the rest (analysis of variance);
    only the shared part's share of it is taken out.
    """
    steps, ranks = apart.shape
    nothing = np.zeros(steps), apart
    if ranks < 3:
        return nothing
    bounded = np.clip(apart, *np.quantile(apart, [0.02, 0.98]))
    mean = bounded.mean(axis=1)
    single = float(bounded.var(axis=0).mean())
    common = (ranks * float(mean.var()) - single) / (ranks - 1)
    chance = 3 * single * np.sqrt(2 / max(steps, 2)) / (ranks - 1)
    if common <= max(MINOR * single, chance):
        return nothing
    shared = (mean - mean.mean()) * np.sqrt(common / float(mean.var()))
    return shared, apart - shared[:, None]


# -- at another size -------------------------------------------------------------------------------


def project(
    cut: Segments, sizes: Sequence[int], growth: Growth, *, strong: bool
) -> list[ForecastPoint]:
    """Step time, CV and p99 at each size. `strong`: the work is shared by more ranks."""
    random = np.random.default_rng(SEED)
    weights = [part.noise.weights for part in fit(cut).parts]
    runs: dict[int, list[tuple[float, float, float]]] = {size: [] for size in sizes}
    for _ in range(RESAMPLES):
        (rows,) = blocks(len(cut.step_ns), random, draws=1).indices()
        resampled = cut._replace(own_ns=cut.own_ns[rows], step_ns=cut.step_ns[rows])
        again = fit(resampled, [_one_of(each, random) for each in weights])
        for size in sizes:
            factor = growth.drawn(size, random)
            step_ns = _run(again, size, factor, random, strong=strong)
            mean = float(step_ns.mean())
            p99 = float(np.quantile(step_ns, 0.99))
            runs[size].append((mean, float(step_ns.std()) / mean, p99))
    likeliest = fit(cut, [next(iter(each), "normal") for each in weights])
    means = [expected(likeliest, size, growth.factor(size), strong=strong) for size in sizes]
    return [
        _point(size, np.array(runs[size]), mean) for size, mean in zip(sizes, means, strict=True)
    ]


def _one_of(weights: dict[str, float], random: np.random.Generator) -> str:
    """A random family by its weight, as the data may not tell the tail."""
    if not weights:
        return "normal"
    share = np.array(list(weights.values()))
    return str(random.choice(list(weights), p=share / share.sum()))


def _run(
    model: Model, ranks: int, factor: float, random: np.random.Generator, *, strong: bool
) -> Array:
    """Step times of one random run of as many steps as measured."""
    steps = len(model.unsteady_ns)
    source = random.integers(0, len(model.rest_ns), steps)
    total = np.zeros(steps)
    level = ndtr(random.standard_normal((steps, len(model.coupling))) @ model.coupling.T)
    for part in model.parts:
        usual = _locations(part.usual_ns, ranks, random)
        at, cdf = _maximum(part.noise, usual, _units(model, ranks))
        total += np.interp(level[:, part.members], cdf, at).sum(axis=1)
        total += part.times * part.shared_ns[source]
    work = total * (model.ranks / ranks if strong else 1.0)
    unsteady = random.choice(model.unsteady_ns, steps)
    return np.asarray(np.maximum(work + factor * model.rest_ns[source], 1.0) + unsteady)


def expected(model: Model, ranks: int, factor: float, *, strong: bool) -> float:
    """Mean step time by quadrature: E[max] of every segment plus the mean rest."""
    total = 0.0
    for part in model.parts:
        usual = _locations(part.usual_ns, ranks, None)
        at, cdf = _maximum(part.noise, usual, _units(model, ranks))
        mean = float((np.diff(cdf) * (at[1:] + at[:-1]) / 2).sum() + cdf[0] * at[0])
        total += part.times * (mean + float(part.shared_ns.mean()))
    work = total * (model.ranks / ranks if strong else 1.0)
    return work + factor * float(model.rest_ns.mean()) + float(model.unsteady_ns.mean())


def _units(model: Model, ranks: int) -> float:
    return max(model.units * ranks / model.ranks, 1.0)


def _locations(usual: Array, ranks: int, random: np.random.Generator | None) -> Array:
    """Usual times of `ranks` ranks: the measured ones, some of them, or more like them.

    Added ranks are like those within the spread. Without `random` they stand at its quantiles.
    """
    if ranks <= len(usual):
        kept = np.linspace(0, len(usual) - 1, ranks).round().astype(int)
        chosen = np.sort(usual)[kept] if random is None else random.choice(usual, ranks, False)
        return np.asarray(chosen)
    middle = float(np.median(usual))
    sd = MAD_SIGMA * float(np.median(np.abs(usual - middle)))
    like = usual[np.abs(usual - middle) <= SIGMAS * sd]
    added = ranks - len(usual)
    if random is not None:
        return np.concatenate([usual, random.choice(like, added)])
    places = (np.arange(added) + 0.5) / added
    return np.concatenate([usual, np.quantile(like, places)])


def _maximum(noise: TabulatedNoise, usual: Array, units: float) -> tuple[Array, Array]:
    """Support and CDF of the largest of `units` own times with these usual times."""
    places, counts = _merged(usual)
    weights = counts * (units / len(usual))
    anchors = np.unique(np.concatenate([places[-3:], places[:1]]))
    at = np.unique((anchors[:, None] + noise.at_ns[None, :]).reshape(-1))
    log_cdf = np.zeros(len(at))
    for place, weight in zip(places, weights, strict=True):
        log_cdf += weight * noise.log_cdf(at - place)
    cdf = np.maximum.accumulate(np.exp(log_cdf))
    first = max(int(np.searchsorted(cdf, 1e-12)) - 1, 0)
    return at[first:], cdf[first:]


def _merged(values: Array) -> tuple[Array, Array]:
    """Few values that stand for many, with their counts; the largest values stay single."""
    ordered = np.sort(values)
    if len(ordered) <= LOCATIONS:
        return ordered, np.ones(len(ordered))
    top = ordered[-LOCATIONS // 2 :]
    parts = np.array_split(ordered[: -LOCATIONS // 2], LOCATIONS // 2)
    places = np.concatenate([[float(part.mean()) for part in parts], top])
    counts = np.concatenate([[float(len(part)) for part in parts], np.ones(len(top))])
    return places, counts


def _point(ranks: int, runs: Array, mean_ns: float) -> ForecastPoint:
    low, middle, high = np.quantile(runs, QUANTILES, axis=0)
    step = Estimate(mean_ns, min(float(low[0]), mean_ns), max(float(high[0]), mean_ns))
    cv, p99 = (Estimate(float(middle[i]), float(low[i]), float(high[i])) for i in (1, 2))
    return ForecastPoint(ranks, step, cv, p99)
