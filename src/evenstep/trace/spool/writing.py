"""The writers of a spool's ring: closures, at half the cost of methods.

A record is invalid (sequence number 0) until its last byte is written, in the eyes of every
processor: where stores may be reordered (anything but x86) a `fence` goes before the number. Once
the spool is shut the writers raise ValueError.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from evenstep.trace.spool import layout
from evenstep.trace.spool.layout import RECORD_BYTES, RECORD_WORDS

_WORD_EXIT = layout.WORD_EXIT
_STORES_IN_ORDER = os.uname().machine in ("x86_64", "i686")


class Slots(NamedTuple):
    """The ring as its writers see it; `number` returns the next sequence number, 1, 2, 3 …"""

    number: Callable[[], int]
    words: memoryview  # of the ring, by 8 bytes
    ring: memoryview  # the same, by byte
    capacity: int  # records


def _store_fence() -> Callable[[], object]:
    """A function that orders the stores before its call ahead of those after it.

    Releasing a lock is a store-release, acquiring one a load-acquire, and the first is ordered
    before the second (Arm's Architecture Reference Manual, B2.3: "[L]; po; [A]"). The lock is held
    at rest and no thread waits for it.
    """
    lock = threading.Lock()
    lock.acquire()

    def fence() -> None:
        try:
            lock.release()
        except RuntimeError:  # another thread is between the two, which is a barrier of its own
            lock.acquire(False)
            return
        lock.acquire(False)

    return fence


#: None where the processor keeps stores in order by itself.
fence = None if _STORES_IN_ORDER else _store_fence()


def record_writer(slots: Slots) -> Callable[..., int]:
    """`put`, which writes a record of any kind and returns its sequence number."""
    number, words, ring, capacity = slots
    pack_into = layout.RECORD_BODY.pack_into

    def put(
        enter_ns: int,
        exit_ns: int,
        kind: int,
        op: int = 0,
        step: int = 0,
        parent: int = 0,
        group: int = 0,
        group_seq: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        flags: int = 0,
        peer: int = layout.NO_PEER,
        dtype: int = 0,
        reduce_op: int = 0,
        thread: int = 0,
        stream: int = 0,
        name: int = 0,
        payload: int = 0,
        held_ns: int = 0,
        device: int = layout.HOST_DEVICE,
    ) -> int:
        seq = number()
        slot = (seq - 1) % capacity
        word = slot * RECORD_WORDS
        words[word] = 0
        if fence is not None:
            fence()
        pack_into(
            ring, slot * RECORD_BYTES + 8, enter_ns, exit_ns, 0, 0, held_ns, group_seq,
            bytes_in, bytes_out, step, group, parent & 0xFFFFFFFF, payload, thread, stream,
            name, flags, peer, device, kind, op, dtype, reduce_op,
        )  # fmt: skip
        if fence is not None:
            fence()
        words[word] = seq
        return seq

    return put


def record_closer(slots: Slots) -> Callable[[int, int], None]:
    """`close`, which patches the exit of a record unless it has one or its slot was reused."""
    _, words, _, capacity = slots

    def close(seq: int, exit_ns: int) -> None:
        word = (seq - 1) % capacity * RECORD_WORDS
        if words[word] == seq and words[word + _WORD_EXIT] == 0:
            words[word + _WORD_EXIT] = exit_ns

    return close
