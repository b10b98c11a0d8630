"""A collective is issued: the one path of the recorder that runs thousands of times a step.

One closure that packs the record itself, instead of three calls with a dozen arguments each: a
quarter of the cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.steps import StepClock
from evenstep.trace.spool.layout import (
    BEGUN_BODY,
    HOST_DEVICE,
    RECORD_BYTES,
    RECORD_WORDS,
    Flag,
    Kind,
)
from evenstep.trace.spool.writing import Slots, fence

_COLLECTIVE = int(Kind.COLLECTIVE)
_ASYNC = int(Flag.ASYNC)
#: Its end is noticed without what is kept here: by the device, or by who makes the call.
_ELSEWHERE = int(Flag.ON_DEVICE | Flag.HOST_BLOCKED)

_LAST_ENTRY, _STEP = int(Word.LAST_ENTRY), int(Word.STEP)

_get_ident = threading.get_ident


class GroupState:
    """A process group as the recorder needs it. Several threads may issue on it at once."""

    __slots__ = ("_count", "index", "ranks", "take", "uid")

    def __init__(self, index: int, uid: str, ranks: tuple[int, ...], sequence: int) -> None:
        self.index = index  # in the spool's table
        self.uid = uid
        self.ranks = ranks
        self.take: Callable[[], int]  # the next one's number
        self.count_from(sequence)

    def count_from(self, sequence: int) -> None:
        """There have been so many collectives, by the group's own counter."""
        self._count = count(sequence)
        self.take = self._count.__next__

    @property
    def sequence(self) -> int:
        """Collectives so far. Read from the counter itself: threads may take numbers meanwhile."""
        return int(repr(self._count)[6:-1])

    def global_rank(self, group_rank: int) -> int:
        """The global rank of a member; the number itself where the group is not known."""
        return self.ranks[group_rank] if 0 <= group_rank < len(self.ranks) else group_rank


def collective_recorder(
    slots: Slots,
    clock: StepClock,
    *,
    training: int,
    thread_of: Callable[[int], int],
    blocks: Callable[[int, int, int], None],
) -> Callable[..., int]:
    """`Recorder.collective`: writes the record of what was issued and returns its number.

    Its exit comes by `spool.close`. `training` is the training thread, `thread_of` our number of
    another one; `blocks` hears of a call that blocks its thread: that one, the record, its entry.
    """
    stack, shared, unreported = clock.stack, clock.stack.words, clock.unreported
    number, words, ring, capacity = slots
    pack_into = BEGUN_BODY.pack_into

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
        sequence = group.take()
        ident = _get_ident()
        seq = number()
        slot = (seq - 1) % capacity
        word = slot * RECORD_WORDS
        words[word] = 0
        if fence is not None:
            fence()
        pack_into(
            ring, slot * RECORD_BYTES + 8, enter_ns, sequence, bytes_in, bytes_out, shared[_STEP],
            group.index, stack.parent & 0xFFFFFFFF,
            0 if ident == training else thread_of(ident),
            flags, peer, device, _COLLECTIVE, op, dtype,
        )  # fmt: skip
        if fence is not None:
            fence()
        words[word] = seq
        if flags & _ELSEWHERE:
            return seq
        if not flags & _ASYNC:
            blocks(ident, seq, enter_ns)
        else:
            shared[_LAST_ENTRY] = enter_ns
            if clock.backwards:
                unreported.append(seq)
        return seq

    return collective
