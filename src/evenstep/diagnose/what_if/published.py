"""Cost of stragglers in a job with a full operation table (Lin et al., OSDI 2025).

The step is replayed as it was, and with the usual duration of every operation (the ideal). The cost
of a part of the job is the ideal step with only that part as it was, relative to the ideal step
(equations 2 and 4); M_W and M_S are the shares of the slowdown that go away when the slowest
workers (equation 5), or the last stage (section 5.2), become ideal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.graph.replay import CELLS
from evenstep.diagnose.what_if.operations import OperationJob, replayed
from evenstep.trace.operations import Role

Array = npt.NDArray[Any]
Parts = dict[Any, Array]  # by label of a part of the job: (steps,) seconds

SLOWEST = 0.03  # of the workers make up M_W
UNRECORDED = 1.03  # slowdown by unrecorded work from which it is attributed to parts
MERGED = {
    "forward-send": "forward-pp-comm",
    "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}
FIRST = "first-op"


def published(plan: OperationJob) -> dict[str, Any]:
    """The results under the names of the authors' own tool; times in seconds.

    A ratio to a step without any duration is None, and so is the attribution of unrecorded work
    where there is too little of it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return {name: _known(value) for name, value in _published(plan).items()}


def _published(plan: OperationJob) -> dict[str, Any]:
    steps, measured = plan.steps.tolist(), plan.measured_s
    last = plan.table.stage == plan.table.stage.max()
    mend = np.stack([np.ones_like(last), np.zeros_like(last), ~last, last], axis=1)
    was, ideal, mended, broken = _lengths(plan, mend).T
    lost = _each(plan, *_optypes(plan), lambda keep: _lengths(plan, keep))
    ranks = _workers(plan, lost, ideal)
    slow = np.isin(plan.table["rank"], _slowest(ranks))
    without, alone = _lengths(plan, np.stack([~slow, slow], axis=1)).T
    result = {
        "step_t_base": dict(zip(steps, measured.tolist(), strict=True)),
        "step_t_nodelay": dict(zip(steps, was.tolist(), strict=True)),
        "step_t_noblk": dict(zip(steps, ideal.tolist(), strict=True)),
        "launch_slowdown": _ratio(measured, was),
        "blocking_slowdown": _ratio(was, ideal),
        "blocking_step_slowdown": _sorted(dict(zip(steps, (was / ideal).tolist(), strict=True))),
        "launch_step_slowdown": _sorted(dict(zip(steps, (measured / was).tolist(), strict=True))),
    }
    late = _unrecorded(plan) if measured.mean() >= UNRECORDED * was.mean() else {}
    for kind in lost:
        result |= _decomposed(f"blocking_decompose_by_{kind}", lost[kind], ideal, steps)
        result |= _decomposed(f"launch_decompose_by_{kind}", late.get(kind), was, steps)
    result["blocking_decompose_by_rank"] = _sorted(ranks)
    result["ms"] = _explained("Ms", mended, broken, was, ideal)
    result["mw"] = _explained("Mw", without, alone, was, ideal)
    return result


def _known(value: Any) -> Any:
    """A result with None for values that are not finite."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _ratio(one_s: Array, other_s: Array) -> float:
    """Ratio of mean steps (equation 1)."""
    return float(one_s.mean() / other_s.mean())


def _decomposed(name: str, parts: Parts | None, base: Array, steps: list[int]) -> dict[str, Any]:
    """The cost of each part relative to the base step, on average and in every step."""
    if parts is None:
        return dict.fromkeys((name, f"{name}_per_step"))
    ratios = {label: (lengths / base).tolist() for label, lengths in parts.items()}
    return {
        name: _sorted({label: _ratio(lengths, base) for label, lengths in parts.items()}),
        f"{name}_per_step": {
            step: _sorted({label: values[at] for label, values in ratios.items()})
            for at, step in enumerate(steps)
        },
    }


def _sorted(values: dict[Any, float]) -> dict[Any, float]:
    """The largest first."""
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _lengths(plan: OperationJob, keep: Array) -> Array:
    """Step lengths with the rows in `keep` (rows, scenarios) as they were, the others ideal."""
    return replayed(plan, np.where(keep, plan.own_s[:, None], plan.usual_s[:, None]))


def _explained(
    name: str, mended_s: Array, broken_s: Array, was: Array, ideal: Array
) -> dict[str, float | None]:
    """The part's contribution to the slowdown: mean step with it ideal and the rest as it was, and
    the reverse; the share that it removes (above 1 where others profit too), and that it adds."""
    mended, broken, before, best = (
        float(length.mean()) for length in (mended_s, broken_s, was, ideal)
    )
    whole = before - best
    known = abs(whole) > 1e-9 * before
    removed, added = (gain / whole if known else None for gain in (before - mended, broken - best))
    times = {"trem": mended, "tadd": broken, "tori": before, "tideal": best}
    return {**times, "rem": removed, "add": added, name: removed}


# -- parts of the job ------------------------------------------------------------------------------


def _each(
    plan: OperationJob, labels: list[str], types: Array, replay: Callable[[Array], Array]
) -> dict[str, Parts]:
    """Step lengths by type, stage and data-parallel rank; `replay` is given masks of the rows of
    several parts at a time."""
    kinds = {"optype": types, "stage": plan.table.stage, "dp_rank": plan.table.dp_rank}
    found: dict[str, Parts] = {}
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
    """Labels of types, both ends of a message being one, and the index of each row's label."""
    labels, number = np.unique(
        np.array([MERGED.get(name, name) for name in plan.names]), return_inverse=True
    )
    return [*labels.tolist(), FIRST], number[plan.table.optype]


def _workers(plan: OperationJob, alone: dict[str, Parts], ideal: Array) -> dict[int, float]:
    """Upper bound of equation 4: a worker costs at most as much as its stage, or its dp rank."""
    rows = np.unique(plan.table["rank"], return_index=True)[1]
    of = plan.table.select(rows)
    places = zip(of["rank"].tolist(), of.dp_rank.tolist(), of.stage.tolist(), strict=True)
    return {
        rank: min(_ratio(alone["dp_rank"][dp_rank], ideal), _ratio(alone["stage"][stage], ideal))
        for rank, dp_rank, stage in places
    }


def _slowest(ranks: dict[int, float]) -> list[int]:
    """The slowest workers, at least one."""
    count = -(-round(len(ranks) * SLOWEST * 100) // 100)
    return sorted(ranks, key=lambda rank: (-ranks[rank], rank))[:count]


def _unrecorded(plan: OperationJob) -> dict[str, Parts]:
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
