"""Whether a launcher may use a run folder: for a new run, a further node, or a restart."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from evenstep.errors import TraceError, UsageError
from evenstep.trace.spool.folder import RunFolder, default_path, process_start_s
from evenstep.trace.spool.identity import boot_id, from_environment, given_run_id, hostname

_RENDEZVOUS = re.compile(r"--rdzv[-_]id(?:=(.+))?")
#: Where the nodes of a static rendezvous meet, and what names one of them: each has its own.
_MEETING = (
    re.compile(r"--(?:rdzv[-_]endpoint|master[-_]addr|main[-_]process[-_]ip)(?:=(.+))?"),
    re.compile(r"--(?:master[-_]port|main[-_]process[-_]port)(?:=(.+))?"),
)
_OWN = re.compile(r"--(?:node[-_]rank|machine[-_]rank|local[-_]addr)(?:=(.+))?")
_NODES = re.compile(r"--(?:nnodes|num[-_]machines|num[-_]nodes)(?:=(.+))?")


@dataclass(frozen=True, slots=True)
class Admission:
    """The run id and first attempt number under which a launcher's ranks record."""

    run_id: str
    passes_id: bool  # whether ranks get the id from us; else they derive it themselves
    first_attempt: int | None = None  # None: the launcher's own restart count is enough

    def variables(self) -> dict[str, str]:
        found = {"EVENSTEP_RUN_ID": self.run_id} if self.passes_id else {}
        if self.first_attempt is not None:
            found["EVENSTEP_ATTEMPT"] = str(self.first_attempt)
        return found


def admit(
    folder: RunFolder, command: Sequence[str], environ: Mapping[str, str], *, force: bool
) -> Admission:
    """Decide. Raises `UsageError` if the folder holds another run, unless `force` replaces it."""
    given = given_run_id(environ) or option_value(command, _RENDEZVOUS) or None
    if given is None and from_environment(environ).launcher in ("pmi", "openmpi"):
        given = default_path(Path.cwd(), os.getppid()).name  # of all that one mpiexec started here
    alone = not spans_nodes(command, environ)
    if given is None and not alone:
        given = "-".join(filter(None, (option_value(command, each) for each in _MEETING))) or None
    fresh = Admission(given or folder.path.name, passes_id=given is not None or alone)
    if not folder.exists():
        return fresh
    known = _facts(folder)
    ours = given, _of_all_nodes(command)
    if given and ours == (known.get("run_id"), _of_all_nodes(known.get("command") or ())):
        if not _ended_here(known) or environ.get("SLURM_RESTART_COUNT"):
            return fresh
        if alone:
            following = (folder.attempts() or [-1])[-1] + 1
            return Admission(given, passes_id=True, first_attempt=following)
    if not force:
        mend = "choose another --out or replace it with --force"
        raise UsageError(f"{folder.path} holds another run; {mend}")
    folder.clear()
    return fresh


def spans_nodes(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether other launchers may start the same job on other nodes."""
    counts = [option_value(command, _NODES), environ.get("SLURM_NNODES")]
    return any(count not in (None, "1", "1:1") for count in counts)


def _of_all_nodes(command: Sequence[str]) -> list[str]:
    """Return a command without what it says of its own node."""
    own = [_OWN.fullmatch(argument) for argument in command]
    value = [False, *(match is not None and match[1] is None for match in own)]
    return [each for at, each in enumerate(command) if not (own[at] or value[at])]


def option_value(command: Sequence[str], pattern: re.Pattern[str]) -> str | None:
    """Return the value of an option of a command, `--name=value` or `--name value`."""
    for argument, following in zip(command, [*command[1:], None], strict=True):
        if match := pattern.fullmatch(argument):
            return match[1] or following
    return None


def _facts(folder: RunFolder) -> dict[str, Any]:
    """Return the facts of the run; nothing where what they say of its launcher is no time or
    number."""
    try:
        known = folder.read()
        datetime.fromisoformat(known.get("created", "2000-01-01")), int(known.get("pid", 0))
    except (TraceError, TypeError, ValueError):
        return {}
    return known


def _ended_here(known: Mapping[str, Any]) -> bool:
    """Whether the launcher that wrote `run.json` ran on this machine and has ended."""
    if known.get("hostname") != hostname():
        return False
    started_s = process_start_s(int(known.get("pid", 0)))
    if known.get("boot_id") != boot_id() or started_s is None or "created" not in known:
        return True
    return started_s > datetime.fromisoformat(known["created"]).timestamp() + 1  # pid reused
