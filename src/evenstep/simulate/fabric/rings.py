"""Chains of hops around rings: how long until the end from a rank, and until a rank is through.

A rank goes on when it has sent and received, so the time of a rank after k rounds is a longest
chain: it stays (the rank sends again) or moves on with a message. Of all chains between two ranks
the longest stays at one place only, where hops take longest. Rows of arrays are rings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOST_CLASSES = 32  # of hop times in a ring, the longest ones; shorter ones hardly matter
MOST_HOPS = 2_000_000  # looked at one by one


def ring_tails(hop_ns: Array, rounds: int) -> Array:
    """Longest chain of `rounds` hops around rings, from each position; rows are rings.

    A chain stays at a rank (which sends again) or moves on with the message. Of all chains that
    end at one rank the longest stays only there, so it is max over j of
    hops from s to j + (rounds - their number) × hop_j. Hops take few distinct times, and for each
    of them the first such hop after s is best: a longer one in between is a class of its own.
    """
    rows, size = hop_ns.shape
    twice = np.concatenate([hop_ns, hop_ns], axis=1)
    before = np.concatenate([np.zeros((rows, 1)), np.cumsum(twice, axis=1)], axis=1)[:, :-1]
    start = np.arange(size)
    tail = np.zeros((rows, size))
    for length in _classes(hop_ns):
        place = np.where(np.abs(twice - length) <= 1e-9 * length, np.arange(2 * size), 4 * size)
        following = np.minimum.accumulate(place[:, ::-1], axis=1)[:, ::-1][:, :size]
        moved = following - start
        at = np.minimum(following, 2 * size - 1)
        chain = (
            np.take_along_axis(before, at, axis=1) - before[:, :size] + (rounds - moved) * length
        )
        tail = np.maximum(tail, np.where(moved <= rounds, chain, 0.0))
    return tail


def _classes(hop_ns: Array) -> Array:
    """The distinct hop times, longest first."""
    ordered = np.unique(hop_ns)[::-1]
    kept = np.concatenate([[True], np.diff(ordered) < -1e-9 * ordered[:-1]])
    longest: Array = ordered[kept][:MOST_CLASSES]
    return longest


def around(begin: Array, hop_ns: Array, rounds: int) -> Array:
    """When each position of rings is through so many rounds; rows are rings."""
    now = begin.astype(float)
    sent = np.empty_like(now)
    for _ in range(rounds):
        np.add(now, hop_ns, out=sent)
        np.maximum(sent[:, 1:], sent[:, :-1], out=now[:, 1:])
        np.maximum(sent[:, 0], sent[:, -1], out=now[:, 0])
    return now


class RingProfile:
    """Who is through a ring how long before the last."""

    def __init__(self, order: Array, hop_ns: Array, rounds: int) -> None:
        self._order = order  # (rings, size): ranks
        self._hop_ns = hop_ns
        self._rounds = rounds
        self._together = self._from_everywhere()

    @property
    def leads_ns(self) -> Array:
        """How long before the last each rank is through, if all enter together."""
        return np.asarray(self._together.max() - self._together)

    def ends(self, entry_ns: Array, latest: Array, times: int) -> Array:
        """When each rank is through `times` collectives in a row: the latest of what the `latest`
        ranks alone and the earliest entry of all would make it."""
        rounds = self._rounds * times
        earlier = (times - 1) * self._rounds * float(self._hop_ns.max())
        found: Array = float(entry_ns.min()) + self._together + earlier
        for rank in latest:
            found = np.maximum(found, entry_ns[rank] + self._after(int(rank), rounds))
        return found

    def _after(self, first: int, rounds: int) -> Array:
        """The longest chain of so many rounds from one rank to each."""
        found = np.zeros(len(self._together))
        size = self._order.shape[1]
        moved = np.arange(size)
        for order, hops in zip(self._order, self._hop_ns, strict=True):
            turn = -int(np.argmax(order == first))
            hops = np.roll(hops, turn)
            before = np.cumsum(hops) - hops
            chain = before + np.maximum(rounds - moved, 0) * np.maximum.accumulate(hops)
            around_once = before + hops.sum() + (rounds - size - moved) * hops.max()
            chain = np.where(rounds >= size + moved, np.maximum(chain, around_once), chain)
            ranks = np.roll(order, turn)
            found[ranks] = np.maximum(found[ranks], chain)
        return found

    def _from_everywhere(self) -> Array:
        """When each rank is through one collective that all enter at 0."""
        found = np.zeros(int(self._order.max()) + 1)
        if self._rounds * self._order.size <= MOST_HOPS:
            through = around(np.zeros_like(self._hop_ns), self._hop_ns, self._rounds)
        else:  # the same chains backwards, but for one hop
            through = ring_tails(self._hop_ns[:, ::-1], self._rounds)[:, ::-1]
        np.maximum.at(found, self._order.reshape(-1), through.reshape(-1))
        return found
