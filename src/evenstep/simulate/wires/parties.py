"""Ranks that go through one list of rounds together, of one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow, Stage

Array = npt.NDArray[Any]


class Party:
    """Ranks that go through rounds together.

    `program` holds (stage, collective) for every round; `ready` says when ranks may enter a
    collective. `ends` is (collectives, ranks): when each was over. `then` is called when all ranks
    are through. Its messages are `scale` times as large as their rounds say, and take `steady` GB/s
    whatever others do; 0: their fair share.
    """

    then: Callable[[], None] | None = None
    number = -1  # in the network it is on

    def __init__(
        self,
        program: Sequence[tuple[Stage, int]],
        ready: Array,
        *,
        ranks: int,
        scale: float = 1.0,
        steady: float = 0.0,
    ) -> None:
        self.program = program
        self.scale = scale
        self.steady = steady
        self.ready = ready
        self.at = np.full(ranks, -1)  # round each rank is in
        self.ends = ready.astype(float).copy()
        self.open: dict[int, Array] = {}  # messages each rank still waits for, by round
        self.left = ranks  # not yet through

    def needs(self, number: int) -> Array:
        """What each rank still waits for in a round."""
        if number not in self.open:
            item = self.program[number][0].round
            size = len(self.at)
            self.open[number] = np.bincount(item.source, minlength=size) + np.bincount(
                item.target, minlength=size
            )
        return self.open[number]


def program_of(flows: Sequence[Flow]) -> list[tuple[Stage, int]]:
    """All rounds of collectives in a row."""
    return [
        (stage, number)
        for number, flow in enumerate(flows)
        for stage in flow.stages
        for _ in range(stage.round.repeats)
    ]
