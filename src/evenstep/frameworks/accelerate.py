"""Accelerate: `observe(accelerator)` once, after `accelerator.prepare(…)` or before it.

The loop is the script's own, so evenstep observes its collectives, steps (only those that
synchronise gradients), phases and loaders without it. `observe` attaches, and makes writing a
checkpoint one phase: most of `save_state` is not `torch.save`.
"""

from __future__ import annotations

from typing import Any

from evenstep.agent.stacks import Tested
from evenstep.frameworks.loop import Loop
from evenstep.trace.spool.layout import Phase

TESTED = Tested("accelerate", "0.34", "1.15")
SAVING = ("save_state", "save_model", "save")


def observe(accelerator: Any, **settings: object) -> bool:
    """Observe this rank of an `Accelerator`, with settings of `evenstep.attach`; True if it is
    observed. Never raises."""
    loop = Loop(TESTED)
    attached = loop.attach(settings)
    if not loop.watches(accelerator):
        for name in SAVING:
            loop.around(accelerator, name, Phase.CHECKPOINT)
    return attached
