"""Optional calls of a training script: spans, numbers.

Without an attached agent every call does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING

from evenstep.attachment import agent
from evenstep.trace.spool.spool import Spool

if TYPE_CHECKING:
    from typing import Self


class Span:
    """A named interval of the step, at about a microsecond; may nest and repeat. Never raises."""

    __slots__ = ("_name", "_pid", "_seq", "_spool")

    def __init__(self, name: str) -> None:
        self._name = name
        self._seq = self._pid = 0
        self._spool: Spool | None = None  # in which it began; at its end another may be attached

    def __enter__(self) -> Self:
        attached = agent.current()
        if attached is not None and not attached.failure:
            try:
                self._seq = attached.recorder.span_begins(str(self._name))
                self._spool, self._pid = attached.spool, os.getpid()
            except ValueError:  # the trace has ended, or no text can hold the name
                return self
            except Exception as error:
                attached.give_up(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        spool, self._spool = self._spool, None
        if spool is None or os.getpid() != self._pid:  # a forked child exits the block as well
            return
        try:
            spool.close(self._seq, monotonic_ns())
        except ValueError:  # the trace has ended inside the block
            return


def span(name: str) -> Span:
    """A context manager that records its block under `name`."""
    return Span(name)


def log(values: Mapping[str, float]) -> None:
    """Record numbers; other values are left out.

    So are tensors on a device: reading one would make the host wait. Pass `.item()` where the
    script has that number anyway.
    """
    attached = agent.current()
    if attached is None or attached.failure:
        return
    for name, value in values.items():
        if getattr(value, "is_cuda", False):
            continue
        try:
            number = float(value)
        except Exception:  # raised by the object's own conversion
            continue
        try:
            attached.recorder.marker(str(name), number)
        except ValueError:  # the trace has ended, or no text can hold the name
            continue
        except Exception as error:
            attached.give_up(error)
            return
