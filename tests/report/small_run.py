"""A small run with a known cause, built by columns: rank 3 is 40 ms late in every backward."""

from collections.abc import Iterable

import numpy as np

from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import RECORD_FIELDS, Flag, Kind, Op, Phase
from evenstep.trace.spooled import EVENT_COLUMNS

RANKS, STEPS, LATE_RANK, FIRST_STEP = 4, 60, 3, 100
MS = 1_000_000
LATE_NS = 40 * MS
WAIT_NS = 35 * MS  # of the others: blocked from 95 ms until the last enters bucket 2 at 130 ms
STEP_NS = 150 * MS  # input 5, forward 30, backward 60 (the late rank 100), sync, optimizer 5
BOOT_NS = 7_000_000 * MS  # the monotonic clock does not begin at zero
NODES = ("gpu011", "gpu012")
HOSTILE = "</script><img src=x onerror=alert(1)>\"'\n&"


def record(**fields: int) -> dict[str, int]:
    return dict.fromkeys(EVENT_COLUMNS, 0) | {"peer_or_root": -1, "device": -1} | fields


def events(rows: Iterable[dict[str, int]]) -> Columns:
    rows = list(rows)
    types = {"rank": "<i4", **dict(RECORD_FIELDS), "group": "<i4", "name": "<i4"}
    return Columns(
        {name: np.array([row[name] for row in rows], types[name]) for name in EVENT_COLUMNS}
    )


def step_rows(rank: int, step: int) -> Iterable[dict[str, int]]:
    start = BOOT_NS + (step - FIRST_STEP) * STEP_NS
    late = LATE_NS if rank == LATE_RANK else 0
    done = start + 145 * MS
    at = {"rank": rank, "step": step, "group": -1}
    phases = (
        (Phase.INPUT, 0, 5, 5),
        (Phase.FORWARD, 5, 35, 30),
        (Phase.BACKWARD, 35, 145, 60 + late // MS),  # sync is nested in it
        (Phase.SYNC, 95 + late // MS, 145, 50 - late // MS),
        (Phase.OPTIMIZER, 145, 150, 5),
    )
    for phase, first, last, leaf in phases:
        yield record(
            **at,
            kind=Kind.PHASE,
            op=phase,
            group_seq=leaf * MS,
            enter_ns=start + first * MS,
            exit_ns=start + last * MS,
        )
    for bucket, enter in enumerate((75 * MS, 90 * MS)):
        yield record(
            rank=rank, step=step, kind=Kind.COLLECTIVE, op=Op.ALL_REDUCE, group=0,
            group_seq=2 * step + bucket, bytes_in=25_000_000, flags=int(Flag.ASYNC),
            enter_ns=start + enter + late, exit_ns=done - (1 - bucket) * 5 * MS,
        )  # fmt: skip
    if late:
        yield record(**at, kind=Kind.PAUSE, op=2, enter_ns=start + 45 * MS, exit_ns=start + 85 * MS)
    elif rank == 0:
        yield record(
            **at, kind=Kind.PACING, op=1, name=1, held_ns=4 * MS, flags=int(Flag.APPLIED),
            enter_ns=start + 146 * MS, exit_ns=start + 150 * MS,
        )  # fmt: skip
    yield record(**at, kind=Kind.STEP, enter_ns=start, exit_ns=start + STEP_NS)
