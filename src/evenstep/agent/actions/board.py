"""The board of a link: a small file in shared memory with a post of each job.

Each job writes its own slot and reads all of them, without a lock, which a dead process could hold.
A slot counts as empty when it was not written for longer than its `lease_ns`; times are of the
host's monotonic clock. The last job to leave deletes the file; a job that had opened it by then
makes another.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import tempfile
import time
from pathlib import Path

from evenstep.errors import EvenstepError
from evenstep.pacing.token import Post

SLOTS = 32
SHORTEST_LEASE_NS, LONGEST_LEASE_NS = 10_000_000_000, 3_600_000_000_000
LEASE_STEPS = 4
_SLOT = struct.Struct("<QqQ10q")  # counter (odd while written), process, written, the post
_HEAD = struct.Struct("<8sI4x")
_MAGIC = b"EVLINK1\0"
SIZE = _HEAD.size + SLOTS * _SLOT.size
_COUNTER, _STRIDE = _HEAD.size // 8, _SLOT.size // 8  # in words
_PROCESS = _COUNTER + 1
FOLDER = Path("/dev/shm")  # opened without following links


def lease_ns(step_ns: int) -> int:
    """How long the post of a job with steps of `step_ns` stays valid."""
    return min(max(SHORTEST_LEASE_NS, LEASE_STEPS * step_ns), LONGEST_LEASE_NS)


class LinkBoard:
    """The slots of a link on this host. Raises `EvenstepError` where there can be none."""

    shift_ns = 0  # of the board's clock from this host's

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map, self._file = _map(path)
        self._words = memoryview(self._map).cast("Q")
        self._slot = -1
        self._counter = 0
        self._process = os.getpid()

    def sync_clock(self) -> None:
        """Nothing to do: all jobs share this host's clock."""

    def posts(self, now_ns: int) -> list[tuple[bool, Post]]:
        """(Whether it is this job's, post) of all jobs, in the order of their slots."""
        return [(slot == self._slot, post) for slot, _, post in self._slots(now_ns)]

    def publish(self, post: Post, now_ns: int) -> None:
        """Write our slot; first take an empty one, if we have none or ours was taken."""
        if self._slot < 0 or self._words[_PROCESS + self._slot * _STRIDE] != self._process:
            self._slot = self._free(now_ns)
            if not self._is_current:
                self._map, self._file = _map(self.path)
                self._words = memoryview(self._map).cast("Q")
                self._slot = self._free(now_ns)
            if self._slot < 0:
                return  # the board is full: the other jobs do not see this one
        offset = _offset(self._slot)
        self._counter += 2
        struct.pack_into("<Q", self._map, offset, self._counter - 1)
        _SLOT.pack_into(self._map, offset, self._counter - 1, self._process, now_ns, *post)
        struct.pack_into("<Q", self._map, offset, self._counter)

    def close(self) -> None:
        """Leave; the slot is empty at once."""
        if self._process == os.getpid():
            if self._slot >= 0:
                _SLOT.pack_into(self._map, _offset(self._slot), 0, 0, 0, *Post())
                self._slot = -1
            others = filter(None, self._words[_PROCESS::_STRIDE].tolist())
            if self._is_current and not any(map(_runs, others)):
                self.path.unlink(missing_ok=True)
        self._words.release()
        self._map.close()

    @property
    def _is_current(self) -> bool:
        """Whether a job that opens the board now opens the same file."""
        try:
            return os.stat(self.path).st_ino == self._file  # noqa: PTH116 (half the cost)
        except OSError:
            return False

    def _slots(self, now_ns: int) -> list[tuple[int, int, Post]]:
        found = []
        for slot, process in enumerate(self._words[_PROCESS::_STRIDE].tolist()):
            if not process:
                continue
            counter, _, written_ns, *values = _SLOT.unpack_from(self._map, _offset(slot))
            whole = counter % 2 == 0 and counter == self._words[_COUNTER + slot * _STRIDE]
            post = Post(*values)
            if whole and 0 <= now_ns - written_ns < lease_ns(post.step_ns):
                found.append((slot, process, post))
        return found

    def _free(self, now_ns: int) -> int:
        """Take an empty slot; of two jobs that take the same, the last writer has it."""
        taken = {slot for slot, *_ in self._slots(now_ns)}
        for slot in range(SLOTS):
            if slot in taken:
                continue
            offset = _offset(slot)
            _SLOT.pack_into(self._map, offset, 0, self._process, now_ns, *Post())
            time.sleep(0.001)
            if _SLOT.unpack_from(self._map, offset)[1] == self._process:
                return slot
        return -1


def board_path(group: str) -> Path:
    """The file of this user's board of a link group on this host."""
    folder = FOLDER if FOLDER.is_dir() else Path(tempfile.gettempdir())
    return folder / f"evenstep-{os.getuid()}-{group}"


def _runs(process: int) -> bool:
    """Whether a process runs; one that was killed, and not waited for yet, has no command line."""
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except OSError:
        return False


def _map(path: Path) -> tuple[mmap.mmap, int]:
    """Open a board; return its mapping and the number of its file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o600)
    except OSError as error:
        raise EvenstepError(f"no board in {path}: {error.strerror}") from error
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise EvenstepError(f"no board in {path}: it is not a file of ours")
        if found.st_size < SIZE:
            os.posix_fallocate(file, 0, SIZE)
        view = mmap.mmap(file, SIZE)
    except OSError as error:
        raise EvenstepError(f"no board in {path}: {error.strerror}") from error
    finally:
        os.close(file)
    magic, slots = _HEAD.unpack_from(view)
    if not slots:
        _HEAD.pack_into(view, 0, _MAGIC, SLOTS)
    elif (magic, slots) != (_MAGIC, SLOTS):
        view.close()
        raise EvenstepError(f"no board in {path}: another version has made it; remove it")
    return view, found.st_ino


def _offset(slot: int) -> int:
    return _HEAD.size + slot * _SLOT.size
