"""Runs that end, begin again, never meet, or differ in size: judged by their mode and culprits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.independent import spool
from benchmarks.independent.case import Case, run
from benchmarks.independent.faults import Fault
from benchmarks.independent.job import Job, Spec, World
from benchmarks.independent.machine import (
    ALL_REDUCE,
    ASYNC,
    BACKWARD,
    BARRIER,
    COLLECTIVE,
    FORWARD,
    HOST_BLOCKED,
    MARKER,
    ON_DEVICE,
    PHASE,
    SAMPLE,
    STEP,
)

Rng = np.random.Generator

STANDSTILL_S = 90  # from the last step until somebody ends the job


@dataclass
class Terminal(Case):
    """A case without a cost. `folders` leaves its traces and says which are to be diagnosed."""

    folders: Callable[[Path], list[Path]] = lambda path: [path]
    expected: bool = True  # False: a healthy one

    @property
    def loss(self) -> float:
        """Not asked for."""
        return 1.0 if self.expected else 0.0

    @property
    def parts(self) -> tuple[float, ...]:
        """Not asked for either."""
        return (1.0,) if self.expected else ()

    def write(self, folder: Path) -> list[Path]:
        """Leave the traces; the folders to be diagnosed together."""
        return self.folders(folder)


def build(number: int, kind: str, rng: Rng) -> Terminal:
    """The terminal case of this kind."""
    world = int(rng.choice([2, 4, 8, 16, 32]))
    spec = Spec(
        seed=number, world=world, per_node=min(world, int(rng.choice([2, 4, 8]))),
        steps=int(rng.integers(12, 40)), on_device=bool(rng.random() < 0.4),
        step_s=float(rng.uniform(0.05, 0.3)), noise_cv=float(rng.choice([0.01, 0.03, 0.06])),
        blocking=True, transfer_share=0.1, shape={"buckets": int(rng.integers(1, 5))},
    )  # fmt: skip
    return _KINDS[kind](number, kind, spec, rng)


def _case(number: int, kind: str, spec: Spec, modes: tuple[str, ...], **more) -> Terminal:
    culprits = more.pop("culprits", None)
    faults = (Fault(modes, culprits),) if modes else ()
    return Terminal(number, "terminal", "ddp", kind, spec, faults, expected=bool(modes), **more)


def _written(job: Job, folder: Path, **more) -> None:
    backend = "nccl" if job.spec.on_device else "gloo"
    cluster = job.cluster(nic_gbps=100.0)
    spool.write(folder, job.machine.tape, job.comms, cluster, backend=backend, **more)


# -- a job that stands still ---------------------------------------------------------------------


def _stuck(number: int, kind: str, spec: Spec, rng: Rng) -> Terminal:
    """After its last step one rank never comes, is gone, calls something else; or nobody leaves."""
    culprit = int(rng.integers(spec.world))
    where = rng.uniform(0.1, 0.6)

    def folders(path: Path) -> list[Path]:
        job = run("ddp", spec, World(), record=True)
        _last_step(job, kind, culprit, float(where))
        _written(job, path, unclosed=range(spec.world))
        return [path]

    modes = ("hang",) if kind in ("hang", "mismatch", "transport") else ("rank_failed", "hang")
    either = kind == "mismatch" and spec.world == 2  # which of two differs, nobody can tell
    culprits = None if kind == "transport" or either else (culprit,)
    return _case(number, kind, spec, modes, folders=folders, culprits=culprits)


def _last_step(job: Job, kind: str, culprit: int, where: float) -> None:
    """The step in which it happens: phases and one collective, open for ever."""
    machine, spec = job.machine, job.spec
    machine.step = spec.steps
    come = job.ranks if kind == "transport" else job.ranks[job.ranks != culprit]
    if kind in ("hang", "mismatch"):
        absent = np.array([culprit])
        machine.note(absent, PHASE, op=FORWARD, enter=machine.host[absent].copy())
        if kind == "mismatch":
            late = machine.host[absent] + spec.step_s
            machine.note(absent, COLLECTIVE, op=BARRIER, enter=late, **_call(job))
    begun = machine.host[come].copy()
    middle = begun + 0.35 * spec.step_s
    machine.note(come, PHASE, op=FORWARD, enter=begun, exit=middle, group_seq=_ns(middle - begun))
    machine.note(come, PHASE, op=BACKWARD, enter=middle)
    nbytes = 1 << 20
    entry = machine.host[come] + (0.4 + where) * spec.step_s
    sizes = {"bytes_in": nbytes, "bytes_out": nbytes}
    machine.note(come, COLLECTIVE, op=ALL_REDUCE, enter=entry, **sizes, **_call(job))
    for second in range(1, STANDSTILL_S):  # whoever lives goes on to be sampled
        alive = come if kind == "dead" else job.ranks
        at = machine.host[alive].max() + second + np.zeros(len(alive))
        name = job.name("cpu.running_tasks")
        value = np.full(len(alive), 3.0).view("<u8")
        machine.note(alive, SAMPLE, name=name, enter=at, exit=at, bytes_in=value)


def _call(job: Job) -> dict:
    comm = job.comms[0]
    flags = ON_DEVICE | ASYNC if job.spec.on_device else HOST_BLOCKED
    return {
        "comm": comm.number, "group_seq": comm.sequence + 1, "dtype": 1, "reduce_op": 1,
        "flags": flags, "device": 0 if job.spec.on_device else -1,
    }  # fmt: skip


def _ns(seconds: np.ndarray) -> np.ndarray:
    return np.round(seconds * 1e9).astype(np.int64)


# -- a job that begins again ---------------------------------------------------------------------


def _restarted(number: int, kind: str, spec: Spec, rng: Rng) -> Terminal:
    """A rank dies, all start anew and do many steps again."""
    spec = replace(spec, steps=int(rng.integers(25, 50)))
    again = int(spec.steps * rng.uniform(0.4, 0.8))  # steps since the last checkpoint
    gap_s = float(rng.uniform(0.5, 1.5)) * spec.steps * spec.step_s
    culprit = int(rng.integers(spec.world))

    def folders(path: Path) -> list[Path]:
        began = 0.0
        for attempt in (0, 1):
            job = run("ddp", replace(spec, seed=spec.seed + attempt * 7919), World(), record=True)
            first = 0 if attempt == 0 else spec.steps - again
            _counted(job, first)
            gone = [culprit] if attempt == 0 else []
            _written(job, path, attempt=attempt, origin_s=began, unclosed=gone)
            began += job.took_s + gap_s
        return [path]

    return _case(number, kind, spec, ("restart_amplification",), folders=folders)


def _counted(job: Job, first: int) -> None:
    """The script says which step of the whole training each is."""
    name = job.name("global_step")
    for row in [row for row in job.machine.tape if row["kind"] == STEP]:
        job.machine.step = row["step"]
        value = np.full(job.spec.world, float(first + row["step"]))
        at = row["exit"] - 1e-6
        job.machine.note(
            job.ranks, MARKER, name=name, enter=at, exit=at, bytes_in=value.view("<u8")
        )


# -- a job whose ranks do not meet ---------------------------------------------------------------


def _stale(number: int, kind: str, spec: Spec, rng: Rng) -> Terminal:
    """Workers that fetch, compute and send on their own; the updates of a slow one are old."""
    slow = int(rng.integers(spec.world))
    factor = float(rng.uniform(3, 6))
    spec = replace(spec, on_device=False, steps=40)

    def folders(path: Path) -> list[Path]:
        job = Job(spec, World(), record=True)
        job.communicator("default_pg", job.ranks[None, :])
        name = job.name("staleness")
        machine = job.machine
        pace = np.where(job.ranks == slow, factor, 1.0) * spec.step_s
        for number in range(spec.steps):
            machine.step = number
            began = machine.host.copy()
            for phase, share in ((FORWARD, 0.35), (BACKWARD, 0.65)):
                with machine.phase(phase):
                    job.machine.work(job.ranks, share * pace * job._noise(str(phase)), None)
            took = machine.host - began
            others = spec.world - 1.0
            stale = np.round(others * np.where(job.ranks == slow, factor, 1 + 1 / factor))
            machine.note(
                job.ranks, MARKER, name=name, enter=machine.host.copy(), exit=machine.host.copy(),
                bytes_in=stale.astype("<f8").view("<u8"),
            )  # fmt: skip
            busy = np.round(took * 0.97e9).astype(np.int64)
            machine.note(
                job.ranks, STEP, enter=began, exit=machine.host.copy(), group_seq=busy, payload=8
            )
        _written(job, path)
        return [path]

    return _case(number, kind, spec, ("async_staleness",), folders=folders)


# -- one job at several sizes --------------------------------------------------------------------


def _sizes(number: int, kind: str, spec: Spec, rng: Rng) -> Terminal:
    """Weak scaling over three or four sizes: transfers that grow with the ranks, or do not."""
    collapse = kind == "sizes"
    sizes = (4, 8, 16, 32)[: int(rng.integers(3, 5))]
    growth = float(rng.uniform(0.8, 1.2))
    spec = replace(spec, on_device=False, noise_cv=0.01, steps=30, spread=0.0, per_node=4)
    spec = replace(spec, alpha_s=20e-6, transfer_share=0.06, net_gbyte=12.0, node_gbyte=12.0)

    def folders(path: Path) -> list[Path]:
        found = []
        for size in sizes:
            slower = (size / sizes[0]) ** growth if collapse else 1.0
            grown = replace(
                spec, world=size, seed=spec.seed + size, transfer_share=spec.transfer_share * slower
            )
            folder = path / f"ranks-{size}"
            _written(run("ddp", grown, World(), record=True), folder)
            found.append(folder)
        return found

    return _case(number, kind, spec, ("scaling_collapse",) if collapse else (), folders=folders)


_KINDS: dict[str, Callable[..., Terminal]] = {
    "hang": _stuck, "dead": _stuck, "mismatch": _stuck, "transport": _stuck,
    "restart": _restarted, "stale": _stale, "sizes": _sizes, "healthy_sizes": _sizes,
}  # fmt: skip
KINDS = tuple(_KINDS)
