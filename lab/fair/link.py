"""Links as a fluid: who is on them, how fast each moves, and what ends next. Pure; time is given.

Transfers share links max-min fairly (Bertsekas and Gallager 1992, 6.5.2). A link that k transfers
cross carries capacity · η^(k-1), η the goodput kept for each further contender. Flows that do not
yield take their share on a link and never end. Time is in ns, capacity in bytes per ns (GB/s).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

ROUNDING_NS = 0.5  # what is over within this is over


@dataclass(slots=True)
class Link:
    """One shared link."""

    capacity: float
    goodput: float = 1.0
    flows: float = 0.0  # that do not yield, at the moment


@dataclass(slots=True, eq=False)
class _Transfer:
    links: tuple[int, ...]
    left: float
    limit: float  # what its own card can send; 0: no limit
    rate: float = 0.0


@dataclass(slots=True)
class Fabric:
    """All links and what is on them. `now_ns` only grows."""

    links: Sequence[Link]
    now_ns: float = 0.0
    _transfers: dict[Hashable, _Transfer] = field(default_factory=dict)
    _stale: bool = False  # rates are to be worked out anew

    def begin(
        self, key: Hashable, nbytes: float, links: tuple[int, ...], limit: float = 0.0
    ) -> None:
        """Put a transfer on its links now."""
        self._transfers[key] = _Transfer(links, float(nbytes), limit)
        self._stale = True

    def change(
        self, link: int, *, capacity: float | None = None, flows: float | None = None
    ) -> None:
        """A link carries less or more from now on, or other flows that do not yield."""
        if capacity is not None:
            self.links[link].capacity = capacity
        if flows is not None:
            self.links[link].flows = flows
        self._stale = True

    @property
    def next_end_ns(self) -> float:
        """When the next transfer ends if nothing else happens; infinite where nothing moves."""
        self._renew()
        return min(
            (
                self.now_ns + (t.left / t.rate if t.rate > 0 else float("inf"))
                for t in self._transfers.values()
            ),
            default=float("inf"),
        )

    def advance(self, until_ns: float) -> list[Hashable]:
        """Let time pass up to a moment no later than `next_end_ns`; what has ended by then."""
        self._renew()
        passed, self.now_ns = until_ns - self.now_ns, until_ns
        rounding_ns = max(ROUNDING_NS, 2 * math.ulp(until_ns))  # the clock knows no finer times
        ended = []
        for key, transfer in self._transfers.items():
            unlimited = transfer.rate == float("inf")
            transfer.left = 0.0 if unlimited else transfer.left - passed * transfer.rate
            if unlimited or transfer.left <= rounding_ns * transfer.rate:
                ended.append(key)
        for key in ended:
            del self._transfers[key]
        self._stale = self._stale or bool(ended)
        return ended

    def _renew(self) -> None:
        if self._stale:
            self._stale = False
            _share(list(self._transfers.values()), self.links)


def _share(transfers: list[_Transfer], links: Sequence[Link]) -> None:
    """Progressive filling: the tightest link stops whoever crosses it, then the next."""
    present = [sum(index in t.links for t in transfers) for index in range(len(links))]
    left = [
        link.capacity * link.goodput ** max(count - 1, 0)
        for link, count in zip(links, present, strict=True)
    ]
    sharing = [count + link.flows for link, count in zip(links, present, strict=True)]
    free = list(transfers)
    while free:
        rate, stopped = _tightest(free, left, sharing)
        for transfer in stopped:
            transfer.rate = rate
            for index in transfer.links:
                left[index] = max(0.0, left[index] - rate)
                sharing[index] -= 1
        free = [transfer for transfer in free if transfer not in stopped]


def _tightest(
    free: list[_Transfer], left: list[float], sharing: list[float]
) -> tuple[float, list[_Transfer]]:
    """The lowest rate anything is held to, and the transfers it holds."""
    held = []
    for transfer in free:
        rates = [left[index] / sharing[index] for index in transfer.links]
        rates += [transfer.limit] if transfer.limit else []
        held.append(min(rates, default=float("inf")))
    lowest = min(held)
    return lowest, [t for t, rate in zip(free, held, strict=True) if rate <= lowest * (1 + 1e-12)]
