"""Output files of commands: checked before the work, written atomically, reported."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from evenstep.cli.terminal import tell_written
from evenstep.errors import UsageError, refuse_as
from evenstep.trace.spool.files import write_whole

STANDARD_OUTPUT = Path("-")


def check_free(*paths: Path | None, force: bool, piped: bool = False) -> None:
    """Raise `UsageError` before the work if a file could not be written after it; `piped`: nothing
    else is printed, so that one file may be `-`, the standard output."""
    if (dashes := paths.count(STANDARD_OUTPUT)) and (dashes > 1 or not piped):
        raise UsageError("- is standard output, which has something else to show; name a file")
    for path in filter(None, paths):
        if path == STANDARD_OUTPUT:
            continue
        if path.exists() and not path.is_file():  # a folder, or a device that must not be replaced
            raise UsageError(f"{path} is not a regular file; name a file to write")
        if path.exists() and not force:
            raise UsageError(f"{path} exists; choose another name, or overwrite it with --force")
        if not path.parent.is_dir():
            raise UsageError(f"there is no folder {path.parent} to write {path.name} in; create it")
        _try(path.parent)


def check_folder(path: Path) -> None:
    """Raise `UsageError` before the work if a folder could not be created or written to."""
    place = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not place.is_dir():
        raise UsageError(f"{place} is a file; name a folder")
    _try(place)


def _try(folder: Path) -> None:
    """Create a file without a name: permissions alone do not tell of all filesystems."""
    with refuse_as(UsageError, f"cannot write in {folder}", "; name another folder"):
        tempfile.TemporaryFile(dir=folder).close()


def write(path: Path, data: str | bytes, note: str = "") -> None:
    """Write a file atomically and report it, with a note. Raises `UsageError` if that fails."""
    if path == STANDARD_OUTPUT:
        if isinstance(data, str):
            print(data, end="")
        else:
            sys.stdout.buffer.write(data)
        return
    with refuse_as(UsageError, f"cannot write {path}", "; name another path"):
        write_whole(path, data)
    tell_written(path, note)
