"""Find the attempt of a rank, where its launcher counts crashes only.

When nodes join or leave, torchrun restarts all ranks, with a new world size and the same restart
count. Without this their traces would collide with those of the ranks before. Every rank decides
alone: by the writer of its own spool, or, if it is new to the job, by the age of rank 0's.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenstep.trace.spool import layout
from evenstep.trace.spool.folder import RunFolder, lives, process_start_s
from evenstep.trace.spool.identity import Identity

APART_S = 10.0  # ranks of one start begin closer together than two starts


def renumber(identity: Identity, folder: RunFolder, pid: int | None = None) -> Identity:
    """The identity of a process, this one if None, with the first attempt, from its own on, that no
    earlier start has used."""
    if identity.launcher != "torchrun":
        return identity
    began_s = process_start_s(pid or os.getpid()) or time.time()
    attempt = identity.attempt
    while used_before(identity, folder, attempt, began_s):
        attempt += 1
    return identity._replace(attempt=attempt)


def used_before(identity: Identity, folder: RunFolder, attempt: int, began_s: float) -> bool:
    """Whether an earlier start of this very run has written this attempt.

    `began_s` is when this process began, in seconds since the epoch.
    """
    own = header(folder.spool_path(attempt, identity.rank))
    if own is not None:  # a child of a living rank is to stay passive
        return own.get("run_id") == identity.run_id and not lives(own)
    first = header(folder.spool_path(attempt, 0))
    if first is None or first.get("run_id") != identity.run_id:
        return False
    return float(first.get("anchor_realtime_ns", began_s * 1e9)) / 1e9 < began_s - APART_S


def header(path: Path) -> Mapping[str, Any] | None:
    """The header of a spool; None where there is no readable spool."""
    try:
        with path.open("rb") as spool:
            page = spool.read(layout.PAGE_BYTES)
        fields = layout.HEADER.unpack_from(page)
        found = json.loads(page[layout.HEADER_TEXT_OFFSET :][: fields[-1]])
    except (OSError, ValueError, struct.error):
        return None
    return found if isinstance(found, dict) else None
