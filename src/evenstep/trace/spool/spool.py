"""One rank's trace on disk while it is being written: a mapped ring that survives the process.

A slot is taken by an atomic counter and its sequence number is written last, so a reader in another
process, at any moment or after `kill -9`, accepts only whole records. A record is written when its
operation starts; the exit is patched in later, and only if the slot still holds the record.

Recording takes no lock: callbacks of the garbage collector run inside the recorder, on any thread.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from evenstep.errors import SpoolError
from evenstep.trace.spool import layout
from evenstep.trace.spool.files import Held, claim, filesystem_type, unfit_for_mapping
from evenstep.trace.spool.layout import RECORD_BYTES, RECORD_WORDS
from evenstep.trace.spool.summary import FEWEST_RECORDS
from evenstep.trace.spool.writing import Slots, record_closer, record_writer

TABLES_BYTES = 1 << 20
FACTS_BYTES = 1 << 17  # of the tables, reserved for facts: names and groups leave it free
INDEX_LIMIT = 0xFFFF  # names and groups have indices of two bytes
SMALLEST_RING_BYTES = 64 * RECORD_BYTES
_SHRINKS = (1, 4, 16, 64)  # a nearly full disk gets a smaller spool rather than none

_TEXT_ROOM = layout.PAGE_BYTES - layout.HEADER_TEXT_OFFSET
_ENTRY_BYTES = layout.TABLE_ENTRY.size
_LENGTH_BYTES = 4
_HEARTBEAT = struct.Struct("<q")


class Regions:
    """Offsets and capacities of the parts of a spool, from the configured sizes."""

    __slots__ = ("ring_capacity", "ring_offset", "summary_capacity", "summary_offset", "total")

    def __init__(self, *, ring_bytes: int, summary_bytes: int) -> None:
        self.ring_capacity = max(ring_bytes // RECORD_BYTES, SMALLEST_RING_BYTES // RECORD_BYTES)
        self.summary_capacity = max(summary_bytes // layout.SUMMARY_BYTES, FEWEST_RECORDS)
        self.summary_offset = layout.PAGE_BYTES + TABLES_BYTES
        self.ring_offset = self.summary_offset + self.summary_capacity * layout.SUMMARY_BYTES
        end = self.ring_offset + self.ring_capacity * RECORD_BYTES
        self.total = -(-end // layout.PAGE_BYTES) * layout.PAGE_BYTES


class Spool:
    """The open trace file of one rank. `put` returns the record's sequence number; `close` patches
    its exit. `note` says how the spool differs from its settings ("": not)."""

    def __init__(self, path: Path, fd: int, memory: mmap.mmap, regions: Regions) -> None:
        self.path = path
        self.note = ""
        self.regions = regions
        self.buffered = False
        self._file = Held(fd)
        self._memory: mmap.mmap | None = memory
        self._view = memoryview(memory)
        end = regions.ring_offset + regions.ring_capacity * RECORD_BYTES
        self._ring = ring = self._view[regions.ring_offset : end]
        self.words = ring.cast("Q")
        self.halves = ring.cast("H")
        self._count = count(1)
        self._last: Callable[[], int] = lambda: int(repr(self._count)[6:-1]) - 1
        self._kept = False
        self._table_end = layout.PAGE_BYTES
        self._table_lock = threading.RLock()
        self._table_free = True  # no entry is being written
        self._names: dict[str, int] = {"": 0}
        self._group_count = 0
        self._write_by(self._count.__next__)

    # -- opening ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path,
        identity: Mapping[str, Any],
        *,
        ring_bytes: int,
        summary_bytes: int,
        mode: str = "auto",
        fd: int | None = None,
    ) -> Spool:
        """Create the file (or take `fd`, created exclusively) in `mode` "auto", "mmap" or
        "buffered". Raises `SpoolError` if that fails, also for lack of room for a small spool."""
        if fd is None and (fd := claim(path)) is None:
            raise SpoolError(f"{path} exists: another process records this rank, or did")
        unfit = "" if mode == "mmap" else unfit_for_mapping(filesystem_type(path.parent))
        buffered = mode == "buffered" or bool(unfit)
        try:
            spool = _open_regions(cls, path, fd, ring_bytes, summary_bytes, buffered=buffered)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        if buffered:
            why = unfit or "asked for"
            spool.note = f"buffered writer ({why}): up to a second may be lost in a crash"
        spool._write_header(identity)
        return spool

    def _write_header(self, identity: Mapping[str, Any]) -> None:
        text = json.dumps(dict(identity), separators=(",", ":")).encode()
        if len(text) > _TEXT_ROOM:
            size = f"{len(text)} bytes, of {_TEXT_ROOM}"
            raise SpoolError(f"the identity of {self.path} takes {size}")
        regions, start = self.regions, layout.HEADER_TEXT_OFFSET
        self._view[start : start + len(text)] = text
        layout.HEADER.pack_into(
            self._view, 0, layout.MAGIC, layout.VERSION, layout.PAGE_BYTES, RECORD_BYTES,
            layout.SUMMARY_BYTES, regions.ring_offset, regions.ring_capacity,
            regions.summary_offset, regions.summary_capacity, layout.PAGE_BYTES, TABLES_BYTES,
            len(text),
        )  # fmt: skip

    # -- recording -------------------------------------------------------------------------------

    def _write_by(self, number: Callable[[], int]) -> None:
        self.slots = Slots(number, self.words, self._ring, self.regions.ring_capacity)
        self.put = record_writer(self.slots)
        self.close = record_closer(self.slots)

    def count_by(self, number: Callable[[], int], last: Callable[[], int]) -> int:
        """Let a native writer number the records, before the first one; return the ring's address.
        `last` returns the last number handed out."""
        import ctypes

        self._last = last
        self._write_by(number)
        return ctypes.addressof(ctypes.c_char.from_buffer(self._ring))

    def last_number(self) -> int:
        """The last sequence number handed out; 0 before the first."""
        return self._last()

    def keep_mapped(self) -> None:
        """Keep the ring mapped when the spool is shut: a native writer may still use it."""
        self._kept = True

    def word_of(self, seq: int) -> int:
        """Index in `words` of a record's first word."""
        return (seq - 1) % self.regions.ring_capacity * RECORD_WORDS

    def holds(self, seq: int) -> bool:
        return bool(self.words[self.word_of(seq)] == seq)

    def patch(self, seq: int, word: int, value: int) -> None:
        """Set one 8-byte field (`layout.WORD_…`) of a record that is still there."""
        base = self.word_of(seq)
        if self.words[base] == seq:
            self.words[base + word] = value

    def add_flags(self, seq: int, flags: int) -> None:
        base = self.word_of(seq)
        if self.words[base] == seq:
            self.halves[base * 4 + layout.HALF_FLAGS] |= flags

    def times(self, seq: int) -> tuple[int, int] | None:
        """(enter_ns, exit_ns) of a record, or None if the ring has overwritten it."""
        base = self.word_of(seq)
        if self.words[base] != seq:
            return None
        return self.words[base + layout.WORD_ENTER], self.words[base + layout.WORD_EXIT]

    # -- tables ----------------------------------------------------------------------------------

    @contextmanager
    def _tables(self) -> Iterator[bool]:
        """Hold the tables; False in a signal handler that interrupts its own thread's entry."""
        with self._table_lock:
            free, self._table_free = self._table_free, False
            try:
                yield free
            finally:
                self._table_free = free

    def name_id(self, name: str) -> int:
        """Index of a name in the table, entered at first use; 0 where the table is full."""
        known = self._names.get(name)
        if known is not None:
            return known
        with self._tables() as free:
            number = len(self._names)
            if not free or number > INDEX_LIMIT:
                return self._names.get(name, 0)
            if name not in self._names:
                fits = self._append(layout.TABLE_NAME, number, name.encode())
                self._names[name] = number if fits else 0
            return self._names[name]

    def add_group(self, description: Mapping[str, Any]) -> int:
        """Enter a process group; returns its index (from 1), 0 where there are too many."""
        with self._tables() as free:
            if not free or self._group_count >= INDEX_LIMIT:
                return 0
            self._group_count += 1
            text = json.dumps(dict(description), separators=(",", ":")).encode()
            self._append(layout.TABLE_GROUP, self._group_count, text)
            return self._group_count

    def add_fact(self, key: str, value: Any) -> bool:
        """Write a JSON-able fact about the rank; a later one of the same key replaces it."""
        with self._tables() as free:
            return free and self._append(layout.TABLE_FACT, 0, _fact(key, value))

    def beat(self, now_ns: int) -> None:
        """Note that the rank is alive now (`time.monotonic_ns()`). Raises ValueError once shut."""
        _HEARTBEAT.pack_into(self._view, layout.HEARTBEAT_OFFSET, now_ns)

    def _append(self, kind: int, number: int, text: bytes) -> bool:
        """Add a table entry, its length last, since a reader stops at the first length of zero;
        False where the table is full."""
        entry = layout.pack_entry(kind, number, text)
        start, length = self._table_end, len(entry)
        kept = 0 if kind == layout.TABLE_FACT else FACTS_BYTES
        if start + length > layout.PAGE_BYTES + TABLES_BYTES - _ENTRY_BYTES - kept:
            return False
        self._view[start + _LENGTH_BYTES : start + length] = entry[_LENGTH_BYTES:]
        self._view[start : start + _LENGTH_BYTES] = entry[:_LENGTH_BYTES]
        self._table_end = start + length
        return True

    def summary_view(self) -> memoryview:
        regions = self.regions
        size = regions.summary_capacity * layout.SUMMARY_BYTES
        return self._view[regions.summary_offset : regions.summary_offset + size]

    # -- ending ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Nothing to do for a mapping: the kernel owns the pages (see `BufferedSpool`)."""

    def shut(self) -> None:
        """Unmap and close. Recording afterwards raises ValueError; disarm the hooks first."""
        if self._memory is None:
            return
        memory, self._memory = self._memory, None
        try:
            self.flush()
        finally:
            for view in (self.words, self.halves, self._ring, self._view):
                view.release()
            try:
                if self._kept or self._file.fd < 0:  # its copy in `memory` is not ours either
                    _leave(memory)
                else:
                    memory.close()
            finally:  # a view held elsewhere keeps the mapping alive, not the file
                self._file.close()


class BufferedSpool(Spool):
    """A spool for filesystems that must not be mapped: anonymous memory, written out by `flush`.

    The file has the same layout, so readers see no difference. `flush` belongs on a background
    thread; it rewrites the tables and summaries that changed and the part of the ring used since.
    """

    PATCH_WINDOW = 4096  # records before the last flush that are written again with later exits

    def __init__(self, path: Path, fd: int, memory: mmap.mmap, regions: Regions) -> None:
        super().__init__(path, fd, memory, regions)
        self.buffered = True
        self._flushed = 0  # last sequence number written out
        self._fixed = bytearray()

    def beat(self, now_ns: int) -> None:
        """Note that the rank is alive now, also in the file."""
        super().beat(now_ns)
        at, word = layout.HEARTBEAT_OFFSET, _HEARTBEAT.pack(now_ns)
        if self._fixed:
            self._fixed[at : at + len(word)] = word
            os.pwrite(self._file.fd, word, at)

    def flush(self) -> None:
        """Write out what changed. Raises OSError; the caller logs it once and goes on."""
        head = bytes(self._view[: self.regions.ring_offset])
        if head != self._fixed:
            page = 1 << 16
            for start in range(0, len(head), page):
                if head[start : start + page] != self._fixed[start : start + page]:
                    os.pwrite(self._file.fd, head[start : start + page], start)
            self._fixed = bytearray(head)
        last = self._last()
        capacity = self.regions.ring_capacity
        first = max(1, last - capacity + 1, self._flushed - self.PATCH_WINDOW)
        begin = (first - 1) % capacity
        over = begin + min(last - first + 1, capacity)  # beyond the capacity: from the start again
        for start, end in ((begin, min(over, capacity)), (0, over - capacity)):
            if end > start:
                data = bytes(self._ring[start * RECORD_BYTES : end * RECORD_BYTES])
                os.pwrite(self._file.fd, data, self.regions.ring_offset + start * RECORD_BYTES)
        self._flushed = last


def add_last_fact(path: Path, key: str, value: Any) -> bool:
    """Write a fact into the spool of a process that has ended; False where there is no room. Raises
    OSError, and ValueError for a file that is not a spool."""
    entry = layout.pack_entry(layout.TABLE_FACT, 0, _fact(key, value))
    with path.open("r+b", buffering=0) as file:
        fields = layout.HEADER.unpack_from(file.read(layout.PAGE_BYTES).ljust(layout.HEADER.size))
        if fields[0] != layout.MAGIC:
            raise ValueError(f"{path} is not a spool")
        start, end = fields[9], fields[9] + fields[10]
        while length := int.from_bytes(os.pread(file.fileno(), _LENGTH_BYTES, start), "little"):
            start += length
        if start + len(entry) > end - _ENTRY_BYTES:
            return False
        os.pwrite(file.fileno(), entry[_LENGTH_BYTES:], start + _LENGTH_BYTES)
        os.pwrite(file.fileno(), entry[:_LENGTH_BYTES], start)
    return True


def _fact(key: str, value: Any) -> bytes:
    return json.dumps({"key": key, "value": value}, separators=(",", ":")).encode()


def _leave(memory: mmap.mmap) -> None:
    """Keep memory mapped, even when the interpreter ends."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))


def _open_regions(
    cls: type[Spool], path: Path, fd: int, ring_bytes: int, summary_bytes: int, *, buffered: bool
) -> Spool:
    """Allocate every byte of the file, then map it: a hole on a full disk would raise SIGBUS."""
    if buffered:
        regions = Regions(ring_bytes=ring_bytes, summary_bytes=summary_bytes)
        return BufferedSpool(path, fd, mmap.mmap(-1, regions.total), regions)
    for shrink in _SHRINKS:
        regions = Regions(ring_bytes=ring_bytes // shrink, summary_bytes=summary_bytes // shrink)
        try:
            os.posix_fallocate(fd, 0, regions.total)
        except OSError as error:
            os.ftruncate(fd, 0)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise SpoolError(f"cannot allocate {path}: {error.strerror}") from error
            refused = error.strerror
            continue
        spool = cls(path, fd, mmap.mmap(fd, regions.total), regions)
        if shrink > 1:
            spool.note = f"the disk was nearly full: the spool is 1/{shrink} of its configured size"
        return spool
    raise SpoolError(
        f"no room for a spool at {path}: {regions.total} bytes are refused: {refused}; "
        "free some, or choose another folder with EVENSTEP_OUT"
    )
