"""`evenstep run`: the training command as it is, observed, and the verdict when it ends."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import evenstep
from evenstep.agent.settings import config
from evenstep.cli import child, env, files
from evenstep.cli.admission import Admission, admit
from evenstep.cli.deaths import RankEnds
from evenstep.cli.terminal import say
from evenstep.errors import ConfigError, UsageError
from evenstep.trace.spool import identity
from evenstep.trace.spool.folder import RunFolder, default_path, run_facts, starter_pid
from evenstep.trace.spool.layout import PAGE_BYTES
from evenstep.version import __version__

HELP = """Run a training command and observe every rank of it; the script stays as it is.

    evenstep run -- torchrun --nproc-per-node 4 train.py --lr 3e-4

Its arguments, input, output, signals and exit code stay its own. When it has ended, the verdict is
printed to standard error on the node that ran rank 0; other nodes print where their traces lie.
Give all nodes the same --out on a shared filesystem."""

_ISOLATING = {"I": "isolated mode", "E": "ignored variables", "S": "no site module"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep run`."""
    add = parser.add_argument
    env.add_settings(parser)
    add("--force", action="store_true", help="replace the run that is in DIR")
    add("--json", action="store_true", help="print the diagnosis as JSON at the end")
    add("--mpi-shim", action="store_true", help="observe MPI programs that are not Python, too")
    add("command", metavar="-- COMMAND", nargs=argparse.REMAINDER)


def main(args: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    command: list[str] = args.command
    if not command:
        raise UsageError("nothing to run: evenstep run [options] -- COMMAND…")
    if refused := child.refusal(command):  # before a folder is made for it, or cleared
        say(refused[0])
        return refused[1]
    asked = env.parse_settings(args)
    settings = config.load(asked)
    if not settings.enabled:
        say(f"the command runs unobserved: enabled is off ({settings.sources['enabled']})")
        return _unobserved(command)
    for warning in [*settings.warnings, *disabling_options(command)]:
        say(warning)
    shim = {"LD_PRELOAD": _preloading()} if args.mpi_shim else {}
    folder = RunFolder(settings.out or _own_default(os.environ))
    files.check_folder(folder.path)
    if settings.compiled and not args.mpi_shim:
        _compile_recorder()
    admission = admit(folder, command, os.environ, force=args.force)
    first = folder.write(_facts(admission, command))
    added = env.variables(os.environ, asked | {"out": str(folder.path)})
    added |= admission.variables() | shim
    if speaks(os.environ):
        say(f"recording in {_short(folder)}; `evenstep watch {_short(folder)}` shows it running")
    try:
        environ = {**os.environ, **added}
        code = _watched(folder, command, environ)
    except OSError as error:
        message, code = child.start_failure(command, error)
        say(message)
        if first:  # else another launcher of the job may have begun
            _forget(folder)
        return code
    if args.mpi_shim and speaks(os.environ):
        _collect(folder, admission.run_id)
    try:
        _conclude(folder, environ, verdict=settings.verdict, as_json=args.json)
    except KeyboardInterrupt:  # a second Ctrl-C: no verdict then, but the command's own code
        say(f"interrupted; `evenstep diagnose {folder.path}` gives the verdict")
    return code


def _unobserved(command: Sequence[str]) -> int:
    """Run the command as if we were not there; its exit code."""
    try:
        return child.run(command, {**os.environ, "EVENSTEP": "0"}, lambda _: None)
    except OSError as error:
        message, code = child.start_failure(command, error)
        say(message)
        return code


def _watched(folder: RunFolder, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """The command's exit code; how each of its ranks here ended stands in their traces."""
    try:
        first = identity.from_environment(environ).attempt
    except ConfigError:
        first = 0
    ends = RankEnds(folder, say, first)
    ends.start()
    return child.run(command, environ, ends.heard, ends.settle)


def disabling_options(command: Sequence[str]) -> list[str]:
    """A warning for each option of a Python command line that keeps the bootstrap out."""
    if not Path(command[0]).name.startswith(("python", "pypy")):
        return []
    letters: list[str] = []
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument.startswith("--") or argument == "-":
            break
        flags = argument[1:]
        if flags[0] in "XW":
            if len(flags) == 1:
                next(arguments, None)
            continue
        letters += flags.partition("c")[0].partition("m")[0]
        if "c" in flags or "m" in flags:
            break
    return [
        f"python -{letter} ({_ISOLATING[letter]}) keeps evenstep out of that process; "
        "its ranks will be missing unless the script calls evenstep.attach()"
        for letter in dict.fromkeys(letters)
        if letter in _ISOLATING
    ]


def _preloading() -> str:
    """What to preload: the shim before whatever is preloaded already."""
    from evenstep.hooks.mpi.pmpi import build

    return ":".join(filter(None, [str(build.library(os.environ)), os.environ.get("LD_PRELOAD")]))


def _compile_recorder() -> None:
    """Have the compiled recorder ready before the ranks start, once for a torch."""
    from evenstep.hooks.torch import library

    torch = library.installed()
    if torch is None or library.find_recorder(torch).path is not None:
        return
    say("compiling the recorder for this torch (once)")
    reason = library.built(torch).reason
    if reason:
        say(f"ranks record by Python's own kernels: {reason}")


def _collect(folder: RunFolder, run_id: str) -> None:
    from evenstep.hooks.mpi.pmpi.collect import collect

    collect(folder.path, run_id=run_id)


def _forget(folder: RunFolder) -> None:
    """Leave nothing of a run that never began."""
    if not folder.attempts():
        folder.clear()
        with suppress(OSError):  # somebody else's files are there, too
            folder.path.rmdir()


def speaks(environ: Mapping[str, str]) -> bool:
    """Whether this launcher is the only one of its job here, or rank 0's own."""
    place = identity.from_environment(environ)
    return place.launcher == "single" or place.rank == 0


def is_rank_zeros_node(folder: RunFolder, environ: Mapping[str, str]) -> bool:
    """Whether rank 0 recorded on this machine, and no other launcher here is closer to it.

    Where rank 0 was not to be observed, the lowest rank that was stands for it.
    """
    if not speaks(environ):
        return False
    spools = [folder.spool_path(attempt, 0) for attempt in folder.attempts()]
    if str(config.load(environ=environ).part("record")) and not any(map(Path.exists, spools)):
        found = (sorted(spool.parent.glob("rank-*.spool")) for spool in spools)
        spools = [ranks[0] for ranks in found if ranks]
    return any(_written_here(path) for path in spools)


def _written_here(spool: Path) -> bool:
    """Whether a spool's header names the boot of this kernel."""
    try:
        with spool.open("rb") as file:
            return identity.boot_id().encode() in file.read(PAGE_BYTES)
    except OSError:
        return False


def _own_default(environ: Mapping[str, str]) -> Path:
    """Where the run goes: one folder, also where a launcher of ours is started for every rank."""
    place = identity.from_environment(environ)
    return default_path(Path.cwd(), starter_pid(place.launcher, place.world))


def _facts(admission: Admission, command: Sequence[str]) -> dict[str, object]:
    versions = {"evenstep": __version__, "python": None, "torch": None, "nccl": None}
    written = run_facts(
        run_id=admission.run_id, command=command, environ=os.environ, versions=versions
    )
    return {**written, "written_by": "launcher"}


def _conclude(
    folder: RunFolder, environ: Mapping[str, str], *, verdict: bool, as_json: bool
) -> None:
    """Say what came of it, in a process of its own: it may need much memory, and may fail."""
    if not any(folder.path.glob("attempt-*/rank-*.spool")):
        if not (env.BOOTSTRAP / "sitecustomize.py").exists():
            say(f"no rank attached: {env.BOOTSTRAP} is not whole; install evenstep anew")
            return
        say(
            "no rank attached: the command never called torch.distributed.init_process_group nor "
            "started several ranks of MPI, or its Python ignores PYTHONPATH; there is nothing to "
            "diagnose"
        )
        return
    if not is_rank_zeros_node(folder, environ) or not (verdict or as_json):
        if identity.from_environment(environ).local_rank == 0:  # of a node's launchers, one
            say(f"this node's traces are in {folder.path}")
        return
    sys.stdout.flush()
    diagnose = [sys.executable, "-m", "evenstep", "diagnose", str(folder.path)]
    output = None if as_json else sys.stderr
    # An observer must not be observed, and `-m` must find the package we are.
    package = str(Path(evenstep.__file__).parents[1])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), package]))
    own = {**os.environ, "EVENSTEP": "0", "PYTHONPATH": path}
    subprocess.run([*diagnose, *["--json"] * as_json], stdout=output, env=own, check=False)
    say(f"next: evenstep diagnose {_short(folder)} --html report.html")


def _short(folder: RunFolder) -> str:
    """The folder as one would type it here."""
    here = Path.cwd()
    return shlex.quote(
        str(folder.path.relative_to(here) if folder.path.is_relative_to(here) else folder.path)
    )
