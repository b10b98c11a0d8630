"""The summary of a diagnosis: throughput, step time, shares of time; and the step table."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

from evenstep.diagnose.graph.structure import Intervals, overlap_length, union_length
from evenstep.diagnose.measure.effects import goodput
from evenstep.diagnose.measure.grid import FEWEST_STEPS, StepGrid, step_grid
from evenstep.diagnose.measure.hosts import ports
from evenstep.diagnose.measure.transfers import tokens
from evenstep.documents import Amount, Natural
from evenstep.statistics.spectrum import periodic
from evenstep.trace.columns import Array, Columns, begins, largest_of, smallest_of
from evenstep.trace.spool.layout import Flag, Kind, Phase
from evenstep.trace.trace import COMPUTE, Trace

_MEASURED = (
    *("throughput", "step_time", "shares", "overlapped_communication"),
    *("communication_to_compute", "rank_hours_wasted", "device", "goodput", "all_to_all", "ports"),
)
_OF_ELAPSED = (*_MEASURED[:5], "device", "goodput")
_OF_WAITS = ("shares", "communication_to_compute", "rank_hours_wasted")
_COMPUTE = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def summary(trace: Trace, grid: StepGrid) -> dict[str, Any]:
    """The `summary` of a diagnosis but for its verdict. Unknown is None."""
    steps, ranks = grid.shape
    recorded = len(trace.table.oldest_steps())  # a file that was cut may have no records
    found: dict[str, Any] = {"steps": steps, "ranks": recorded, "world": trace.world}
    if not steps:
        return found | dict.fromkeys(_MEASURED) | {"agent": agent_cost(trace, None)}
    total = float(grid.duration_ns.sum())
    spent = time_spent(grid)
    shares = time_shares(total, *(float(part.sum()) for part in spent))
    compute = shares["compute"]
    hidden = float(grid.hidden_ns.sum()) / total
    moving = shares["exposed_communication"] + hidden
    found |= {
        "throughput": throughput(trace, grid),
        "step_time": step_time(grid.step_ns),
        "shares": shares,
        "overlapped_communication": round(hidden, 4) if trace.hiding_known else None,
        "communication_to_compute": round(moving / compute, 4) if compute > 0 else None,
        "rank_hours_wasted": float(grid.wait_ns.sum()) / 3.6e12,
        "device": device_shares(device_times(trace)),
        "all_to_all": tokens(trace, grid),
        "ports": ports(trace) or None,
        "goodput": seconds.to_json() if (seconds := goodput(trace, grid)) else None,
        "agent": agent_cost(trace, total / ranks),
        **growth(grid.step_ns),
    }
    unknown = () if trace.elapsed_known else _OF_ELAPSED
    told = not grid.unseen and any(map(np.any, spent))  # else only steps' lengths are known
    return found | dict.fromkeys(unknown if trace.waits_apart and told else (*unknown, *_OF_WAITS))


RateUnit = Literal["samples/s", "tokens/s", "steps/s"]


class Throughput(TypedDict):
    """The work of a job per second."""

    value: Amount | None
    unit: RateUnit


class MeasuredTime(TypedDict):
    """Step time of a job; CV is population σ over mean."""

    mean_ns: Natural | None
    cv: Amount | None
    p50_ns: Natural | None
    p99_ns: Natural | None


def throughput(trace: Trace, grid: StepGrid) -> Throughput:
    """Samples per second of the job where every rank's batch is known, else steps per second."""
    rate: RateUnit = "steps/s"
    amount, elapsed_s = float(len(grid.steps)), grid.total_ns / 1e9
    if (grid.samples > 0).all() and len(grid.ranks) >= trace.world:
        amount, rate = float(grid.samples.sum()), "samples/s"
    return {"value": amount / elapsed_s if elapsed_s > 0 else None, "unit": rate}


def step_time(step: Array) -> MeasuredTime:
    """Mean, CV (population) and percentiles of the job's step times in ns; None without a step."""
    if not len(step):
        return {"mean_ns": None, "cv": None, "p50_ns": None, "p99_ns": None}
    mean = float(step.mean())
    return {
        "mean_ns": round(mean),
        "cv": float(step.std() / mean) if mean > 0 else None,
        "p50_ns": round(float(np.quantile(step, 0.5))),
        "p99_ns": round(float(np.quantile(step, 0.99))),
    }


def growth(step_ns: Array) -> dict[str, dict[str, int]]:
    """Median step of the first and last quarter of a run whose steps grow longer: medians of the
    quarters ascend, and the middle halves of the first and last quarter do not overlap."""
    if len(step_ns) < 4 * FEWEST_STEPS:
        return {}
    low, middle, high = np.array(
        [np.quantile(part, (0.25, 0.5, 0.75)) for part in np.array_split(step_ns, 4)]
    ).T
    if (np.diff(middle) <= 0).any() or high[0] >= low[-1]:
        return {}
    return {"growth": {"first_ns": round(middle[0]), "last_ns": round(middle[-1])}}


def time_shares(
    total: float, compute: float, blocked: float, wait: float, fed: float
) -> dict[str, float]:
    """Exposed time only, summing to 1 over compute, communication, wait, input and the rest.

    `total` ns: in forward, backward and optimizer, blocked, of that waiting, and in the input.
    """
    moving = max(0.0, blocked - wait)
    parts = {"compute": compute, "exposed_communication": moving, "wait": wait, "input": fed}
    scale = max(total, sum(parts.values()))  # phases of a cut ring may overlap a little
    shares = {name: value / scale if scale else 0.0 for name, value in parts.items()}
    return shares | {"other": max(0.0, 1.0 - sum(shares.values()))}


def time_spent(grid: StepGrid) -> tuple[Array, ...]:
    """Time by step and rank in forward, backward and optimizer, blocked, of that waiting, and on
    input. Of devices recorded compute counts, as a host in its forward may only be launching; of a
    stream without recorded kernels all its own work but input."""
    fed = grid.phase_ns[Phase.INPUT]
    phases = np.sum([grid.phase_ns[phase] for phase in _COMPUTE], axis=0)
    own = np.where(grid.graph.device, np.maximum(grid.work_ns - fed, 0), phases)
    compute = np.where(grid.device_ns.any(axis=0), grid.device_ns, own)
    return compute, grid.blocked_ns, grid.wait_ns, fed


def agent_cost(trace: Trace, time_per_rank_ns: float | None) -> dict[str, Any]:
    """The agent's cost on the training threads as it measured itself."""
    costs = [info.facts.get("cost") or {} for info in trace.ranks.values()]
    each = [cost["ns_per_collective"] for cost in costs if cost.get("ns_per_collective")]
    background = [cost["background_cpu_ns"] for cost in costs if cost.get("background_cpu_ns")]
    hooks = [info.facts.get("hooks") or {} for info in trace.ranks.values()]
    seen = {hook["mechanism"]: hook.get("instead") for hook in hooks if hook.get("mechanism")}
    spent = trace.summaries["agent_ns"].sum() / max(len(trace.ranks), 1)
    lasted = float(trace.summaries["step_sum_ns"].sum()) / max(len(trace.ranks), 1)
    return {
        "ns_per_collective": float(np.mean(each)) if each else None,
        "share_of_step": float(spent / lasted) if lasted > 0 and time_per_rank_ns else None,
        "background_cpu_ns": float(np.mean(background)) if background else None,
        "recorder": "; ".join(f"{by} ({why})" if why else by for by, why in seen.items()) or None,
    }


# -- what devices did ------------------------------------------------------------------------------
# Time of compute, communication and copies is the union over a device's streams, so that nothing
# counts twice. Hidden communication is |communication ∩ compute| ÷ |communication|, as in Holistic
# Trace Analysis.


class DeviceTime(NamedTuple):
    """Total times of one rank's devices, ns."""

    elapsed_ns: int  # steps, and device activity outside of them
    compute_ns: int
    communication_ns: int
    hidden_ns: int  # communication during compute
    busy_ns: int  # any activity, including copies


def device_times(trace: Trace) -> dict[int, DeviceTime]:
    """Device times of each rank whose devices' stamps are on the clock of its host and steps."""
    known = trace.host_clock_ranks
    events = trace.of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT, Kind.SPAN) if known else None
    if events is None:
        return {}
    timed = ((events.flags & int(Flag.ON_DEVICE)) != 0) & (events.device_exit_ns > 0)
    events = events.select(timed & np.isin(events["rank"], known))
    pairs = np.stack([events["rank"].astype(np.int64), events.device.astype(np.int64)])
    (rank_of, _), cell = np.unique(pairs, axis=1, return_inverse=True)
    done = Intervals(cell.reshape(-1), events.device_enter_ns, events.device_exit_ns)
    span, names = events.kind == int(Kind.SPAN), [*trace.names, COMPUTE]
    compute, moving = done.where(span & (events.name == names.index(COMPUTE))), done.where(~span)
    lengths = np.stack(
        [
            union_length(done + _steps(trace, rank_of), len(rank_of)),
            union_length(compute, len(rank_of)),
            union_length(moving, len(rank_of)),
            overlap_length(compute, moving, len(rank_of)),
            union_length(done, len(rank_of)),
        ]
    )
    each = ((rank, lengths[:, rank_of == rank].sum(axis=1)) for rank in np.unique(rank_of))
    return {int(rank): DeviceTime(*spent.tolist()) for rank, spent in each}


def _steps(trace: Trace, rank_of: Array) -> Intervals:
    """The steps of each device's rank."""
    steps = trace.of_kind(Kind.STEP)
    steps = steps.select(steps.exit_ns > 0)
    parts = [np.flatnonzero(steps["rank"] == rank) for rank in rank_of]
    rows = np.concatenate([np.zeros(0, np.int64), *parts])
    cell = np.repeat(np.arange(len(rank_of)), [len(part) for part in parts])
    return Intervals(cell, steps.enter_ns[rows], steps.exit_ns[rows])


def device_shares(found: dict[int, DeviceTime]) -> dict[str, float | None] | None:
    """Shares of the elapsed time of all ranks; `hidden`, of communication. None: no device."""
    elapsed = sum(each.elapsed_ns for each in found.values())
    if not elapsed:
        return None
    _, compute, moving, hidden, busy = (sum(column) for column in zip(*found.values(), strict=True))
    return {
        "busy": round(busy / elapsed, 6),
        "compute": round(compute / elapsed, 6),
        "communication": round(moving / elapsed, 6),
        "copy": round((busy - (compute + moving - hidden)) / elapsed, 6),
        "idle": round(1.0 - busy / elapsed, 6),
        "hidden": round(hidden / moving, 6) if moving else None,
    }


# -- what steps are bound by -----------------------------------------------------------------------


NAMES = ("compute", "transfer", "wait", "input")


def classes(grid: StepGrid) -> Array:
    """Index into `NAMES` of the largest part of each step on the median rank. (steps,)."""
    fed = grid.phase_ns[Phase.INPUT]
    parts = grid.work_ns - fed, grid.blocked_ns - grid.wait_ns, grid.wait_ns, fed
    return np.asarray(np.argmax([np.median(part, axis=1) for part in parts], axis=0))


def regimes(grid: StepGrid) -> dict[str, Any] | None:
    """Share of steps per class, changes of class, mean dwell in steps, period in steps."""
    if not len(grid.steps):
        return None
    of = classes(grid)
    starts = np.flatnonzero(begins(of))
    length = np.diff(starts, append=len(of))
    dwell = {
        name: round(float(length[of[starts] == number].mean()), 2)
        for number, name in enumerate(NAMES)
        if (of == number).any()
    }
    usual = int(np.argmax(np.bincount(of)))
    peak = periodic((of == usual).astype(float)) if len(starts) > 1 else None
    return {
        "shares": {name: round(float((of == i).mean()), 4) for i, name in enumerate(NAMES)},
        "changes": len(starts) - 1,
        "dwell_steps": dwell,
        "period_steps": round(peak.period, 3) if peak is not None else None,
    }


# -- the step table --------------------------------------------------------------------------------


def step_table(trace: Trace, grid: StepGrid | None = None) -> Columns:
    """Columns rank, step, start_ns, end_ns (common time), wait_ns, lateness_ns, phase_*_ns.

    `lateness_ns` is how long after the earliest rank a collective of the step was reached, the most
    of all; nan without any. `phase_other_ns` is the time in no phase; with `phase_sync_ns`, the
    blocked time, the phases add up to the step.
    """
    grid = grid or step_grid(trace)
    steps, ranks = grid.shape
    phases = dict(grid.phase_ns)
    columns = {
        "rank": np.tile(grid.ranks, steps),
        "step": np.repeat(grid.steps, ranks),
        "start_ns": grid.start_ns.reshape(-1),
        "end_ns": grid.end_ns.reshape(-1),
        "wait_ns": grid.wait_ns.reshape(-1).astype(float),
        "lateness_ns": lateness(grid).reshape(-1),
    }
    phases[Phase.SYNC] = grid.blocked_ns
    claimed = sum(value for phase, value in phases.items() if phase is not Phase.OTHER)
    phases[Phase.OTHER] = np.maximum(grid.duration_ns - claimed, 0)
    for phase, value in phases.items():
        columns[f"phase_{phase.name.lower()}_ns"] = value.reshape(-1)
    return Columns(columns)


def lateness(grid: StepGrid) -> Array:
    """The latest arrival at a shared collective, after the earliest rank's. (steps, ranks)."""
    table, rows = grid.graph.operations, grid.graph.rows
    shared = table.whole & (table.members > 1) & ~table.message
    rows = rows.select(np.append(shared, False)[rows.enter])
    step = np.searchsorted(grid.steps, grid.graph.steps[rows["index"]])
    late = rows.at_ns - smallest_of(rows.at_ns, rows.enter)[rows.enter]
    return largest_of(late, (step, rows.lane), grid.shape, least=np.nan)
