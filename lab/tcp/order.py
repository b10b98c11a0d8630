"""What a rank of a job is told: a JSON file beside its trace, the same for all its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from lab.faults import Fault
from lab.scenario import Job, Scenario

_ELEMENT_BYTES = 4  # float32


@dataclass(frozen=True, slots=True)
class Order:
    """One job of a scenario, with the faults that are its own ranks' business."""

    job: Job
    number: int
    seed: int
    faults: tuple[Fault, ...] = ()
    steps: int = 0  # 0: until somebody ends it

    @property
    def bucket_elements(self) -> list[int]:
        """Length of each gradient bucket."""
        elements = max(self.job.buckets, self.job.gradient_bytes // _ELEMENT_BYTES)
        each, left = divmod(elements, self.job.buckets)
        return [each + (index < left) for index in range(self.job.buckets)]

    def write(self, path: Path) -> None:
        """Put it where the ranks read it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> Order:
        """What `write` has put there."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def of(scenario: Scenario, number: int, *, steps: int = 0) -> Order:
    """The order for the ranks of a job."""
    faults = tuple(fault for fault in scenario.faults if fault.job == number)
    return Order(scenario.jobs[number], number, scenario.seed, faults, steps)


def path_of(folder: Path, number: int) -> Path:
    """Where the ranks of a job read their order."""
    return folder / f".order-{number}"
