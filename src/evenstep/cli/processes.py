"""Ranks of a run on this machine as processes, before they record anything: by the environment that
a launcher gave them, and by their marks where a script makes its ranks itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from evenstep.attachment.attempts import renumber
from evenstep.errors import ConfigError
from evenstep.trace.spool.folder import RunFolder, lives, process_stat, started_ticks
from evenstep.trace.spool.identity import Identity, from_environment

_PARENT = 1  # in `process_stat`
_INIT = "1"  # the parent of those whose own has ended
#: Launchers that start ranks below `evenstep run`; Slurm starts what may be launchers of others.
_STARTERS = frozenset({"torchrun", "environment", "openmpi", "pmi"})


class StartedRanks:
    """Finds the processes of ranks of a run, each at least once."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._own = _identity(os.environ)  # also that of a launcher of several ranks below us
        self._last: set[str] = set()
        self._seen: set[str] = set()  # twice: what was forked a moment before may not be itself yet

    def find(self) -> Iterator[dict[str, Any]]:
        """Yield the headers (see `Identity.header`) of ranks that have started since, at least."""
        yield from filter(lives, self._folder.marks())
        now = {path.name for path in Path("/proc").iterdir() if path.name.isdigit()}
        for pid in now - self._seen:
            identity = self._rank(pid)
            if identity is not None:
                identity = renumber(identity, self._folder, int(pid))
                yield identity.header() | {"pid": int(pid), "started_ticks": started_ticks(pid)}
        self._seen, self._last = self._last & now, now

    def _rank(self, pid: str) -> Identity | None:
        """The rank that a process is, not one that a rank has started, or has left behind."""
        environ = _environment(pid)
        if environ.get("EVENSTEP_OUT") != str(self._folder.path):
            return None
        found = _identity(environ)
        if found is None or found == self._own or found.launcher not in _STARTERS:
            return None
        stat = process_stat(pid)
        if not stat or stat[_PARENT] == _INIT:
            return None
        return None if _identity(_environment(stat[_PARENT])) == found else found


def _environment(pid: str) -> dict[str, str]:
    """The environment that a process was started with; empty if it is gone or another user's."""
    with suppress(OSError):
        texts = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
        return dict(text.split("=", 1) for text in texts if "=" in text)
    return {}


def _identity(environ: Mapping[str, str]) -> Identity | None:
    """The rank that an environment names, if any."""
    with suppress(ConfigError):
        found = from_environment(environ)
        return None if found.launcher == "single" else found
    return None
