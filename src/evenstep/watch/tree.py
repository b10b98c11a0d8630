"""A run followed through summaries of its nodes' ranks, which nodes write every second.

    RUN/live/node-HOST.bin     a `NodeSummary` in MessagePack

A summary has all data of the live view, so that a watcher of thousands of ranks reads one file per
node instead of every spool.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from evenstep.trace.columns import Array
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.reader import LONGEST_NS
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.layout import Phase
from evenstep.watch.run import (
    FollowedRun,
    LiveRun,
    RankWindow,
    SeenRank,
    StepTable,
    merge_steps,
    rank_window,
    read_request,
)

FOLDER = "live"
FACTS = ("pace", "pacing", "failure", "loader_workers")  # of a rank that are passed on


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


def encode(run: LiveRun, node: str) -> bytes:
    states = [
        replace(state, host=node, facts={k: state.facts[k] for k in FACTS if k in state.facts})
        for state in run.states
    ]
    known = run.attempt or 0, run.attempts, run.world
    summary = NodeSummary(node, *known, states, run.window, run.steps)
    return msgspec.msgpack.encode(summary, enc_hook=lambda array: array.tolist())


def decode(data: bytes) -> NodeSummary:
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
    whole = (window.ranks, window.counts, window.last_step, summary.steps.step, summary.steps.ranks)
    if any(column.ndim != 1 or (len(column) and column.dtype.kind != "i") for column in whole):
        return False
    times = np.nan_to_num(ranks)
    named = (*window.ranks, *(state.rank for state in summary.states))
    known = all(0 <= rank < MOST_RANKS for rank in named)
    possible = ((times >= 0) & (times < LONGEST_NS)).all() and (window.counts > 0).all()
    return known and bool(possible and np.isfinite(steps).all() and (steps[:, 1:2] >= 1).all())


def _array(_: Any, values: Sequence[Any]) -> Array:
    array = np.array(values)
    if not array.ndim or array.dtype.kind not in "if":
        raise ValueError("a column holds something else than numbers")
    return array


# -- following -------------------------------------------------------------------------------------

LOST_S = 10.0  # older summaries mean that the node's aggregator has ended
MOST_SPOOLS = 256  # of an attempt; with more ranks, summaries are used


class _NodeFile(NamedTuple):
    """The latest summary of a node."""

    summary: NodeSummary
    stamp: tuple[int, int]  # modification time and inode of the file
    since_s: float  # when it was first read, by the watcher's clock


@dataclass(slots=True)
class TreeRun(FollowedRun):
    """A run followed through the summaries in its folder."""

    _nodes: dict[str, _NodeFile] = field(default_factory=dict)  # by file name

    def refresh(self) -> None:
        now = self.clock()
        self._read(now)
        every = [file.summary for file in self._nodes.values()]
        latest = max((summary.attempt for summary in every), default=0)
        current = [summary for summary in every if summary.attempt == latest]
        self.attempt = latest if current else None
        self.attempts = max((summary.attempts for summary in current), default=0)
        self.world = max((summary.world for summary in current), default=0)
        states = {state.rank: state for summary in current for state in summary.states}
        self.states = [states[rank] for rank in sorted(states)]
        self.lost_nodes = {
            file.summary.node: now - file.since_s
            for file in self._nodes.values()
            if file.summary.attempt == latest
            and now - file.since_s > LOST_S
            and not all(state.closed or state.gone for state in file.summary.states)
        }
        windows = [summary.window for summary in current if len(summary.window.ranks)]
        self.window = RankWindow.merged(windows) if windows else rank_window({})
        self.steps = merge_steps([summary.steps for summary in current])
        self.request = read_request(self.path)

    def _read(self, now: float) -> None:
        try:
            found = os.scandir(self.path / FOLDER)
            entries = [entry for entry in found if fnmatch(entry.name, "node-*.bin")]
        except OSError:
            entries = []
        for gone in self._nodes.keys() - {entry.name for entry in entries}:
            del self._nodes[gone]
        for entry in entries:
            try:
                status = entry.stat()
                stamp = (status.st_mtime_ns, status.st_ino)
                known = self._nodes.get(entry.name)
                if known is None or known.stamp != stamp:
                    summary = decode(Path(entry.path).read_bytes())
                    self._nodes[entry.name] = _NodeFile(summary, stamp, now)
            except (OSError, ValueError):  # just replaced, or not a summary
                continue


def follow(path: Path, clock: Callable[[], float] = time.monotonic) -> Iterator[FollowedRun]:
    """Read a run again and again: by its spools, or by summaries if they know more ranks."""
    direct, tree = LiveRun(path, clock), TreeRun(path, clock)
    while True:
        tree.refresh()
        if tree.states and _knows_more_ranks(tree):
            yield tree
        else:
            direct.refresh()
            yield direct


def _knows_more_ranks(tree: TreeRun) -> bool:
    """Whether summaries have more ranks than there are spools here, or very many."""
    folder, attempt = RunFolder(tree.path), tree.attempt or 0
    if any(number > attempt for number in folder.attempts()):
        return False
    return len(tree.states) > min(MOST_SPOOLS, len(folder.spools(attempt)))
