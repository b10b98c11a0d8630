"""DeepSpeed: `observe(engine)` once, after `deepspeed.initialize(…)`.

A DeepSpeed engine is no DDP module, and ZeRO calls the optimizer in it once for every group of
parameters: without `observe` a step with two groups counts as two, and the forward is not marked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from evenstep.agent.stacks import Tested
from evenstep.frameworks.loop import Loop
from evenstep.trace.spool.layout import Phase

TESTED = Tested("deepspeed", "0.16", "0.19")
UPDATING = ("step", "train_batch")  # the second is the pipeline engine's, which forbids the first


def observe(engine: Any, **settings: object) -> bool:
    """Observe this rank of a `DeepSpeedEngine`, with settings of `evenstep.attach`; True if it is.
    Never raises. A step is one update, skipped on overflow or not, since it takes time."""
    loop = Loop(TESTED)
    attached = loop.attach(settings, marks_steps=True)
    if loop.watches(engine):
        return attached
    loop.around(engine, "forward", Phase.FORWARD)
    loop.around(engine, "save_checkpoint", Phase.CHECKPOINT)
    loop.around(engine, "step", Phase.OPTIMIZER)
    look = _ends_steps(engine, loop)
    for name in UPDATING:
        loop.replace(engine, name, after=look)
    return attached


def _ends_steps(engine: Any, loop: Loop) -> Callable[[], None]:
    """A function that ends a step if the call that has returned updated the parameters: the engine
    has counted one more update, as it does not at each accumulating call."""
    before = _count_updates(engine)

    def look() -> None:
        nonlocal before
        with suppress(TypeError, ValueError):  # of counters that are none: no steps are marked
            steps, samples = _count_updates(engine)
            if steps == before[0]:
                return
            # The counter is of all ranks; ranks of one model share a batch, and each counts a part.
            mine = (samples - before[1]) // max(getattr(engine, "world_size", 1), 1)
            before = steps, samples
            loop.step_ends(mine)

    return look


def _count_updates(engine: Any) -> tuple[int, int]:
    """Updates so far, and the samples in them."""
    return getattr(engine, "global_steps", 0), getattr(engine, "global_samples", 0)
