"""Timelines of Horovod (`HOROVOD_TIMELINE`): when ranks were ready for each tensor, on one clock.

The coordinator writes the whole file. During the negotiation of a tensor it marks when each rank
reports that it is ready, by the rank's number; the collective and its activities follow. All times
are on its clock, and the rank marked last is the one that the others wait for. Tensors for which
the response cache saved the negotiation have no marks, and are not in the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.errors import TraceError
from evenstep.importers.compression import Stream
from evenstep.importers.content import SourceFile
from evenstep.importers.draft import FIRST_NS, LATEST_NS, Draft
from evenstep.importers.kineto.names import operation
from evenstep.importers.trace_events import TraceEvent, TraceEvents
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.repetition import infer_steps
from evenstep.trace.spool.layout import Op
from evenstep.trace.trace import Trace

NAME = "Horovod timeline"
MARK = b'"NEGOTIATE_'
MOST_CALLS = 5_000_000


@dataclass(slots=True)
class TensorCall:
    """One tensor's collective. Times in µs since the timeline began."""

    tensor: int  # in order of appearance
    op: Op = Op.OTHER
    ready_us: dict[int, float] = field(default_factory=dict)  # by rank
    end_us: float = 0.0
    depth: int = 0  # activities under way
    negotiating: bool = False


def recognises(source: SourceFile) -> bool:
    """Whether a file is Chrome JSON with a negotiation in it."""
    return source.head.lstrip()[:1] == b"[" and MARK in source.head


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read the timeline as a trace. Raises `TraceError` if it has no negotiated collective."""
    draft, calls = Draft(), calls_of(sources[0])
    if len(calls) > MOST_CALLS:
        draft.limits.append(f"only the first {len(calls)} collectives were read")
    draft.limits += [f"left out: {each.path} is a second timeline" for each in sources[1:]]
    if not calls:
        raise TraceError(
            f"{sources[0].path} has no negotiation; run with HOROVOD_CACHE_CAPACITY=0 to see them"
        )
    ranks = sorted(set().union(*(call.ready_us for call in calls)))
    for rank in ranks:
        draft.rank(rank, {"device_clock": "host"}, boot_id="the coordinator")
    _enter(draft, calls, ranks)
    return infer_steps(draft.trace({"source": NAME}), "the timeline marks no steps")


def calls_of(source: SourceFile) -> list[TensorCall]:
    """The collectives whose negotiation is complete, in order of their beginning."""
    tensors: dict[Any, TensorCall] = {}
    calls: list[TensorCall] = []
    with Stream(source.path) as stream:
        for piece in TraceEvents(stream):
            for event in piece:
                _take(tensors, calls, event)
            if len(calls) > MOST_CALLS:
                break
    return sorted(calls, key=lambda call: min(call.ready_us.values()))


def _take(tensors: dict[Any, TensorCall], calls: list[TensorCall], event: TraceEvent) -> None:
    """Take in one event of a tensor: its negotiation with marks, then the collective."""
    call = tensors.setdefault(event.pid, TensorCall(len(tensors)))
    name = event.name or ""
    match event.ph:
        case "B" if name.startswith("NEGOTIATE_"):
            op = operation(name.removeprefix("NEGOTIATE_")) or Op.OTHER
            tensors[event.pid] = TensorCall(call.tensor, op, negotiating=True)
        case "B":
            call.depth += 1
        case "X" if call.negotiating and name.isascii() and name.isdigit():
            if int(name[:8]) < MOST_RANKS and 0 <= float(event.ts) < LATEST_NS / 1e3:
                call.ready_us.setdefault(int(name[:8]), float(event.ts))
        case "E" if call.negotiating:
            call.negotiating = False
        case "E" if call.depth:
            call.depth -= 1
            if not call.depth and call.ready_us:
                call.end_us = max(float(event.ts), *call.ready_us.values())
                calls += [call] if call.end_us < LATEST_NS / 1e3 else []
                tensors[event.pid] = TensorCall(call.tensor)


def _enter(draft: Draft, calls: Sequence[TensorCall], ranks: Sequence[int]) -> None:
    """Enter a collective of all ranks for each call in which all ranks were marked.

    Horovod's own thread carries them out beside the training, as a device would.
    """
    whole = [call for call in calls if len(call.ready_us) == len(ranks)]
    if len(whole) < len(calls):
        draft.limits.append(
            f"{len(calls) - len(whole)} of {len(calls)} collectives are not marked by all ranks: "
            "left out"
        )
    group = draft.group("world", ranks, "horovod")
    end_ns = np.array([call.end_us for call in whole]) * 1e3
    for rank in ranks:
        ready_ns = np.array([call.ready_us[rank] for call in whole]) * 1e3
        enter = FIRST_NS + ready_ns.astype(np.int64)
        leave = FIRST_NS + np.maximum(end_ns, ready_ns + 1).astype(np.int64)
        draft.calls(
            rank,
            group=group, group_seq=np.arange(len(whole)),
            op=np.array([int(call.op) for call in whole], np.int64),
            payload=np.array([call.tensor for call in whole], np.int64),
            enter_ns=enter, exit_ns=leave, device=0, flags=0,
        )  # fmt: skip
