"""Runs of three ranks written down record by record: times in ms after the start."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.diagnose.graph.build import graph
from evenstep.diagnose.graph.structure import Graph
from evenstep.trace.clocks.clocks import align
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import Group, RankInfo, Trace
from tests.diagnose.synthetic import BOOT_NS, MS, TYPES


def at(ms: float) -> int:
    """A time in ns."""
    return BOOT_NS + round(ms * MS)


def after(ns: Any) -> Any:
    """Times in ms after the start."""
    return ((np.asarray(ns) - BOOT_NS) / MS).round(6).tolist()


class Run:
    """What ranks of one host recorded, in the order in which it is written down."""

    def __init__(self, ranks: int = 3, *groups: tuple[int, ...], backend: str = "mpi") -> None:
        self.ranks, self.groups = ranks, groups or (tuple(range(ranks)),)
        self.backend = backend
        self.rows: list[dict[str, Any]] = []

    def record(self, rank: int, kind: Kind, step: int, enter: float, leave: float, **more: Any):
        """One record; `flags` and the rest as in the layout."""
        row = {"rank": rank, "kind": int(kind), "step": step, "seq": len(self.rows) + 1}
        times = {"enter_ns": at(enter), "exit_ns": at(leave)}
        self.rows.append(row | times | {"group": -1, "peer_or_root": -1, "device": -1} | more)

    def step(self, rank: int, step: int, begin: float, end: float) -> None:
        self.record(rank, Kind.STEP, step, begin, end)

    def wait(self, rank: int, step: int, begin: float, end: float, **more: Any) -> None:
        self.record(rank, Kind.PHASE, step, begin, end, op=int(Phase.SYNC), **more)

    def collective(
        self, rank: int, step: int, number: int, enter: float, leave: float,
        op: Op = Op.ALL_REDUCE, flags: Flag = Flag.ASYNC, group: int = 0, **more: Any,
    ) -> None:  # fmt: skip
        more = {"bytes_in": 1000} | more
        self.record(
            rank, Kind.COLLECTIVE, step, enter, leave, op=int(op), flags=int(flags), group=group,
            group_seq=number, **more,
        )  # fmt: skip

    def message(
        self, rank: int, step: int, op: Op, peer: int, number: int, enter: float, leave: float,
        flags: Flag = Flag.ASYNC, **more: Any,
    ) -> None:  # fmt: skip
        more = {"group": 0} | more
        self.record(
            rank, Kind.POINT_TO_POINT, step, enter, leave, op=int(op), flags=int(flags),
            peer_or_root=peer, group_seq=number, bytes_in=1000, **more,
        )  # fmt: skip

    def trace(self) -> Trace:
        names = {name: [row.get(name, 0) for row in self.rows] for name in EVENT_COLUMNS}
        events = Columns({name: np.array(names[name], TYPES[name]) for name in EVENT_COLUMNS})
        who = {
            rank: RankInfo(rank, {"rank": rank, "hostname": "node0", "boot_id": "boot"})
            for rank in range(self.ranks)
        }
        groups = tuple(
            Group(f"g{n}", f"g{n}", one, self.backend) for n, one in enumerate(self.groups)
        )
        events = events.sorted_by("rank", "enter_ns")
        return Trace({"run_id": "by hand"}, self.ranks, 0, who, events, groups)

    def graph(self, first: int = 0) -> Graph:
        """The graph of the steps from the first one on."""
        trace = self.trace()
        steps = np.unique(trace.events.step[trace.events.step >= first]).astype(np.int64)
        return graph(trace, align(trace), steps, np.arange(self.ranks))


def streams(work_ms: Any, took_ms: float = 4.0) -> Run:
    """A job whose hosts issue all at once and whose devices, on clocks of their own, do this work
    (steps, ranks) before the all-reduce of each step, which they wait for."""
    work_ms = np.asarray(work_ms)
    run, over = Run(work_ms.shape[1]), 10.0
    for step, works in enumerate(work_ms):
        ended = over + works.max() + took_ms
        for rank, work in enumerate(works.tolist()):
            run.step(rank, step, 0.01 * step, 0.01 * step + 0.009)
            moments = (round((ms + 1000 * (rank + 1)) * MS) for ms in (over + work, ended))
            named = zip(("device_enter_ns", "device_exit_ns"), moments, strict=True)
            run.collective(
                rank, step, step, 0.01 * step + 0.005, ended,
                flags=Flag.ASYNC | Flag.ON_DEVICE, device=0, **dict(named),
            )  # fmt: skip
        over = ended
    return run
