"""Traces of jobs that never ran, whose losses are known by arithmetic.

Every rank runs the same program step after step; a collective ends when its last member has entered
and the transfer is over. Nothing else happens, so that what a disturbance costs is the length of
the run less its length without the disturbance, with the same noise: `World.injected_share`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import RECORD_FIELDS, Flag, Kind, Op, Phase
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import Group, RankInfo, Trace

MS = 1_000_000
BOOT_NS = 7_000_000 * MS  # the monotonic clock does not begin at zero
ROOTED = (Op.BROADCAST, Op.REDUCE, Op.GATHER, Op.SCATTER)
LENGTH_NS = {
    Phase.INPUT: 0.2 * MS,
    Phase.FORWARD: 20 * MS,
    Phase.BACKWARD: 40 * MS,
    Phase.OPTIMIZER: 4 * MS,
}
TYPES = {"rank": "<i4", **dict(RECORD_FIELDS), "group": "<i4", "name": "<i4"}


@dataclass(kw_only=True)
class Delay:
    """Extra time in a phase: `ns` is (steps, ranks). In backward it comes before that bucket."""

    phase: Phase
    ns: Any
    bucket: int = 0
    collector: bool = False  # a recorded pause of the garbage collector, which holds callbacks up
    called: bool = False  # by the script: gc.collect()
    computing: bool = False  # else asleep: no CPU time
    without_core: bool = False  # ready, but another thread has the core


@dataclass(frozen=True, kw_only=True)
class Move:
    """Data about to move: what a fabric is asked."""

    op: Op
    members: tuple[int, ...]
    size_bytes: int
    at_ns: float  # since the start of the run
    step: int


@dataclass(kw_only=True)
class World:
    """A job. `style` is overlapped (DDP), blocking, gathered (FSDP) or grid (dp × tp)."""

    ranks: int = 4
    steps: int = 60
    pace: float = 1.0  # phases take that many times as long
    buckets: int = 4
    style: str = "overlapped"
    tensor_parallel: int = 1
    ranks_per_node: int = 64
    noise: float = 0.0  # standard deviation of every phase, as a share of it
    seed: int = 0
    transfer_ns: float = 0.5 * MS  # of one collective
    exit_lag_ns: float = 0.0  # mean of what a callback needs to see an end
    input_ns: float = LENGTH_NS[Phase.INPUT]
    delays: list[Delay] = field(default_factory=list)
    clocks: dict[int, tuple[float, float]] = field(default_factory=dict)  # node: offset, drift
    phases: bool = True  # whether phases are recorded
    collectives: bool = True
    on_device: bool = False
    samples: int = 0
    fabric: Callable[[Move], float] | None = None  # how long data moves; None: `transfer_ns`
    bucket_bytes: tuple[int, ...] = (25_000_000,)  # in turn
    after_backward: tuple[tuple[Op, int], ...] = ()  # blocking collectives of all ranks, and sizes
    nodes: tuple[int, ...] | None = None  # of every rank; None: packed

    def node(self, rank: int) -> int:
        if self.nodes:
            return self.nodes[rank]
        hosts_share = self.ranks // 2 if self.fabric else self.ranks  # one host has no fabric
        return rank // max(min(self.ranks_per_node, hosts_share), 1)

    def partitions(self) -> dict[str, list[list[int]]]:
        """Groups by what they are for; those of a name are disjoint and cover all ranks."""
        width = self.tensor_parallel
        everybody = list(range(self.ranks))
        return {
            "dp": [everybody[column::width] for column in range(width)],
            "tp": [everybody[row : row + width] for row in range(0, self.ranks, width)],
        }

    def without_delays(self) -> World:
        return replace(self, delays=[])

    def length_ns(self) -> float:
        """Time of all steps."""
        return self._lengths()[0]

    def step_ns(self) -> Any:
        """Length of each step: the median over ranks."""
        return np.array(self._lengths()[1])

    def injected_share(self) -> float:
        """What the delays cost, as a share of the time: the counterfactual, replayed exactly."""
        return self.lost_against(self.without_delays())

    def lost_against(self, other: World) -> float:
        """What this world takes longer than another, as a share of its time."""
        return 1 - other.length_ns() / self.length_ns()

    def trace(self) -> Trace:
        return _Run(self).trace() if self.fabric else _run(pickle.dumps(self)).trace()

    def _lengths(self) -> tuple[float, list[float]]:
        """Of the run and of its steps."""
        return _Run(self).lengths() if self.fabric else _lengths(pickle.dumps(self))

    def everywhere(self) -> Any:
        """A table (steps, ranks) of zeros to put delays in."""
        return np.zeros((self.steps, self.ranks))

    def delayed(self, phase: Phase, ns: Any, **how: Any) -> World:
        """The same world with one more delay."""
        table = np.broadcast_to(np.asarray(ns, float), (self.steps, self.ranks))
        return replace(self, delays=[*self.delays, Delay(phase=phase, ns=table, **how)])

    def slow(self, rank: int | list[int], phase: Phase, ns: float, **how: Any) -> World:
        """The same world with some ranks that much longer in a phase of every step."""
        table = self.everywhere()
        table[:, rank] = ns
        return self.delayed(phase, table, **how)


# A world is asked for its trace, its length and that of the world without its delays, of which many
# tests have the same. The key is what it is now: it may be changed. A fabric may be any function.


@lru_cache(maxsize=2)
def _run(world: bytes) -> _Run:
    return _Run(pickle.loads(world))


@lru_cache(maxsize=64)
def _lengths(world: bytes) -> tuple[float, list[float]]:
    return _run(world).lengths()


class _Partition:
    """Disjoint groups that cover all ranks; `number` is that of a rank's group among all."""

    def __init__(self, members: list[list[int]], numbers: dict[tuple[int, ...], int]) -> None:
        self.members = members
        sizes = [len(group) for group in members]
        self._order = np.concatenate(members)
        self._starts = np.cumsum([0, *sizes[:-1]])
        self._place = np.empty(len(self._order), int)
        self._place[self._order] = np.repeat(np.arange(len(members)), sizes)
        self.number = np.array([numbers[tuple(group)] for group in members])[self._place]
        self.first = np.array([group[0] for group in members])[self._place]

    def last(self, entered: Any) -> Any:
        """Per rank, when the last member of its group has entered."""
        return np.maximum.reduceat(entered[self._order], self._starts)[self._place]


class _Run:
    """The clocks of all ranks while the program runs, and what they record."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = np.random.default_rng(world.seed)
        self.lags = np.random.default_rng(world.seed + 1)
        self.now = np.full(world.ranks, float(BOOT_NS))
        self.rows: list[dict[str, Any]] = []
        self.steps_ns: list[float] = []
        self.sequence = {"dp": 0, "tp": 0}
        partitions = world.partitions()
        self.groups = [
            Group(f"{name}-{index}", f"{name}{index}", tuple(members), "gloo")
            for name, members_of in partitions.items()
            for index, members in enumerate(members_of)
        ]
        numbers = {group.ranks: number for number, group in enumerate(self.groups)}
        self.partitions = {name: _Partition(made, numbers) for name, made in partitions.items()}
        for self.step in range(world.steps):
            self._step()
        self.length_ns = float(np.median(self.now)) - BOOT_NS

    def lengths(self) -> tuple[float, list[float]]:
        return self.length_ns, self.steps_ns

    # -- the program -------------------------------------------------------------------------------

    def _step(self) -> None:
        world, start = self.world, self.now.copy()
        self.asleep = np.zeros(world.ranks)
        self.blocked = np.zeros(world.ranks)
        self.ready = np.zeros(world.ranks)  # for a core that others have
        self.pause = (np.zeros(world.ranks), np.zeros(world.ranks))
        spread = 1 + world.noise * self.random.standard_normal((len(LENGTH_NS), world.ranks))
        lengths = {**LENGTH_NS, Phase.INPUT: world.input_ns}
        self.length = {
            phase: np.maximum(world.pace * lengths[phase] * spread[i], 0)
            for i, phase in enumerate(LENGTH_NS)
        }
        self._phase(Phase.CHECKPOINT)
        self._phase(Phase.EVALUATION)
        self._delay(Phase.OTHER)
        self._phase(Phase.INPUT)
        self._forward()
        self._backward()
        self._phase(Phase.OPTIMIZER)
        self.steps_ns.append(float(np.median(self.now - start)))
        self._record(
            kind=Kind.STEP, enter_ns=start, exit_ns=self.now, peer_or_root=self.ready // (4 * MS),
            group_seq=self.now - start - self.asleep - self.blocked, parent=self.ready // 1000,
            payload=world.samples,
        )  # fmt: skip

    def _phase(self, phase: Phase) -> None:
        enter = self.now.copy()
        self.now = self.now + self.length.get(phase, 0.0)
        self._delay(phase)
        self._record_phase(phase, enter, self.now - enter)

    def _forward(self) -> None:
        gathered, grid = self.world.style == "gathered", self.world.style == "grid"
        enter, blocked = self.now.copy(), self.blocked.copy()
        self._delay(Phase.FORWARD)
        for _ in range(4):
            if gathered:
                self._together("dp", Op.ALL_GATHER, waited=True)
            self.now = self.now + self.length[Phase.FORWARD] / 4
            if grid:
                self._together("tp", Op.ALL_REDUCE)
        self._record_phase(Phase.FORWARD, enter, self.now - enter - (self.blocked - blocked))

    def _backward(self) -> None:
        world = self.world
        enter, blocked = self.now.copy(), self.blocked.copy()
        issued = []
        for bucket in range(world.buckets):
            self._delay(Phase.BACKWARD, bucket)
            self.now = self.now + self.length[Phase.BACKWARD] / world.buckets
            if world.style == "blocking":
                self._together("dp", Op.ALL_REDUCE, size=self._bucket(bucket))
            else:
                issued.append(self.now.copy())
        if issued and world.collectives:
            self._overlapped(issued)
        for op, size in world.after_backward:
            self._together("dp", op, size=size)
        self._record_phase(Phase.BACKWARD, enter, self.now - enter - (self.blocked - blocked))

    def _delay(self, phase: Phase, bucket: int = 0) -> None:
        for delay in self.world.delays:
            if delay.phase is not phase or delay.bucket != bucket:
                continue
            enter, length = self.now, delay.ns[self.step]
            self.now = self.now + length
            self.asleep += 0 if delay.computing or delay.collector else length
            self.ready += length if delay.without_core else 0
            if delay.collector:
                self.pause = (enter, self.now)
                self._record(
                    where=length > 0, kind=Kind.PAUSE, op=2, enter_ns=enter, exit_ns=self.now,
                    flags=int(Flag.CALLED) * delay.called,
                )  # fmt: skip

    # -- collectives -------------------------------------------------------------------------------

    def _bucket(self, bucket: int) -> int:
        return self.world.bucket_bytes[bucket % len(self.world.bucket_bytes)]

    def _moved(self, name: str, op: Op, begins: Any, size: int) -> Any:
        """Per rank, when what its group has begun to move has arrived."""
        if self.world.fabric is None:
            return begins + self.world.transfer_ns
        done = np.zeros(self.world.ranks)
        for members in self.partitions[name].members:
            at = begins[members].max()
            move = Move(
                op=op, members=tuple(members), size_bytes=size, at_ns=at - BOOT_NS, step=self.step
            )
            done[members] = at + self.world.fabric(move)
        return done

    def _together(self, name: str, op: Op, *, waited: bool = False, size: int = 25_000_000) -> None:
        """A collective that blocks the caller: itself, or in a wait right after it."""
        if not self.world.collectives:
            return
        enter = self.now
        self.now = self._moved(name, op, self.partitions[name].last(enter), size)
        self.blocked += self.now - enter
        flags = Flag.ASYNC if waited else Flag(0)
        self._record_collective(name, op, enter, self.now, flags, size)
        if waited:
            self._record_phase(Phase.SYNC, enter, self.now - enter)

    def _overlapped(self, issued: list[Any]) -> None:
        """Buckets in flight behind backward, one after the other; then the wait for the last."""
        reducing = Op.REDUCE_SCATTER if self.world.style == "gathered" else Op.ALL_REDUCE
        done = np.zeros(self.world.ranks)
        for bucket, enter in enumerate(issued):
            size = self._bucket(bucket)
            begins = np.maximum(self.partitions["dp"].last(enter), done)
            done = self._moved("dp", reducing, begins, size)
            self._record_collective("dp", reducing, enter, done, Flag.ASYNC, size)
        self.blocked += done - self.now
        self._record_phase(Phase.SYNC, self.now, done - self.now)
        self.now = done

    def _record_collective(
        self, name: str, op: Op, enter: Any, done: Any, flags: Flag, size: int
    ) -> None:
        world, (begins, ends) = self.world, self.pause
        seen = done + self.lags.exponential(world.exit_lag_ns, world.ranks)
        held_up = (seen > begins) & (seen < ends)
        partition = self.partitions[name]
        fields: dict[str, Any] = {}
        issued_ns = 0
        if world.on_device:  # the host only issues; the device's own clock begins elsewhere
            flags |= Flag.ON_DEVICE | Flag.ASYNC
            issued_ns = self.lags.integers(MS, 3 * MS, world.ranks)  # ahead of it
            origin = BOOT_NS - 10**9 * (1 + np.arange(world.ranks))
            fields = {"device_enter_ns": enter - origin, "device_exit_ns": done - origin}
        self._record(
            kind=Kind.COLLECTIVE, op=op, group=partition.number, group_seq=self.sequence[name],
            bytes_in=size, peer_or_root=partition.first if op in ROOTED else -1,
            enter_ns=enter - issued_ns,
            flags=int(flags | Flag.EXIT_UPPER_BOUND), exit_ns=np.where(held_up, ends, seen),
            **fields,
        )  # fmt: skip
        self.sequence[name] += 1

    # -- records -----------------------------------------------------------------------------------

    def _record_phase(self, phase: Phase, enter: Any, leaf: Any) -> None:
        if self.world.phases and (phase is Phase.SYNC or np.any(leaf > 0)):
            self._record(
                where=leaf > 0, kind=Kind.PHASE, op=phase, group_seq=leaf, enter_ns=enter,
                exit_ns=self.now if phase is not Phase.SYNC else enter + leaf,
            )  # fmt: skip

    def _record(self, where: Any = True, **fields: Any) -> None:
        self.rows.append({"step": self.step, "where": where, **fields})

    def _column(self, name: str) -> Any:
        default = {"peer_or_root": -1, "device": -1, "group": -1}.get(name, 0)
        values = [row.get(name, default) for row in self.rows]
        table = np.empty((len(values), self.world.ranks))
        varies = np.array([isinstance(value, np.ndarray) for value in values])
        for row in varies.nonzero()[0]:
            table[row] = values[row]
        same = [float(value) for value, each in zip(values, varies, strict=True) if not each]
        table[~varies] = np.array(same)[:, None]
        return table

    def trace(self) -> Trace:
        world = self.world
        everywhere = np.arange(world.ranks)
        nodes = [world.node(rank) for rank in range(world.ranks)]
        clocks = np.array([world.clocks.get(node, (0.0, 0.0)) for node in nodes])
        columns = {}
        for name in EVENT_COLUMNS:
            values = self._column(name)
            if name == "rank":
                values = np.broadcast_to(everywhere, values.shape)
            if name in ("enter_ns", "exit_ns"):
                values = values + clocks[:, 0] + (values - BOOT_NS) * clocks[:, 1]
            columns[name] = np.rint(values).astype(TYPES[name]).reshape(-1)
        present = self._column("where").astype(bool).reshape(-1)
        events = Columns(columns).select(present).sorted_by("rank", "enter_ns")
        ranks = {
            rank: RankInfo(
                rank,
                {"rank": rank, "hostname": f"node{node}", "boot_id": f"boot {node}"},
            )
            for rank, node in enumerate(nodes)
        }
        return Trace({"run_id": "synthetic"}, world.ranks, 0, ranks, events, tuple(self.groups))


# -- what a trace may have besides -----------------------------------------------------------------


def with_rows(trace: Trace, **columns: Any) -> Trace:
    """The trace with more records; columns not named are empty."""
    length = max(np.size(values) for values in columns.values())
    empty = {"peer_or_root": -1, "device": -1, "group": -1}
    added = {
        name: np.broadcast_to(np.asarray(columns.get(name, empty.get(name, 0))), length)
        for name in EVENT_COLUMNS
    }
    table = Columns({name: added[name].astype(TYPES[name]) for name in EVENT_COLUMNS})
    events = Columns.concatenate([trace.events, table]).sorted_by("rank", "enter_ns")
    return replace(trace, events=events)


def with_scheduler(trace: Trace, *, running: float, cores: float, children: float = 0) -> Trace:
    """Samples of what the scheduler says on every rank, whose children need so many cores."""
    names = ("", "cpu.running_tasks", "cpu.allowed_cores", "cpu.children_ns")
    first, last = trace.events.enter_ns.min(), trace.events.exit_ns.max()
    times = np.linspace(first, last, 10).astype(np.int64)
    trace = replace(trace, names=names)
    for rank in trace.ranks:
        for number, value in enumerate((running, cores, children * (times - first)), 1):
            bits = np.full(10, value, np.float64).view(np.uint64)
            trace = with_rows(
                trace, kind=int(Kind.SAMPLE), rank=rank, name=number, enter_ns=times, bytes_in=bits
            )
    return trace


def with_missing(trace: Trace, *missing: int) -> Trace:
    """The trace without what these ranks have recorded."""
    ranks = {rank: info for rank, info in trace.ranks.items() if rank not in missing}
    events = trace.events.select(~np.isin(trace.events["rank"], missing))
    return replace(trace, ranks=ranks, events=events)
