"""The paper's evaluation: nodes × oversubscription × placement × coordination, each repeated.

Section 6.1 varies these four and gives no numbers for the fabric or the model: the job is a plain
one, with gradients in buckets behind backward, some jitter, and tenants on the same leaves. Nothing
is fitted to Table 1. A repeat has the same random numbers with and without coordination, so that
gains are of pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, Literal, TypedDict

from evenstep.documents import Amount, Positive
from evenstep.simulate.study import sweep
from evenstep.simulate.study.sweep import Axis, MeanInterval, interval

Row = dict[str, Any]

NODES = (4, 8, 16, 32, 64)
OVERSUBSCRIPTION = (1.0, 2.0, 4.0)
PLACEMENTS = ("packed", "scattered")
BASELINE = "synchronous"
GUARDED = ("slack", "paper")  # controllers compared with the baseline
LIMITS = (
    "Simulated. The paper does not say what its clusters, models and tenants were: absolute "
    "numbers cannot agree, and no parameter was chosen so that they would.",
    "Tenants run on nodes of their own and share the links between leaves; packed, the job has its "
    "leaves nearly to itself.",
    "A lone bulk-synchronous job cannot gain from holding ranks back; gains come from keeping out "
    "of others' way. Only the delay before a step acts here: buckets overlap.",
    "A guard first learns for some hundred steps what pacing is worth: short runs show its trials.",
)
PER_LEAF = 4
TENANTS = 2
REPEATS, STEPS = 5, 400


def job(nodes: int) -> dict[str, Any]:
    """The job on so many nodes of a cluster with as many nodes again for two tenants.

    100 ms of compute and 100 MB of gradients on 100 Gb/s: about ResNet-50 (25.6 million parameters
    in 32 bits, He et al. 2016) at a batch of 32 on a GPU of 2017.
    """
    return {
        "name": f"evaluation, {nodes} nodes",
        "cluster": {"nodes": 2 * nodes, "gpus_per_node": 2, "nics_per_node": 1, "nic_gBps": 12.5},
        "fabric": {"kind": "leaf_spine", "nodes_per_leaf": PER_LEAF},
        "job": {"ranks": 2 * nodes},
        "work": {
            "forward_ms": 35, "backward_ms": 65, "gradient_bytes": 102_400_000, "buckets": 5,
            "samples_per_rank": 32,
        },
        "collectives": {"algorithm": "ring"},
        "noise": [{"kind": "normal", "sigma": 0.02}],
        "neighbours": [
            {
                "name": f"tenant {number}", "node_count": max(2, nodes // TENANTS),
                "compute_ms": 100.0 * (1 + 0.01 * number), "message_bytes": 102_400_000,
            }
            for number in range(1, TENANTS + 1)
        ],
    }  # fmt: skip


def plan_matrix(
    *,
    nodes: Sequence[int] = NODES,
    oversubscription: Sequence[float] = OVERSUBSCRIPTION,
    placements: Sequence[str] = PLACEMENTS,
    controllers: Sequence[str] = GUARDED,
    repeats: int = REPEATS,
    steps: int = STEPS,
) -> list[sweep.SweepRun]:
    """The simulations of the matrix. Raises `UsageError` and `ConfigError` as a sweep does."""
    axes = [
        Axis("fabric.oversubscription", tuple(f"{value:g}" for value in oversubscription)),
        Axis("job.placement", tuple(placements)),
    ]
    units: list[sweep.SweepRun] = []
    for number, arm in product(nodes, (BASELINE, *controllers)):
        sets = [f"run.steps={steps}", "run.seed=1"]
        if arm != BASELINE:
            sets += ["strategy.kind=paced", f"strategy.controller={arm}", "strategy.sharing=true"]
        plan = sweep.plan(job(number), axes, repeats=repeats, assignments=sets)
        varied = (("nodes", number), ("coordination", arm))
        units += [unit._replace(varied=(*varied, *unit.varied)) for unit in plan.units]
    return [unit._replace(number=index) for index, unit in enumerate(units)]


# -- results ---------------------------------------------------------------------------------------


class EvaluatedCell(TypedDict):
    """Results of one cell of the matrix."""

    nodes: Positive
    oversubscription: Amount
    placement: str
    coordination: str
    repeats: Positive
    unit: str
    throughput: MeanInterval
    cv: MeanInterval
    efficiency: MeanInterval
    gain: MeanInterval | None
    cv_change: MeanInterval | None


class EvaluationDocument(TypedDict):
    """The object that `evenstep reproduce evaluation --json` prints."""

    schema: Literal["evenstep.evaluation/1"]
    repeats: Positive
    steps: Positive
    rows: list[EvaluatedCell]
    limits: list[str]


Key = tuple[int, float, str]


def table(rows: Iterable[Row]) -> list[EvaluatedCell]:
    """A row for each cell of the matrix: throughput, CV, and the gain over the baseline."""
    cells: dict[Key, dict[str, dict[int, Row]]] = {}
    for row in sorted(rows, key=lambda row: int(row["number"])):
        key = (row["nodes"], float(row["fabric.oversubscription"]), row["job.placement"])
        cells.setdefault(key, {}).setdefault(row["coordination"], {})[row["repeat"]] = row
    return [
        _cell(key, arm, runs, arms.get(BASELINE, {}))
        for key, arms in cells.items()
        for arm, runs in arms.items()
    ]


def _cell(key: Key, arm: str, runs: dict[int, Row], baseline: dict[int, Row]) -> EvaluatedCell:
    pairs = [
        (runs[repeat], baseline[repeat])
        for repeat in sorted(runs)
        if arm != BASELINE and repeat in baseline
    ]
    gains = [ours["throughput"] / theirs["throughput"] - 1 for ours, theirs in pairs]
    calmer = [ours["step_cv"] - theirs["step_cv"] for ours, theirs in pairs]
    first = next(iter(runs.values()))
    return {
        "nodes": key[0],
        "oversubscription": key[1],
        "placement": key[2],
        "coordination": arm,
        "repeats": len(runs),
        "unit": first["unit"],
        "throughput": interval([row["throughput"] for row in runs.values()]),
        "cv": interval([row["step_cv"] for row in runs.values()]),
        "efficiency": interval([row["efficiency"] for row in runs.values()]),
        "gain": interval(gains) if gains else None,
        "cv_change": interval(calmer) if calmer else None,
    }
