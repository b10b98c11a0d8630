"""The summary of a node's ranks while they run: a file of fixed size, written every second.

    RUN/live/node-HOST.bin     a page of JSON (`Head`), then rows of ranks, then rows of steps

It has all data of the live view, so that a watcher of thousands of ranks reads one file per node
instead of every spool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from evenstep.trace.columns import Array
from evenstep.trace.reader import LONGEST_NS
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.layout import Phase
from evenstep.watch.run import LiveRun, SeenRank
from evenstep.watch.spool import KEPT_STEPS, Inside
from evenstep.watch.window import RankWindow, StepTable

SCHEMA = "evenstep.node/2"
FOLDER = "live"
HEAD_BYTES = 4096
RANK_ROWS = 16  # rows are a multiple of this, so that the size stays the same while ranks start
MOST_FACTS = 8  # different pacing states that are passed on

CLOSED, GONE, FAILED, INSIDE = 1, 2, 4, 8  # bits of `state`

_MEANS = ("step_ns", "work_ns", "error_ns", "sync_ns", "wait_ns", "held_ns", "pause_ns")
RANK = np.dtype(
    [
        ("rank", "<i4"),  # -1 in an unused row
        ("state", "u1"),
        ("pace", "i1"),  # index into the head's list; -1 none
        ("counts", "<u2"),  # number of steps in the window
        ("last_step", "<i8"),
        ("silent_s", "<f4"),
        ("op", "S20"),  # the operation a silent rank is in
        ("group_seq", "<u8"),
        ("enter_ns", "<i8"),
        *((name, "<f8") for name in _MEANS),
        ("phase_ns", "<f8", (len(Phase),)),
    ]
)
#: The fields of `StepTable`; the step is -1 in an unused row.
STEP = np.dtype(list(zip(StepTable._fields, ("<i8", "<i4", "<f8", "<f8", "<f8"), strict=True)))


@dataclass(frozen=True, slots=True)
class Head:
    """Facts of the whole node."""

    node: str
    attempt: int
    attempts: int
    world: int
    look: int  # number of the refresh; it stops if the aggregator has ended
    rank_rows: int
    paces: Sequence[Mapping[str, Any]] = ()  # distinct pacing states of its ranks
    note: str = ""  # about pacing, in words
    failure: str = ""  # why evenstep has stopped recording a rank


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """The state of one node."""

    head: Head
    states: Sequence[SeenRank]
    window: RankWindow
    steps: StepTable


def summary_path(folder: Path, node: str) -> Path:
    return folder / FOLDER / f"node-{re.sub(r'[^A-Za-z0-9._-]', '_', node) or 'unnamed'}.bin"


def write_summary(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def encoded(run: LiveRun, node: str, look: int) -> bytes:
    states = run.states
    rows = -(-max(len(states), 1) // RANK_ROWS) * RANK_ROWS
    paces: list[Mapping[str, Any]] = []
    ranks = np.zeros(rows, RANK)
    ranks["rank"] = -1
    for row, state in zip(ranks, states, strict=False):
        _fill_row(row, state, _place(paces, state.facts.get("pace")))
    used = np.flatnonzero(ranks["rank"] >= 0)
    place = used[np.searchsorted(ranks["rank"][used], run.window.ranks)]
    for name in (*_MEANS, "phase_ns", "last_step", "counts"):
        ranks[name][place] = getattr(run.window, name)
    facts = [state.facts for state in states]
    told = paces, _first(facts, "pacing"), _first(facts, "failure")
    head = Head(node, run.attempt or 0, run.attempts, run.world, look, rows, *told)
    text = _packed(head)
    if len(text) > HEAD_BYTES:
        text = _packed(replace(head, paces=(), note="", failure=""))
    return text.ljust(HEAD_BYTES) + ranks.tobytes() + _step_rows(run.steps).tobytes()


def _packed(head: Head) -> bytes:
    return json.dumps({"schema": SCHEMA, **asdict(head)}, separators=(",", ":")).encode()


def decoded(data: bytes) -> NodeSummary:
    """Decode a summary. Raises `ValueError` for anything else."""
    try:
        values = json.loads(data[:HEAD_BYTES])
        if not isinstance(values, dict) or values.pop("schema", None) != SCHEMA:
            raise ValueError(f"it is not {SCHEMA}")
        head = msgspec.convert(values, Head)
        ranks = np.frombuffer(data, RANK, head.rank_rows, HEAD_BYTES)
        steps = np.frombuffer(data, STEP, KEPT_STEPS, HEAD_BYTES + ranks.nbytes)
    except (TypeError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error
    ranks, steps = ranks[ranks["rank"] >= 0], steps[steps["step"] >= 0]
    states = [_state(row, head) for row in ranks]
    stepped = ranks[ranks["counts"] > 0]
    times = {name: np.nan_to_num(stepped[name]) for name in (*_MEANS, "phase_ns")}
    sound = all(((one >= 0) & (one < LONGEST_NS)).all() for one in times.values())
    if not sound or (steps["ranks"] < 1).any() or not np.isfinite(steps["time_ns"]).all():
        raise ValueError("its numbers are damaged")
    window = RankWindow(
        ranks=stepped["rank"].astype(np.int64), phase_ns=stepped["phase_ns"].copy(),
        last_step=stepped["last_step"].copy(), counts=stepped["counts"].astype(np.int64),
        **{name: stepped[name].copy() for name in _MEANS},
    )  # fmt: skip
    table = StepTable(*(steps[name].copy() for name in StepTable._fields))
    return NodeSummary(head, states, window, table)


def _fill_row(row: Any, state: SeenRank, pace: int) -> None:
    row["rank"], row["silent_s"], row["pace"] = state.rank, state.silent_s, pace
    bits = CLOSED * state.closed | GONE * state.gone | FAILED * ("failure" in state.facts)
    if state.inside is not None:
        bits |= INSIDE
        row["op"] = state.inside.op.encode()
        row["group_seq"], row["enter_ns"] = state.inside.group_seq, state.inside.enter_ns
    row["state"] = bits


def _place(known: list[Mapping[str, Any]], fact: Any) -> int:
    """Return the index of a fact among those known, adding it; -1 if none, or no room."""
    if not isinstance(fact, Mapping):
        return -1
    if fact not in known and len(known) < MOST_FACTS:
        known.append(fact)
    return known.index(fact) if fact in known else -1


def _step_rows(table: StepTable) -> Array:
    rows = np.zeros(KEPT_STEPS, STEP)
    rows["step"] = -1
    count = min(len(table.step), KEPT_STEPS)
    for name in StepTable._fields:
        rows[name][:count] = getattr(table, name)[len(table.step) - count :]
    return rows


def _first(facts: Sequence[Mapping[str, Any]], name: str) -> str:
    return next((str(each[name])[:512] for each in facts if name in each), "")


def _state(row: Any, head: Head) -> SeenRank:
    bits, pace = int(row["state"]), int(row["pace"])
    facts: dict[str, Any] = {}
    if 0 <= pace < len(head.paces):
        facts["pace"] = head.paces[pace]
    if head.note:
        facts["pacing"] = head.note
    if bits & FAILED:
        facts["failure"] = head.failure
    op = row["op"].decode(errors="replace")
    inside = Inside(op, int(row["group_seq"]), int(row["enter_ns"])) if bits & INSIDE else None
    return SeenRank(
        rank=int(row["rank"]), host=head.node, facts=facts, closed=bool(bits & CLOSED),
        gone=bool(bits & GONE), silent_s=float(row["silent_s"]), inside=inside,
    )  # fmt: skip
