"""Jobs as programs that are run by a discrete-event interpreter: the reference for the replay.

Every rank has a list of instructions per step; the interpreter knows nothing of graphs. What a
fault costs is the length of a run less that of the same run without it, with the same noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import Group, RankInfo, Trace
from tests.diagnose.synthetic import BOOT_NS, MS, TYPES


class Do(NamedTuple):
    """An instruction: work, enter (a collective behind the thread), call (one that blocks), wait
    (for all entered), next (wait for the first of those entered), send, receive, shift (send to the
    next rank, receive from the one before, work meanwhile, and wait for both), read (a host waits
    for its device)."""

    what: str
    ns: float = 0.0
    phase: Phase = Phase.FORWARD
    group: int = -1
    op: Op = Op.ALL_REDUCE
    size: int = 25_000_000
    peer: int = -1


@dataclass(kw_only=True)
class Job:
    """`program(rank)` is the same in every step; `scale(step, rank)` multiplies its work."""

    ranks: int
    groups: list[tuple[str, tuple[int, ...]]]
    program: Callable[[int], list[Do]]
    steps: int = 40
    noise: float = 0.0
    spread: float = 0.0
    seed: int = 0
    slow: dict[int, float] = field(default_factory=dict)  # rank: factor on its work
    device: bool = False
    profiled: bool = False  # devices' compute is on record, on their hosts' clock
    meets: bool = False  # who sends waits at once, until the receiver has come and has it
    transfer: Callable[[Do, int], float] = lambda do, step: 0.5 * MS
    fabric_noise: float = 0.02
    issue_ns: Callable[[int, int], float] | None = None  # to issue any work, by step and rank
    ahead: bool = False  # hosts do not wait for their devices at the end of a step
    whole: bool = False  # a device begins work when its host has issued all of it: one kernel

    def run(self) -> _Run:
        return _Run(self)


class _Run:
    """The job from its first step to its last."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.now = np.full(job.ranks, float(BOOT_NS))
        self.rows: list[dict[str, Any]] = []
        self.sequence: dict[Any, int] = {}
        self.free: dict[int, float] = {}  # when each group's queue is empty
        random = np.random.default_rng(job.seed)
        self.spread = 1 + job.spread * random.standard_normal(job.ranks)
        self.random, self.hosts = random, np.random.default_rng(11)
        self.issued: dict[int, float] = {}
        for self.step in range(job.steps):
            self._step()
        self.length_ns = float(np.median(self.now)) - BOOT_NS

    def _step(self) -> None:
        job, start = self.job, self.now.copy()
        if job.issue_ns and not (job.ahead and self.issued):
            self.issued = dict(enumerate(start))
        programs = [job.program(rank) for rank in range(job.ranks)]
        longest = max(map(len, programs))
        draws = 1 + job.noise * self.random.standard_normal((job.ranks, longest))
        moves = 1 + job.fabric_noise * self.random.random((job.ranks, longest))
        position = [0] * job.ranks
        self.entered: dict[Any, dict[int, float]] = {}
        self.called: dict[Any, float] = {}  # when a host issued an operation
        self.over: dict[Any, float] = {}
        self.open: list[list[Any]] = [[] for _ in range(job.ranks)]
        self.count: list[dict[Any, int]] = [{} for _ in range(job.ranks)]
        moved = True
        while moved:
            moved = False
            for rank, program in enumerate(programs):
                while position[rank] < len(program):
                    at = position[rank]
                    if not self._done(rank, at, program[at], draws, moves):
                        break
                    position[rank] += 1
                    moved = True
        assert all(p == len(program) for p, program in zip(position, programs, strict=True))
        for rank in range(job.ranks):
            self._record(rank, kind=Kind.STEP, enter_ns=start[rank], exit_ns=self.now[rank])

    def _done(self, rank: int, at: int, do: Do, draws: Any, moves: Any) -> bool:
        if do.what == "work":
            factor = self.job.slow.get(rank, 1.0) * self.spread[rank] * draws[rank, at]
            length = do.ns * max(factor, 0.0)
            begun, took = self.now[rank], length
            self.now[rank] += length
            if self.job.issue_ns:
                begun, took = self.issued[rank], self.job.issue_ns(self.step, rank)
                self.issued[rank] += took
                ready = self.issued[rank] + 10_000 + length * self.job.whole
                self.now[rank] = max(self.now[rank], ready)
            self._phase(rank, do.phase, begun, begun + took, took)
            return True
        if do.what == "read":
            self.issued[rank] = max(self.issued[rank], self.now[rank])
            return True
        if do.what in ("wait", "next"):
            return self._wait(rank, len(self.open[rank]) if do.what == "wait" else 1)
        if do.what == "shift":
            return self._shift(rank, do, draws[rank, at], moves[:, at])
        key = self._key(rank, at, do)
        members = self._members(rank, do)
        entered = self._enter(rank, key, self.now[rank])
        deciding = [self._sender(rank, do)] if do.what in ("send", "receive") else members
        if (self.job.device or self.job.meets) and do.what in ("send", "receive"):
            deciding = members
        if key not in self.over and all(member in entered for member in deciding):
            begin = max(entered[member] for member in deciding)
            if do.group >= 0 and do.what in ("enter", "call"):
                begin = max(begin, self.free.get(do.group, 0.0))
            first = min(members)
            self.over[key] = (
                begin + self.job.transfer(do, self.step) * moves[first, at % len(moves[0])]
            )
            if do.group >= 0 and do.what in ("enter", "call"):
                self.free[do.group] = self.over[key]
        held = self.job.meets and do.what == "send"
        if do.what in ("enter", "send") and not held:
            self.open[rank].append((key, do, entered[rank]))
            self.count[rank][(do.what, do.group, do.peer)] = (
                self.count[rank].get((do.what, do.group, do.peer), 0) + 1
            )
            return True
        if key not in self.over:
            return False
        left = max(self.now[rank], self.over[key])
        self._communication(rank, key, do, entered[rank], left, blocking=not held)
        if held:
            self._phase(rank, Phase.SYNC, entered[rank], left, left - entered[rank])
        self.now[rank] = left
        self.count[rank][(do.what, do.group, do.peer)] = (
            self.count[rank].get((do.what, do.group, do.peer), 0) + 1
        )
        return True

    def _wait(self, rank: int, count: int) -> bool:
        awaited, later = self.open[rank][:count], self.open[rank][count:]
        if any(key not in self.over for key, _, _ in awaited):
            return False
        enter = self.now[rank]
        for key, do, entered in awaited:
            if do.what != "send":
                self.now[rank] = max(self.now[rank], self.over[key])
            self._communication(
                rank, key, do, entered, max(self.over[key], entered), blocking=False
            )
        self.open[rank] = later
        if self.now[rank] > enter and not self.job.device:
            self._phase(rank, Phase.SYNC, enter, self.now[rank], self.now[rank] - enter)
        return True

    def _shift(self, rank: int, do: Do, draw: float, moves: Any) -> bool:
        after, before = (rank + 1) % self.job.ranks, (rank - 1) % self.job.ranks
        turn = self.count[rank].get("shift", 0)
        ways = {"receive": ("message", before, rank, turn), "send": ("message", rank, after, turn)}
        posted = ("posted", turn) in self.count[rank]
        begun = self.count[rank].setdefault(("posted", turn), self.now[rank])
        if do.ns and not posted:
            length = do.ns * draw * self.job.slow.get(rank, 1.0)
            self._phase(rank, do.phase, begun + 1000, begun + length, length)
            self.now[rank] = begun + length
        for key in ways.values():
            entered = self._enter(rank, key, begun)
            if len(entered) == 2:
                self.over.setdefault(key, max(entered.values()) + 0.5 * MS * moves[key[1]])
        if any(key not in self.over for key in ways.values()):
            return False
        self.count[rank]["shift"] = turn + 1
        both = max(self.now[rank] + 2000, *(self.over[key] for key in ways.values()))
        for what, key in ways.items():
            over, since = both if do.ns else self.over[key], self.now[rank]
            way = Do(what, peer=after if what == "send" else before)
            self._communication(rank, key, way, begun, over, blocking=False)
            if over > since:
                self._phase(rank, Phase.SYNC, since, over, over - since)
                self.now[rank] = over
        return True

    def _enter(self, rank: int, key: Any, now: float) -> dict[int, float]:
        """When members entered an operation, with this rank. Its host has issued the call by then,
        in the order of its program; without a pace of its own it runs ahead of its device."""
        entered = self.entered.setdefault(key, {})
        if rank not in entered:
            entered[rank] = now
            if not self.job.issue_ns:
                ahead = self.hosts.uniform(0.3 * MS, 6 * MS)
                soonest = max(self.issued.get(rank, 0.0) + 5_000, now - ahead)
                self.issued[rank] = min(soonest, now)
            self.called[key, rank] = self.issued[rank]
        return entered

    def _sender(self, rank: int, do: Do) -> int:
        return rank if do.what == "send" else do.peer

    def _members(self, rank: int, do: Do) -> tuple[int, ...]:
        if do.what in ("send", "receive"):
            return tuple(sorted((rank, do.peer)))
        return self.job.groups[do.group][1]

    def _key(self, rank: int, at: int, do: Do) -> Any:
        turn = self.count[rank].get((do.what, do.group, do.peer), 0)
        if do.what in ("send", "receive"):
            source = self._sender(rank, do)
            return ("message", source, rank + do.peer - source, turn)
        both = sum(self.count[rank].get((what, do.group, -1), 0) for what in ("enter", "call"))
        return ("collective", do.group, both)

    # -- records -----------------------------------------------------------------------------------

    def _communication(
        self, rank: int, key: Any, do: Do, enter: float, leave: float, *, blocking: bool
    ) -> None:
        base = self.sequence.setdefault(("base", key, self.step), self._next(key))
        flags = Flag.EXIT_UPPER_BOUND if blocking else Flag.EXIT_UPPER_BOUND | Flag.ASYNC
        fields: dict[str, Any] = {"enter_ns": enter, "exit_ns": leave}
        if self.job.device:
            flags |= Flag.ON_DEVICE | Flag.ASYNC
            profiled = self.job.profiled
            origin = 0 if profiled else BOOT_NS - 10**9 * (1 + rank)
            drift = 1 if profiled else 1 + 1e-6 * rank
            fields = {
                "enter_ns": enter if profiled else self.called[key, rank],
                "exit_ns": leave + 0.1 * MS,
                "device_enter_ns": (enter - origin) * drift,
                "device_exit_ns": (leave - origin) * drift,
                "device": 0,
            }
        message = do.what in ("send", "receive")
        op = Op.SEND if do.what == "send" else Op.RECV if message else do.op
        self._record(
            rank,
            kind=Kind.POINT_TO_POINT if message else Kind.COLLECTIVE,
            op=op,
            group=0 if message else do.group,
            group_seq=base,
            bytes_in=do.size,
            peer_or_root=do.peer,
            flags=int(flags),
            **fields,
        )

    def _next(self, key: Any) -> int:
        name = key[:3] if key[0] == "message" else key[:2]
        self.sequence[name] = self.sequence.get(name, -1) + 1
        return self.sequence[name]

    def _phase(self, rank: int, phase: Phase, enter: float, leave: float, leaf: float) -> None:
        times = {"enter_ns": enter, "exit_ns": leave}
        self._record(rank, kind=Kind.PHASE, op=phase, group_seq=leaf, **times)
        if self.job.profiled:
            times |= {"device_enter_ns": enter, "device_exit_ns": leave}
            self._record(rank, kind=Kind.SPAN, name=1, flags=int(Flag.ON_DEVICE), **times)

    def _record(self, rank: int, **fields: Any) -> None:
        self.rows.append({"step": self.step, "rank": rank, **fields})

    def trace(self) -> Trace:
        default = {"peer_or_root": -1, "device": -1, "group": -1}
        columns = {}
        given = {name for fields in {tuple(row) for row in self.rows} for name in fields}
        for name in EVENT_COLUMNS:
            usual = default.get(name, 0)
            values = np.full(len(self.rows), float(usual))
            if name in given:
                values[:] = [row.get(name, usual) for row in self.rows]
            columns[name] = np.rint(values).astype(TYPES[name])
        columns["enter_ns"] = np.array([round(r["enter_ns"]) for r in self.rows], np.int64)
        columns["exit_ns"] = np.array([round(r["exit_ns"]) for r in self.rows], np.int64)
        events = Columns(columns).sorted_by("rank", "enter_ns")
        facts = {"device_clock": "host", "entered": "device"} if self.job.profiled else {}
        ranks = {
            rank: RankInfo(rank, {"rank": rank, "hostname": "node0", "boot_id": "boot"}, facts)
            for rank in range(self.job.ranks)
        }
        backend = "nccl" if self.job.device else "gloo" if self.job.meets else "mpi"
        groups = tuple(
            Group(f"{name}-{number}", name, members, backend)
            for number, (name, members) in enumerate(self.job.groups)
        )
        return Trace(
            {"run_id": "program"}, self.job.ranks, 0, ranks, events, groups, ("", "compute")
        )


# -- jobs ------------------------------------------------------------------------------------------


def data_parallel(ranks: int = 8, buckets: int = 5, **how: Any) -> Job:
    """Gradients reduced bucket by bucket behind backward."""

    def program(rank: int) -> list[Do]:
        del rank
        backward = [
            one
            for _ in range(buckets)
            for one in (Do("work", 8 * MS, Phase.BACKWARD), Do("enter", group=0))
        ]
        return [
            Do("work", 20 * MS),
            *backward,
            Do("wait"),
            Do("work", 3 * MS, Phase.OPTIMIZER),
        ]

    return Job(ranks=ranks, groups=[("dp", tuple(range(ranks)))], program=program, **how)


def sharded(ranks: int = 8, layers: int = 4, **how: Any) -> Job:
    """Parameters gathered before each layer's forward, gradients scattered behind backward."""

    def program(rank: int) -> list[Do]:
        del rank
        forward = [
            one
            for _ in range(layers)
            for one in (
                Do("call", group=0, op=Op.ALL_GATHER, size=10_000_000),
                Do("work", 6 * MS),
            )
        ]
        backward = [
            one
            for _ in range(layers)
            for one in (
                Do("work", 12 * MS, Phase.BACKWARD),
                Do("enter", group=1, op=Op.REDUCE_SCATTER, size=10_000_000),
            )
        ]
        return [*forward, *backward, Do("wait"), Do("work", 3 * MS, Phase.OPTIMIZER)]

    everybody = tuple(range(ranks))
    return Job(
        ranks=ranks, groups=[("gather", everybody), ("scatter", everybody)], program=program, **how
    )


def prefetched(ranks: int = 8, layers: int = 4, **how: Any) -> Job:
    """As FSDP does on a device: the next layer's parameters are gathered while one computes, the
    last two layers of forward with nothing between them, and nobody reads the loss."""

    def gather() -> Do:
        return Do("enter", group=0, op=Op.ALL_GATHER, size=10_000_000)

    def program(rank: int) -> list[Do]:
        del rank
        made = []
        for ns, scatters in ((6 * MS, False), (12 * MS, True)):
            made.append(gather())
            for layer in range(layers):
                made += [gather()] if layer + 1 < layers else []
                made += [Do("next"), Do("work", ns)]
                made += [Do("enter", group=1, op=Op.REDUCE_SCATTER)] if scatters else []
        return [*made, Do("wait"), Do("work", 3 * MS, Phase.OPTIMIZER)]

    everybody = tuple(range(ranks))
    return Job(
        ranks=ranks, groups=[("gather", everybody), ("scatter", everybody)], program=program,
        device=True, transfer=lambda do, step: 0.3 * MS, **how,
    )  # fmt: skip


def pipeline(
    stages: int = 4, replicas: int = 2, batches: int = 8, *, reads: bool = False,
    forwards_first: bool = False, **how: Any,
) -> Job:  # fmt: skip
    """One forward, one backward, or all forwards first; then gradients of each stage over its
    replicas. `reads`: the last stage reads the loss of each micro-batch."""

    def program(rank: int) -> list[Do]:
        stage, _replica = divmod(rank, replicas)
        before, after = rank - replicas, rank + replicas
        made: list[Do] = []

        def forward() -> None:
            if stage:
                made.append(Do("receive", peer=before, size=4_000_000))
            made.append(Do("work", 4 * MS))
            if stage < stages - 1:
                made.append(Do("send", peer=after, size=4_000_000))
            elif reads:
                made.append(Do("read"))

        def backward() -> None:
            if stage < stages - 1:
                made.append(Do("receive", peer=after, size=4_000_000))
            made.append(Do("work", 8 * MS, Phase.BACKWARD))
            if stage:
                made.append(Do("send", peer=before, size=4_000_000))

        warm = batches if forwards_first else min(stages - 1 - stage, batches)
        for _ in range(warm):
            forward()
        for _ in range(batches - warm):
            forward()
            backward()
        for _ in range(warm):
            backward()
        if replicas > 1:
            made.append(Do("call", group=stage))
        return [*made, Do("wait"), Do("work", 2 * MS, Phase.OPTIMIZER)]

    groups = [
        (f"dp{stage}", tuple(range(stage * replicas, (stage + 1) * replicas)))
        for stage in range(stages)
    ]
    return Job(ranks=stages * replicas, groups=groups, program=program, **how)


def handed_over(**how: Any) -> Job:
    """Two stages that wait for each message they send, as `torch.distributed.send` does."""

    def program(rank: int) -> list[Do]:
        batch = [
            [Do("work", 5 * MS), Do("send", peer=1), Do("work", 20 * MS), Do("receive", peer=1)],
            [Do("receive", peer=0), Do("work", 4 * MS), Do("send", peer=0), Do("work", 15 * MS)],
        ][rank]
        return [*batch * 4, Do("work", 2 * MS, Phase.OPTIMIZER)]

    return Job(ranks=2, groups=[("world", (0, 1))], program=program, meets=True, **how)


def ring(ranks: int = 6, **how: Any) -> Job:
    """An all-reduce written with messages: each sends to the next and receives from the one before,
    twice around, and waits for both each time."""

    def program(rank: int) -> list[Do]:
        work = [Do("work", 20 * MS), Do("work", 40 * MS, Phase.BACKWARD)]
        around = [Do("shift")] * (2 * (ranks - 1))
        return [*work, *around, Do("work", 4 * MS, Phase.OPTIMIZER)]

    return Job(ranks=ranks, groups=[("world", tuple(range(ranks)))], program=program, **how)


def ring_attention(ranks: int = 6, **how: Any) -> Job:
    """Keys and values go around a ring while each rank attends to those that came before; it waits
    for both of its messages at once, so that neither end of a hidden one is seen."""

    def program(rank: int) -> list[Do]:
        del rank
        around = [Do("shift", 8 * MS), Do("shift", 8 * MS), Do("work", 8 * MS)]
        return [Do("work", 5 * MS), *around, *around, Do("call", group=0)]

    return Job(ranks=ranks, groups=[("world", tuple(range(ranks)))], program=program, **how)


def staged(
    took_ns: Callable[[set[int], int], float], *, replicas: int = 1, **how: Any
) -> tuple[Trace, float]:
    """A pipeline of a node for each stage whose messages between two ranks take
    `took_ns(ranks, step)`, and how long it ran."""
    own, moves = pipeline(replicas=replicas), ("send", "receive")

    def program(rank: int) -> list[Do]:
        ends = ((do, rank * own.ranks + do.peer) for do in own.program(rank))
        return [do._replace(ns=both) if do.what in moves else do for do, both in ends]

    def transfer(do: Do, step: int) -> float:
        return took_ns({*divmod(int(do.ns), own.ranks)}, step) if do.what in moves else MS / 2

    job = replace(own, noise=0.02, program=program, transfer=transfer, **how)
    run = job.run()
    trace = run.trace()
    for rank, info in trace.ranks.items():
        info.identity["hostname"] = f"node{rank // replicas}"
    return trace, run.length_ns
