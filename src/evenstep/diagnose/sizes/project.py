"""`evenstep project`: what a run would reach at other sizes, said with what it rests on.

The graph's replay has the measured ranks alone: at another size there are ranks of which no row was
recorded. So segments between barriers, own work of the graph's rows, are reduced to distributions,
and the maximum over as many ranks as asked for follows from these (`forecast`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep import words
from evenstep.diagnose.measure.grid import FEWEST_STEPS, StepGrid, step_grid
from evenstep.diagnose.measure.overview import step_time, throughput
from evenstep.diagnose.measure.samples import contention
from evenstep.diagnose.sizes import forecast
from evenstep.diagnose.sizes.components import Growth, Segments, growth, segments
from evenstep.diagnose.sizes.forecast import ForecastPoint, Model
from evenstep.errors import TraceError
from evenstep.statistics.interval import Estimate
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

SCHEMA = "evenstep.projection/1"
ENOUGH_STEPS = 200
UNEVEN = 3.0  # one rank's noise against the median rank's
METHOD = (
    "step = sum over barriers of the maximum of n own times, plus the rest; own time = a rank's "
    "usual time + what all ranks share in a step + independent noise, its measured distribution "
    "continued by the family of tail that explains held-out steps best; P(max <= x) is the product "
    "of the ranks' distributions. Interval: the middle 98 % of runs as long as the measured one, "
    "drawn from the model fitted to resampled steps"
)


def projection(
    trace: Trace, sizes: Sequence[int], *, strong: bool = False, others: Sequence[Trace] = ()
) -> dict[str, Any]:
    """The object that `evenstep project --json` prints.

    `strong`: the same work shared by more ranks; else every rank keeps its batch. `others`: runs of
    the same workload at other sizes, which show how contention grows. Raises `TraceError` where
    there are too few steps.
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
    points = forecast.project(cut, sizes, grows, strong=strong)
    rate = throughput(trace, grid)
    return {
        "schema": SCHEMA,
        "run": {"run_id": trace.run.get("run_id"), "attempt": trace.attempt, "world": trace.world},
        "scaling": "strong" if strong else "weak",
        "measured": _measured(grid, rate, model, grows),
        "projected": [_projected(point, grid, rate, strong=strong) for point in points],
        "method": METHOD,
        "limits": [*trace.limits, *_limits(trace, grid, cut, model, grows, sizes)],
    }


def _grid(trace: Trace) -> StepGrid:
    grid = step_grid(trace)
    if len(grid.steps) < FEWEST_STEPS:
        raise TraceError(
            f"a projection needs {FEWEST_STEPS} steps that all ranks finished, found "
            f"{len(grid.steps)}; record a longer run"
        )
    return grid


def _measured(grid: StepGrid, rate: dict[str, Any], model: Model, grows: Growth) -> dict[str, Any]:
    noisiest = max(model.parts, key=lambda part: float(part.usual_ns.max()))
    usual = sum(part.times * part.usual_ns for part in model.parts)
    return {
        "ranks": len(grid.ranks),
        "steps": len(grid.steps),
        "throughput": rate,
        "step_time": step_time(grid),
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


def _projected(
    point: ForecastPoint, grid: StepGrid, rate: dict[str, Any], *, strong: bool
) -> dict[str, Any]:
    """One size. Rates are what a step advances by over its time."""
    ranks, now = len(grid.ranks), float(grid.step_ns.mean())
    larger = point.ranks / ranks
    per_step = (rate["value"] or 0.0) * now
    if rate["unit"] == "samples/s" and not strong:
        per_step *= larger
    return {
        "ranks": point.ranks,
        "throughput": {**_over(per_step, point.step_ns), "unit": rate["unit"]},
        "step_time_ns": _rounded(point.step_ns),
        "cv": point.cv._asdict(),
        "p99_ns": _rounded(point.p99_ns),
        "efficiency": _over(now / (larger if strong else 1.0), point.step_ns),
    }


def _over(amount: float, time: Estimate) -> dict[str, float]:
    return {"value": amount / time.value, "low": amount / time.high, "high": amount / time.low}


def _rounded(quantity: Estimate) -> dict[str, int]:
    return {name: round(value) for name, value in quantity._asdict().items()}


# -- what the data cannot carry --------------------------------------------------------------------


def _limits(
    trace: Trace,
    grid: StepGrid,
    cut: Segments,
    model: Model,
    grows: Growth,
    sizes: Sequence[int],
) -> list[str]:
    largest = max(sizes)
    lines = [_steps(grid), _tail(model, largest), _uneven(grid, cut)]
    if not cut.barriers:
        lines.append(
            "no collective was seen in which ranks are blocked: every step is taken to end with "
            "one, and waiting that looks like work makes ranks seem more alike than they are"
        )
    scheduler = contention(trace, grid)
    if scheduler is not None and scheduler.oversubscribed:
        lines.append(
            "ranks compete for the cores of their hosts: what is projected holds for as many ranks "
            "per host as now"
        )
    if trace.missing_ranks:
        lines.append("ranks are missing from the trace: those that are there stand for them")
    if grid.graph is not None and grid.graph.device.any():
        lines.append("collectives ran on a device: what of them is exposed is an estimate")
    if largest != len(grid.ranks) and cut.barriers:
        lines += [_transfer(grows, largest), _contention(grows)]
    return [line for line in lines if line]


def _steps(grid: StepGrid) -> str:
    steps = len(grid.steps)
    if steps >= ENOUGH_STEPS:
        return ""
    return f"only {steps} steps: intervals are wide, and hold in about nine cases of ten"


def _tail(model: Model, ranks: int) -> str:
    """Whether the p99 of the maximum needs delays rarer than any that was seen."""
    draws = max(model.units * ranks / model.ranks, 1.0)
    seen = min(part.noise.values for part in model.parts)
    if draws * 100 <= seen:
        return ""
    families = dict.fromkeys(part.noise.family.replace("_", " ") for part in model.parts)
    if list(families) == ["none"]:
        return ""
    return (
        f"p99 at {ranks} ranks rests on delays that come once in {100 * draws:,.0f} rank-steps; "
        f"{seen:,} were measured: the tail beyond them is that of a fitted family "
        f"({', '.join(families)})"
    )


def _uneven(grid: StepGrid, cut: Segments) -> str:
    """Ranks are taken to vary alike: say so where one does not."""
    total = cut.own_ns.sum(axis=1)
    spread = np.median(np.abs(total - np.median(total, axis=0)), axis=0)
    wide = np.quantile(np.abs(total - np.median(total, axis=0)), 0.95, axis=0)
    usual = max(float(np.median(wide)), float(np.median(spread)), 1.0)
    odd = np.flatnonzero(wide > UNEVEN * usual)
    if not len(odd):
        return ""
    named = words.ranks([int(grid.ranks[i]) for i in odd])
    return (
        f"the work of {named} varies more than {UNEVEN:.0f} times as much as the others'; ranks "
        "are taken to vary alike, so at other sizes as many in a hundred do"
    )


def _transfer(grows: Growth, ranks: int) -> str:
    low, high = grows.bounds(ranks)
    known = "" if grows.latency_share is not None else (
        "; all collectives are of about one size, so latency and bandwidth cannot be told apart"
    )  # fmt: skip
    return (
        f"the fabric at {ranks} ranks was not measured: exposed transfer is "
        f"taken to grow {grows.factor(ranks):.3g}-fold (ring 2S(n-1)/(nB), tree 2⌈log₂n⌉α), "
        f"between {low:.3g} and {high:.3g}{known}"
    )


def _contention(grows: Growth) -> str:
    if grows.contention is not None:
        return (
            f"exposed transfer is taken to go on growing by {grows.contention:.3g} of itself for "
            "every rank added, as between the sizes measured"
        )
    return (
        f"contention that grows with ranks (shared links, incast, other tenants) does not show at "
        f"{grows.ranks} ranks alone and is not in the projection; give runs of other sizes too"
    )
