"""`evenstep run`: run a training command unchanged, record it, and print the verdict at its end."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import evenstep
from evenstep.agent.settings import config
from evenstep.cli import child, env, files
from evenstep.cli.admission import admit
from evenstep.cli.deaths import RankExits
from evenstep.cli.terminal import say
from evenstep.errors import ConfigError, UsageError
from evenstep.trace.spool import identity
from evenstep.trace.spool.folder import RunFolder, default_path, run_facts, starter_pid
from evenstep.trace.spool.layout import PAGE_BYTES
from evenstep.version import __version__


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
    shim = {"LD_PRELOAD": _preloading()} if args.mpi_shim else {}
    place = identity.from_environment(os.environ)  # the same where each rank has a launcher
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
        first = identity.from_environment(environ).attempt
    except ConfigError:
        first = 0
    exits = RankExits(folder, say, first)
    exits.start()
    return child.run(command, environ, exits.on_signal, exits.finish)


def _preloading() -> str:
    """Return LD_PRELOAD with the MPI shim first."""
    from evenstep.hooks.mpi.pmpi import build

    return ":".join(filter(None, [str(build.library(os.environ)), os.environ.get("LD_PRELOAD")]))


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
    place = identity.from_environment(environ)
    return place.launcher == "single" or place.rank == 0


def is_rank_zeros_node(folder: RunFolder, environ: Mapping[str, str]) -> bool:
    """Whether rank 0, or the lowest recorded rank, ran here and this launcher reports for it."""
    if not reports_for_job(environ):
        return False
    spools = [folder.spool_path(attempt, 0) for attempt in folder.attempts()]
    if str(config.load(environ=environ).part("record")) and not any(map(Path.exists, spools)):
        found = (sorted(spool.parent.glob("rank-*.spool")) for spool in spools)
        spools = [ranks[0] for ranks in found if ranks]
    return any(_written_here(path) for path in spools)


def _written_here(spool: Path) -> bool:
    """Whether the spool, which may be damaged, has this machine's boot id in its header."""
    try:
        with spool.open("rb") as file:
            return identity.boot_id().encode() in file.read(PAGE_BYTES)
    except OSError:
        return False


def _print_verdict(
    folder: RunFolder, environ: Mapping[str, str], code: int, *, verdict: bool, as_json: bool
) -> None:
    """Diagnose the run in a child process: it may need much memory, and may fail."""
    if not any(folder.path.glob("attempt-*/rank-*.spool")):
        say(f"{_why_nothing(folder, code)}; there is nothing to diagnose")
        return
    if not is_rank_zeros_node(folder, environ) or not (verdict or as_json):
        if identity.from_environment(environ).local_rank == 0:  # one launcher per node
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
        "with several ranks, or its Python ignores PYTHONPATH (-I, -E, -S)"
    )


def _short(folder: RunFolder) -> str:
    """Return the folder's path as typed in the working directory."""
    path, here = folder.path, Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
