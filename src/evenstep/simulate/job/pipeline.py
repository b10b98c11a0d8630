"""Micro-batches through the stages of a pipeline, one forward one backward (PipeDream-Flush,
Narayanan et al. 2021): at most as many are under way as there are stages behind.

Interleaved, a rank holds several chunks of layers, every p-th one of p ranks: a micro-batch passes
each rank several times, and the bubble is that much shorter (ibid., section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Operation(NamedTuple):
    """A micro-batch's way through one chunk of layers. `chunk` counts along the whole model."""

    chunk: int
    is_forward: bool
    batch: int


def run_pipeline(
    begin: Array,
    forward: Array,
    backward: Array,
    hop: Array,
    micro_batches: int,
    *,
    interleaved: int = 1,
) -> Array:
    """When each rank is through. All arrays are (pipelines, stages); lengths of a micro-batch.

    `hop` is from a stage to the next, of the last to the first where chunks are interleaved.
    """
    stages = begin.shape[1]
    chunks = stages * interleaved
    now = begin.copy()
    shape = (begin.shape[0], chunks, micro_batches)
    went, came = np.zeros(shape), np.zeros(shape)
    for chunk, is_forward, batch in _order(stages, micro_batches, interleaved):
        stage = chunk % stages
        ready = now[:, stage]
        if is_forward and chunk:
            ready = np.maximum(ready, went[:, chunk - 1, batch] + hop[:, (chunk - 1) % stages])
        if not is_forward and chunk + 1 < chunks:
            ready = np.maximum(ready, came[:, chunk + 1, batch] + hop[:, stage])
        length = (forward if is_forward else backward)[:, stage] / interleaved
        now[:, stage] = ready + length
        (went if is_forward else came)[:, chunk, batch] = now[:, stage]
    return now


@lru_cache(maxsize=8)
def _order(stages: int, micro_batches: int, interleaved: int) -> tuple[Operation, ...]:
    """All operations such that what one needs comes before it."""
    chunks = stages * interleaved
    programs = [
        list(_of_stage(stages, stage, micro_batches, interleaved)) for stage in range(stages)
    ]
    done: set[Operation] = set()
    at = [0] * stages
    order: list[Operation] = []
    while len(order) < 2 * chunks * micro_batches:
        for stage, program in enumerate(programs):
            while at[stage] < len(program):
                operation = program[at[stage]]
                near = operation.chunk + (-1 if operation.is_forward else 1)
                if 0 <= near < chunks and operation._replace(chunk=near) not in done:
                    break
                done.add(operation)
                order.append(operation)
                at[stage] += 1
    return tuple(order)


def _of_stage(stages: int, stage: int, micro_batches: int, interleaved: int) -> Iterator[Operation]:
    """What a rank does in order: forwards to fill the pipeline, one of each, the rest."""
    total = micro_batches * interleaved
    ahead = stages - stage - 1
    if interleaved > 1:
        ahead = 2 * ahead + (interleaved - 1) * stages
    ahead = min(ahead, total)
    forwards = [_turn(stages, stage, interleaved, k, is_forward=True) for k in range(total)]
    backwards = [_turn(stages, stage, interleaved, k, is_forward=False) for k in range(total)]
    yield from forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        yield from (forward, backward)
    yield from backwards[total - ahead :]


def _turn(stages: int, stage: int, interleaved: int, k: int, *, is_forward: bool) -> Operation:
    """The k-th forward or backward of a rank: groups of as many micro-batches as stages pass one of
    its chunks after the other."""
    group, place = divmod(k, stages * interleaved)
    turn = place // stages
    chunk = turn if is_forward else interleaved - 1 - turn
    return Operation(chunk * stages + stage, is_forward, group * stages + place % stages)
