"""Read plain, gzip and Zstandard files as streams of bytes, and unpack tar and zip archives.

A few kilobytes can decompress to any size, so the bytes read from one file are limited, plain or
compressed: `EVENSTEP_IMPORT_LIMIT_GB` raises the limit. Of an archive only plain files are
unpacked, into a temporary folder that their names cannot leave.
"""

from __future__ import annotations

import gzip
import importlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any

from evenstep.errors import MissingExtra, TraceError, refuse_as
from evenstep.trace.reports import REPORT
from evenstep.values import number

HEAD_BYTES = 1 << 16
PIECE_BYTES = 1 << 20
LIMIT_VARIABLE = "EVENSTEP_IMPORT_LIMIT_GB"
LIMIT_GB = 4.0  # 1e9 bytes each: a few hundred times the size of a profile of ten steps
GZIP = b"\x1f\x8b"
ZSTANDARD = b"\x28\xb5\x2f\xfd"
TAR, TAR_AT = b"ustar", 257
ZIP = b"PK\x03\x04"


class Stream:
    """The decompressed contents of a file, which reports how far it was read.

    Raises `TraceError` for a file that cannot be read, is cut short or exceeds the limit.
    """

    def __init__(self, path: Path, *, limit_bytes: int | None = None) -> None:
        self.path = path
        self.limit_bytes = limit_from_environment() if limit_bytes is None else limit_bytes
        self.read_bytes = 0  # handed out so far, decompressed
        if path.is_fifo():
            raise TraceError(f"cannot read {path}: it is a pipe; save it as a file first")
        with refuse_as(TraceError, f"cannot read {path}"):
            self._raw = path.open("rb")
            self.size_bytes = os.fstat(self._raw.fileno()).st_size
            magic = self._raw.read(4)
            self._raw.seek(0)
        file = _decompress(self._raw, magic, path)
        self._read = getattr(file, "read1", file.read)  # what precedes damage is read

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def read(self, count: int) -> bytes:
        """Read at most `count` bytes; none at the end."""
        try:
            data: bytes = self._read(count)
        except Exception as error:
            if not isinstance(error, OSError | EOFError | zlib.error) and (
                type(error).__name__ != "ZstdError"  # its module may be missing
            ):
                raise
            raise TraceError(
                f"{self.path}: the compressed data is damaged or cut short after "
                f"{self.read_bytes} decompressed bytes; copy the file again"
            ) from error
        self.read_bytes += len(data)
        if self.read_bytes > self.limit_bytes:
            raise _too_large(self.path, self.limit_bytes)
        if report := REPORT.get():
            report(str(self.path), self._raw.tell(), self.size_bytes)
        return data

    def pieces(self) -> Iterator[bytes]:
        """Yield the rest of the contents, up to `PIECE_BYTES` at a time."""
        return iter(lambda: self.read(PIECE_BYTES), b"")


def _too_large(path: Path, limit_bytes: int) -> TraceError:
    return TraceError(
        f"{path} holds more than {limit_bytes / 1e9:g} GB once it is read; where that is meant, "
        f"set {LIMIT_VARIABLE} to more than {limit_bytes / 1e9:g}"
    )


def limit_from_environment() -> int:
    """The limit in bytes. Raises `ConfigError` where the variable is not a number."""
    kind = number(0, above=True, most=1e9, what="a number of gigabytes")
    return int(kind.checked(os.environ.get(LIMIT_VARIABLE) or LIMIT_GB, LIMIT_VARIABLE) * 1e9)


def read_head(path: Path) -> bytes:
    """The first 64 KiB of a file, decompressed; fewer if it is damaged after the first bytes."""
    head = b""
    with Stream(path, limit_bytes=2 * HEAD_BYTES) as stream:
        try:
            while len(head) < HEAD_BYTES and (more := stream.read(HEAD_BYTES - len(head))):
                head += more
        except TraceError:
            if not head:
                raise
    return head


def is_archive(path: Path) -> bool:
    """Whether a file, decompressed, is a tar or zip archive. Raises `TraceError`, as reading."""
    with Stream(path) as stream:
        head = stream.read(TAR_AT + len(TAR))
    return head[TAR_AT:] == TAR or head.startswith(ZIP)


def _decompress(raw: IO[bytes], magic: bytes, path: Path) -> Any:
    if magic[:2] == GZIP:
        return gzip.GzipFile(fileobj=raw, mode="rb")
    if magic == ZSTANDARD:
        try:
            module = importlib.import_module("zstandard")
        except ModuleNotFoundError:
            raw.close()
            raise MissingExtra("zstandard", extra="analyze", purpose=f"reading {path}") from None
        return module.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return raw


# -- archives --------------------------------------------------------------------------------------

MOST_FILES = 20_000
MOST_NAME_BYTES = 1 << 20  # of a member's long name and attributes, which are read into memory


def unpack(path: Path) -> TemporaryDirectory[str]:
    """Unpack an archive into a temporary folder.

    Raises `TraceError` where it is damaged or exceeds the limit of a file.
    """
    folder = TemporaryDirectory(prefix="evenstep-")
    left = limit = limit_from_environment()
    try:
        for count, (name, file) in enumerate(_members(path)):
            if count >= MOST_FILES:
                raise TraceError(f"{path} holds more than {MOST_FILES} files")
            target = _place(name, Path(folder.name))
            if target is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as copy:
                while piece := file.read(PIECE_BYTES):
                    left -= len(piece)
                    if left < 0:
                        raise _too_large(path, limit)
                    copy.write(piece)
    except _NO_ARCHIVE as error:
        raise TraceError(f"{path} is not a whole archive ({str(error)[:80]})") from None
    return folder


#: Of a zip archive: `zlib.error` where it is damaged, a `RuntimeError` where it is encrypted.
_NO_ARCHIVE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error),
    *(OSError, EOFError, ValueError, RuntimeError),
)


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of an archive's plain files."""
    with path.open("rb") as raw:
        is_zip = raw.read(len(ZIP)) == ZIP
    if is_zip:
        with zipfile.ZipFile(path) as zipped:
            for entry in zipped.infolist():
                if not entry.is_dir():
                    with zipped.open(entry) as file:
                        yield entry.filename, file
        return
    with (
        Stream(path) as stream,
        tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive,  # type: ignore[call-overload]
    ):
        for member in archive:
            if member.isreg() and not member.issparse():  # whose holes would fill a disk
                yield member.name, archive.extractfile(member)


_IN_MEMORY = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


class _Member(tarfile.TarInfo):
    """A header of a tar archive, which may not announce a huge name or attributes."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Parse a header. Raises `ReadError` beyond `MOST_NAME_BYTES` of a name or attributes."""
        member = super().frombuf(buf, encoding, errors)
        if member.size > MOST_NAME_BYTES and member.type in _IN_MEMORY:
            raise tarfile.ReadError(f"a name or its attributes take {member.size} bytes")
        return member


def _place(name: str, folder: Path) -> Path | None:
    """Where a member is unpacked to; None for a name that is none."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..", ".")]
    return folder.joinpath(*parts) if parts and "\0" not in name else None
