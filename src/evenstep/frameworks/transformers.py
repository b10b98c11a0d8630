"""transformers: `Trainer(…, callbacks=[EvenstepCallback()])`.

Without it evenstep observes the Trainer's collectives, steps, forward, backward and loaders. The
callback adds the end of evaluation, the whole of a checkpoint (more than `torch.save`), and the
numbers that the Trainer logs.
"""

from __future__ import annotations

from typing import Any

from evenstep.agent.stacks import Tested
from evenstep.attachment import session
from evenstep.frameworks.loop import Loop, StepMark, callback
from evenstep.trace.spool.layout import Phase

TESTED = Tested("transformers", "4.57", "5.24")


class TrainerEvents:
    """Translates the Trainer's events, with `settings` of `evenstep.attach`. It reports ends of
    evaluations and saves only: they begin at the event before, at the earliest a step's end."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings
        self._loop = Loop(TESTED)
        self._before: StepMark = []  # the last event before a save could begin

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._loop.attach(self._settings)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._before = self._loop.mark()

    on_epoch_end = on_step_end

    def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
        session.log(logs or {})
        self._before = self._loop.mark()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self._loop.evaluation_ends()
        self._before = self._loop.mark()

    def on_save(self, *_: Any, **__: Any) -> None:
        self._loop.reclassify(Phase.CHECKPOINT, self._before)


__getattr__ = callback("EvenstepCallback", TrainerEvents, lambda: "transformers", "TrainerCallback")
