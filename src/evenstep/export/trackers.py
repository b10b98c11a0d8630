"""A run's numbers in an experiment tracker, through its own API, if it is installed.

Each step gets its time and shares, thinned to what a chart can show; the summary comes last.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.measure.overview import step_table
from evenstep.errors import UsageError
from evenstep.trace.trace import Trace

MOST_POINTS = 2_000
Point = tuple[int, dict[str, float]]  # a step and its numbers


def points(trace: Trace) -> list[Point]:
    """Step time, wait and lateness of the steps, means over ranks and over neighbouring steps."""
    table = step_table(trace)
    if not len(table):
        return []
    steps, which = np.unique(table.step, return_inverse=True)
    which = which.reshape(-1) // -(-len(steps) // MOST_POINTS)
    counts = np.bincount(which)
    columns = {
        "step_time_s": (table.end_ns - table.start_ns) / 1e9,
        "wait_s": table.wait_ns / 1e9,
        "latest_s": np.nan_to_num(table.lateness_ns) / 1e9,
    }
    means = {name: np.bincount(which, weights=values) / counts for name, values in columns.items()}
    worst = np.zeros(len(counts))
    np.maximum.at(worst, which, columns["latest_s"])
    means["latest_s"] = worst
    each = -(-len(steps) // MOST_POINTS)
    return [
        (int(steps[at * each]), {f"evenstep/{name}": float(means[name][at]) for name in means})
        for at in range(len(counts))
    ]


def totals(diagnosis: Diagnosis) -> dict[str, float]:
    """The summary's numbers and the findings' severities."""
    summary = diagnosis.summary
    time, rate = summary.get("step_time") or {}, summary.get("throughput") or {}
    found = {"throughput": rate.get("value"), "cv": time.get("cv")}
    found |= {f"{name}_share": value for name, value in (summary.get("shares") or {}).items()}
    for finding in diagnosis.findings:
        name = f"finding_{finding.mode}"
        found[name] = max(finding.severity or 0.0, found.get(name) or 0.0)
    return {f"evenstep/{name}": value for name, value in found.items() if value is not None}


def to_wandb(project: str, name: str, each: Sequence[Point], total: dict[str, float]) -> None:
    """A run of its own in a project of Weights & Biases."""
    wandb = _module("wandb", "wandb")
    run = wandb.init(project=project, name=name, job_type="evenstep")
    for step, numbers in each:
        run.log(numbers, step=step)
    run.summary.update(total)
    run.finish()


def to_mlflow(experiment: str, name: str, each: Sequence[Point], total: dict[str, float]) -> None:
    """A run of its own in an experiment of MLflow."""
    mlflow = _module("mlflow", "mlflow")
    mlflow.set_experiment(experiment)
    with mlflow.start_run(run_name=name):
        for step, numbers in each:
            mlflow.log_metrics(numbers, step=step)
        mlflow.log_metrics(total)


def to_tensorboard(folder: str, each: Sequence[Point], total: dict[str, float]) -> None:
    """An event file in a folder; the summary stands at the last step."""
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
        raise UsageError(
            f"this needs {package}, which is not installed here; install it with: "
            f"pip install {package}"
        ) from error
