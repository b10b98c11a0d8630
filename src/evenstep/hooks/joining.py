"""The mark of a rank that waits for the others to meet, before which it records nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evenstep.agent.pulse.heartbeat import described
from evenstep.agent.settings import config as configuration
from evenstep.errors import EvenstepError
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.folder import RunFolder, started_ticks
from evenstep.trace.spool.identity import from_environment, hostname


@contextmanager
def joining(call: str, rank: object, world: object, address: str) -> Iterator[None]:
    """Leave a mark in the launcher's folder while this rank is inside a call that makes it meet the
    others at an address ("" unknown). The mark of a call that fails stays, and says why.

    The script may give rank and world. What cannot be marked is not: attaching will tell."""
    path: Path | None = None
    with suppress(EvenstepError, OSError):
        path, mark = _mark(call, rank, world, address)
    try:
        yield
    except BaseException as error:
        if path:
            raised = described(error) | {"monotonic_ns": time.monotonic_ns()}
            with suppress(OSError):
                write_whole(path, json.dumps(mark | {"raised": raised}))
        raise
    if path:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _mark(
    call: str, rank: object, world: object, address: str
) -> tuple[Path | None, dict[str, Any]]:
    """Write the mark; return its file, None where there is none, and contents."""
    config, identity = configuration.load(), from_environment(os.environ)
    if isinstance(rank, int) and isinstance(world, int) and 0 <= rank < world:
        identity = identity.at(rank=rank, world=world)
    if not (config.enabled and config.out and identity.world > 1):
        return None, {}
    if address.startswith(("localhost:", "127.")) and identity.nodes > 1:
        address += f" of {hostname()}"  # each node's own
    path = RunFolder(config.out).joining_path(identity.rank)
    mark = identity.header() | {"started_ticks": started_ticks(os.getpid())}
    mark |= {"call": call, "place": address}
    write_whole(path, json.dumps(mark))
    return path, mark
