"""Change pacing while the job runs: a small file in the run's folder that every rank reads.

On a local filesystem the kernel wakes the background thread when the file is written (inotify);
elsewhere that thread polls it every few steps by one `stat`. Ranks that do not see rank 0's folder
receive a change through the job's store: so it is enough to write the file where rank 0 is.

Where each rank decides alone it applies a change two steps after it has read it. Where ranks pace
by a common plan (`pace.sharing`), only rank 0 reads the file. It announces the step from which the
change holds, far enough ahead for all ranks: one that polls the store and is delayed for longer
follows on receipt. Both take fewer than ten steps, where a step takes more than a few milliseconds.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import count
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from evenstep.agent.settings.request import FILE, SettingsChange, decode, encode, read, write
from evenstep.agent.settings.selection import Selection
from evenstep.host.sysfs import read_held
from evenstep.trace.spool.files import NETWORK, Held, filesystem_type
from evenstep.trace.spool.identity import boot_id
from evenstep.trace.spool.layout import Actuator, Kind
from evenstep.trace.spool.spool import Spool

if TYPE_CHECKING:
    from evenstep.pacing import PacerSettings

_Stamp = tuple[int, int, int]
_IN_WRITTEN = 0x88  # IN_MOVED_TO and IN_CLOSE_WRITE of Linux's inotify(7)
_EVENTS_BYTES = 4096

#: Of this process: a message sent before a `detach` is not read after the next `attach`.
_connections = count()

LEAD_STEPS = 4  # a change is read at the end of a step, and applied from the next but one on
LEAD_LOOKS = 2  # a rank that polls the store reads a change at the next look, or the one after
WAKING_NS = 10_000_000  # until a woken background thread has read the file
LOOK_STEPS = 2  # time between two polls, in steps, but at least:
SHORTEST_LOOK_NS = 20_000_000
MEETING_NS = 250_000_000  # while it is unknown whether this rank sees rank 0's folder
LOOK_PER_RANK_NS = 1_000_000  # times the ranks: about a thousand polls a second of all
RETRY_NS = 100_000_000  # until an unreadable file is read again


class Control:
    """Receives changes for one rank.

    Everything belongs to the background thread, which is woken by `written`: readable when a file
    was written, not open where the kernel cannot notify. `due` holds changes received and not yet
    in force: the background thread appends, the training thread takes from the left.
    """

    def __init__(
        self, folder: Path, run_id: str, *, leads: bool, attempt: int = 0, near: bool | None = None
    ) -> None:
        self.due: deque[SettingsChange] = deque(maxlen=16)
        near = is_near(folder) if near is None else near
        self.written = Held(watch_folder(folder, folder / f"attempt-{attempt:03d}") if near else -1)
        self._folder = folder
        self._run_id = run_id
        self._leads = leads
        self._scheduled = f"attempt-{attempt:03d}/{FILE}"  # rank 0's file, with the first step
        self._watch(FILE)
        self._common_plan = False
        self._last: SettingsChange | None = None  # received last, by file or store
        self._message = b""  # the last one of the store
        self._store: Any = None  # None: changes come by the file alone
        self._renewed: tuple[Any, bool] | None = None  # arguments of `reconnect`, until `poll`
        self._key = ""
        self._sees_folder: bool | None = None  # whether this rank sees rank 0's; None: unknown
        self._away = False  # on rank 0: whether any rank does not
        self._to_send: SettingsChange | None = None
        self._world = 1

    def _watch(self, name: str) -> None:
        self._name = name
        self._path = str(self._folder / name)
        self._seen: _Stamp | None = None  # of the file as it was last read
        self._failed: _Stamp | None = None  # of the file as it last could not be read …
        self._again_ns = 0  # … and when that is tried again
        self._unread = True  # whether the file may have been written since

    # -- life ------------------------------------------------------------------------------------

    def connect(self, store: Any, prefix: str, *, world: int, together: bool) -> None:
        """From here on rank 0 reads the file for ranks that cannot; `together`: for all ranks."""
        self._key = f"{prefix}/control/{next(_connections)}"
        self._world = world
        self._join(store, together)

    def reconnect(self, store: Any, *, together: bool) -> None:
        """Go on with the store of a new process group, from the next `poll` on."""
        self._renewed = (store, together)

    def _join(self, store: Any, together: bool) -> None:
        if self._leads:
            self._to_send = self._last  # the store may be empty
        if together != self._common_plan:
            self._common_plan = together
            self._watch(self._scheduled if together and not self._leads else FILE)
        self._sees_folder, self._message = None, b""
        self._store = store

    def close(self) -> None:
        """Close the descriptor of the kernel's notifications."""
        self.written.close()

    def disconnect(self) -> None:
        """The store is gone: each rank reads the file itself."""
        self._store, self._common_plan = None, False
        self._watch(FILE)

    # -- the background thread ---------------------------------------------------------------------

    def poll(self, step: int, step_ns: int) -> int:
        """Receive changes while `step` runs; return the nanoseconds until the next poll.

        Raises as `read` does, and whatever the store does.
        """
        self._was_written()  # before the file is read: a later write is notified again
        if self._renewed is not None:  # tested first: the other thread may be setting it
            renewed, self._renewed = self._renewed, None
            self._join(*renewed)
        if self._unread or self.written.fd < 0:
            self._unread = not self._look(step, step_ns)
        if self._store is not None:
            self._compare_folders() if self._sees_folder is None else self._exchange()
        return self._pause_ns(step_ns)

    @property
    def needs_polling(self) -> bool:
        """Whether to poll between two rounds of the background thread."""
        if self.written.fd < 0 or self._was_written():
            return True
        return self._store is not None and (self._sees_folder is not True or self._away)

    def _was_written(self) -> bool:
        """Whether the file was written since the last call."""
        name, written = Path(self._name).name.encode(), False
        while (fd := self.written.fd) >= 0 and (events := read_held(fd, _EVENTS_BYTES)):
            written |= name in events
        self._unread |= written
        return written

    def _pause_ns(self, step_ns: int) -> int:
        crowd_ns = LOOK_PER_RANK_NS * (1 if self._store is None else self._world)
        meeting = self._store is not None and self._sees_folder is None
        shortest_ns = MEETING_NS if meeting else SHORTEST_LOOK_NS
        return max(LOOK_STEPS * step_ns, shortest_ns, crowd_ns)

    def _compare_folders(self) -> None:
        """Find out whether this rank sees rank 0's folder; tell rank 0 if not."""
        key = f"{self._key}/home"
        if self._leads:
            self._store.set(key, folder_identity(self._folder).encode())
            self._sees_folder = True
        elif self._store.check([key]):
            theirs = bytes(self._store.multi_get([key])[0]).decode()
            self._sees_folder = theirs == folder_identity(self._folder)
            if not self._sees_folder:
                self._store.set(f"{self._key}/away", b"1")

    def _exchange(self) -> None:
        if not self._leads:
            if not self._sees_folder:
                self._receive()
            return
        if self._to_send is not None:
            change, self._to_send = self._to_send, None
            self._store.set(self._key, encode(change, self._run_id))
        self._away = self._away or bool(self._store.check([f"{self._key}/away"]))

    def _receive(self) -> None:
        """Take rank 0's message, if there is one."""
        if not self._store.check([self._key]):
            return
        message = bytes(self._store.multi_get([self._key])[0])
        if message != self._message:
            self._message = message
            change = decode(message, self._run_id, "rank 0's message in the job's store")
            if change is not None:
                self._take(change)

    # -- either ------------------------------------------------------------------------------------

    def _look(self, step: int, step_ns: int) -> bool:
        """Read the file if it has changed; return False if it is to be read again later."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return True
        if stamp == self._failed and monotonic_ns() < self._again_ns:
            return False
        self._failed, self._again_ns = stamp, monotonic_ns() + RETRY_NS  # until it has been read
        change = read(self._folder, self._run_id, name=self._name)
        if change is not None and self._leads and self._common_plan:
            polling_ns = self._pause_ns(step_ns) if self._away or self.written.fd < 0 else WAKING_NS
            change = change._replace(first_step=step + lead(step_ns, polling_ns))
            write(self._folder, change, self._run_id, name=self._scheduled)
        self._seen, self._failed = stamp, None
        if change is not None:
            self._to_send = change
            # A file server may show a file that is older than rank 0's last message.
            if self._last is None or change.number > self._last.number:
                self._take(change)
        return True

    def _stamp(self) -> _Stamp | None:
        """Time, number and size of the file; None where there is none."""
        try:
            found = os.lstat(self._path)  # a third of the cost of a Path's
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _take(self, change: SettingsChange) -> None:
        """Make a change due, unless it was received by the other way already."""
        last = self._last
        if last is None or change._replace(first_step=0) != last._replace(first_step=0):
            self._last = change
            self.due.append(change)


def is_near(folder: Path) -> bool:
    """Whether reading a file there never waits for a server."""
    kind = filesystem_type(folder)
    return kind not in NETWORK and not kind.startswith("fuse")


def watch_folder(*folders: Path) -> int:
    """A descriptor that is readable when a file was written in one of the folders; -1: none."""
    import ctypes

    libc = ctypes.CDLL(None)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:  # their number is limited per user
        return fd
    watched = [libc.inotify_add_watch(fd, os.fsencode(path), _IN_WRITTEN) for path in folders]
    if -1 in watched:
        os.close(fd)
        return -1
    return fd


def folder_identity(folder: Path) -> str:
    """A folder as the kernel identifies it: equal on two ranks that see the same files."""
    found = folder.stat()
    return f"{boot_id()}:{found.st_dev}:{found.st_ino}"


def record(
    spool: Spool, change: SettingsChange, settings: PacerSettings, part: Selection, *, step: int
) -> None:
    """Write into the trace the pacing mode from `step` on, and the request that asked for it."""
    words = f"asked to: {settings.mode}"
    words += f", act {change.act}" if change.act is not None else ""
    words += f" (threshold {settings.imbalance:g}, max delay {settings.max_delay:g})"
    now = monotonic_ns()
    spool.put(now, now, int(Kind.PACING), int(Actuator.NONE), step, name=spool.name_id(words))
    fact = mode_fact(change.mode or settings.mode, settings.mode, part)
    fact |= {"threshold": settings.imbalance, "max_delay": settings.max_delay}
    spool.add_fact("pace", fact | {"request": change.number, "since_step": step})


def mode_fact(asked: str, mode: str, part: Selection) -> dict[str, Any]:
    """A rank's mode for the trace and, where only a part of the job is paced, that part."""
    return {"mode": mode} | ({"asked": asked, "part": str(part)} if str(part) else {})


def lead(step_ns: int, polling_ns: int) -> int:
    """Steps between the announcement of a change and its first step."""
    return LEAD_STEPS + -(-LEAD_LOOKS * polling_ns // max(step_ns, 1))
