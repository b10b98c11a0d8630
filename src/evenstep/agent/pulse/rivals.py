"""Python threads that compute beside the training thread, which waits for them to let go of the
interpreter's lock."""

from __future__ import annotations

import threading

from evenstep.host.sysfs import read_text

BUSY = 0.5  # of the time: with the lock for as long, a thread takes it from another every time
OURS = "evenstep-"  # begins the names of our own threads


class Rivals:
    """The threads of this process, and how long each had run or waited for a core when last seen
    (schedstat in the kernel's sched-stats.rst)."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # by native number: when, and for how long

    def busiest(self, ident: int, now_ns: int) -> int:
        """The thread, other than `ident`, this one and ours, that wanted a core for most of the
        time since the last call; 0 for none."""
        before, self._seen, found = self._seen, {}, (BUSY, 0)
        for thread in threading.enumerate():
            mine = thread.ident in (None, ident, threading.get_ident())
            if mine or thread.name.startswith(OURS):
                continue
            number = thread.native_id or 0
            account = read_text(f"/proc/self/task/{number}/schedstat", held=True) or ""
            wanted = sum(map(int, account.split()[:2]))
            since_ns, earlier = before.get(number, (now_ns, wanted))
            self._seen[number] = now_ns, wanted
            found = max(found, ((wanted - earlier) / max(now_ns - since_ns, 1), thread.ident or 0))
        return found[1]
