"""A tar archive of traces, plain or compressed, unpacked into a folder of its own.

Only plain files are taken, by the last part of their names and those of folders above them; nothing
is written outside the folder, and no more than is read of any file.
"""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from evenstep.errors import TraceError
from evenstep.importers.compression import Stream

MOST_FILES = 20_000
_PIECE_BYTES = 1 << 20


def unpacked(path: Path) -> TemporaryDirectory[str]:
    """The archive's files in a folder that goes when it is let go of.

    Raises `TraceError` where it is damaged or holds more than is read of a file.
    """
    folder = TemporaryDirectory(prefix="evenstep-")
    try:
        with Stream(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for count, member in enumerate(archive):
                if count > MOST_FILES:
                    raise TraceError(f"{path} holds more than {MOST_FILES} files")
                if member.isreg() and not member.issparse():  # whose holes would fill a disk
                    _write(archive, member, Path(folder.name))
    except (tarfile.TarError, OSError, ValueError) as error:
        raise TraceError(f"{path} is no whole tar archive ({str(error)[:80]})") from None
    return folder


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    parts = [part for part in PurePosixPath(member.name).parts if part not in ("/", "..", ".")]
    source = archive.extractfile(member)
    if source is None or not parts or "\0" in member.name:
        return
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        while piece := source.read(_PIECE_BYTES):
            file.write(piece)
