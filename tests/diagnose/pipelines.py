"""Pipelines that never ran (GPipe, Huang et al. 2019): lengths by recursion, records to match."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import Group, RankInfo, Trace
from tests.diagnose.synthetic import BOOT_NS, MS, TYPES


@dataclass(kw_only=True)
class Pipeline:
    """One stage per rank; times in ms. `slower` is added to the forward of each micro-batch."""

    stages: int = 3
    micro_batches: int = 4
    steps: int = 20
    forward_ms: float = 4.0
    backward_ms: float = 8.0
    transfer_ms: float = 0.5
    slower: dict[int, float] = field(default_factory=dict)
    slow_link: dict[tuple[int, int], float] = field(default_factory=dict)  # more, of two stages
    slow_from: dict[tuple[int, int], int] = field(default_factory=dict)  # if later: the first step
    stops_ms: dict[int, float] = field(default_factory=dict)  # of all stages, as a step begins
    posted_early: bool = False  # all receives of a step at its beginning
    on_device: bool = False  # as profiles show: entered when compute had come to it

    def slow(self, stage: int, ms: float) -> Pipeline:
        return replace(self, slower={stage: ms})

    def trace(self) -> Trace:
        return _Run(self).trace()

    def length_ms(self) -> float:
        return max(_Run(self).now.values())


class _Run:
    def __init__(self, world: Pipeline) -> None:
        self.world = world
        self.now = dict.fromkeys(range(world.stages), 0.0)  # ms
        self.rows: list[dict[str, float]] = []
        for step in range(world.steps):
            self.step, self.began = step, dict(self.now)
            self.now = {rank: now + world.stops_ms.get(step, 0.0) for rank, now in self.now.items()}
            self._direction(1, world.forward_ms, Phase.FORWARD)
            self._direction(-1, world.backward_ms, Phase.BACKWARD)
            for rank, now in self.now.items():
                self._record(rank, self.began[rank], now, kind=Kind.STEP)

    def _direction(self, ahead: int, own_ms: float, phase: Phase) -> None:
        order = range(self.world.stages)[::ahead]
        sent = {rank: [] for rank in order}
        for rank in order:
            before = rank - ahead
            for number in range(self.world.micro_batches):
                if before in sent:
                    self._receive(rank, before, sent[before][number], number)
                start = self.now[rank]
                extra = self.world.slower.get(rank, 0.0) if phase is Phase.FORWARD else 0.0
                self.now[rank] += own_ms + extra
                leaf = (self.now[rank] - start) * MS
                self._record(rank, start, self.now[rank], kind=Kind.PHASE, op=phase, group_seq=leaf)
                if self.world.on_device:
                    self._record(rank, start, self.now[rank], kind=Kind.SPAN, name=1, device=0)
                sent[rank].append(self.now[rank])
                if rank + ahead in sent and not self.world.on_device:
                    self._message(rank, Op.SEND, rank + ahead, number, self.now[rank], 0.0)

    def _receive(self, rank: int, peer: int, sent_ms: float, number: int) -> None:
        needed = self.now[rank]
        posted = self.began[rank] if self.world.posted_early else needed
        meets = posted if self.world.on_device else sent_ms  # a kernel sends to a kernel
        link = min(rank, peer), max(rank, peer)
        begun = self.step >= self.world.slow_from.get(link, 0)
        more = self.world.slow_link.get(link, 0.0) * begun
        here = max(meets, sent_ms) + self.world.transfer_ms + more
        done = max(needed, here)
        if self.world.on_device:
            self._message(rank, Op.RECV, peer, number, needed, done - needed, (posted, here))
            self._message(peer, Op.SEND, rank, number, sent_ms, here - sent_ms, (sent_ms, here))
        else:
            self._message(rank, Op.RECV, peer, number, posted, done - posted)
        if done > needed:
            leaf = (done - needed) * MS
            self._record(rank, needed, done, kind=Kind.PHASE, op=Phase.SYNC, group_seq=leaf)
        self.now[rank] = done

    def _message(
        self, rank: int, op: Op, peer: int, number: int, at: float, length: float, *kernel: tuple
    ) -> None:
        self._record(
            rank, at, at + length, *kernel, kind=Kind.POINT_TO_POINT, op=op, peer_or_root=peer,
            group=0, group_seq=self.step * self.world.micro_batches + number, bytes_in=1000,
            flags=Flag.ASYNC,
        )  # fmt: skip

    def _record(
        self, rank: int, enter: float, leave: float, kernel: tuple = (), **fields: float
    ) -> None:
        times = {"enter_ns": BOOT_NS + enter * MS, "exit_ns": BOOT_NS + leave * MS}
        if kernel or fields["kind"] == Kind.SPAN:
            first, last = kernel or (enter, leave)
            times |= {
                "device_enter_ns": BOOT_NS + first * MS,
                "device_exit_ns": BOOT_NS + last * MS,
            }
            fields["flags"] = int(fields.get("flags", 0)) | Flag.ON_DEVICE
        self.rows.append({"rank": rank, "step": self.step, **times, **fields})

    def trace(self) -> Trace:
        default = {"peer_or_root": -1, "device": -1, "group": -1}
        columns = {
            name: np.rint([row.get(name, default.get(name, 0)) for row in self.rows]).astype(
                TYPES[name]
            )
            for name in EVENT_COLUMNS
        }
        stages = self.world.stages
        facts = {"device_clock": "host", "entered": "device"} if self.world.on_device else {}
        ranks = {
            rank: RankInfo(rank, {"rank": rank, "hostname": "node0", "boot_id": "boot"}, facts)
            for rank in range(stages)
        }
        events = Columns(columns).sorted_by("rank", "enter_ns")
        group = Group("all", "pipeline", tuple(range(stages)), "mpi")
        return Trace({"run_id": "synthetic"}, stages, 0, ranks, events, (group,), ("", "compute"))
