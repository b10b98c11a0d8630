"""In what order the stages of a pipeline take their micro-batches.

One forward one backward (PipeDream-Flush, Narayanan et al. 2021): at most as many micro-batches are
under way as there are stages behind. Interleaved (ibid., section 2.2), a rank holds several chunks
of layers, every p-th one of p ranks: a micro-batch passes each rank several times, which shortens
the bubble. Zero bubble (Qi et al. 2023, ZB-H1) takes the backward apart: the gradients of
weights, for which no other stage waits, fill what would be idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

FORWARD, BACKWARD, WEIGHTS = range(3)


class Task(NamedTuple):
    """A micro-batch's way through one chunk of layers, of which `chunk` counts along the model.
    `share` is the part of a forward or backward that it takes."""

    kind: int
    chunk: int
    batch: int
    share: float = 1.0


def tasks(
    schedule: str, stages: int, micro_batches: int, interleaved: int, *, forward: float,
    backward: float,
) -> tuple[tuple[Task, ...], ...]:  # fmt: skip
    """What each stage does, in order. `forward` and `backward` are a micro-batch's times."""
    if schedule == "zero_bubble":
        return _zero_bubble(stages, micro_batches, forward, backward)
    return tuple(
        tuple(_of_stage(schedule, stages, stage, micro_batches, interleaved))
        for stage in range(stages)
    )


def _of_stage(
    schedule: str, stages: int, stage: int, micro_batches: int, interleaved: int
) -> Iterator[Task]:
    """Forwards to fill the pipeline, one of each, the rest."""
    total = micro_batches * interleaved
    ahead = stages - stage - 1
    if interleaved > 1:
        ahead = 2 * ahead + (interleaved - 1) * stages
    ahead = total if schedule == "gpipe" else min(ahead, total)
    forwards = [_turn(stages, stage, interleaved, k, FORWARD) for k in range(total)]
    backwards = [_turn(stages, stage, interleaved, k, BACKWARD) for k in range(total)]
    yield from forwards[:ahead]
    for onward, back in zip(forwards[ahead:], backwards, strict=False):
        yield from (onward, back)
    yield from backwards[total - ahead :]


def _turn(stages: int, stage: int, interleaved: int, k: int, kind: int) -> Task:
    """The k-th forward or backward of a rank: groups of as many micro-batches as stages pass one of
    its chunks after the other."""
    group, place = divmod(k, stages * interleaved)
    turn = place // stages
    chunk = turn if kind == FORWARD else interleaved - 1 - turn
    return Task(kind, chunk * stages + stage, group * stages + place % stages)


@lru_cache(maxsize=8)
def _zero_bubble(
    stages: int, micro_batches: int, forward: float, backward: float
) -> tuple[tuple[Task, ...], ...]:
    """Each stage in turn takes a backward that has come, else a forward if not too many are under
    way, else the gradients of weights; worked out once with the times given."""
    length = (forward, backward / 2, backward / 2)
    over: dict[tuple[int, int, int], float] = {}
    done: list[list[Task]] = [[] for _ in range(stages)]
    free = [0.0] * stages
    count = [[0, 0, 0] for _ in range(stages)]

    def ready(stage: int, kind: int) -> float:
        """When the next task of a kind could begin; infinite where it cannot be told yet."""
        batch = count[stage][kind]
        if batch == micro_batches or (kind == WEIGHTS and batch == count[stage][BACKWARD]):
            return float("inf")
        if kind == WEIGHTS:
            return free[stage]
        if kind == FORWARD and batch - count[stage][BACKWARD] > stages - stage - 1:
            return float("inf")
        if kind == BACKWARD and batch == count[stage][FORWARD]:
            return float("inf")
        near = stage + (-1 if kind == FORWARD else 1)
        came = over.get((near, kind, batch), float("inf")) if 0 <= near < stages else 0.0
        return max(free[stage], came)

    for _ in range(3 * stages * micro_batches):
        at, _, kind, stage = min(
            (ready(stage, kind), order, kind, stage)
            for stage in range(stages)
            for order, kind in enumerate((BACKWARD, FORWARD, WEIGHTS))
        )
        batch = count[stage][kind]
        count[stage][kind] += 1
        free[stage] = over[stage, kind, batch] = at + length[kind]
        share = 1.0 if kind == FORWARD else 0.5
        done[stage].append(Task(kind, stage, batch, share))
    return tuple(tuple(of) for of in done)
