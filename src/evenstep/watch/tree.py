"""A run followed through its nodes: one small file each, put together to the picture of the job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from evenstep.trace.spool.folder import RunFolder
from evenstep.watch.node import FOLDER, NodeNews, decoded
from evenstep.watch.run import FollowedRun, LiveRun, orders
from evenstep.watch.window import RankWindow, StepTable, rank_window, steps_together

UNHEARD_S = 10.0  # without a word for so long, a node's aggregator is taken to have ended
MOST_SPOOLS = 256  # of an attempt; where nodes tell of more, their word is taken


class _Heard(NamedTuple):
    """The latest of a node."""

    news: NodeNews
    stamp: tuple[int, int]  # of the file: when it was written, and which it is
    since_s: float  # when it was first seen, by the watcher's clock


@dataclass(slots=True)
class TreeRun(FollowedRun):
    """The run whose nodes write into a folder."""

    _nodes: dict[str, _Heard] = field(default_factory=dict)  # by the name of the file
    _current: list[NodeNews] = field(default_factory=list)

    def refresh(self) -> None:
        """Read what nodes have written since."""
        now = self.clock()
        self._read(now)
        every = [heard.news for heard in self._nodes.values()]
        latest = max((news.head.attempt for news in every), default=0)
        self._current = [news for news in every if news.head.attempt == latest]
        self.attempt = latest if self._current else None
        self.attempts = max((news.head.attempts for news in self._current), default=0)
        self.world = max((news.head.world for news in self._current), default=0)
        states = {state.rank: state for news in self._current for state in news.states}
        self.states = [states[rank] for rank in sorted(states)]
        self.unheard = {
            heard.news.head.node: now - heard.since_s
            for heard in self._nodes.values()
            if heard.news.head.attempt == latest
            and now - heard.since_s > UNHEARD_S
            and not all(state.closed for state in heard.news.states)
        }
        self.orders = orders(self.path)

    def window(self) -> RankWindow:
        """The latest steps of each rank."""
        windows = [news.window for news in self._current if len(news.window.ranks)]
        return RankWindow.together(windows) if windows else rank_window({})

    def step_table(self) -> StepTable:
        """The latest steps."""
        return steps_together([news.steps for news in self._current])

    def _read(self, now: float) -> None:
        try:
            entries = [entry for entry in os.scandir(self.path / FOLDER) if _is_news(entry.name)]
        except OSError:
            entries = []
        for gone in self._nodes.keys() - {entry.name for entry in entries}:
            del self._nodes[gone]
        for entry in entries:
            try:
                found = entry.stat()
                stamp = (found.st_mtime_ns, found.st_ino)
                known = self._nodes.get(entry.name)
                if known is None or known.stamp != stamp:
                    news = decoded(Path(entry.path).read_bytes())
                    self._nodes[entry.name] = _Heard(news, stamp, now)
            except (OSError, ValueError):  # it has just been replaced, or is none of ours
                continue


@dataclass(slots=True)
class Follower:
    """The way to a run: its spools where they can be reached, its nodes' word where not."""

    path: Path
    _direct: LiveRun
    _tree: TreeRun

    @classmethod
    def of(cls, path: Path, clock: Callable[[], float] = time.monotonic) -> Follower:
        """A follower that has not looked yet."""
        return cls(path, LiveRun(path, clock), TreeRun(path, clock))

    def refresh(self) -> FollowedRun:
        """Look again; the run as it can be seen."""
        if (self.path / FOLDER).is_dir():
            self._tree.refresh()
            if self._tree.states and self._tells_more():
                return self._tree
        self._direct.refresh()
        return self._direct

    def _tells_more(self) -> bool:
        """Whether nodes tell of more ranks than there are spools here, or of very many."""
        attempt = self._tree.attempt or 0
        if any(number > attempt for number in RunFolder(self.path).attempts()):
            return False
        told = len(self._tree.states)
        if told > MOST_SPOOLS:
            return True
        folder = RunFolder(self.path).spool_path(attempt, 0).parent
        return told > sum(1 for _ in folder.glob("rank-*.spool"))


def _is_news(name: str) -> bool:
    return name.startswith("node-") and name.endswith(".bin")
