"""A forecast of a measured run at other sizes: step time, CV and p99.

A step is cut at its barriers: collectives between replicas in which the training thread was
blocked. A replica is a rank, or ranks that share its work: shards in a node, tensors in parallel
or stages of a pipeline. The time of a replica between two barriers, also in groups of its own, is
its own. A step with n replicas is the sum over its segments of the maximum of n own times, plus a
rest. At other sizes a replica has as many ranks.

An own time is a replica's usual time, plus a part that all share in a step, plus independent noise
of one form, as wide as the replica's. The distribution of the maximum follows from the noise's
survival function by P(max <= x) = Π F((x − l_j) / s_j), so that no rank is drawn one by one. Runs
of as many steps as measured are drawn from it; an interval holds the middle 98 % of them, each with
a model fitted to resampled steps.

Transfer grows like α + S/B. All-reduce of S bytes: a ring takes 2(n−1)α + 2S(n−1)/(nB), a tree
2⌈log₂n⌉α + 2S/B. A run shows the transfer at its own size, and by several message sizes how much of
it is latency.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from evenstep.allreduce import bus_factor, depth
from evenstep.diagnose.graph.peers import Peers, between_barriers, peers, replicas
from evenstep.diagnose.graph.structure import Graph
from evenstep.diagnose.levels import FEWEST, MINOR, SIGMAS
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.transfers import line_through, transfers
from evenstep.statistics.interval import BLOCK_STEPS, MAD_SIGMA, RESAMPLES, SEED, Estimate, blocks
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase

if TYPE_CHECKING:
    from evenstep.statistics.tails import TabulatedNoise

#: Low, middle, high. Few resampled exceedances vary too little: on synthetic runs of 117 steps the
#: middle 95 % hold the truth in 83 % of 180 cases, the middle 98 % in 89 %; with 497 steps the
#: middle 95 % do in 97 % of 120.
QUANTILES = (0.01, 0.5, 0.99)
MOST_SEGMENTS = 6  # more are grouped by their length
LOCATIONS = 32  # distinct kinds of ranks; more are merged


# -- transfer --------------------------------------------------------------------------------------


class Growth(NamedTuple):
    """How the transfer grows with the ranks. `latency_share` None: unknown. `elsewhere`: (ranks,
    transfer over this run's) at other sizes; growth beyond the form's is contention."""

    ranks: int
    latency_ns: float | None  # α part of one collective, at the measured size
    bytes_per_ns: float | None  # equals GB/s
    latency_share: float | None
    elsewhere: tuple[tuple[int, float], ...] = ()
    width: int = 1  # ranks of a replica: groups that reach several have a member of each

    def factor(self, ranks: int) -> float:
        """Growth from the measured size: bandwidth in ring form, latency in tree form."""
        return self._grown(ranks)[1]

    def bounds(self, ranks: int) -> tuple[float, float]:
        """Between a fabric that adds nothing and the ring's latency (tree's, if share unknown)."""
        ends = self._grown(ranks)
        return min(ends), max(ends)

    def drawn(self, ranks: int, random: np.random.Generator) -> float:
        """Growth by one of the three forms at random: the fabric may be of any of them."""
        low, high = self.bounds(ranks)
        return float(random.choice([low, self.factor(ranks), high]))

    @property
    def contention(self) -> float | None:
        """Growth beyond the expected form for every rank added; None if one size was measured."""
        return float(self._contention()[1]) if self.elsewhere else None

    def _grown(self, ranks: int) -> list[float]:
        grown = self._forms(ranks) + self._contention() * (ranks - self.ranks)
        return list(np.maximum(grown, 0.0).tolist())

    def _contention(self) -> Array:
        """Contention beside each form, by least squares through the measured size, at least 0:
        Σ(n − n₀)(f − f₀) / Σ(n − n₀)²."""
        more = np.array([size - self.ranks for size, _ in self.elsewhere], float)
        over = [factor - self._forms(size) for size, factor in self.elsewhere] or np.zeros((0, 3))
        return np.asarray(np.maximum(more @ np.array(over), 0.0) / max(more @ more, 1.0))

    def _forms(self, ranks: int) -> Array:
        """Growth without any cost of more ranks, with a tree's latency, and with a ring's; of a run
        with an unknown share of latency, the last is a tree's latency alone."""
        now, then = self.ranks // self.width, -(-ranks // self.width)
        if now < 2:
            return np.ones(3)
        share = self.latency_share or 0.0
        bandwidth = bus_factor("all_reduce", then) / bus_factor("all_reduce", now)
        tree, ring = depth(then) / depth(now), (then - 1) / (now - 1)
        worst = (1 - share) * bandwidth + share * ring
        expected = (1 - share) * bandwidth + share * tree
        return np.array([1.0, expected, tree if self.latency_share is None else worst])


def growth(grid: StepGrid) -> Growth:
    """The growth of a run's transfer between replicas, by the line through the floors of its
    collectives by size."""
    (replica, wide), kinds = replicas(grid.graph), transfers(grid).of_collectives
    kinds = kinds.select((kinds["count"] >= FEWEST) & (kinds.floor_ns > 0))
    kinds = kinds.select(np.isin(kinds.group, grid.graph.operations.group[wide]))
    size = kinds.size_bytes.astype(float)
    grows = Growth(len(grid.ranks), None, None, None, width=int(np.bincount(replica).max()))
    line = line_through(size, kinds.floor_ns, kinds["count"]) if len(kinds) else None
    if line is None:
        return grows
    weight = kinds["count"] / kinds["count"].sum()
    share = line.alpha_ns / float((weight * line.time_ns(size)).sum())
    return grows._replace(latency_ns=line.alpha_ns, bytes_per_ns=line.gBps, latency_share=share)


# -- a run cut at its barriers ---------------------------------------------------------------------


class Segments(NamedTuple):
    """Own work between barriers, in steady steps: from when the last rank of a replica may go on to
    when its last has come to the next."""

    own_ns: Array  # (steps, segments, replicas)
    step_ns: Array  # (steps,) from the last barrier of the previous step to that of this one
    replica: Array  # (ranks,) that each rank is part of
    unsteady: Array  # extra time of steps with a checkpoint or evaluation
    barriers: bool  # whether any was seen

    @property
    def rest_ns(self) -> Array:
        """Step time outside of the longest own work. Shape (steps,)."""
        return np.asarray(self.step_ns - self.own_ns.max(axis=2).sum(axis=1))


def segments(grid: StepGrid) -> Segments:
    """Cut the grid's steps at their barriers."""
    writing = grid.phase_ns[Phase.CHECKPOINT] + grid.phase_ns[Phase.EVALUATION]
    unsteady = np.asarray((writing > 0).any(axis=1))
    unsteady[1:] |= unsteady[:-1].copy()  # work after the last barrier counts with the next step
    unsteady &= unsteady.mean() <= 0.5  # else that is what steps are
    found = _cut_segments(grid.graph)
    steps = np.flatnonzero(grid.sampled)
    if found is None:
        seen = np.ones(len(grid.steps), bool)
        own, replica = grid.work_ns[:, None, :].astype(float), np.arange(len(grid.ranks))
        carried = np.zeros(grid.shape)
    else:
        own, replica, carried, cut = found
        seen = np.zeros(len(grid.steps), bool)
        seen[steps[cut]] = True
    step = np.median(grid.duration_ns, axis=1)
    step[seen] = np.median(grid.duration_ns[seen] + carried, axis=1)
    steady = ~unsteady[seen]
    usual = float(np.median(step[seen][steady]))
    more = np.where(unsteady, step - usual, 0.0)[grid.sampled | seen]
    return Segments(own[steady], step[seen][steady], replica, more, found is not None)


def _cut_segments(graph: Graph) -> tuple[Array, Array, Array, Array] | None:
    """Own work (steps, segments, replicas), the replica of each rank, work carried over, and which
    steps of the graph these are; None where replicas differ in size, or never block.

    Carried over is (steps, ranks): work after the last barrier of the previous step, less that
    after this step's.
    """
    replica, wide = replicas(graph)
    parts = _programs(graph)
    if not parts or len(np.unique(np.bincount(replica))) > 1:
        return None
    cuts = [between_barriers(graph, part, graph.own_ns, wide) for part in parts]
    if not all(len(past) for _, past in cuts):
        return None
    if len({len(past) for _, past in cuts}) > 1:  # then only the last barrier is common to them
        cuts = [(np.stack([own[:-1].sum(axis=0), own[-1]]), past[-1:]) for own, past in cuts]
    lanes = np.argsort(np.concatenate([part.lanes for part in parts]))
    own, past = (np.concatenate(each, axis=2)[:, :, lanes] for each in zip(*cuts, strict=True))
    last = _longest(np.nan_to_num(past, nan=-np.inf), replica)[:, :, replica]
    own[1:] -= np.nan_to_num(last - past)  # how much later others of the replica go on
    *before, after = own
    work = np.stack(before, axis=1)[1:]  # what comes before the first step's barrier is not known
    work[:, 0] += after[:-1]  # it lies before the next step's barrier
    return _longest(work, replica), replica, after[:-1] - after[1:], parts[0].segments[1:]


def _longest(values: Array, replica: Array) -> Array:
    """The largest of each replica's values: (.., .., lanes) as (.., .., replicas)."""
    by_replica = values[:, :, np.argsort(replica, kind="stable")]
    shape = *values.shape[:2], int(replica.max()) + 1, -1
    return np.asarray(by_replica.reshape(shape).max(axis=3))


def _programs(graph: Graph) -> list[Peers]:
    """What all lanes run in the steps of the commonest structure."""
    alike: dict[bytes, list[Peers]] = {}
    for part in peers(graph) if len(graph.operations) else []:
        alike.setdefault(part.segments.tobytes(), []).append(part)
    lanes = len(graph.ranks)
    whole = [each for each in alike.values() if sum(len(one.lanes) for one in each) == lanes]
    return max(whole, key=lambda each: len(each[0].segments), default=[])


# -- the model -------------------------------------------------------------------------------------


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
    width: Array  # (ranks,) of a rank's independent part, 1 for the middle one
    shared_ns: Array  # (steps,) the part that all ranks share
    noise: TabulatedNoise  # independent part, of a rank of width 1
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
    ranks: int
    coupling: Array  # (segments, segments): makes normal draws as correlated as the maxima are

    def replicas_at(self, ranks: int) -> int:
        """How many replicas as large as the measured ones so many ranks are."""
        return -(-ranks * len(self.parts[0].usual_ns) // self.ranks)


def fit(cut: Segments, groups: Sequence[Array] = (), families: Sequence[str] = ()) -> Model:
    """Fit a model to measured segments; `groups` fixes which of them are one part, `families` the
    family of each part's noise."""
    from evenstep.statistics import tails  # when first asked: .3 s

    parts = []
    for index, members in enumerate(groups or _alike(cut.own_ns.mean(axis=(0, 2)))):
        own = cut.own_ns[:, members, :]
        usual = np.median(own, axis=0)
        each = [_common((own - usual)[:, at]) for at in range(len(members))]
        shared, apart = zip(*each, strict=True)
        width = _widths(np.concatenate(apart))
        noise = np.concatenate(apart, axis=1) / np.tile(width, len(members))
        fitted = tails.fit(noise, families[index] if families else None)
        parts.append(Segment(usual.mean(axis=0), width, np.mean(shared, axis=0), fitted, members))
    coupling = _coupling(cut.own_ns.max(axis=2))
    return Model(parts, cut.rest_ns, cut.unsteady, len(cut.replica), coupling)


def _alike(mean_ns: Array) -> list[Array]:
    """Segments by their length, in at most `MOST_SEGMENTS` groups: apart where it differs most."""
    order = np.argsort(mean_ns, kind="stable")
    more = np.diff(np.log(np.maximum(mean_ns[order], 1.0)))
    far = np.argsort(-more, kind="stable")[: MOST_SEGMENTS - 1]
    return list(map(np.sort, np.split(order, np.sort(far) + 1)))


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


def _widths(apart: Array) -> Array:
    """The width of each rank's part (steps, ranks), 1 for the middle one; of two ranks, neither of
    which is the usual one, 1."""
    width = np.maximum(np.abs(apart).mean(axis=0), 1.0)
    return width / np.median(width) if len(width) > 2 else np.ones(len(width))


def _common(apart: Array) -> tuple[Array, Array]:
    """The part that all ranks share in a step, (steps,), by analysis of variance: their mean varies
    with it and 1/n of the rest; and the rest, (steps, ranks)."""
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
    cut: Segments,
    sizes: Sequence[int],
    growth: Growth,
    *,
    strong: bool,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> list[ForecastPoint]:
    """Step time, CV and p99 at each size. `strong`: the work is shared by more ranks; `progress`
    gets how many of how many resamples are done."""
    random = np.random.default_rng(SEED)
    parts = fit(cut).parts
    weights, groups = [part.noise.weights for part in parts], [part.members for part in parts]
    runs: dict[int, list[tuple[float, float, float]]] = {size: [] for size in sizes}
    for done in range(RESAMPLES):
        progress(done, RESAMPLES)
        (rows,) = blocks(len(cut.step_ns), random, draws=1).indices()
        resampled = cut._replace(own_ns=cut.own_ns[rows], step_ns=cut.step_ns[rows])
        again = fit(resampled, groups, [_one_of(each, random) for each in weights])
        for size in sizes:
            factor = growth.drawn(size, random)
            step_ns = _run(again, size, factor, random, strong=strong)
            mean = float(step_ns.mean())
            p99 = float(np.quantile(step_ns, 0.99))
            runs[size].append((mean, float(step_ns.std()) / mean, p99))
    found = [(size, np.quantile(runs[size], QUANTILES, axis=0).tolist()) for size in sizes]
    return [ForecastPoint(n, *map(Estimate, middle, low, high)) for n, (low, middle, high) in found]


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
    measured, number = len(model.parts[0].usual_ns), model.replicas_at(ranks)
    added = _Added(
        random.random(max(number - measured, 0)), random.exponential(size=measured),
        random.standard_normal(measured), bool(random.integers(2)),
    )  # fmt: skip
    for part in model.parts:
        at, cdf = _maximum(part.noise, *_places(part, number, added))
        total += np.interp(level[:, part.members], cdf, at).sum(axis=1)
        total += part.times * part.shared_ns[source]
    work = total * (model.ranks / ranks if strong else 1.0)
    unsteady = random.choice(model.unsteady_ns, steps)
    return np.asarray(np.maximum(work + factor * model.rest_ns[source], 1.0) + unsteady)


class _Added(NamedTuple):
    """Random numbers by which added replicas differ, the same in all parts of a step. Whether the
    measured ones are all kinds that there are is not known, nor how many are like each."""

    place: Array  # (added,) of each among the usual ones, from 0 for the fastest to 1
    weights: Array  # (measured,) how many are like each that is measured, relatively
    normal: Array  # (measured,) standard normal: what so many may show of a mean and a spread
    smooth: bool  # usual times are normal, else like those measured


def _places(part: Segment, replicas: int, added: _Added) -> tuple[Array, Array]:
    """The usual time and the width of each of so many replicas: the measured ones, some of them
    from the fastest to the slowest, or with more within the spread of the usual ones."""
    usual, order = part.usual_ns, np.argsort(part.usual_ns, kind="stable")
    if replicas <= len(usual):
        order = order[np.linspace(0, len(usual) - 1, replicas).round().astype(int)]
        return usual[order], part.width[order]
    middle = float(np.median(usual))
    sd = MAD_SIGMA * float(np.median(np.abs(usual - middle)))
    like = order[np.abs(usual[order] - middle) <= SIGMAS * sd]
    share = np.cumsum(added.weights[: len(like)])
    more = like[np.searchsorted(share / share[-1], added.place)]
    place = usual[more]
    if added.smooth and len(like) > 2:
        seen = added.normal[: len(like)]
        spread = float(usual[like].std() / seen.std())
        place = usual[like].mean() + spread * (ndtri(added.place) - seen.mean())
    return np.append(usual, place), np.append(part.width, part.width[more])


def _maximum(noise: TabulatedNoise, places: Array, widths: Array) -> tuple[Array, Array]:
    """Support and CDF of the largest own time of replicas with these usual times and widths."""
    order = np.argsort(places + float(noise.at_ns[-1]) * widths)
    places, widths, counts = _merge_places(places[order], widths[order])
    anchors = np.unique(np.arange(-3, 1) % len(places))
    at = np.unique(places[anchors, None] + widths[anchors, None] * noise.at_ns)
    log_cdf = np.zeros(len(at))
    for place, width, count in zip(places, widths, counts, strict=True):
        log_cdf += count * noise.log_cdf((at - place) / width)
    cdf = np.maximum.accumulate(np.exp(log_cdf))
    first = max(int(np.searchsorted(cdf, 1e-12)) - 1, 0)
    return at[first:], cdf[first:]


def _merge_places(places: Array, widths: Array) -> tuple[Array, Array, Array]:
    """Few places and widths that stand for many, with their counts; the last stay single."""
    single = min(len(places), LOCATIONS // 2)
    starts = np.arange(len(places))
    if len(places) > LOCATIONS:
        few = np.linspace(0, len(places) - single, LOCATIONS - single, endpoint=False).astype(int)
        starts = np.append(few, starts[-single:])
    counts = np.diff(starts, append=len(places)).astype(float)
    place, width = (np.add.reduceat(values, starts) for values in (places, widths))
    return place / counts, width / counts, counts
