"""What a training script may say of itself: steps, spans, numbers. All of it optional.

Without an attached agent every call does nothing, so that a script need not ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns
from types import TracebackType
from typing import Self

from evenstep.agent import agent


class Span:
    """A named stretch of the step. Costs about a microsecond; may nest and repeat."""

    __slots__ = ("_name", "_seq")

    def __init__(self, name: str) -> None:
        self._name = name
        self._seq = 0

    def __enter__(self) -> Self:
        attached = agent.current()
        if attached is not None and not attached.failure:
            self._seq = attached.recorder.span_begins(str(self._name))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        attached = agent.current()
        if self._seq and attached is not None:
            attached.spool.close(self._seq, monotonic_ns())


def span(name: str) -> Span:
    """A context manager that records its block under `name`."""
    return Span(name)


def step() -> None:
    """End a step here, and from now on only here."""
    attached = agent.current()
    if attached is not None and not attached.failure:
        attached.recorder.clock.manual = True
        try:
            attached.end_step(monotonic_ns())
        except Exception as error:
            attached.give_up(error)


def log(values: Mapping[str, float]) -> None:
    """Record numbers; what is not a number is left out."""
    attached = agent.current()
    if attached is None or attached.failure:
        return
    for name, value in values.items():
        try:
            attached.recorder.marker(str(name), float(value))
        except (TypeError, ValueError):
            continue
