"""Sets of ranks, or processors, in text form: "0-3,8"; and the order of names with numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from itertools import groupby, pairwise

MOST_RANKS = 1 << 20  # a larger number is damage, not a cluster
MOST_MEMBERS = 4 * MOST_RANKS  # of all groups: a few characters may name a million ranks


def format_ranks(ranks: Iterable[int]) -> str:
    """Write ranks in ascending order with runs joined: {0, 1, 2, 8} is "0-2,8"."""
    if isinstance(ranks, range) and ranks.step == 1 and len(ranks) > 1:
        return f"{ranks.start}-{ranks.stop - 1}"
    places = enumerate(sorted(set(ranks)))  # in a run, ranks and places grow alike
    runs = ([rank for _, rank in run] for _, run in groupby(places, lambda at: at[1] - at[0]))
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def format_missing(ranks: Iterable[int], world: int) -> str:
    """Write the ranks below `world` (a million) that are missing from `ranks`, as `format_ranks`
    does; only gaps are visited."""
    edges = [-1, *sorted(rank for rank in set(ranks) if rank < world), world]
    gaps = [range(low + 1, high) for low, high in pairwise(edges) if high > low + 1]
    return ",".join(map(format_ranks, gaps))


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse the form of `format_ranks`. Raises ValueError for anything else."""
    ranks: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not 0 <= begin <= end < MOST_RANKS or len(ranks) > MOST_RANKS:
            raise ValueError(f"{part!r} is not a range of ranks")
        ranks.extend(range(begin, end + 1))
    return tuple(ranks)


def natural(name: object) -> list[str | int]:
    """Sort key of a name or path in natural order: rank 2 before rank 10."""
    parts = re.split(r"(\d+)", str(name))  # text and digits in turn
    return [int(part[:18]) if place % 2 else part for place, part in enumerate(parts)]


def group_uid(ranks: Iterable[int], name: str) -> str:
    """Identity of a process group, the same on every rank: a hash of its ranks and name."""
    return blake2b(f"{format_ranks(ranks)}/{name}".encode(), digest_size=8).hexdigest()
