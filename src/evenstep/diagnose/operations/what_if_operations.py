"""What stragglers cost a job of which every operation is known (Lin et al., OSDI 2025).

The step is replayed as it was, and with every operation taking what one of its type usually does
(the ideal). What a part of the job costs is the ideal step with only that part as it was, relative
to the ideal step (equations 2 and 4); M_W and M_S are the shares of the slowdown that go away when
the slowest workers (equation 5), or the last stage (section 5.2), become ideal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.replay import CELLS
from evenstep.diagnose.operations.operations import OperationJob, replayed
from evenstep.trace.operations import Role

Array = npt.NDArray[Any]

SLOWEST = 0.03  # of the workers make up M_W
UNRECORDED = 1.03  # slowdown by unrecorded work from which its place is looked for
MERGED = {
    "forward-send": "forward-pp-comm",
    "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}
FIRST = "first-op"


@dataclass(slots=True, frozen=True)
class Slowdowns:
    """Step times in seconds; parts of the job by their label, each as (steps,) seconds."""

    steps: Array
    measured_s: Array
    replayed_s: Array  # without unrecorded work
    ideal_s: Array
    optype: dict[str, Array]
    stage: dict[int, Array]
    dp_rank: dict[int, Array]
    rank: dict[int, float]  # slowdown of each worker: the lesser of its stage's and dp rank's
    unrecorded: dict[str, dict[Any, Array]] | None  # by kind of part; None: too little to place
    slowest: dict[str, float | None]  # M_W, as published
    last_stage: dict[str, float | None]  # M_S

    @property
    def slowdown(self) -> float:
        """Mean step as it was over the ideal one (equation 1)."""
        return float(self.replayed_s.mean() / self.ideal_s.mean())


def slowdowns(plan: OperationJob) -> Slowdowns:
    """Replay a job with every part of it alone as it was."""
    last = plan.table.stage == plan.table.stage.max()
    mend = np.stack([np.ones_like(last), np.zeros_like(last), ~last, last], axis=1)
    length = _lengths(plan, mend)
    was, ideal = length[:, 0], length[:, 1]
    alone = _each(plan, *_optypes(plan), lambda keep: _lengths(plan, keep))
    ranks = _workers(plan, alone, float(ideal.mean()))
    slow = np.isin(plan.table["rank"], _slowest(ranks))
    around = _lengths(plan, np.stack([~slow, slow], axis=1))
    return Slowdowns(
        steps=plan.steps,
        measured_s=plan.measured_s,
        replayed_s=was,
        ideal_s=ideal,
        optype=alone["optype"],
        stage=alone["stage"],
        dp_rank=alone["dp_rank"],
        rank=ranks,
        unrecorded=_unrecorded(plan) if _held_up(plan, was) else None,
        slowest=_explained("Mw", around, was, ideal),
        last_stage=_explained("Ms", length[:, 2:], was, ideal),
    )


def _lengths(plan: OperationJob, keep: Array) -> Array:
    """Step lengths with the kept rows of each scenario as they were, the others ideal."""
    return replayed(plan, np.where(keep, plan.own_s[:, None], plan.usual_s[:, None]))


def _explained(name: str, around: Array, was: Array, ideal: Array) -> dict[str, float | None]:
    """What a part explains of the slowdown: mean step with it ideal and the rest as it was, and
    the reverse; the share that goes with it (above 1 where others profit too), and that it adds."""
    mended, broken = (float(mean) for mean in around.mean(axis=0))
    before, best = float(was.mean()), float(ideal.mean())
    whole = before - best
    known = abs(whole) > 1e-9 * before
    removed, added = (gain / whole if known else None for gain in (before - mended, broken - best))
    times = {"trem": mended, "tadd": broken, "tori": before, "tideal": best}
    return {**times, "rem": removed, "add": added, name: removed}


def _each(
    plan: OperationJob, labels: list[str], types: Array, replay: Callable[[Array], Array]
) -> dict[str, dict[Any, Array]]:
    """Step lengths by type (number of its label), stage and data-parallel rank.

    `replay` is given the rows of the parts, a few parts at a time.
    """
    kinds = {"optype": types, "stage": plan.table.stage, "dp_rank": plan.table.dp_rank}
    found: dict[str, dict[Any, Array]] = {}
    width = max(1, CELLS // len(plan.table))
    for kind, values in kinds.items():
        there = np.unique(values)
        found[kind] = {}
        for first in range(0, len(there), width):
            part = there[first : first + width]
            length = replay(values[:, None] == part)
            found[kind] |= dict(zip(part.tolist(), length.T, strict=True))
    return found | {"optype": {labels[at]: value for at, value in found["optype"].items()}}


def _optypes(plan: OperationJob) -> tuple[list[str], Array]:
    """Labels of types, the two ends of a message being one, and the number of each row's."""
    labels, number = np.unique(
        np.array([MERGED.get(name, name) for name in plan.names]), return_inverse=True
    )
    return [*labels.tolist(), FIRST], number[plan.table.optype]


def _workers(
    plan: OperationJob, alone: dict[str, dict[Any, Array]], ideal_s: float
) -> dict[int, float]:
    """Equation 4 by its upper bound: a worker costs no more than its stage, or its dp rank."""
    ranks, first = np.unique(plan.table["rank"], return_index=True)
    return {
        int(rank): float(
            min(
                alone["dp_rank"][int(plan.table.dp_rank[row])].mean(),
                alone["stage"][int(plan.table.stage[row])].mean(),
            )
            / (ideal_s or np.nan)
        )
        for rank, row in zip(ranks, first, strict=True)
    }


def _slowest(ranks: dict[int, float]) -> list[int]:
    """The slowest workers, at least one."""
    count = -(-round(len(ranks) * SLOWEST * 100) // 100)
    return sorted(ranks, key=lambda rank: (-ranks[rank], rank))[:count]


# -- work that was not recorded --------------------------------------------------------------------


def _held_up(plan: OperationJob, was: Array) -> bool:
    return bool(plan.measured_s.mean() >= UNRECORDED * was.mean())


def _unrecorded(plan: OperationJob) -> dict[str, dict[Any, Array]]:
    """The replay with the delays of one part only."""
    table = plan.table
    first = (table.role == Role.FORWARD) & (table.stage == 0)
    first |= (table.role == Role.FORWARD_RECV) & (table.stage > 0)
    labels, types = _optypes(plan)
    types = np.where(first & (table.seq_id == 0), len(labels) - 1, types)

    def held(keep: Array) -> Array:
        own = np.broadcast_to(plan.own_s[:, None], keep.shape)
        return replayed(plan, own, np.where(keep, plan.delay_s[:, None], 0.0))

    return _each(plan, labels, types, held)


# -- as published ----------------------------------------------------------------------------------


def published(found: Slowdowns) -> dict[str, Any]:
    """The results under the names that the authors' own tool prints them by.

    A ratio to a step that would take no time is None.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        result = _published(found)
    return {name: _known(value) for name, value in result.items()}


def _published(found: Slowdowns) -> dict[str, Any]:
    steps = found.steps.tolist()

    def per_step(values: Array) -> dict[int, float]:
        return dict(zip(steps, values.tolist(), strict=True))

    result: dict[str, Any] = {
        "step_t_base": per_step(found.measured_s),
        "step_t_nodelay": per_step(found.replayed_s),
        "step_t_noblk": per_step(found.ideal_s),
        "launch_slowdown": float(found.measured_s.mean() / found.replayed_s.mean()),
        "blocking_slowdown": found.slowdown,
        "blocking_step_slowdown": _sorted(per_step(found.replayed_s / found.ideal_s)),
        "launch_step_slowdown": _sorted(per_step(found.measured_s / found.replayed_s)),
    }
    lost = {"optype": found.optype, "stage": found.stage, "dp_rank": found.dp_rank}
    late: dict[str, Any] = found.unrecorded or dict.fromkeys(lost)
    for kind in lost:
        both: dict[str, Any] = {"blocking": lost[kind], "launch": late[kind]}
        for name, parts in both.items():
            base = found.ideal_s if name == "blocking" else found.replayed_s
            result[f"{name}_decompose_by_{kind}"] = _by_part(parts, base)
            result[f"{name}_decompose_by_{kind}_per_step"] = _by_step(parts, base, steps)
    result["blocking_decompose_by_rank"] = _sorted(found.rank)
    result["ms"], result["mw"] = found.last_stage, found.slowest
    return result


def _known(value: Any) -> Any:
    """A result with None for what is no number."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _by_part(parts: dict[Any, Array] | None, base: Array) -> dict[Any, float] | None:
    if parts is None:
        return None
    return _sorted({label: float(s.mean() / base.mean()) for label, s in parts.items()})


def _by_step(
    parts: dict[Any, Array] | None, base: Array, steps: list[int]
) -> dict[int, dict[Any, float]] | None:
    if parts is None:
        return None
    ratios = {label: (lengths / base).tolist() for label, lengths in parts.items()}
    return {
        step: _sorted({label: values[at] for label, values in ratios.items()})
        for at, step in enumerate(steps)
    }


def _sorted(values: dict[Any, float]) -> dict[Any, float]:
    """The largest first."""
    return dict(sorted(values.items(), key=lambda item: -item[1]))
