"""Every published system, in the order in which they are shown."""

from __future__ import annotations

from evenstep.reproduce.published import collectives, training, uptime
from evenstep.reproduce.published.rows import System


def systems() -> list[System]:
    """All of them, computed now."""
    return [
        collectives.nvls(),
        collectives.peaks(),
        *(training.megascale(framework) for framework in training.MEGASCALE),
        training.llama3(),
        training.ddp(),
        training.horovod(),
        uptime.llama3(),
        uptime.rsc(),
    ]
