"""Files that a command was asked to write: refused before the work, written whole, told of."""

from __future__ import annotations

import os
from pathlib import Path

from evenstep.cli.terminal import tell_written
from evenstep.errors import UsageError
from evenstep.trace.spool.files import write_whole


def check_free(*paths: Path | None, force: bool) -> None:
    """Refuse before the work is done what would be refused after it; None is not asked for."""
    for path in paths:
        if path is not None:
            _check(path, force=force)


def _check(path: Path, *, force: bool) -> None:
    if path.exists() and not path.is_file():  # a folder, or a device that must not be replaced
        raise UsageError(f"{path} is no file; name one to write")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; choose another name, or overwrite it with --force")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} to write {path.name} in; create it")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"there is no permission to write in {path.parent}; name another place")


def check_folder(path: Path) -> None:
    """Refuse a folder that could not be made or written in, before the work is done."""
    place = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not place.is_dir():
        raise UsageError(f"{place} is a file; name a folder that may be made")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"there is no permission to write in {place}; name another folder")


def write(path: Path, data: str | bytes, note: str = "") -> None:
    """Write a file and say so, with a note; it appears whole or not at all.

    Raises `UsageError` where it cannot be written.
    """
    try:
        write_whole(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; give another place") from error
    tell_written(path, note)
