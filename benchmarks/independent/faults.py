"""What goes wrong: each fault changes how long some work or some transfers of a job take.

A fault says what an honest reader of the trace may call it (`modes`), and who is to blame
(`culprits`, None where nobody in particular is, or where no trace could tell).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.independent.machine import (
    BACKWARD,
    CHECKPOINT,
    FORWARD,
    INPUT,
    PAUSE,
    SAMPLE,
    Communicator,
)
from benchmarks.independent.spool import host_name

if TYPE_CHECKING:
    from benchmarks.independent.job import Job, Spec

Array = np.ndarray


@dataclass
class Piece:
    """Some work of some ranks; a fault changes its seconds in place."""

    label: str
    phase: int
    ranks: Array
    own: Array  # seconds of the work itself, (ranks,)
    host: Array | None  # seconds to hand it to a device; None where the host does it itself

    def stall(self, seconds: Array) -> None:
        """The host thread stands still for so long meanwhile."""
        if self.host is None:
            self.own = self.own + seconds
        else:
            self.host = self.host + seconds


@dataclass(frozen=True)
class Fault:
    """Changes nothing. `strength` is what is scaled until the fault costs what it shall cost."""

    modes: tuple[str, ...]
    culprits: tuple[int, ...] | None = None
    strength: float = 1.0
    nodes: tuple[int, ...] = ()  # whose ranks the culprits are, where whole nodes are

    def work(self, job: Job, piece: Piece) -> None:
        """A piece of work begins."""

    def transfer(
        self, job: Job, comm: Communicator, kind: str, label: str, seconds: Array
    ) -> Array:
        """Seconds of a collective's or a message's transfer in each group, given and then."""
        return seconds

    def starts(self, job: Job) -> None:
        """The run begins."""

    def ends(self, job: Job) -> None:
        """A step is about to end."""

    def all_transfers(self, job: Job) -> bool:
        """Whether it is in all transfers alike: a fabric just like that is no less likely."""
        return False

    def like_noise(self, spec: Spec) -> bool:
        """Whether the job's own noise looks just like it."""
        return False

    def alike(self) -> list[tuple[Fault, Fault]]:
        """The extremes of what may be instead if no record tells: each and the same mended. Of slow
        hosts, devices that have nothing to do, or as much as their hosts."""
        return []

    def named(self, ranks: Sequence[int], nodes: Sequence[str], job: Job) -> bool | None:
        """Whether these are exactly those at fault; None where nobody could tell."""
        if self.culprits is None:
            return None
        if set(ranks) == set(self.culprits):
            return True
        inside = {int(job.node[rank]) for rank in ranks} <= set(self.nodes)
        return bool(self.nodes) and set(nodes) == set(_hosts(self.nodes)) and inside

    def mended(self, spec: Spec) -> Spec:
        """The job without it, where the fault is part of what the job is."""
        return spec


def _hosts(nodes: Iterable[int]) -> list[str]:
    return [host_name(node) for node in nodes]


def _opens_step(label: str) -> bool:
    """Whether this is the first piece of forward, of a stage's first micro-batch in a pipeline."""
    firsts = ("forward", "forward 0", "forward 0a", "forward attention 0")
    return label in firsts or (label.startswith("F ") and label.endswith(" 0"))


def _among(ranks: Array, some: tuple[int, ...]) -> Array:
    return np.isin(ranks, some)


@dataclass(frozen=True)
class SlowRanks(Fault):
    """These ranks compute slower by `strength`: always, now and then, in bursts, or in turns."""

    ranks: tuple[int, ...] = ()
    pattern: str = "chronic"
    share: float = 1.0  # of the steps, where it is not always
    length: int = 1  # of a burst or a turn, in steps

    def active(self, job: Job) -> tuple[int, ...]:
        """Which ranks are slow in this step."""
        if self.pattern == "chronic":
            return self.ranks
        if self.pattern == "rotating":
            return (self.ranks[job.step // self.length % len(self.ranks)],)
        block = job.step // self.length
        return self.ranks if job.rng(f"slow {block}").random() < self.share else ()

    def work(self, job: Job, piece: Piece) -> None:
        if piece.phase != INPUT:
            piece.own = piece.own * (1 + self.strength * _among(piece.ranks, self.active(job)))

    def like_noise(self, spec: Spec) -> bool:
        return "synchronization_amplification" in self.modes


@dataclass(frozen=True)
class Drift(Fault):
    """These ranks slow down over the run, from nothing to `strength`; with sensors or without."""

    ranks: tuple[int, ...] = ()
    sensors: bool = False

    def heat(self, job: Job) -> float:
        """From 0 at the beginning to 1 at the end."""
        return (job.step + 0.5) / job.spec.steps

    def work(self, job: Job, piece: Piece) -> None:
        if piece.phase != INPUT:
            hot = self.heat(job) * _among(piece.ranks, self.ranks)
            piece.own = piece.own * (1 + self.strength * hot)

    def ends(self, job: Job) -> None:
        if not self.sensors or job.machine.tape is None:
            return
        hot = _among(job.ranks, self.ranks) * self.heat(job)
        noise = job.rng(f"sensors {job.step}").normal(0, 0.5, (2, len(hot)))
        celsius = np.round(61 + 26 * hot + noise[0])
        mhz = np.round(1980 / (1 + self.strength * hot) + 8 * noise[1])
        for metric, values in (("gpu.temperature_celsius", celsius), ("gpu.sm_clock_mhz", mhz)):
            job.machine.note(
                job.ranks, SAMPLE, name=job.name(metric), device=0, enter=job.machine.host.copy(),
                exit=job.machine.host.copy(), bytes_in=values.astype("<f8").view("<u8"),
            )  # fmt: skip


@dataclass(frozen=True)
class Pauses(Fault):
    """The collector stops a rank's host for `strength` seconds, at steps of its own."""

    ranks: tuple[int, ...] = ()
    every: int = 8

    def work(self, job: Job, piece: Piece) -> None:
        if piece.phase != FORWARD or not _opens_step(piece.label):
            return
        ranks = piece.ranks
        offsets = job.rng("pauses").integers(0, self.every, job.spec.world)
        due = _among(ranks, self.ranks) & ((job.step + offsets[ranks]) % self.every == 0)
        long = job.rng(f"pause {job.step}").gamma(16, 1 / 16, job.spec.world)[ranks]
        took = due * self.strength * long
        if due.any() and job.machine.tape is not None:
            at = job.machine.host[ranks] + 0.4 * (piece.own if piece.host is None else piece.host)
            job.machine.note(
                ranks[due], PAUSE, op=2, payload=20_000, enter=at[due], exit=(at + took)[due],
            )  # fmt: skip
        piece.stall(took)


@dataclass(frozen=True)
class SlowInput(Fault):
    """The loader of these ranks makes them wait `strength` seconds a step, unevenly."""

    ranks: tuple[int, ...] = ()

    def work(self, job: Job, piece: Piece) -> None:
        if piece.phase == INPUT:
            uneven = job.rng(f"loader {job.step}").gamma(9, 1 / 9, job.spec.world)[piece.ranks]
            piece.stall(self.strength * uneven * _among(piece.ranks, self.ranks))


@dataclass(frozen=True)
class Checkpoint(Fault):
    """Every so many steps these ranks write for `strength` seconds."""

    ranks: tuple[int, ...] = ()
    every: int = 10

    def ends(self, job: Job) -> None:
        if (job.step + 1) % self.every:
            return
        who = np.array(self.ranks)
        machine = job.machine
        machine.synchronize(who)
        with machine.phase(CHECKPOINT, who):
            uneven = job.rng(f"write {job.step}").gamma(100, 1 / 100, job.spec.world)[who]
            machine.host[who] += self.strength * uneven
        if job.spec.on_device:
            machine.device[who] = np.maximum(machine.device[who], machine.host[who])


@dataclass(frozen=True)
class Periodic(Fault):
    """Every `every` steps the work of these ranks takes `strength` longer."""

    ranks: tuple[int, ...] = ()
    every: int = 4

    def work(self, job: Job, piece: Piece) -> None:
        if piece.phase != INPUT and job.step % self.every == 0:
            piece.own = piece.own * (1 + self.strength * _among(piece.ranks, self.ranks))


@dataclass(frozen=True)
class Congestion(Fault):
    """In stretches of steps every transfer between nodes takes 1 + `strength` times as long."""

    length: int = 5
    share: float = 0.35

    def transfer(
        self, job: Job, comm: Communicator, kind: str, label: str, seconds: Array
    ) -> Array:
        busy = job.rng(f"congested {job.step // self.length}").random() < self.share
        return seconds * (1 + self.strength) if busy and comm.link == "net" else seconds


@dataclass(frozen=True)
class SlowLink(Fault):
    """Transfers in groups with a rank of this node take 1 + `strength` times as long, always."""

    def transfer(
        self, job: Job, comm: Communicator, kind: str, label: str, seconds: Array
    ) -> Array:
        if comm.link != "net":
            return seconds
        return seconds * (1 + self.strength * self.touched(job, comm))

    def touched(self, job: Job, comm: Communicator) -> Array:
        """Which groups have a rank of the node."""
        return np.isin(job.node[comm.members], self.nodes).any(axis=1)

    def all_transfers(self, job: Job) -> bool:
        across = [comm for comm in job.comms if comm.link == "net" and comm.sequence]
        return all(self.touched(job, comm).all() for comm in across)

    def named(self, ranks: Sequence[int], nodes: Sequence[str], job: Job) -> bool | None:
        """Its node, perhaps among those of a group: a group's transfers do not tell which of it."""
        if self.all_transfers(job):
            return None
        groups = [
            {int(job.node[rank]) for rank in row}
            for comm in job.comms
            if comm.link == "net" and comm.sequence and not self.touched(job, comm).all()
            for row in comm.members[self.touched(job, comm)].tolist()
        ]
        said = set(nodes)
        return set(_hosts(self.nodes)) <= said and any(said <= set(_hosts(g)) for g in groups)


@dataclass(frozen=True)
class SlowWire(Fault):
    """Messages from this stage to the next, and back, take 1 + `strength` times as long."""

    stage: int = 0

    def transfer(
        self, job: Job, comm: Communicator, kind: str, label: str, seconds: Array
    ) -> Array:
        ends = {f"F {self.stage}", f"B {self.stage + 1}"}
        slow = kind == "message" and label.removeprefix("message ").rpartition(" ")[0] in ends
        return seconds * (1 + self.strength * slow)


@dataclass(frozen=True)
class ManySmall(Fault):
    """Something goes out in many tiny collectives; without the fault as one."""

    def mended(self, spec: Spec) -> Spec:
        return replace(spec, shape={**spec.shape, "fused": 1})


@dataclass(frozen=True)
class NarrowFabric(Fault):
    """Links have 1 / (1 + `strength`) of what the adapters are rated at."""

    def transfer(
        self, job: Job, comm: Communicator, kind: str, label: str, seconds: Array
    ) -> Array:
        return seconds * (1 + self.strength) if comm.link == "net" else seconds

    def all_transfers(self, job: Job) -> bool:
        return True


@dataclass(frozen=True)
class Lengths(Fault):
    """Every batch of a step has its own amount of work; without it all have the mean.

    Ranks of one replica of the model work on one batch; a pipeline's is cut into micro-batches.
    """

    def work(self, job: Job, piece: Piece) -> None:
        if piece.phase not in (FORWARD, BACKWARD):
            return
        shape, ranks = job.spec.shape, piece.ranks
        if "stages" in shape:
            replicas = job.spec.world // shape["stages"]
            amount = self.amounts(job, replicas * shape["micro"]).reshape(replicas, -1)
            factor = amount[ranks % replicas, int(piece.label.rpartition(" ")[2])]
        else:
            each = shape.get("tp", 1)
            factor = self.amounts(job, job.spec.world // each)[ranks // each]
        piece.own = piece.own * factor

    def amounts(self, job: Job, batches: int) -> Array:
        """What so many batches of this step have to do, 1 on average."""
        drawn = job.rng(f"lengths {job.step}").normal(0, 1, batches)
        amount = np.exp(min(0.18 * self.strength, 0.6) * np.clip(drawn, -3, 3))
        return amount / amount.mean()

    def like_noise(self, spec: Spec) -> bool:
        return spec.coupled or len(self.modes) > 1


@dataclass(frozen=True)
class SlowIssue(Fault):
    """Hosts that take 1 + `strength` times a piece's own time to hand it to their device, which
    needs `works` times that time for it."""

    ranks: tuple[int, ...] = ()
    works: float = 1.0

    def work(self, job: Job, piece: Piece) -> None:
        if piece.host is None or piece.phase not in (FORWARD, BACKWARD):
            return
        slow = np.maximum(piece.host, piece.own * (1 + self.strength))
        piece.host = np.where(_among(piece.ranks, self.ranks), slow, piece.host)
        piece.own = np.where(_among(piece.ranks, self.ranks), self.works, 1.0) * piece.own

    def alike(self) -> list[tuple[Fault, Fault]]:
        others = [replace(self, works=works) for works in (0.0, 1 + self.strength)]
        return [(one, replace(one, strength=-1.0)) for one in others]


@dataclass(frozen=True)
class NoCore(Fault):
    """The training threads of these ranks wait for a core, `strength` seconds a step on average."""

    ranks: tuple[int, ...] = ()

    def work(self, job: Job, piece: Piece) -> None:
        if piece.phase not in (FORWARD, BACKWARD):
            return
        ranks, rng = piece.ranks, job.rng(f"core {piece.label} {job.step}")
        weight = piece.own / job.spec.step_s  # longer pieces lose the core more often
        took = _among(ranks, self.ranks) * self.strength * weight
        took = took * rng.gamma(1.5, 1 / 1.5, job.spec.world)[ranks]
        job.waiting_us[ranks] += took * 1e6
        piece.stall(took)


@dataclass(frozen=True)
class LateEntry(Fault):
    """These ranks come `strength` seconds late into the first step of the trace."""

    ranks: tuple[int, ...] = ()

    def starts(self, job: Job) -> None:
        job.machine.host += self.strength * _among(job.ranks, self.ranks)
