"""Lightning: `Trainer(callbacks=[EvenstepCallback()])`, of `lightning` or `pytorch_lightning`.

The callback adds the beginning and end of validation, the whole of a checkpoint (more than
`torch.save`), and which of the batches that were read ahead belong to a step.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evenstep.agent.settings import config
from evenstep.agent.stacks import Tested
from evenstep.errors import ConfigError
from evenstep.frameworks.loop import Loop, callback
from evenstep.hooks.torch.phases import batch_length
from evenstep.trace.spool.folder import default_path
from evenstep.trace.spool.layout import Phase

PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


class LightningEvents:
    """Translates Lightning's events. `settings` are those of `evenstep.attach`."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings
        self._loop = Loop(Tested(_package(), "2.2", "2.6"))

    def setup(self, trainer: Any, _module: Any, stage: str) -> None:
        if stage == "fit":
            self._loop.attach({**_place(trainer), **self._settings})
            self._loop.release()  # methods of a fit that failed
            self._loop.around(trainer, "save_checkpoint", Phase.CHECKPOINT)

    def on_train_batch_start(self, _trainer: Any, _module: Any, batch: Any, *_: Any) -> None:
        self._loop.batch(batch_length(batch))

    def on_validation_start(self, *_: Any) -> None:
        self._loop.evaluation_begins()

    def on_validation_end(self, *_: Any) -> None:
        self._loop.evaluation_ends()

    def teardown(self, *_: Any, **__: Any) -> None:
        self._loop.release()


def _package() -> str:
    """The package that the script has imported; else the one that is installed."""
    loaded = (name for name in PACKAGES if name in sys.modules)
    installed = (name for name in PACKAGES if find_spec(name) is not None)
    return next(loaded, next(installed, "lightning"))


def _place(trainer: Any) -> dict[str, Path]:
    """A common folder where Lightning has started the other ranks as children of the first."""
    with suppress(AttributeError, OSError):  # an untested Lightning, or no current folder
        environment = getattr(trainer.strategy, "cluster_environment", None)
        given = getattr(environment, "creates_processes_externally", True) or _is_folder_set()
        if not (given or getattr(trainer.strategy.launcher, "is_interactive_compatible", True)):
            pid = os.getpid() if trainer.local_rank == 0 else os.getppid()
            return {"out": default_path(Path.cwd(), pid)}
    return {}


def _is_folder_set() -> bool:
    """Whether the environment or a file sets the run's folder."""
    try:
        return config.load().out is not None
    except ConfigError:
        return True  # `attach` reports the error


__getattr__ = callback(
    "EvenstepCallback", LightningEvents, lambda: PACKAGES[_package()] + ".callbacks", "Callback"
)
