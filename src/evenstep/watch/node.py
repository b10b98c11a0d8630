"""The summary of a node's ranks while they run, written every second.

    RUN/live/node-HOST.bin     a `NodeSummary` in MessagePack

It has all data of the live view, so that a watcher of thousands of ranks reads one file per node
instead of every spool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from evenstep.trace.columns import Array
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.reader import LONGEST_NS
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.layout import Phase
from evenstep.watch.run import LiveRun, SeenRank
from evenstep.watch.window import RankWindow, StepTable

FOLDER = "live"
FACTS = ("pace", "pacing", "failure")  # of a rank that are passed on


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """The state of one node."""

    node: str
    attempt: int
    attempts: int
    world: int
    states: Sequence[SeenRank]
    window: RankWindow
    steps: StepTable
    schema: Literal["evenstep.node/3"] = "evenstep.node/3"


def summary_path(folder: Path, node: str) -> Path:
    return folder / FOLDER / f"node-{re.sub(r'[^A-Za-z0-9._-]', '_', node) or 'unnamed'}.bin"


def write_summary(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def encoded(run: LiveRun, node: str) -> bytes:
    states = [
        replace(state, host=node, facts={k: state.facts[k] for k in FACTS if k in state.facts})
        for state in run.states
    ]
    known = run.attempt or 0, run.attempts, run.world
    summary = NodeSummary(node, *known, states, run.window, run.steps)
    return msgspec.msgpack.encode(summary, enc_hook=lambda array: array.tolist())


def decoded(data: bytes) -> NodeSummary:
    """Decode a summary. Raises `ValueError` for anything else."""
    try:
        summary = msgspec.msgpack.decode(data, type=NodeSummary, dec_hook=_array)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not _is_sound(summary):
        raise ValueError("its numbers are damaged")
    return summary


def _is_sound(summary: NodeSummary) -> bool:
    """Whether columns have one length, and all numbers are possible."""
    window, steps = summary.window, np.column_stack(summary.steps)
    ranks = np.column_stack([getattr(window, column.name) for column in fields(window)])
    each = len(fields(window)) - 1 + len(Phase)  # one of a time per phase
    if len(ranks) and (ranks.shape[1] != each or window.phase_ns.shape[1:] != (len(Phase),)):
        return False
    times = np.nan_to_num(ranks)
    known = all(0 <= state.rank < MOST_RANKS for state in summary.states)
    possible = ((times >= 0) & (times < LONGEST_NS)).all() and (window.counts > 0).all()
    return known and bool(possible and np.isfinite(steps).all() and (steps[:, 1:2] >= 1).all())


def _array(_: Any, values: Sequence[Any]) -> Array:
    array = np.array(values)
    if not array.ndim or array.dtype.kind not in "if":
        raise ValueError("a column holds something else than numbers")
    return array
