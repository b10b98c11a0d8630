"""DeepSpeed: `observe(engine)` once, after `deepspeed.initialize(…)`.

A DeepSpeed engine is no DDP module, and ZeRO calls the optimizer in it once for every group of
parameters: without `observe` a step with two groups counts as two, and the forward is not marked.
"""

from __future__ import annotations

from typing import Any

from evenstep.frameworks.loop import Loop
from evenstep.hooks.tested import Tested
from evenstep.trace.spool.layout import Phase

TESTED = Tested("deepspeed", "0.16", "0.19")
UPDATING = ("step", "train_batch")  # the second is the pipeline engine's, which forbids the first


def observe(engine: Any, **settings: object) -> bool:
    """Observe this rank of a `DeepSpeedEngine`; True if it is observed. Never raises.

    A step is one update of the parameters; updates that DeepSpeed skips on overflow count as well,
    since they take time. `settings` are those of `evenstep.attach`.
    """
    loop = Loop(TESTED)
    attached = loop.attach(settings, marks_steps=True)
    if loop.watches(engine):
        return attached
    loop.around(engine, "forward", Phase.FORWARD)
    loop.around(engine, "save_checkpoint", Phase.CHECKPOINT)
    loop.around(engine, "step", Phase.OPTIMIZER)
    updates = CountedUpdates(engine, loop)
    for name in UPDATING:
        loop.replace(engine, name, after=updates.look)
    return attached


class CountedUpdates:
    """Ends a step when the engine has counted one more update: not at each accumulating call."""

    def __init__(self, engine: Any, loop: Loop) -> None:
        self._engine = engine
        self._loop = loop
        self._steps, self._samples = self._counted()

    def look(self) -> None:
        """End a step if the call that has returned updated the parameters."""
        try:
            self._look(*self._counted())
        except (TypeError, ValueError):  # an engine without such counters: no steps are marked
            return

    def _look(self, steps: int, samples: int) -> None:
        if steps == self._steps:
            return
        # The counter is of all ranks; ranks of one model share a batch, and each counts its part.
        mine = (samples - self._samples) // max(getattr(self._engine, "world_size", 1), 1)
        self._steps, self._samples = steps, samples
        self._loop.step_ends(mine)

    def _counted(self) -> tuple[int, int]:
        """Updates so far, and the samples in them."""
        engine = self._engine
        return getattr(engine, "global_steps", 0), getattr(engine, "global_samples", 0)
