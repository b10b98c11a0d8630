"""One training job: its ranks, its noise, its faults, and the clocks that will have seen it.

The same seed gives the same noise whatever the faults are and however often the job is run: every
kind of draw has a generator of its own, named by a label, never by the order of calls.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.independent.faults import Fault, Piece
from benchmarks.independent.machine import ISSUE_S, STEP, Communicator, Machine
from benchmarks.independent.spool import Cluster


@dataclass(frozen=True)
class Spec:
    """What a job is, without its faults."""

    seed: int
    world: int
    per_node: int
    steps: int
    on_device: bool = False
    kernels: bool = False  # see `Machine`
    step_s: float = 0.1  # compute of a step
    noise_cv: float = 0.03  # of one piece of work
    coupled: bool = False  # all pieces of a rank's step share their noise
    family: str = "gamma"
    spread: float = 0.01  # standard deviation of the ranks' constant differences
    transfer_cv: float = 0.03
    alpha_s: float = 30e-6
    net_gbyte: float = 10.0  # 10^9 bytes a second
    node_gbyte: float = 80.0
    blocking: bool = False
    sync_every: int = 1  # steps between moments when the host waits for its device
    ahead: int = 2  # steps that a host may otherwise be ahead of its device
    transfer_share: float = 0.3  # bytes are chosen so that transfers take so much of a step
    shape: dict = field(default_factory=dict)  # what the stack wants to know


@dataclass(frozen=True)
class World:
    """What is changed of the job: its faults, and idealisations that tell what structure costs."""

    faults: tuple[Fault, ...] = ()
    even_noise: bool = False  # every rank takes its mean in every step
    even_spread: bool = False  # every rank's mean over the run is that of all
    like_peers: tuple[int, ...] = ()  # the mean over the run of these is that of the others
    no_transfer: bool = False
    no_latency: bool = False
    even_transfer: bool = False


class Job:
    """One run of a job: a machine, and everything that decides how long things take."""

    def __init__(self, spec: Spec, world: World, *, record: bool) -> None:
        self.spec = spec
        self.world = world
        self.machine = Machine(spec.world, spec.on_device, [] if record else None, spec.kernels)
        self.comms: list[Communicator] = []
        self.node = np.arange(spec.world) // spec.per_node
        self._cache: dict[str, np.ndarray] = {}
        self._device_ends: list[np.ndarray] = []
        spread = self.rng("spread").normal(0.0, spec.spread, spec.world)
        self.level = 1.0 + np.clip(spread, -2 * spec.spread, 2 * spec.spread)
        self.levelled = np.full(spec.world, world.even_spread)
        self.levelled[list(world.like_peers)] = True
        others = ~np.isin(np.arange(spec.world), world.like_peers)
        if others.any():
            self.level = np.where(self.levelled, self.level[others].mean(), self.level)
        self.samples: list[dict] = []
        self.names: list[str] = []
        self.ranks = np.arange(spec.world)
        self.waiting_us = np.zeros(spec.world)  # for a core, in this step
        self.step_ends: list[np.ndarray] = []

    # -- draws -----------------------------------------------------------------------------------

    def rng(self, label: str) -> np.random.Generator:
        """The generator of this label, at its beginning."""
        return np.random.default_rng([self.spec.seed, zlib.crc32(label.encode())])

    def factors(self, label: str, cv: float, columns: int) -> np.ndarray:
        """Positive random factors of mean 1, (steps, columns), the same whenever asked for."""
        if label not in self._cache:
            rng, shape = self.rng(label), (self.spec.steps, columns)
            if cv <= 0:
                drawn = np.ones(shape)
            elif self.spec.family == "gamma":
                drawn = rng.gamma(1 / cv**2, cv**2, shape)
            else:
                sigma = np.sqrt(np.log1p(cv**2))
                drawn = rng.lognormal(-(sigma**2) / 2, sigma, shape)
            self._cache[label] = drawn
        return self._cache[label]

    @property
    def step(self) -> int:
        """Number of the step that runs."""
        return self.machine.step

    def _noise(self, label: str) -> np.ndarray:
        if self.world.even_noise:
            return np.ones(self.spec.world)
        name = "work" if self.spec.coupled else f"work {label}"
        drawn = self.factors(name, self.spec.noise_cv, self.spec.world)
        if self.levelled.any():
            return drawn[self.step] / np.where(self.levelled, drawn.mean(axis=0), 1.0)
        return drawn[self.step]

    # -- what is done ----------------------------------------------------------------------------

    def communicator(self, name: str, members: object) -> Communicator:
        """A new communicator over these groups of ranks (groups, size)."""
        rows = np.asarray(members)
        inside = (self.node[rows] == self.node[rows][:, :1]).all()
        comm = Communicator(len(self.comms), name, rows, link="node" if inside else "net")
        self.comms.append(comm)
        return comm

    def compute(
        self,
        label: str,
        phase: int,
        seconds: float,
        ranks: np.ndarray | None = None,
        *,
        kernels: int = 20,
        on_host: bool = False,
    ) -> None:
        """A piece of work of these ranks, with noise, levels and faults."""
        who = self.ranks if ranks is None else ranks
        own = seconds * self._noise(label)[who] * self.level[who]
        device = self.spec.on_device and not on_host
        piece = Piece(
            label, phase, who, own, np.full(len(who), kernels * ISSUE_S) if device else None
        )
        for fault in self.world.faults:
            fault.work(self, piece)
        if piece.host is None:
            self.machine.work(who, piece.own, None)
        else:
            self.machine.work(who, piece.host, piece.own)

    def transfer(self, comm: Communicator, kind: str, nbytes: int, label: str) -> np.ndarray:
        """Seconds that the data of one collective needs in each group, (groups,)."""
        size, spec = comm.size, self.spec
        rate = (spec.node_gbyte if comm.link == "node" else spec.net_gbyte) * 1e9
        moved = {"all_reduce": 2 * (size - 1) / size, "message": 1.0}.get(kind, (size - 1) / size)
        hops = max(1.0, np.log2(size)) * (2 if kind == "all_reduce" else 1)
        latency = 0.0 if self.world.no_latency else spec.alpha_s * hops
        base = np.full(len(comm.members), latency + moved * nbytes / rate)
        if not self.world.even_transfer:
            name = f"transfer {comm.name} {label}"
            base = base * self.factors(name, spec.transfer_cv, len(base))[self.step]
        if self.world.no_transfer:
            base = base * 0.0
        for fault in self.world.faults:
            base = fault.transfer(self, comm, kind, label, base)
        return base

    def late(self, label: str) -> np.ndarray:
        """How long after a collective's end each rank leaves it."""
        scale = 2e-6 if self.spec.on_device else 8e-6
        return self._late(f"late {label}", scale)

    def seen(self, label: str) -> np.ndarray:
        """How late a callback that needs the interpreter lock sees an end."""
        return self._late(f"seen {label}", 120e-6)

    def _late(self, label: str, scale: float) -> np.ndarray:
        if label not in self._cache:
            shape = (self.spec.steps, self.spec.world)
            self._cache[label] = self.rng(label).exponential(scale, shape)
        return self._cache[label][self.step]

    # -- steps -----------------------------------------------------------------------------------

    def begin_step(self, number: int) -> np.ndarray:
        """Open a step; a host that is too far ahead of its device waits first."""
        machine = self.machine
        machine.step = number
        began = machine.host.copy()
        machine.blocked[:] = 0.0
        self.waiting_us[:] = 0.0
        if self.spec.on_device and number >= self.spec.ahead:
            machine.host = np.maximum(machine.host, self._device_ends[number - self.spec.ahead])
            machine.blocked += machine.host - began
        return began

    def end_step(self, began: np.ndarray) -> None:
        """Close it, with the record of the whole step."""
        machine = self.machine
        if self.spec.on_device and (self.step + 1) % self.spec.sync_every == 0:
            machine.synchronize()
        for fault in self.world.faults:
            fault.ends(self)
        self._device_ends.append(machine.device.copy())
        busy = np.maximum(machine.host - began - machine.blocked, 0.0)
        waited = machine.note(
            self.ranks, STEP, enter=began, exit=machine.host.copy(), payload=8,
            group_seq=np.round(busy * 0.97e9).astype(np.int64), bytes_in=40,
            parent_us=np.round(self.waiting_us + 15).astype(np.int64), peer=2,
        )  # fmt: skip
        if waited is not None:
            waited["inside"] = -1
        self.step_ends.append(machine.now.copy())

    @property
    def took_s(self) -> float:
        """How long the run took: mean over ranks of when each had done everything."""
        return float(self.machine.now.mean())

    def name(self, text: str) -> int:
        """Number of a name in the tables of all ranks."""
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text) + 1

    @property
    def uplink_gbyte(self) -> float:
        """What a node's link carries while all groups of a communicator move data at once, at the
        rate that each of them has; of several communicators the least."""
        across = [comm for comm in self.comms if comm.link == "net" and comm.sequence]
        through = [[np.unique(row) for row in self.node[comm.members]] for comm in across]
        beside = (np.bincount(np.concatenate(nodes)).max() for nodes in through)
        return self.spec.net_gbyte * int(min(beside, default=1))

    # -- clocks ----------------------------------------------------------------------------------

    def cluster(self, *, nic_gbps: float | None = None, facts: dict | None = None) -> Cluster:
        """Clocks of hosts and devices: seconds apart, up to 50 ppm off."""
        rng, nodes = self.rng("clocks"), int(self.node.max()) + 1
        world = self.spec.world
        wide = 10.0 ** rng.uniform(-3, 1)  # hosts booted together, or hours apart
        epoch = 5_000_000_000_000 + np.round(rng.uniform(0, wide, nodes) * 1e9).astype(np.int64)
        return Cluster(
            node=self.node,
            local=self.ranks % self.spec.per_node,
            host_epoch_ns=epoch,
            host_rate=1 + rng.uniform(-50e-6, 50e-6, nodes),
            device_epoch_ns=np.round(rng.uniform(0.05, 3.0, world) * 1e9).astype(np.int64),
            device_rate=1 + rng.uniform(-50e-6, 50e-6, world),
            poll_s=rng.uniform(0.05, 0.1, world),
            facts=facts or {},
            nic_gbps=nic_gbps,
            boot=f"b{self.spec.seed % 10_000}",
            names=tuple(self.names),
        )


def without(world: World, **changes: object) -> World:
    """The same world, idealised in some way."""
    return replace(world, **changes)


def shapley(values: Sequence[float]) -> tuple[float, float]:
    """Parts of two causes from the run times (with none, a alone, b alone, both)."""
    none, a, b, both = values
    return ((a - none) + (both - b)) / 2, ((b - none) + (both - a)) / 2
