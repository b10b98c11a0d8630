"""A collective is issued: the one path of the recorder that runs thousands of times a step.

One closure that packs the record itself, instead of three calls with a dozen arguments each: a
quarter of the cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from evenstep.trace.spool.layout import (
    BEGUN_BODY,
    HOST_DEVICE,
    RECORD_BYTES,
    RECORD_WORDS,
    Flag,
    Kind,
)

if TYPE_CHECKING:
    from evenstep.agent.recorder import Recorder

#: Collectives of one step kept for the online wait estimate; beyond it the step's first ones count.
STEP_COLLECTIVES = 4096

_COLLECTIVE = int(Kind.COLLECTIVE)
_ASYNC = int(Flag.ASYNC)
#: Its end is noticed without what is kept here: by the device, or by who makes the call.
_ELSEWHERE = int(Flag.ON_DEVICE | Flag.HOST_BLOCKED)

_get_ident = threading.get_ident


class GroupState:
    """A process group as the recorder needs it."""

    __slots__ = ("index", "ranks", "sequence", "uid")

    def __init__(self, index: int, uid: str, ranks: tuple[int, ...], sequence: int) -> None:
        self.index = index  # in the spool's table
        self.uid = uid
        self.ranks = ranks
        self.sequence = sequence  # collectives so far, from the group's own counter

    def global_rank(self, group_rank: int) -> int:
        """The global rank of a member; the number itself where the group is not known."""
        return self.ranks[group_rank] if 0 <= group_rank < len(self.ranks) else group_rank


def collective_recorder(recorder: Recorder) -> Callable[..., int]:
    """`Recorder.collective`: writes the record of what was issued and returns its number.

    Its exit comes by `spool.close`.
    """
    stack, clock = recorder.stack, recorder.clock
    number, words, ring, capacity = recorder.spool.slots
    pack_into, unreported = BEGUN_BODY.pack_into, clock.unreported

    def collective(
        enter_ns: int,
        group: GroupState,
        op: int,
        bytes_in: int,
        bytes_out: int,
        flags: int,
        peer: int,
        dtype: int,
        device: int = HOST_DEVICE,
    ) -> int:
        sequence = group.sequence
        group.sequence = sequence + 1
        ident = _get_ident()
        index = group.index
        seq = number()
        slot = (seq - 1) % capacity
        word = slot * RECORD_WORDS
        words[word] = 0
        pack_into(
            ring, slot * RECORD_BYTES + 8, enter_ns, sequence, bytes_in, bytes_out, stack.step,
            index, stack.parent & 0xFFFFFFFF,
            0 if ident == recorder.ident else recorder.thread(ident),
            flags, peer, device, _COLLECTIVE, op, dtype,
        )  # fmt: skip
        words[word] = seq
        collectives = recorder.collectives
        if len(collectives) < STEP_COLLECTIVES:
            collectives.append((seq, index, op, bytes_in, flags))
        else:
            recorder.counted["collectives"] += 1
            recorder.counted["bytes"] += bytes_in
        if flags & _ELSEWHERE:
            return seq
        if not flags & _ASYNC:
            _supersede(recorder, ident, seq, enter_ns)
        else:
            clock.last_entry_ns = enter_ns  # `StepClock.issued`, a frame shorter
            if clock.backwards:
                unreported.append(seq)
        return seq

    return collective


def _supersede(recorder: Recorder, ident: int, seq: int, enter_ns: int) -> None:
    """A call that blocks: what this thread was in before has ended, where nobody saw it wait."""
    left = recorder.blocking.get(ident)
    if left is not None:
        recorder.spool.close(left, enter_ns)
    recorder.blocking[ident] = seq
