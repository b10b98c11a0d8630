"""The folder of a user's compiled libraries, which no other user may write.

A library is code that our processes run, so a folder or file that another user could have written
is refused, and so is a symbolic link.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE = 0o700


def folder(environ: Mapping[str, str], *, make: bool) -> Path:
    """`evenstep` in the user's cache (XDG_CACHE_HOME, ~/.cache), else below the temporary folder.

    `make` creates it. Raises OSError with a message where there is none or it cannot be trusted.
    """
    refused: OSError | None = None
    for place in _places(environ):
        try:
            if make:
                place.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            _trust(place.lstat(), place, stat.S_ISDIR, "a folder")
            if os.access(place, os.W_OK) or not make:
                return place
            refused = OSError(f"{place} cannot be written")
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError("no folder for compiled libraries")


def is_trusted(path: Path) -> bool:
    """Whether a library exists. Raises OSError where another user could have written it."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    _trust(found, path, stat.S_ISREG, "a file")
    return found.st_size > 0


def _places(environ: Mapping[str, str]) -> list[Path]:
    """Candidate folders, best first; the XDG specification ignores relative paths."""
    asked = environ.get("XDG_CACHE_HOME", "")
    home = environ.get("HOME", "")
    places = [Path(asked)] if Path(asked).is_absolute() else []
    if not places and Path(home).is_absolute():
        places.append(Path(home) / ".cache")
    shared = Path(tempfile.gettempdir()) / f"evenstep-{os.geteuid()}"
    return [*(place / "evenstep" for place in places), shared]


def _trust(found: os.stat_result, path: Path, is_kind: object, kind: str) -> None:
    if not (callable(is_kind) and is_kind(found.st_mode)):
        raise PermissionError(f"{path} is not {kind} of its own; remove it")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}, not to this one")
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError(f"{path} can be written by others; chmod go-w {path}")
