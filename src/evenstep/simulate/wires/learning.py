"""Coflows that are put right by what the first steps of the same run showed.

Where links are shared and ranks are out of step, a coflow ends somewhat later or sooner than its
messages do. The first steps of a run are carried both ways; what they differ by on average, for
each collective and rank, is added to the coflows of the steps after them (a control variate).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.wires.exact import ExactWire
from evenstep.simulate.wires.rehearsal import messages_of
from evenstep.simulate.wires.wire import Carried, FastWire

Array = npt.NDArray[Any]


class LearningWire:
    """Message by message until so many were carried, then in coflows that have learned from it."""

    synchronizing = True

    def __init__(self, exact: ExactWire, fast: FastWire, messages: int) -> None:
        self._exact = exact
        self._fast = fast
        self._left = messages
        self._gaps: dict[tuple[int, ...], tuple[int, Array]] = {}  # how often seen, and their sum

    def carry(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """Ends of collectives on every rank."""
        key = tuple(id(flow) for flow in flows)
        if self._left > 0 or key not in self._gaps:
            return self._observed(key, flows, ready_ns)
        guess = self._fast.carry(flows, ready_ns)
        times, total = self._gaps[key]
        ends = np.maximum(guess.end_ns + total / times, guess.last_ns)
        self._fast.free = np.maximum(self._fast.free, ends[-1])
        self._exact.free = self._fast.free.copy()
        return guess._replace(end_ns=ends)

    def carry_urgent(self, flows: Sequence[Flow], ready_ns: Array) -> Carried:
        """In order: messages have no priority here."""
        return self.carry(flows, ready_ns)

    def _observed(self, key: tuple[int, ...], flows: Sequence[Flow], ready_ns: Array) -> Carried:
        self._left -= sum(messages_of(flow) for flow in flows)
        self._fast.free = self._exact.free.copy()
        guess = self._fast.carry(flows, ready_ns)
        found = self._exact.carry(flows, ready_ns)
        times, total = self._gaps.get(key, (0, np.zeros(1)))
        self._gaps[key] = (times + 1, total + (found.end_ns - guess.end_ns))
        return found
