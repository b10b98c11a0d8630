"""A rank that makes the others' calls, but one place off: it left one out, or made one twice.

Training repeats its collectives. Where the others' next call was last made, what came after it is
what they would have called next; a rank that calls that already has left the one before it out.
"""

from __future__ import annotations

from evenstep.diagnose.measure.standstill import EnteredCall, Stuck, call_of
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace


def out_of_step(trace: Trace, place: Stuck, rank: int) -> str:
    """How the calls of a rank that differs are shifted against the others', in words; "" if not."""
    others = [other for other in place.calls if other not in place.different]
    if not others or rank not in place.calls:
        return ""
    usual = _calls(trace, place, others[0])
    own, expected = _kind(place.calls[rank]), _kind(place.calls[others[0]])
    if usual.get(place.sequence - 1) == own:
        return "as if it had made the call before a second time"
    before = [at for at, kind in usual.items() if at < place.sequence and kind == expected]
    if before and usual.get(max(before) + 1) == own:
        return "as if it had left a call out"
    return ""


def _calls(trace: Trace, place: Stuck, rank: int) -> dict[int, tuple[int, int | None, int]]:
    """What a rank entered in the group, by its place in the order."""
    events = trace.of_kind(Kind.COLLECTIVE)
    rows: Columns = events.select((events["rank"] == rank) & (events.group == place.group))
    return {int(at): _kind(call_of(rows, index)) for index, at in enumerate(rows.group_seq)}


def _kind(call: EnteredCall) -> tuple[int, int | None, int]:
    """A call without the place it was made from."""
    return call.op, call.size, call.dtype
