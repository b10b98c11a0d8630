"""A run that is told to make room: schedulers send a signal before they take its place away."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from evenstep.cli.terminal import say
from evenstep.errors import ConfigError
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import from_environment, hostname

SCHEMA = "evenstep.preempted/1"
#: What Slurm (`--signal`, preemption), Kubernetes and others send; not what a person types.
SIGNALS = frozenset({signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM})


def noting(folder: RunFolder, environ: Mapping[str, str]) -> Callable[[int], None]:
    """What to call with each signal that is passed on: marks the attempt that runs, once."""

    def heard(number: int) -> None:
        if number not in SIGNALS:
            return
        try:
            _mark(folder, signal.Signals(number).name, _first(environ))
        except OSError as error:  # the job comes first
            say(f"the run is not marked as preempted: {error}")

    return heard


def _mark(folder: RunFolder, name: str, first: int) -> None:
    """Write down which signal came, unless one came before or no rank has begun."""
    attempt = max(folder.attempts(), default=-1)
    path = folder.preemption_path(attempt)
    if attempt < first or path.exists():
        return
    at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    facts = {"schema": SCHEMA, "signal": name, "at": at, "hostname": hostname()}
    write_whole(path, json.dumps(facts, indent=2) + "\n")
    say(f"attempt {attempt} is preempted ({name}); passing it on")


def _first(environ: Mapping[str, str]) -> int:
    """The first attempt that is this launcher's own."""
    try:
        return from_environment(environ).attempt
    except ConfigError:
        return 0
