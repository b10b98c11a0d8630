"""`evenstep run`: run a training command unchanged, record it, and print the verdict at its end."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evenstep
from evenstep.agent.settings import config
from evenstep.attachment.attempts import header
from evenstep.cli import child, env, files
from evenstep.cli.deaths import RankExits
from evenstep.cli.terminal import say
from evenstep.errors import ConfigError, TraceError, UsageError
from evenstep.trace.spool.folder import (
    RunFolder,
    default_path,
    ended_here,
    is_here,
    run_facts,
    starter_pid,
)
from evenstep.trace.spool.identity import from_environment, given_run_id
from evenstep.version import __version__

_RENDEZVOUS = re.compile(r"--rdzv[-_]id(?:=(.+))?")
#: Where the nodes of a static rendezvous meet, and what names one of them: each has its own.
_MEETING = (
    re.compile(r"--(?:rdzv[-_]endpoint|master[-_]addr|main[-_]process[-_]ip)(?:=(.+))?"),
    re.compile(r"--(?:master[-_]port|main[-_]process[-_]port)(?:=(.+))?"),
)
_OWN = re.compile(r"--(?:node[-_]rank|machine[-_]rank|local[-_]addr)(?:=(.+))?")
_NODES = re.compile(r"--(?:nnodes|num[-_]machines|num[-_]nodes)(?:=(.+))?")


def main(args: argparse.Namespace) -> int:
    command: list[str] = args.command
    if not command:
        raise UsageError("nothing to run: evenstep run [options] -- COMMAND…")
    if refused := child.refusal(command):  # before a folder is created or cleared
        return refused
    asked = env.parse_settings(args)
    settings = config.load(asked)
    if not settings.enabled:
        say(f"the command is not recorded: enabled is off ({settings.sources['enabled']})")
        try:
            return child.run(command, {**os.environ, "EVENSTEP": "0"}, lambda _: None)
        except OSError as error:
            return child.start_failure(command, error)
    for warning in settings.warnings:
        say(warning)
    shim = {}
    if args.mpi_shim:
        from evenstep.hooks.mpi.pmpi.collect import library

        preloaded = str(library(os.environ)), os.environ.get("LD_PRELOAD")
        shim["LD_PRELOAD"] = ":".join(filter(None, preloaded))
    place = from_environment(os.environ)  # the same where each rank has a launcher
    starter = starter_pid(place.launcher, place.world)
    folder = RunFolder(settings.out or default_path(Path.cwd(), starter))
    files.check_folder(folder.path)
    if settings.compiled and not args.mpi_shim:
        _compile_recorder()
    admission = admit(folder, command, os.environ, force=args.force)
    known = {"evenstep": __version__, "python": None, "torch": None, "nccl": None}
    facts = run_facts(run_id=admission.run_id, command=command, environ=os.environ, versions=known)
    first = folder.write({**facts, "written_by": "launcher"})
    added = env.variables(os.environ, asked | {"out": str(folder.path)})
    added |= admission.variables() | shim
    if reports_for_job(os.environ):
        say(f"recording in {_short(folder)}; `evenstep watch {_short(folder)}` shows it running")
    try:
        environ = {**os.environ, **added}
        code = _run_recorded(folder, command, environ)
    except OSError as error:
        if first and not folder.attempts():  # else another launcher of the job may have started
            folder.remove()
        return child.start_failure(command, error)
    if args.mpi_shim and reports_for_job(os.environ):
        from evenstep.hooks.mpi.pmpi.collect import collect

        collect(folder.path, run_id=admission.run_id)
    try:
        _print_verdict(folder, environ, code, verdict=settings.verdict, as_json=args.json)
    except KeyboardInterrupt:  # a second Ctrl-C: no verdict, but the command's own code
        say(f"interrupted; `evenstep diagnose {folder.path}` prints the verdict")
    return code


def _run_recorded(folder: RunFolder, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command, record how its ranks on this node end, and return its exit code."""
    try:
        first = from_environment(environ).attempt
    except ConfigError:
        first = 0
    exits = RankExits(folder, say, first)
    exits.start()
    return child.run(command, environ, exits.on_signal, exits.finish)


def _compile_recorder() -> None:
    """Compile the recorder for the installed torch, unless that was done before."""
    from evenstep.hooks.torch import library

    torch = library.installed_folder()
    if torch is None or library.find_recorder(torch).path is not None:
        return
    say(
        "compiling the recorder for this torch, once; the job starts when that is done, in about "
        "half a minute (without it: EVENSTEP_COMPILED=off)"
    )
    if reason := library.build_recorder(torch).reason:
        say(f"ranks record with the slower Python kernels: {reason}")


def reports_for_job(environ: Mapping[str, str]) -> bool:
    """Whether this launcher is the only one of its job on this node, or that of rank 0."""
    place = from_environment(environ)
    return place.launcher == "single" or place.rank == 0


def is_rank_zeros_node(folder: RunFolder, environ: Mapping[str, str]) -> bool:
    """Whether rank 0 ran here and this launcher reports for it; the lowest recorded rank where rank
    0 is not to be recorded, or failed before it was on the only node."""
    spools = [path for attempt in folder.attempts() for path in folder.spools(attempt)[:1]]
    partial = bool(str(config.load(environ=environ).part("record")))
    for each in map(header, spools) if reports_for_job(environ) else ():
        if each is None:  # damaged, as the diagnosis tells
            return True
        if is_here(each) and (partial or each.get("rank") == 0 or each.get("nodes") == 1):
            return True
    return False


def _print_verdict(
    folder: RunFolder, environ: Mapping[str, str], code: int, *, verdict: bool, as_json: bool
) -> None:
    """Diagnose the run in a child process: it may need much memory, and may fail."""
    if not any(map(folder.spools, folder.attempts())):
        say(f"{_why_nothing(folder, code)}; there is nothing to diagnose")
        return
    if not is_rank_zeros_node(folder, environ) or not (verdict or as_json):
        if from_environment(environ).local_rank == 0:  # one launcher per node
            say(f"this node's traces are in {folder.path}")
        return
    sys.stdout.flush()
    diagnose = [sys.executable, "-m", "evenstep", "diagnose", str(folder.path)]
    output = None if as_json else sys.stderr
    # The diagnosis must not record itself, and `-m` must find this package.
    package = str(Path(evenstep.__file__).parents[1])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), package]))
    own = {**os.environ, "EVENSTEP": "0", "PYTHONPATH": path}
    subprocess.run([*diagnose, *["--json"] * as_json], stdout=output, env=own, check=False)
    say(f"next: evenstep diagnose {_short(folder)} --html report.html")


def _why_nothing(folder: RunFolder, code: int) -> str:
    """Why there is no trace of a command that ended with this code."""
    if not (env.BOOTSTRAP / "sitecustomize.py").exists():
        return f"no rank attached: {env.BOOTSTRAP} is incomplete (reinstall evenstep)"
    if folder.attempts():
        return "no rank could attach, for the reason that it gave"
    if code:
        return f"the command ended with {code} before any of its ranks had attached"
    return (
        "no rank attached: the command called neither torch.distributed.init_process_group nor MPI "
        "with several ranks, or its PYTHONPATH is set anew by a script or ignored (-I, -E, -S)"
    )


def _short(folder: RunFolder) -> str:
    """Return the folder's path as typed in the working directory."""
    path, here = folder.path, Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


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
    """Decide whether a launcher may use a folder: for a new run, a further node, or a restart.

    Raises `UsageError` if the folder holds another run, unless `force` replaces it.
    """
    given = given_run_id(environ) or option_value(command, _RENDEZVOUS) or None
    if given is None and from_environment(environ).launcher in ("pmi", "openmpi"):
        given = default_path(Path.cwd(), os.getppid()).name  # of all that one mpiexec started here
    alone = not spans_nodes(command, environ)
    if given is None and not alone:
        given = "-".join(filter(None, (option_value(command, each) for each in _MEETING))) or None
    fresh = Admission(given or folder.path.name, passes_id=given is not None or alone)
    if not folder.exists():
        return fresh
    known: dict[str, Any] = {}
    with suppress(TraceError):  # damaged
        known = folder.read()
    ours = given, _of_all_nodes(command)
    if given and ours == (known.get("run_id"), _of_all_nodes(known.get("command") or ())):
        if not ended_here(known) or environ.get("SLURM_RESTART_COUNT"):
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
