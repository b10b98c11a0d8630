"""Every published system, in the order in which they are shown."""

from __future__ import annotations

from evenstep.reproduce.published import collectives, training, uptime
from evenstep.reproduce.published.rows import System


def systems() -> list[System]:
    """All of them, computed now."""
    return [
        collectives.one_node(),
        collectives.several_nodes(),
        collectives.p5(),
        *training.systems(),
        uptime.llama3(),
        uptime.rsc(),
    ]
