"""`evenstep project`: a run at other sizes, with the limits of the projection.

The graph's replay has only the measured ranks: of added ranks no row was recorded. So the own work
between barriers is reduced to distributions, from which the maximum over any number of ranks
follows (`forecast`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import numpy as np

from evenstep.diagnose.levels import CLEARLY, FEWEST
from evenstep.diagnose.measure.grid import FEWEST_STEPS, StepGrid, step_grid
from evenstep.diagnose.measure.hosts import contention
from evenstep.diagnose.measure.overview import (
    MeasuredTime,
    RateUnit,
    Throughput,
    step_time,
    throughput,
)
from evenstep.diagnose.predict import forecast
from evenstep.diagnose.predict.forecast import (
    ForecastPoint,
    Growth,
    Model,
    Segments,
    growth,
    segments,
)
from evenstep.diagnose.sentences import say
from evenstep.documents import Amount, Natural, Positive, RunName
from evenstep.errors import TraceError
from evenstep.statistics.interval import Estimate
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace


class FittedNoise(TypedDict):
    """Distribution of the noise of the longest part."""

    family: str
    parameters: dict[str, float]
    likelihood_weights: dict[str, float]
    values: Natural


class GrowingTransfer(TypedDict):
    """Latency and bandwidth of transfers, and their growth with the ranks."""

    latency_ns: float | None
    bandwidth_gBps: float | None
    latency_share: float | None
    growth_per_rank_added: float | None


class MeasuredSize(TypedDict):
    """The run at its own size."""

    ranks: Positive
    steps: Positive
    throughput: Throughput
    step_time: MeasuredTime
    work_ns: Amount
    spread_of_ranks_ns: Amount
    rest_ns: float
    barriers: Amount
    noise: FittedNoise
    transfer: GrowingTransfer


class ProjectedAmount(TypedDict):
    """A number and its interval."""

    value: Amount
    low: Amount
    high: Amount


class ProjectedRate(ProjectedAmount):
    """A rate and its interval."""

    unit: RateUnit


class ProjectedTime(TypedDict):
    """A time in ns and its interval."""

    value: Natural
    low: Natural
    high: Natural


class ProjectedSize(TypedDict):
    """The projection of one size."""

    ranks: Positive
    throughput: ProjectedRate
    step_time_ns: ProjectedTime
    cv: ProjectedAmount
    p99_ns: ProjectedTime
    efficiency: ProjectedAmount


class ProjectionDocument(TypedDict):
    """What `evenstep project --json` prints."""

    schema: Literal["evenstep.projection/1"]
    run: RunName
    scaling: Literal["weak", "strong"]
    measured: MeasuredSize
    projected: list[ProjectedSize]
    method: str
    limits: list[str]


def projection(
    trace: Trace,
    sizes: Sequence[int],
    *,
    strong: bool = False,
    others: Sequence[Trace] = (),
    progress: Callable[[int, int], object] = lambda *_: None,
) -> ProjectionDocument:
    """The object that `evenstep project --json` prints.

    `strong`: the same work shared by more ranks; else every rank keeps its batch. `others`: runs of
    the same workload at other sizes, which show how contention grows. `progress` gets how many of
    how many resamples are done. Raises `TraceError` where there are too few steps.
    """
    grid = _grid(trace)
    cut, grows = segments(grid), growth(grid)
    measured = {len(one.ranks): segments(one) for one in map(_grid, others)}
    measured.pop(len(grid.ranks), None)
    rest = float(cut.rest_ns.mean())
    if measured and rest > 0:
        factors = ((size, float(one.rest_ns.mean()) / rest) for size, one in measured.items())
        grows = grows._replace(elsewhere=tuple(factors))
    model = forecast.fit(cut)
    points = forecast.project(cut, sizes, grows, strong=strong, progress=progress)
    rate = throughput(trace, grid)
    return {
        "schema": "evenstep.projection/1",
        "run": {"run_id": trace.run.get("run_id"), "attempt": trace.attempt, "world": trace.world},
        "scaling": "strong" if strong else "weak",
        "measured": _measured_size(grid, rate, model, grows),
        "projected": [_projected_size(point, grid, rate, strong=strong) for point in points],
        "method": say("projection.method"),
        "limits": [*trace.limits, *_limits(trace, grid, cut, model, grows, sizes)],
    }


def _grid(trace: Trace) -> StepGrid:
    grid = step_grid(trace)
    if len(grid.steps) < FEWEST_STEPS:
        raise TraceError(
            f"a projection needs {FEWEST_STEPS} steps that all ranks finished, found "
            f"{len(grid.steps)}; record a longer run"
        )
    if len(grid.ranks) < 2 and (trace.events.kind == int(Kind.STEP)).all():
        raise TraceError(
            "the step times of one rank may be those of a whole job, and tell nothing of how ranks "
            "differ; a projection needs the times of each rank, or what the rank did in its steps"
        )
    return grid


def _measured_size(grid: StepGrid, rate: Throughput, model: Model, grows: Growth) -> MeasuredSize:
    noisiest = max(model.parts, key=lambda part: float(part.usual_ns.max()))
    usual = sum(part.times * part.usual_ns for part in model.parts)
    return {
        "ranks": len(grid.ranks),
        "steps": len(grid.steps),
        "throughput": rate,
        "step_time": step_time(grid.step_ns),
        "work_ns": round(float(np.median(usual))),
        "spread_of_ranks_ns": round(float(np.ptp(usual))),
        "rest_ns": round(float(model.rest_ns.mean())),
        "barriers": sum(part.times for part in model.parts),
        "noise": {
            "family": noisiest.noise.family,
            "parameters": noisiest.noise.parameters,
            "likelihood_weights": noisiest.noise.weights,
            "values": noisiest.noise.values,
        },
        "transfer": {
            "latency_ns": grows.latency_ns,
            "bandwidth_gBps": grows.bytes_per_ns,
            "latency_share": grows.latency_share,
            "growth_per_rank_added": grows.contention,
        },
    }


def _projected_size(
    point: ForecastPoint, grid: StepGrid, rate: Throughput, *, strong: bool
) -> ProjectedSize:
    """One size. A rate is the progress of a step over its time."""
    ranks, now = len(grid.ranks), float(grid.step_ns.mean())
    larger = point.ranks / ranks
    per_step = (rate["value"] or 0.0) * now
    if rate["unit"] == "samples/s" and not strong:
        per_step *= larger
    return {
        "ranks": point.ranks,
        "throughput": {**_over(per_step, point.step_ns), "unit": rate["unit"]},
        "step_time_ns": _round(point.step_ns),
        "cv": {"value": point.cv.value, "low": point.cv.low, "high": point.cv.high},
        "p99_ns": _round(point.p99_ns),
        "efficiency": _over(now / (larger if strong else 1.0), point.step_ns),
    }


def _over(amount: float, time: Estimate) -> ProjectedAmount:
    return {"value": amount / time.value, "low": amount / time.high, "high": amount / time.low}


def _round(time: Estimate) -> ProjectedTime:
    return {"value": round(time.value), "low": round(time.low), "high": round(time.high)}


# -- limits ----------------------------------------------------------------------------------------


def _limits(
    trace: Trace, grid: StepGrid, cut: Segments, model: Model, grows: Growth, sizes: Sequence[int]
) -> list[str]:
    largest, steps = max(sizes), len(grid.steps)
    draws = model.replicas_at(largest)
    seen = min(part.noise.values for part in model.parts)
    families = dict.fromkeys(part.noise.family.replace("_", " ") for part in model.parts)
    scheduler, odd = contention(trace, grid), _uneven(grid, cut)
    elsewhere = largest not in (1, len(grid.ranks)) and cut.barriers  # one rank moves nothing
    low, high = grows.bounds(largest)
    holding = {
        "few": steps // 100 < FEWEST,  # above the p99
        "tail": draws * 100 > seen and list(families) != ["none"],
        "uneven": odd,
        "apart": not cut.barriers,
        "contended": scheduler is not None and scheduler.oversubscribed,
        "missing": len(grid.ranks) < trace.world,
        "device": grid.graph.device.any(),
        "replicas": elsewhere and grows.width > 1,
        "pair": largest > len(grid.ranks) and cut.own_ns.shape[2] == 2,
        "transfer": elsewhere,
        "grows": elsewhere and grows.contention is not None,
        "one_size": elsewhere and grows.contention is None,
    }
    numbers = {
        "steps": steps, "ranks": largest, "rare": 100 * draws, "seen": seen, "width": grows.width,
        "families": ", ".join(families), "odd": odd, "times": CLEARLY, "now": grows.ranks,
        "factor": grows.factor(largest), "low": low, "high": high, "rise": grows.contention,
        "together": "" if grows.latency_share is not None else say("projection.together"),
    }  # fmt: skip
    return [say(f"projection.{name}", **numbers) for name, holds in holding.items() if holds]


def _uneven(grid: StepGrid, cut: Segments) -> list[int]:
    """Ranks that vary much more than the others."""
    total = cut.own_ns.sum(axis=1)
    off = np.abs(total - np.median(total, axis=0))
    wide = np.quantile(off, 0.95, axis=0)
    usual = max(float(np.median(wide)), float(np.median(np.median(off, axis=0))), 1.0)
    return [int(rank) for rank in grid.ranks[(wide > CLEARLY * usual)[cut.replica]]]
