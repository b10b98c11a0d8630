"""A job with its faults, run with and without them: what is true of it, and its trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.independent import spool
from benchmarks.independent.faults import Fault
from benchmarks.independent.job import Job, Spec, World, shapley
from benchmarks.independent.kernels import sample_busy
from benchmarks.independent.pipelines import Pipeline
from benchmarks.independent.stacks import STACKS, Stack

NS = 1e-9  # seconds to which traces have times
WORTH = 0.05  # a loss that counts, and a finding that does


def run(stack: str, spec: Spec, world: World, *, record: bool = False) -> Job:
    """Run the whole job."""
    job = Job(spec, world, record=record)
    kind: type[Stack] = Pipeline if stack.endswith("pipeline") else STACKS[stack]
    program = kind(job)
    job.machine.host += job.rng("start").uniform(0, 2e-3, spec.world)
    for fault in world.faults:
        fault.starts(job)
    for number in range(spec.steps):
        began = job.begin_step(number)
        program.step()
        job.end_step(began)
    job.machine.synchronize()
    if record:
        sample_busy(job)
    return job


def same_tape(one: Job, other: Job) -> bool:
    """Whether two runs leave the same trace: all that is on their tapes, times to the ns."""
    tapes = one.machine.tape or [], other.machine.tape or []
    return len(tapes[0]) == len(tapes[1]) and all(
        a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
        for a, b in zip(*tapes, strict=True)
    )


def _same(one: object, other: object) -> bool:
    if one is None or other is None:
        return one is other
    return np.shape(one) == np.shape(other) and bool(
        np.all(np.abs(np.subtract(one, other, dtype=float)) < NS)
    )


@dataclass
class Case:
    """A job with its faults. `row` is the line of the table it is judged in."""

    number: int
    row: str
    stack: str
    fault: str
    spec: Spec
    faults: tuple[Fault, ...]
    labels: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For `--only` and reports."""
        where = "device" if self.spec.on_device else "host"
        return f"{self.row}/{self.stack}/{where}/{self.fault}#{self.number}"

    def ran(self, faults: tuple[Fault, ...], **ideal: object) -> Job:
        """The job with these of its faults, idealised or not."""
        spec = self.spec
        for fault in self.faults:
            if fault not in faults:
                spec = fault.mended(spec)
        return run(self.stack, spec, World(faults, **ideal))

    def time(self, faults: tuple[Fault, ...], **ideal: object) -> float:
        """How long that takes."""
        return self.ran(faults, **ideal).took_s

    @cached_property
    def recorded(self) -> Job:
        """The run that leaves a trace."""
        return run(self.stack, self.spec, World(self.faults), record=True)

    @cached_property
    def took_s(self) -> float:
        """With its faults."""
        return self.recorded.took_s

    @cached_property
    def parts(self) -> tuple[float, ...]:
        """What each fault costs, as a share of the run: its own loss, or Shapley's value of two."""
        if not self.faults:
            return ()
        none = self.time(())
        if len(self.faults) == 1:
            return ((self.took_s - none) / self.took_s,)
        a, b = (self.time((fault,)) for fault in self.faults)
        return tuple(part / self.took_s for part in shapley((none, a, b, self.took_s)))

    @property
    def loss(self) -> float:
        """What all faults cost together."""
        return sum(self.parts)

    def gain(self, **ideal: bool) -> float:
        """What idealising the job gives back: with its faults or without them, the larger."""
        key = ",".join(sorted(ideal))
        cache = self.labels.setdefault("gains", {})
        if key not in cache:
            gains = [self.took_s - self.time(self.faults, **ideal)]
            if self.faults:
                gains.append(self.time(()) - self.time((), **ideal))
            cache[key] = max(gains) / self.took_s
        return cache[key]

    @cached_property
    def band(self) -> tuple[float, float]:
        """Between which costs no record could tell: see the rules in the package's docstring."""
        (fault,) = self.faults
        low = high = self.loss
        mended = [self.ran(())]
        if fault.culprits is not None:
            mended.append(self.ran((), like_peers=fault.culprits))
        for job in mended:
            known = (self.took_s - job.took_s) / self.took_s
            low, high = min(low, known), max(high, known)
        low, high = min([low, *self.unknown]), max([high, *self.unknown])
        if fault.all_transfers(self.recorded):
            high = max(high, self.gain(no_transfer=True))
        if fault.like_noise(self.spec):
            high += self.gain(even_noise=True, even_spread=True)
        return low, high

    @cached_property
    def unknown(self) -> list[float]:
        """What the fault costs in other worlds that leave the very same trace."""
        found = []
        for other, mended in self.faults[0].alike() if len(self.faults) == 1 else []:
            if same_tape(self.recorded, run(self.stack, self.spec, World((other,)), record=True)):
                rest = run(self.stack, self.spec, World((mended,)))
                found.append((self.took_s - rest.took_s) / self.took_s)
        return found

    def write(self, folder: Path) -> list[Path]:
        """Leave the trace of the run in a folder; the folders that are to be diagnosed together."""
        job = self.recorded
        nic = job.uplink_gbyte * 8 * 1.15 if self.labels.get("nic", True) else None
        spool.write(
            folder, job.machine.tape, job.comms, job.cluster(nic_gbps=nic),
            backend="nccl" if self.spec.on_device else "gloo", run_id=f"case-{self.number}",
            bare=bool(self.spec.shape.get("bare")),
        )  # fmt: skip
        return [folder]
