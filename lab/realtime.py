"""Timing of the laboratory's own processes: what is measured is the link, not this machine's load.

Sleeping ranks and the emulator use little of a core, so where it is permitted they run before
everybody else's work. Without that permission they run as anybody does, and the result says so.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

_SET_TIMER_SLACK, _SET_PARENT_DEATH_SIGNAL = 29, 1  # prctl(2)
PRIORITY = 5


def precise() -> bool:
    """Make this process's sleeps exact and put it before ordinary work; whether that was allowed.

    A thread's sleep may otherwise be 50 µs longer than asked, so that wake-ups come together.
    """
    _prctl(_SET_TIMER_SLACK, 1)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError:
        return False
    return True


def permitted() -> bool:
    """Whether this user's processes may run before ordinary work."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError:
        return False
    ordinary()
    return True


def ordinary() -> None:
    """Back to everybody's priority, for a process forked from a precise one."""
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def end_with_parent(parent: int) -> None:
    """Die when the process that started us does, however it dies."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def sleep_until(deadline_ns: int) -> None:
    """Sleep until a moment of the monotonic clock."""
    left_ns = deadline_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns * 1e-9)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
