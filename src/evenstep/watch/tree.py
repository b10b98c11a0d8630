"""A run followed through the summaries of its nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from evenstep.trace.spool.folder import RunFolder
from evenstep.watch.node import FOLDER, NodeSummary, decoded
from evenstep.watch.run import FollowedRun, LiveRun, read_request
from evenstep.watch.window import RankWindow, merge_steps, rank_window

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
                    summary = decoded(Path(entry.path).read_bytes())
                    self._nodes[entry.name] = _NodeFile(summary, stamp, now)
            except (OSError, ValueError):  # just replaced, or not a summary
                continue


def followed(path: Path, clock: Callable[[], float] = time.monotonic) -> Iterator[FollowedRun]:
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
    spools = folder.spool_path(attempt, 0).parent.glob("rank-*.spool")
    return len(tree.states) > MOST_SPOOLS or len(tree.states) > sum(1 for _ in spools)
