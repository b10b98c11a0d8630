"""Units of a sweep carried out by an engine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from evenstep.simulate.study.sweep import SweepRun, outcome
from evenstep.workers.engines import Engine, Local, usable_cores

__all__ = ["carried", "usable_cores"]

Row = dict[str, Any]


def carried(
    units: Sequence[SweepRun],
    engine: Engine | int,
    work: Callable[[SweepRun], Row | None] = outcome,
) -> Generator[Row, None, None]:
    """The rows of units, in the order in which they are finished; a number is local workers.

    Workers end with the iterator: what they were at when it is closed is lost. Raises
    `KeyboardInterrupt` where this process was interrupted.
    """
    carrier = Local(engine) if isinstance(engine, int) else engine
    finished = carrier.carried(units, work)
    try:
        for row in finished:
            if row is None:
                raise KeyboardInterrupt
            yield row
    finally:
        finished.close()
