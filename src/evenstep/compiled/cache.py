"""The folder of one user's compiled libraries, which nobody else may have had a hand in.

A library is code that our processes run, so that a folder or a file that another user could have
written is refused, and no symbolic link is followed in place of either.
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

    `make` creates it. Raises OSError, in words, where none can be had or one cannot be trusted.
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


def trusted(path: Path) -> bool:
    """Whether a library is there. Raises OSError where it is not ours alone."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    _trust(found, path, stat.S_ISREG, "a file")
    return found.st_size > 0


def _places(environ: Mapping[str, str]) -> list[Path]:
    """Where the folder may be, best first; the XDG specification ignores a relative path."""
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
