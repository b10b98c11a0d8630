"""Who measures with whom: a round-robin, so that every team plays every other once.

The circle method: one team stays, the others move on by one place each round. With n teams there
are n - 1 rounds of n / 2 disjoint pairs, one more with an odd number, where one team rests.
"""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[int, int]  # the lower team first


def rounds(teams: Sequence[int]) -> list[list[Pair]]:
    """Disjoint pairs of each round; every pair stands in exactly one of them."""
    circle: list[int | None] = [*sorted(teams)]
    if len(circle) < 2:
        return []
    if len(circle) % 2:
        circle.append(None)
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        meetings = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([_ordered(a, b) for a, b in meetings if a is not None and b is not None])
        circle[1:] = [circle[-1], *circle[1:-1]]
    return found


def _ordered(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


def some(schedule: Sequence[list[Pair]], most: int) -> list[list[Pair]]:
    """At most so many rounds, spread evenly over all: each team still meets as many others."""
    if len(schedule) <= most:
        return list(schedule)
    return [schedule[i * len(schedule) // most] for i in range(most)]


def opponent(pairs: Sequence[Pair], team: int) -> int | None:
    """Whom a team meets in a round."""
    return next((a + b - team for a, b in pairs if team in (a, b)), None)
