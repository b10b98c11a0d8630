"""Pacing changed while the job runs: a small file in the run's folder that every rank looks at.

On a local filesystem the kernel wakes the background thread when the file is written (inotify);
elsewhere that thread looks every few steps, and a look is one `stat`. The training thread never
looks, and never opens what others may have put there.
Ranks that do not see rank 0's folder hear of a change through the job's store, so that it is enough
to write the file where rank 0 is.

Where each rank decides alone it follows at once, two steps after it has heard. Where ranks pace
together (`pace.sharing`) rank 0 alone reads the file, and tells the others from which step on the
change holds, far enough ahead for all of them to hear of it: no two ranks follow different rules in
a step, unless one listens to the store and is held up for longer; it follows when it hears. Both
take fewer than ten steps, where a step takes more than a few milliseconds. Only delays change:
never what is computed, nor the order of collectives.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import count
from pathlib import Path
from time import monotonic_ns
from typing import Any

from evenstep.agent.settings.request import FILE, SettingsChange, decoded, encoded, read, write
from evenstep.agent.settings.selection import Selection
from evenstep.host.sysfs import read_held
from evenstep.pacing import PacerSettings
from evenstep.trace.spool.files import NETWORK, filesystem_type
from evenstep.trace.spool.identity import boot_id
from evenstep.trace.spool.layout import Actuator, Kind
from evenstep.trace.spool.spool import Spool

_Stamp = tuple[int, int, int]
_IN_WRITTEN = 0x88  # IN_MOVED_TO and IN_CLOSE_WRITE of Linux's inotify(7)
_EVENTS_BYTES = 4096

#: Of this process: what was said before a `detach` is not heard after the next `attach`.
_connections = count()

LEAD_STEPS = 4  # others see a file at the end of a step, and act on it from the next but one on
LEAD_LOOKS = 2  # those who listen to the store hear within one look, and may be held up once
WAKING_NS = 10_000_000  # until the background thread has read what the training thread has seen
LOOK_STEPS = 2  # how often the background looks, in steps …
SHORTEST_LOOK_NS = 20_000_000  # … at most so often …
MEETING_NS = 250_000_000  # … while rank 0 has not said where it is …
RETRY_NS = 100_000_000  # until a file is read again that could not be
LOOK_PER_RANK_NS = 1_000_000  # … and all ranks together about a thousand times a second


class Control:
    """One rank's ear for changes.

    Everything belongs to the background thread, which is woken by `fd`: a file to read from where
    there is news, -1 where nobody can tell. `due` holds what was heard and is not in force yet: the
    background thread appends, the training thread takes from the left.
    """

    def __init__(
        self, folder: Path, run_id: str, *, leads: bool, attempt: int = 0, near: bool | None = None
    ) -> None:
        self.due: deque[SettingsChange] = deque(maxlen=16)
        near = is_near(folder) if near is None else near
        self.fd = watch_folder(folder, folder / f"attempt-{attempt:03d}") if near else -1
        self._folder = folder
        self._run_id = run_id
        self._leads = leads
        self._told = f"attempt-{attempt:03d}/{FILE}"  # where rank 0 says from which step on
        self._watch(FILE)
        self._together = False
        self._last: SettingsChange | None = None  # heard last, by whichever way
        self._message = b""  # the last of the store's
        self._store: Any = None  # the clone all messages go through; None: the file alone
        self._renewed: tuple[Any, bool] | None = None  # the same, of ranks that have met again
        self._key = ""
        self._home: bool | None = None  # whether this rank sees rank 0's folder; None: not known
        self._away = False  # rank 0: somebody does not
        self._to_tell: SettingsChange | None = None
        self._world = 1

    def _watch(self, name: str) -> None:
        self._name = name
        self._path = str(self._folder / name)
        self._seen: _Stamp | None = None  # the file as it was last read
        self._failed: _Stamp | None = None  # as it last could not be read …
        self._again_ns = 0  # … and when that is tried again
        self._news = True  # there may be something to read

    # -- life ------------------------------------------------------------------------------------

    def connect(self, store: Any, prefix: str, *, world: int, together: bool) -> None:
        """From here on rank 0 reads the file for those who cannot; together, for all."""
        self._key = f"{prefix}/control/{next(_connections)}"
        self._world, self._together = world, together
        self._watch(self._told if together and not self._leads else FILE)
        self._home = None
        self._store = store

    def reconnect(self, store: Any, *, together: bool) -> None:
        """The ranks have met again; the background goes on with the store of now."""
        self._renewed = (store, together)

    def _renew(self, store: Any, together: bool) -> None:
        """Go on with a store that may know nothing of what was said."""
        if self._leads:
            self._to_tell = self._last
        if together != self._together:
            self._together = together
            self._watch(self._told if together and not self._leads else FILE)
        self._home, self._message = None, b""
        self._store = store

    def close(self) -> None:
        """Let go of what the kernel tells it by."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def disconnect(self) -> None:
        """The store is gone: each rank reads the file itself."""
        self._store, self._together = None, False
        self._watch(FILE)

    # -- the background thread ---------------------------------------------------------------------

    def poll(self, step: int, step_ns: int) -> int:
        """Read what there is; `step` is running. The nanoseconds until it should be done again.

        Raises as `read` does, and whatever the store does.
        """
        self._rings()  # before the file is looked at: what comes later rings again
        if self._renewed is not None:  # looked at first: the other thread may be setting it
            renewed, self._renewed = self._renewed, None
            self._renew(*renewed)
        if self._news or self.fd < 0:
            self._news = not self._look(step, step_ns)
        if self._store is not None:
            self._meet() if self._home is None else self._exchange()
        return self._pause_ns(step_ns)

    @property
    def listens(self) -> bool:
        """Whether the background has anything to do between its rounds."""
        if self.fd < 0 or self._rings():
            return True
        return self._store is not None and (self._home is not True or self._away)

    def _rings(self) -> bool:
        """Whether somebody has written the file since this was last asked."""
        name, news = Path(self._name).name.encode(), False
        while self.fd >= 0 and (events := read_held(self.fd, _EVENTS_BYTES)):
            news |= name in events
        self._news |= news
        return news

    def _pause_ns(self, step_ns: int) -> int:
        crowd_ns = LOOK_PER_RANK_NS * (1 if self._store is None else self._world)
        shortest_ns = MEETING_NS if self._store and self._home is None else SHORTEST_LOOK_NS
        return max(LOOK_STEPS * step_ns, shortest_ns, crowd_ns)

    def _meet(self) -> None:
        """Find out whether rank 0 writes where this rank reads; tell it if not."""
        key = f"{self._key}/home"
        if self._leads:
            self._store.set(key, home(self._folder).encode())
            self._home = True
        elif self._store.check([key]):
            theirs = bytes(self._store.multi_get([key])[0]).decode()
            self._home = theirs == home(self._folder)
            if not self._home:
                self._store.set(f"{self._key}/away", b"1")

    def _exchange(self) -> None:
        if not self._leads:
            if not self._home:
                self._listen()
            return
        if self._to_tell is not None:  # looked at first, as in `poll`
            change, self._to_tell = self._to_tell, None
            self._store.set(self._key, encoded(change, self._run_id))
        self._away = self._away or bool(self._store.check([f"{self._key}/away"]))

    def _listen(self) -> None:
        """Take what rank 0 has said, without ever waiting for it."""
        if not self._store.check([self._key]):
            return
        message = bytes(self._store.multi_get([self._key])[0])
        if message != self._message:
            self._message = message
            change = decoded(message, self._run_id, "what rank 0 says in the job's store")
            if change is not None:
                self._take(change)

    # -- either ------------------------------------------------------------------------------------

    def _look(self, step: int, step_ns: int) -> bool:
        """Read the file if it is not as it was last read; whether that is done."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return True
        if stamp == self._failed and monotonic_ns() < self._again_ns:
            return False
        self._failed, self._again_ns = stamp, monotonic_ns() + RETRY_NS  # until it has been read
        change = read(self._folder, self._run_id, name=self._name)
        if change is not None and self._leads and self._together:
            change = change._replace(first_step=step + self._lead(step_ns))
            write(self._folder, change, self._run_id, name=self._told)
        self._seen, self._failed = stamp, None
        if change is not None:
            self._to_tell = change
            # What a server shows of a file may be older than what rank 0 has said since.
            if self._last is None or change.number > self._last.number:
                self._take(change)
        return True

    def _stamp(self) -> _Stamp | None:
        """What tells one state of the file from another; None where there is none."""
        try:
            found = os.lstat(self._path)  # a third of what a Path takes: it is done every step
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _take(self, change: SettingsChange) -> None:
        """Make it due, unless it came by the other way already."""
        heard = self._last
        if heard is None or change._replace(first_step=0) != heard._replace(first_step=0):
            self._last = change
            self.due.append(change)

    def _lead(self, step_ns: int) -> int:
        by_looking = self._away or self.fd < 0
        return lead(step_ns, self._pause_ns(step_ns) if by_looking else WAKING_NS)


def is_near(folder: Path) -> bool:
    """Whether looking at a file there never waits for a server."""
    kind = filesystem_type(folder)
    return kind not in NETWORK and not kind.startswith("fuse")


def watch_folder(*folders: Path) -> int:
    """A file that has something to read when another is moved into one of these; -1: no such."""
    import ctypes

    libc = ctypes.CDLL(None)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:  # a user has so many at most
        return fd
    watched = [libc.inotify_add_watch(fd, os.fsencode(path), _IN_WRITTEN) for path in folders]
    if min(watched) < 0:
        os.close(fd)
        return -1
    return fd


def home(folder: Path) -> str:
    """Names a folder as one kernel sees it: equal on two ranks that see the same files."""
    found = folder.stat()
    return f"{boot_id()}:{found.st_dev}:{found.st_ino}"


def record(
    spool: Spool, change: SettingsChange, settings: PacerSettings, part: Selection, *, step: int
) -> None:
    """Write into the trace how pacing is from `step` on, and which request asked for it."""
    words = f"asked to: {settings.mode}"
    words += f", act {change.act}" if change.act is not None else ""
    words += f" (threshold {settings.imbalance:g}, max delay {settings.max_delay:g})"
    now = monotonic_ns()
    spool.put(now, now, int(Kind.PACING), int(Actuator.NONE), step, name=spool.name_id(words))
    spool.add_fact(
        "pace",
        {
            **stance(change.mode or settings.mode, settings.mode, part),
            "threshold": settings.imbalance,
            "max_delay": settings.max_delay,
            "request": change.number,
            "since_step": step,
        },
    )


def stance(asked: str, mode: str, part: Selection) -> dict[str, Any]:
    """What a rank says of its mode: also, where a part of the job is paced, which part that is."""
    return {"mode": mode} | ({"asked": asked, "part": str(part)} if str(part) else {})


def lead(step_ns: int, listening_ns: int) -> int:
    """How many steps ahead a change is made, so that every rank has heard of it."""
    return LEAD_STEPS + -(-LEAD_LOOKS * listening_ns // max(step_ns, 1))
