"""What a simulation adds up while it runs: times of steps and what ranks spent them on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class StepShares(NamedTuple):
    """One step on every rank, in ns. `work` includes `input`; `blocked` includes `waited`."""

    begin: Array
    end: Array
    input: Array
    work: Array
    blocked: Array
    waited: Array
    held: Array


class StepSums:
    """Sums over ranks for each step, and totals of each rank behind the warm-up."""

    def __init__(self, steps: int, ranks: int, warm_up: int) -> None:
        self.ranks = ranks
        self.warm_up = warm_up
        self.done = 0
        self.begin_ns = np.zeros(steps)  # of the rank that begins last
        self.end_ns = np.zeros(steps)  # of the rank that ends last
        self.totals = {name: np.zeros(ranks) for name in StepShares._fields[2:]}

    def add(self, shares: StepShares) -> None:
        """Take the next step."""
        index = self.done
        self.begin_ns[index], self.end_ns[index] = shares.begin.max(), shares.end.max()
        self.done += 1
        if index >= self.warm_up:
            for name, total in self.totals.items():
                total += getattr(shares, name)

    @property
    def counted(self) -> slice:
        """The finished steps behind the warm-up."""
        return slice(min(self.warm_up, self.done), self.done)

    @property
    def step_ns(self) -> Array:
        """Length of each finished step of the job: from the end of the one before to its own, each
        that of the rank that is last. They add up to the time the run takes."""
        end = self.end_ns[: self.done]
        return np.diff(end, prepend=self.begin_ns[0]) if self.done else end

    @property
    def steps_per_s(self) -> float:
        """Steps of a rank per second, on average over the ranks: where they do not keep together,
        the slow ones do not count more than the fast."""
        spent = self.totals["work"] + self.totals["blocked"] + self.totals["held"]
        counted = self.counted.stop - self.counted.start
        return float(np.mean(counted * 1e9 / spent)) if counted and spent.all() else 0.0
