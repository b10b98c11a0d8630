"""The spools of one node in one file, so that thousands of ranks leave one file per node.

A pack is an uncompressed zip file: any tool opens it, and its spools are read in place. Spools
begin at whole pages and their empty stretches are holes, so a pack takes no more disk than the
records. It appears whole or not at all; a spool may be written to while it is packed.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.errors import SpoolError
from evenstep.trace.spool import layout
from evenstep.trace.spool.files import appearing
from evenstep.trace.spool.folder import is_gone

SUFFIX = ".pack"
MOST_TABLES_BYTES = 64 << 20  # of names, groups and facts
CHUNK_RECORDS = 4096  # copied at a time
_SEQ_BYTES = 8
_DAMAGE = (OSError, OverflowError, ValueError, LookupError, TypeError, AttributeError,
           RecursionError, struct.error)  # fmt: skip
_ZIP_DAMAGE = (OverflowError, ValueError, struct.error, zipfile.BadZipFile, NotImplementedError)
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # a zip file's, before a member's name (APPNOTE 4.3.7)
_ZIP64_BYTES = 20  # what `force_zip64` adds behind the name
_PADDING = struct.Struct("<HH")  # of the extra field that fills up a page: its tag and length
_PADDING_TAG = 0xD935  # as other aligned archives have it


class Extent(NamedTuple):
    """The place of a spool: a file of its own, or a member of a pack."""

    file: Path
    offset: int = 0
    size: int | None = None  # None: to the end of the file
    name: str = ""  # in its pack

    @property
    def path(self) -> Path:
        return self.file / self.name if self.name else self.file


class CollectableSpool(NamedTuple):
    """A spool that may go into a pack."""

    path: Path
    node: str
    closed: bool  # its rank has ended its trace
    raised: bool  # an exception ends its process
    ended: bool  # how its process ended is recorded
    over: bool  # nobody writes to it any more


def collectable(path: Path) -> CollectableSpool | None:
    """Read a spool's node and whether its rank has ended; None for what is not (yet) a spool."""
    try:
        with path.open("rb", buffering=0) as file:
            page = os.pread(file.fileno(), layout.PAGE_BYTES, 0)
            fields = layout.HEADER.unpack_from(page)
            if fields[0] != layout.MAGIC:
                return None
            text = page[layout.HEADER_TEXT_OFFSET : layout.HEADER_TEXT_OFFSET + fields[-1]]
            tables = os.pread(file.fileno(), min(fields[10], MOST_TABLES_BYTES), fields[9])
        identity = json.loads(text)
        entries = layout.unpack_entries(tables)
        told = [json.loads(text) for _, kind, _, text in entries if kind == layout.TABLE_FACT]
        facts = {fact["key"]: fact["value"] for fact in told}
        node = str(identity.get("hostname") or "unnamed")
        at = layout.HEARTBEAT_OFFSET
        beat_ns = int.from_bytes(page[at : at + 8], "little")
        over = is_gone(identity, beat_ns) or "closed" in facts or "ended" in facts
        raised = "raised" in facts and dict(facts.get("closed") or {}).get("reason") == "exit"
        return CollectableSpool(path, node, "closed" in facts, raised, "ended" in facts, over)
    except _DAMAGE:
        return None


def write_pack(spools: Sequence[Path], target: Path) -> int:
    """Write the spools into a pack; return its size on disk in bytes. Raises `SpoolError` where it
    cannot be written or a spool cannot be read."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for scratch in target.parent.glob(f".{target.name}.*"):  # of killed collectors
            if not Path(f"/proc/{scratch.suffix[1:].partition('-')[0]}").exists():
                scratch.unlink(missing_ok=True)
        with appearing(target) as new:
            with (
                _Sparse(new.fileno(), "w", closefd=False) as file,
                zipfile.ZipFile(file, "w") as archive,
            ):
                for spool in spools:
                    _add(archive, file, spool)
            size = os.fstat(new.fileno()).st_blocks * 512
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        raise SpoolError(f"cannot collect into {target}: {error.strerror}{place}") from error
    return size


def extents(pack: Path) -> list[Extent]:
    """List the spools in a pack. Raises `SpoolError` for a file that is not a pack."""
    try:
        with zipfile.ZipFile(pack) as archive, pack.open("rb") as file:
            return [_extent(pack, file, info) for info in archive.infolist()]
    except OSError as error:
        raise SpoolError(f"cannot read {pack}: {error.strerror}") from error
    except _ZIP_DAMAGE as error:
        raise SpoolError(f"{pack} is not a pack of spools, or is cut short: {error}") from error


def _extent(pack: Path, file: io.BufferedReader, info: zipfile.ZipInfo) -> Extent:
    if info.compress_type != zipfile.ZIP_STORED:
        raise SpoolError(f"{pack} is compressed; unpack it and give the folder")
    file.seek(info.header_offset)
    header = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    offset = info.header_offset + _LOCAL_HEADER.size + header[-2] + header[-1]
    return Extent(pack, offset, info.file_size, info.filename)


def _add(archive: zipfile.ZipFile, file: io.FileIO, spool: Path) -> None:
    info = zipfile.ZipInfo(spool.name)
    begin = file.tell() + _LOCAL_HEADER.size + len(spool.name.encode()) + _ZIP64_BYTES
    padding = -(begin + _PADDING.size) % layout.PAGE_BYTES
    info.extra = _PADDING.pack(_PADDING_TAG, padding) + bytes(padding)
    with (
        spool.open("rb", buffering=0) as source,
        archive.open(info, "w", force_zip64=True) as member,
    ):
        for data in _settled_bytes(source.fileno()):
            member.write(data)


def _settled_bytes(file: int) -> Iterator[bytes]:
    """Yield a spool's bytes, without records that are written to while they are copied: they would
    look whole in the copy."""
    fields = layout.HEADER.unpack_from(os.pread(file, layout.PAGE_BYTES, 0))
    ring, slots, summaries, summary_slots = fields[5:9]
    parts = (summaries, summary_slots, layout.SUMMARY_BYTES), (ring, slots, layout.RECORD_BYTES)
    size = os.fstat(file).st_size  # beyond which only a damaged header points
    regions = sorted((min(at, size), min(at + n * each, size), each) for at, n, each in parts)
    at = 0
    for begin, end, record_bytes in regions:
        yield from _bytes_of(file, at, begin)
        yield from _bytes_of(file, begin, end, record_bytes)
        at = end
    yield from _bytes_of(file, at, size)


def _bytes_of(file: int, begin: int, end: int, record_bytes: int = 0) -> Iterator[bytes]:
    """Yield a part of a file, read twice where it has records of some bytes each."""
    step = CHUNK_RECORDS * (record_bytes or layout.RECORD_BYTES)
    for start in range(begin, end, step):
        length = min(step, end - start)
        data = os.pread(file, length, start)
        if record_bytes and data != (again := os.pread(file, length, start)):
            data = _whole(bytearray(data), again, record_bytes)
        if data:
            yield data


def _whole(data: bytearray, again: bytes, record_bytes: int) -> bytes:
    """Invalidate (number 0) records whose number changed between the two reads."""
    for at in range(0, len(data), record_bytes):
        number = slice(at, at + _SEQ_BYTES)
        if data[number] != again[number]:
            data[number] = bytes(len(data[number]))
    return bytes(data)


class _Sparse(io.FileIO):
    """A file in which writes of only zeros, a page or longer, leave holes."""

    def write(self, data: Any) -> int:
        size = len(data)
        if (
            size >= layout.PAGE_BYTES
            and not any(memoryview(data)[:64])
            and bytes(data).count(0) == size
        ):
            self.seek(size, os.SEEK_CUR)
            return size
        return super().write(data)
