"""Record the issue of a collective: the recorder's hot path, thousands of times a step.

One closure packs the record, at a quarter of the cost of three calls with a dozen arguments each.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.steps import StepClock
from evenstep.trace.ranks import format_ranks, group_uid
from evenstep.trace.spool.layout import (
    BEGUN_BODY,
    HOST_DEVICE,
    RECORD_BYTES,
    RECORD_WORDS,
    Flag,
    Kind,
)
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spool.writing import Slots, fence

_COLLECTIVE = int(Kind.COLLECTIVE)
_ASYNC = int(Flag.ASYNC)
#: Flags of collectives whose end the device or the calling hook records.
_ENDED_ELSEWHERE = int(Flag.ON_DEVICE | Flag.HOST_BLOCKED)

_LAST_ENTRY, _STEP = Word.LAST_ENTRY, Word.STEP

_get_ident = threading.get_ident
LIMIT = 4096  # kinds counted: a program may use a new tag each time, so the least recent is dropped
#: Index of the group, peer, operation, tag.
Like = tuple[int, int, int, int]


class GroupState:
    """A process group as the recorder needs it. Several threads may issue on it at once."""

    __slots__ = ("_count", "index", "next_number", "ranks", "uid")

    def __init__(self, index: int, uid: str, ranks: tuple[int, ...], sequence: int) -> None:
        self.index = index  # in the spool's table
        self.uid = uid
        self.ranks = ranks
        self.next_number: Callable[[], int]  # of a collective
        self.count_from(sequence)

    @classmethod
    def entered(
        cls, spool: Spool, name: str, ranks: tuple[int, ...], *, shown: str = "",
        backend: str = "", sequence: int = 0,
    ) -> GroupState:  # fmt: skip
        """Enter a group into a spool, by the name that its members agree on; `shown` to people."""
        uid = group_uid(ranks, name)
        described = {"uid": uid, "name": shown or name, "ranks": format_ranks(ranks)}
        index = spool.add_group(described | {"base": sequence, "backend": backend})
        return cls(index, uid, ranks, sequence)

    def count_from(self, sequence: int) -> None:
        """Count on from `sequence` collectives, by the group's own counter."""
        self._count = count(sequence)
        self.next_number = self._count.__next__

    @property
    def sequence(self) -> int:
        """Collectives so far, from the counter's text: to read it must not advance it."""
        return int(repr(self._count)[6:-1])

    def global_rank(self, group_rank: int) -> int:
        """The global rank of a member; its number itself where the members are unknown."""
        return self.ranks[group_rank] if 0 <= group_rank < len(self.ranks) else group_rank


def collective_recorder(
    slots: Slots,
    clock: StepClock,
    *,
    training: int,
    thread_of: Callable[[int], int],
    blocks: Callable[[int, int, int], None],
) -> Callable[..., int]:
    """Make `Recorder.collective`, which writes the record of a collective and returns its number.

    Its exit is written later by `spool.close`. `training` is the training thread, `thread_of`
    numbers the others; `blocks` gets thread, record and entry of a call that blocks its thread.
    """
    stack, shared, unreported = clock.stack, clock.stack.words, clock.unreported
    number, words, ring, capacity = slots
    pack_into = BEGUN_BODY.pack_into

    def collective(
        enter_ns: int, group: GroupState, op: int, bytes_in: int, bytes_out: int, flags: int,
        peer: int, dtype: int, device: int = HOST_DEVICE,
    ) -> int:  # fmt: skip
        sequence = group.next_number()
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
        if flags & _ENDED_ELSEWHERE:
            return seq
        if not flags & _ASYNC:
            blocks(ident, seq, enter_ns)
        else:
            shared[_LAST_ENTRY] = enter_ns
            if clock.backwards:
                unreported.append(seq)
        return seq

    return collective


class MessageOrders:
    """Counts messages of each kind: the n-th of a pair and tag is the same on both ends. Every
    operation is atomic under the interpreter's lock."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._orders: OrderedDict[Like, Callable[[], int]] = OrderedDict()

    @property
    def counted(self) -> bool:
        """Whether any messages were counted."""
        return bool(self._orders)

    def next(self, kind: Like) -> int:
        """The number of messages of this kind before this one."""
        orders = self._orders
        order = orders.setdefault(kind, count().__next__)()
        with suppress(KeyError):  # another thread has dropped it
            orders.move_to_end(kind)
            if len(orders) > self._limit:
                orders.popitem(last=False)
        return order
