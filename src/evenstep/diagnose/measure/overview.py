"""The numbers at the top of a diagnosis: throughput, step time, and where the time goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.measure import balance, device_time
from evenstep.diagnose.measure.goodput import goodput
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.trace.spool.layout import Phase
from evenstep.trace.trace import Trace

_MEASURED = (
    "throughput",
    "step_time",
    "shares",
    "overlapped_communication",
    "communication_to_compute",
    "rank_hours_wasted",
    "device",
    "goodput",
    "all_to_all",
    "ports",
)
_COMPUTE = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def summary(trace: Trace, grid: StepGrid) -> dict[str, Any]:
    """Everything of the contract's `summary` but the verdict. Unknown is None."""
    steps, ranks = grid.shape
    found: dict[str, Any] = {"steps": steps, "ranks": len(trace.ranks), "world": trace.world}
    if not steps:
        return found | dict.fromkeys(_MEASURED) | {"agent": agent_cost(trace, None)}
    total = float(grid.duration_ns.sum())
    shares = time_shares(grid)
    compute = shares["compute"]
    hidden = float(grid.hidden_ns.sum()) / total
    moving = shares["exposed_communication"] + hidden
    return found | {
        "throughput": throughput(trace, grid),
        "step_time": step_time(grid),
        "shares": shares,
        "overlapped_communication": round(hidden, 4),
        "communication_to_compute": round(moving / compute, 4) if compute > 0 else None,
        "rank_hours_wasted": float(grid.wait_ns.sum()) / 3.6e12,
        "device": device_time.shares(device_time.device_times(trace)),
        "all_to_all": balance.tokens(grid),
        "ports": balance.ports(trace) or None,
        "goodput": found_goodput.to_json() if (found_goodput := goodput(trace, grid)) else None,
        "agent": agent_cost(trace, total / ranks),
    }


def throughput(trace: Trace, grid: StepGrid) -> dict[str, Any]:
    """Samples per second of the job where every rank's batch is known, else steps per second."""
    elapsed_s = grid.total_ns / 1e9
    rate = "steps/s"
    amount = float(len(grid.steps))
    if (grid.samples > 0).all() and not trace.missing_ranks:
        amount, rate = float(grid.samples.sum()), "samples/s"
    return {"value": amount / elapsed_s if elapsed_s > 0 else None, "unit": rate}


def step_time(grid: StepGrid) -> dict[str, Any]:
    """Mean, CV (population) and percentiles of the job's step time."""
    step = grid.step_ns
    mean = float(step.mean())
    return {
        "mean_ns": round(mean),
        "cv": float(step.std() / mean) if mean > 0 else None,
        "p50_ns": round(float(np.quantile(step, 0.5))),
        "p99_ns": round(float(np.quantile(step, 0.99))),
    }


def time_shares(grid: StepGrid) -> dict[str, float]:
    """Exposed time only, summing to 1 over compute, communication, wait, input and the rest."""
    total = float(grid.duration_ns.sum())
    compute = float(compute_ns(grid).sum())
    wait = float(grid.wait_ns.sum())
    parts = {
        "compute": compute,
        "exposed_communication": max(0.0, float(grid.blocked_ns.sum()) - wait),
        "wait": wait,
        "input": float(grid.phase_ns[Phase.INPUT].sum()),
    }
    scale = max(total, sum(parts.values()))  # phases of a cut ring may overlap a little
    shares = {name: value / scale for name, value in parts.items()}
    shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    return shares


def compute_ns(grid: StepGrid) -> npt.NDArray[Any]:
    """Time in forward, backward and optimizer by step and rank; where devices were seen, of them.

    A host in its forward pass may only be launching, with its device idle most of the time. Of a
    stream whose kernels were not recorded, all own work is taken for compute.
    """
    phases = np.sum([grid.phase_ns[phase] for phase in _COMPUTE], axis=0)
    streams = grid.graph.device if grid.graph is not None else np.zeros(len(grid.ranks), bool)
    work = np.maximum(grid.work_ns - grid.phase_ns[Phase.INPUT], 0)
    seen = grid.device_ns.any(axis=0)
    return np.asarray(np.where(seen, grid.device_ns, np.where(streams, work, phases)))


def agent_cost(trace: Trace, time_per_rank_ns: float | None) -> dict[str, Any]:
    """evenstep's own cost as it measured itself, on the training threads."""
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
