"""The words that a rank's recorder shares with kernels compiled for it, where there are any.

Without such kernels they are a few bytes of our own: the recorder is the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

MOST_WAITS = 64


class Word(IntEnum):
    """Which word means what: 8 bytes each, in this order (`Word` in recorder.cpp)."""

    ARMED = 0  # 0: kernels pass everything through
    NUMBER = 1  # last sequence number taken
    STEP = 2  # of new records
    PARENT = 3  # record that new records lie in
    TRAINING = 4  # the training thread's `threading.get_ident()`
    LAST_ENTRY = 5  # ns, of the newest collective that did not block its caller
    BLOCKING = 6  # the training thread's newest one that did
    CAPTURES = 7  # CUDA graphs being captured
    KEPT = 8  # works whose end somebody has to look for
    FAILURES = 9  # of compiled code
    COST_NS = 10  # its thread time, in the calls that were sampled
    COST_SAMPLES = 11
    CALLS = 12  # of kernels so far
    HOT_NS = 13  # what a call costs before our code is reached, where caches are hot …
    COLD_NS = 14  # … and where they are not
    WAITS = 15  # how many pairs (enter_ns, exit_ns) follow, of waits nobody has told Python of
    WAIT_PAIRS = 16


WORDS = Word.WAIT_PAIRS + 2 * MOST_WAITS


class Compiled(NamedTuple):
    """What compiled kernels take out of Python's hands."""

    words: memoryview
    thread: Callable[[], int]  # our number of the calling thread


def unshared() -> memoryview:
    """The words of a recorder that no compiled kernel feeds."""
    return memoryview(bytearray(8 * WORDS)).cast("Q")
