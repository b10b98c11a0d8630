"""Scalars of a run in an experiment tracker, through its own API: steps, then the summary."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.measure.overview import step_table
from evenstep.errors import UsageError
from evenstep.trace.columns import largest_of, means_of
from evenstep.trace.trace import Trace

MOST_POINTS = 2_000
Point = tuple[int, dict[str, float]]  # a step and its scalars


def points(trace: Trace) -> list[Point]:
    """Return mean step time, mean wait and greatest lateness (s) of bins of steps, where known."""
    table = step_table(trace)
    if not len(table):
        return []
    steps, place = np.unique(table.step, return_inverse=True)
    width = -(-len(steps) // MOST_POINTS)
    bins = place.reshape(-1) // width
    latest = largest_of(np.asarray(table.lateness_ns, float), bins, least=np.nan)
    columns = {
        "evenstep/step_time_s": means_of(table.end_ns - table.start_ns, bins, len(latest)),
        "evenstep/wait_s": means_of(table.wait_ns, bins, len(latest)),
        "evenstep/latest_s": latest,
    }
    found: list[Point] = [(int(step), {}) for step in steps[::width]]
    for name, column in columns.items():
        for at in np.flatnonzero(np.isfinite(column)):
            found[at][1][name] = float(column[at]) / 1e9
    return found


def totals(diagnosis: Diagnosis) -> dict[str, float]:
    """Return scalars of the summary, and the severity of each failure mode."""
    summary = diagnosis.summary
    time, rate = summary.get("step_time") or {}, summary.get("throughput") or {}
    found = {"throughput": rate.get("value"), "cv": time.get("cv")}
    found |= {f"{name}_share": value for name, value in (summary.get("shares") or {}).items()}
    for finding in diagnosis.findings:
        name = f"finding_{finding.mode}"
        found[name] = max(finding.severity or 0.0, found.get(name) or 0.0)
    return {f"evenstep/{name}": value for name, value in found.items() if value is not None}


def to_wandb(project: str, name: str, each: Sequence[Point], total: dict[str, float]) -> None:
    """Log a new run to a project of Weights & Biases."""
    wandb = _module("wandb", "wandb")
    run = wandb.init(project=project, name=name, job_type="evenstep")
    for step, numbers in each:
        run.log(numbers, step=step)
    run.summary.update(total)
    run.finish()


def to_mlflow(experiment: str, name: str, each: Sequence[Point], total: dict[str, float]) -> None:
    """Log a new run to an experiment of MLflow."""
    mlflow = _module("mlflow", "mlflow")
    mlflow.set_experiment(experiment)
    with mlflow.start_run(run_name=name):
        for step, numbers in each:
            mlflow.log_metrics(numbers, step=step)
        mlflow.log_metrics(total)


def to_tensorboard(folder: str, each: Sequence[Point], total: dict[str, float]) -> None:
    """Write an event file to a folder; the summary is at the last step."""
    writer = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(folder)
    for step, numbers in each:
        for tag, value in numbers.items():
            writer.add_scalar(tag, value, step)
    last = each[-1][0] if each else 0
    for tag, value in total.items():
        writer.add_scalar(tag, value, last)
    writer.close()


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        why = f"this needs {package}, which is not installed: pip install {package}"
        raise UsageError(why) from error
