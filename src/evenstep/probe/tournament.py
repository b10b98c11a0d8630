"""Who measures with whom: a round-robin, so that every team plays every other once.

The circle method: one team stays, the others move on by one place each round. With n teams there
are n - 1 rounds of n / 2 disjoint pairs, one more with an odd number, where one team rests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

FEWEST_PASSES, MOST_PASSES = 2, 15

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


def played(
    schedule: Sequence[list[Pair]],
    budget_ns: float,
    spent_ns: Callable[[], float],
    play: Callable[[list[Pair]], None],
) -> int:
    """Play all rounds, several times over, within a budget; how many rounds were left out of it.

    `spent_ns` tells what is spent, the same to every rank, and all come together in it. As many
    rounds as the budget lets be played twice are played at all: in each of them a team meets one
    more, and who meets but one other cannot be told from the link between the two.
    """
    chosen = list[list[Pair]]()
    for pairs in schedule:
        if spent_ns() * FEWEST_PASSES > budget_ns and chosen:
            break
        play(pairs)
        chosen.append(pairs)
    for passes in range(1, MOST_PASSES):
        spent = spent_ns()
        if passes >= FEWEST_PASSES and spent * (passes + 1) / passes > budget_ns:
            break
        for number, pairs in enumerate(chosen):
            if number:
                spent_ns()
            play(pairs)
    return len(schedule) - len(chosen)


def opponent(pairs: Sequence[Pair], team: int) -> int | None:
    """Whom a team meets in a round."""
    return next((a + b - team for a, b in pairs if team in (a, b)), None)
