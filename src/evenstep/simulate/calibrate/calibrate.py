"""A scenario that behaves like a measured run: compute, noise, collectives and links of its trace.

Measurements come in as plain arrays; the result is a scenario with its fits and their limits. The
cluster has one link for each rank within nodes and one card between them, with the latency and
bandwidth at which rings over the cards of a group's ranks take as long as measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypedDict

import numpy as np

from evenstep.documents import Amount, Meta, Natural, RunName, short
from evenstep.errors import TraceError
from evenstep.scenario.hardware import Cluster, Fabric
from evenstep.scenario.parts import Collectives, Job, Noise, Run, Strategy, Work
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.calibrate.links import (
    FittedLinks,
    ObservedCollectives,
    ObservedPipeline,
    every,
    fit_links,
    work_of,
)
from evenstep.simulate.calibrate.noise import fit_noise, mean_of
from evenstep.trace.columns import Array
from evenstep.trace.ranks import format_ranks

FEWEST_STEPS = 8
PHASES = ("input", "forward", "backward", "optimizer")
SLOW = 0.01  # relative: ranks that differ by less from the median count as equal
UNSEEN = 0.01  # share of the work below which a phase is not there
MOST_SLOW = 32  # groups of slow ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Measurements of steady steps of a trace. Arrays are (steps, ranks), in ns."""

    name: str
    node: tuple[str, ...]  # of each rank
    work_ns: Array  # neither blocked by communication nor held
    phase_ns: Mapping[str, Array]  # leaf times of `PHASES`
    pause_ns: Array  # garbage collection
    step_ns: Array  # (steps,) of the job
    collectives: tuple[ObservedCollectives, ...]
    overlapped: bool  # the first gradients leave before backward ends
    samples: int = 0  # of a rank in a step
    pipeline: ObservedPipeline | None = None
    micro_batches: int = 1  # backwards of a step, in the last of which gradients leave
    sends: bool = False  # ranks send messages to one another
    messages: tuple[ObservedCollectives, ...] = ()  # those of which both ends are known
    stops: int = 0  # steps with a checkpoint or an evaluation, of which there are no measurements

    @property
    def ranks(self) -> int:
        """Number of traced ranks."""
        return int(self.work_ns.shape[1])


class SteadyTimes(TypedDict):
    """Step times; CV is population σ over mean."""

    steps: Natural
    mean_ns: Amount
    cv: Amount
    p99_ns: Amount


class Fits(TypedDict):
    """The fits behind a scenario."""

    links: FittedLinks
    collectives: list[ObservedCollectives]
    noise: list[str]


class CalibrationDocument(TypedDict):
    """The output of `--json`."""

    schema: Literal["evenstep.calibration/1"]
    run: RunName
    measured: SteadyTimes
    simulated: SteadyTimes
    fits: Fits
    scenario: Annotated[
        dict[str, Any],
        Meta("As `evenstep simulate` reads it; `evenstep simulate --fields` lists what may stand "
             "here."),
    ]  # fmt: skip
    limits: list[str]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted scenario, its measurements, and its limits."""

    scenario: Scenario
    measured: SteadyTimes
    fits: Fits
    limits: list[str] = field(default_factory=list)


def calibrate(seen: Observed) -> Calibration:
    """Fit a scenario. Raises `TraceError` where there are too few steps."""
    steps = len(seen.step_ns)
    if steps < FEWEST_STEPS:
        raise TraceError(
            f"a calibration needs {FEWEST_STEPS} steps that all ranks finished, found {steps}; "
            "record a longer run"
        )
    phases = _phases(seen)
    compute = sum(phases[name] for name in PHASES[1:]) - seen.pause_ns
    noises, alike, base = _noises(seen, np.maximum(compute, 1.0))
    phased = float(phases["backward"].mean()) > UNSEEN * float(seen.work_ns.mean())
    apart = every(seen.collectives)
    averaged = [replace(one, per_step=one.per_step * apart) for one in seen.collectives]
    plan = work_of(
        averaged, seen.ranks, overlapped=seen.overlapped, phased=phased,
        pipeline=seen.pipeline, micro_batches=seen.micro_batches,
    )  # fmt: skip
    nodes, per_node, even = _layout(seen.node)
    places = _places(seen.node) if even else np.arange(seen.ranks)
    sent = seen.messages if plan.kind == "pipeline" else ()
    links = fit_links([*plan.used, *sent], places, per_node)
    share = _shares(phases, alike)
    loading, input_ns = _input(phases["input"])
    work = Work(
        kind=plan.kind,
        **_lengths({name: share[name] * base for name in PHASES[1:]}, plan.kind),
        input_ms=_ms(input_ns),
        **plan.fields,
        samples_per_rank=seen.samples,
    )
    scenario = Scenario(
        name=f"{seen.name}, calibrated",
        cluster=Cluster(
            nodes=nodes, gpus_per_node=per_node, nics_per_node=per_node, **links.cluster
        ),
        fabric=Fabric(kind="switch", nodes_per_leaf=nodes),
        job=Job(ranks=seen.ranks),
        work=work,
        collectives=Collectives(algorithm="ring"),
        noise=(*noises, *loading),
        strategy=Strategy(kind="local_sgd", every=apart) if apart > 1 else Strategy(),
        run=Run(steps=max(steps, 100)),
    )
    fits = Fits(links=links, collectives=list(plan.used), noise=[one.kind for one in noises])
    limits = [*plan.limits, *links.limits]
    if seen.sends and plan.kind != "pipeline":
        limits.append("messages between ranks, which are not those of stages, are left out")
    if seen.stops:
        limits.append(f"steps with a checkpoint or an evaluation are left out: {seen.stops}")
    if not even:
        limits.append("nodes have different numbers of ranks: each rank has a node of its own here")
    return Calibration(scenario, step_times(seen.step_ns), fits, limits)


def _lengths(phase_ns: Mapping[str, float], kind: str) -> dict[str, Any]:
    """The lengths of phases, ms; the step of a benchmark of collectives has one phase."""
    lengths = {f"{name}_ms": _ms(length) for name, length in phase_ns.items()}
    if kind == "collective":
        return dict.fromkeys(lengths, 0.0) | {"forward_ms": sum(lengths.values())}
    return lengths


def step_times(step_ns: Array) -> SteadyTimes:
    """Mean, CV and p99 of step times."""
    mean = float(step_ns.mean())
    return {
        "steps": len(step_ns),
        "mean_ns": mean,
        "cv": float(step_ns.std()) / mean if mean else 0.0,
        "p99_ns": float(np.quantile(step_ns, 0.99)),
    }


# -- compute ---------------------------------------------------------------------------------------


def _phases(seen: Observed) -> dict[str, Array]:
    """Leaf times scaled to add up to the work; leaf times that include blocked time are scaled down
    together. Work outside phases counts as optimizer, or, of stages or transfers that overlap with
    a backward that was not recorded, as forward and as backward, of twice as many products."""
    claimed = sum(seen.phase_ns[name] for name in PHASES)
    scale = np.minimum(seen.work_ns / np.maximum(claimed, 1.0), 1.0)
    phases = {name: seen.phase_ns[name] * scale for name in PHASES}
    rest = np.maximum(seen.work_ns - claimed, 0.0)
    if (seen.overlapped or seen.pipeline) and not seen.phase_ns["backward"].any():
        return phases | {"forward": phases["forward"] + rest / 3, "backward": rest * 2 / 3}
    phases["optimizer"] = phases["optimizer"] + rest
    return phases


def _shares(phases: Mapping[str, Array], alike: Array) -> dict[str, float]:
    totals = {name: float((phases[name] * alike).mean()) for name in PHASES[1:]}
    whole = sum(totals.values()) or 1.0
    return {name: total / whole for name, total in totals.items()}


def _noises(seen: Observed, compute: Array) -> tuple[list[Noise], Array, float]:
    """Noise of the compute, the part that is alike on all ranks, and the length without both."""
    factor = _rank_factors(compute)
    added = _added(compute, factor)
    factor = np.where(added > 0, 1.0, factor)
    steady = np.maximum(compute - added, 1.0) / factor
    middle = float(np.median(steady))
    found = fit_noise(steady / max(middle, 1.0), length_ns=middle)
    base = float(steady.mean()) / mean_of(found, middle)
    late = [
        Noise(kind="hits", ranks=format_ranks(mine), probability=1.0,
              delay_ms=_ms(float(added[mine].mean())))
        for mine in _alike(1 + added / max(middle, 1.0))
    ]  # fmt: skip
    return [*found, *_slow(factor), *late, *_collector(seen.pause_ns)], steady / compute, base


def _added(compute: Array, factor: Array) -> Array:
    """What each rank computes in addition to the others, ns; 0 where its steps vary in proportion
    to their length, as on a slower machine."""
    usual, spread = np.median(compute, axis=0), np.log(compute).std(axis=0)
    surely = 1 - 4 / np.sqrt(len(compute))  # less the error of a spread
    added = (factor > 1.0) & (spread < surely * np.median(spread))
    return np.where(added, usual - np.median(usual), 0.0)


def _input(loaded: Array) -> tuple[list[Noise], float]:
    """Noise of loading, also of ranks that load longer, and the mean without both. Less than a
    hundredth of what the slowest rank loads counts as that: factors are finite."""
    loaded = np.maximum(loaded, SLOW * float(np.median(loaded, axis=0).max()))
    factor = _rank_factors(loaded)
    steady = loaded / factor
    mean = float(steady.mean())
    return [*fit_noise(steady / max(mean, 1.0), phase="input"), *_slow(factor, "input")], mean


def _rank_factors(compute: Array) -> Array:
    """Each rank's median compute over that of all; 1 where noise could explain the difference."""
    usual = np.maximum(np.median(compute, axis=0), 1.0)
    middle = float(np.median(usual))
    spread = np.median(np.abs(compute - usual), axis=0) * 1.4826
    error = 1.2533 * spread / np.sqrt(len(compute))  # of a median of normal values
    factor = usual / middle
    return np.where(np.abs(usual - middle) > np.maximum(4 * error, SLOW * middle), factor, 1.0)


def _slow(factor: Array, phase: str = "compute") -> Iterator[Noise]:
    """Noise of ranks that are slower or faster than the others, grouped by factor."""
    for mine in _alike(factor):
        slower = short(float(factor[mine].mean()))
        yield Noise(kind="slow", phase=phase, ranks=format_ranks(mine), factor=slower)


def _alike(factor: Array) -> Iterator[list[int]]:
    """Ranks with about the same factor other than 1, those first that take the most time."""
    place = np.round(np.log(factor) / SLOW)
    values, counts = np.unique(place[place != 0], return_counts=True)
    effect = np.abs(np.expm1(SLOW * values)) * counts
    for value in values[np.argsort(-effect, kind="stable")[:MOST_SLOW]]:
        yield np.flatnonzero(place == value).tolist()


def _collector(pause_ns: Array) -> list[Noise]:
    """Noise of garbage collection: duration, interval, and whether ranks pause together."""
    paused = pause_ns > 0
    if not paused.any():
        return []
    share = paused.mean(axis=1)
    aligned = float((share[share > 0] >= 0.8).mean()) > 0.5 and pause_ns.shape[1] > 1
    every, lasts_ms = max(1, round(1 / float(paused.mean()))), _ms(float(pause_ns[paused].mean()))
    return [Noise(kind="collector", delay_ms=lasts_ms, every=every, aligned=aligned)]


def _ms(length_ns: float) -> float:
    return float(f"{round(length_ns) / 1e6:.6g}")  # records have whole ns


# -- places ----------------------------------------------------------------------------------------


def _places(node: tuple[str, ...]) -> Array:
    return np.unique(np.array(node), return_inverse=True)[1].reshape(-1)


def _layout(node: tuple[str, ...]) -> tuple[int, int, bool]:
    """Nodes, ranks of each, and whether all have the same number."""
    counts = np.bincount(_places(node))
    if (counts == counts[0]).all():
        return len(counts), int(counts[0]), True
    return len(node), 1, False
