"""The `evenstep` command: finds the module of a command and turns what happens into an exit code.

0 fine, 1 findings above the threshold, 2 usage or bad input, 3 an internal error, 128 + n on
signal n. `evenstep run` returns its command's own code.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NamedTuple, Protocol, cast

from evenstep.cli import traces
from evenstep.cli.arguments import Help, Parser
from evenstep.cli.terminal import drop_output, open_streams, say
from evenstep.errors import EvenstepError, MissingExtra, UsageError

FINE, FINDINGS, USAGE, INTERNAL = 0, 1, 2, 3


class Command(NamedTuple):
    """A command as the root help shows it. Its module is imported when it runs."""

    group: str
    name: str
    form: str
    summary: str
    wraps: bool = False  # what follows `--` is another program's command line


COMMANDS = (
    Command("see", "run", "run -- COMMAND…", "run a training command and observe it", wraps=True),
    Command("see", "env", "env", "print variables that do the same where nothing wraps"),
    Command("see", "watch", "watch RUN", "show a running job: who is late, what stands out"),
    Command("see", "doctor", "doctor", "say what on this host slows or breaks training"),
    Command("see", "probe", "probe", "measure ranks and links before a job, name the slow"),
    Command("see", "collect", "collect RUN", "bring traces from the nodes together"),
    Command("see", "completion", "completion SHELL", "print what a shell completes commands with"),
    Command("explain", "diagnose", "diagnose TRACE…", "say who was waited for, why, what to do"),
    Command("explain", "explain", "explain [TOPIC] …", "say what a failure mode or number means"),
    Command("explain", "compare", "compare A B…", "say what changed, and how surely"),
    Command("explain", "history", "history DIR", "say how runs have developed, and what they cost"),
    Command("explain", "export", "export RUN", "write a run for other tools"),
    Command("explain", "sql", "sql QUERY RUN", "ask about a run in SQL"),
    Command("predict", "simulate", "simulate SCENARIO", "run a job that does not exist yet"),
    Command("predict", "sweep", "sweep SCENARIO", "simulate every combination of some values"),
    Command("predict", "scaling", "scaling SCENARIO", "say how far a job scales, and what ends it"),
    Command("predict", "strategies", "strategies SCENARIO", "say how ranks should keep together"),
    Command("predict", "calibrate", "calibrate TRACE…", "write a scenario that behaves like a run"),
    Command("predict", "project", "project TRACE…", "say what a run would reach at other sizes"),
    Command("act", "ctl", "ctl RUN pace …", "change how a running job is paced"),
    Command("act", "link", "link NAME@HOST:PORT", "let jobs of several hosts take turns"),
    Command("prove", "selftest", "selftest", "hold a rank 50 ms, and see whether that is found"),
    Command("prove", "demo", "demo", "see who waits for whom in a real job, on this machine"),
    Command("prove", "reproduce", "reproduce NAME", "compute a published result anew"),
)

#: Packages a command may need, and the extra each comes with.
EXTRAS = {
    **dict.fromkeys(("numpy", "scipy", "rich", "msgspec", "zstandard", "duckdb"), "analyze"),
    "jinja2": "report",
    "mpi4py": "mpi",
    "ray": "ray",
}

#: What the machine may refuse at any moment, and no code of ours is to blame for.
OUTSIDE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO),
        *(errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG, errno.ELOOP, errno.ESTALE),
        *(errno.EISDIR, errno.ENOTDIR),
    }
)


class CommandModule(Protocol):
    """What a module of this package offers."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def main(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return started(_dispatch, argv)


def started(dispatch: Callable[[list[str]], int], argv: Sequence[str] | None) -> int:
    """The exit code of a command line: this process's own where `argv` is None."""
    if argv is None:
        argv = sys.argv[1:]
        open_streams()
        signal.signal(signal.SIGTERM, _terminated)
    return guarded(lambda: dispatch(list(argv)))


def guarded(command: Callable[[], int]) -> int:
    """The exit code of a command, also of one that fails."""
    try:
        code = command()
        sys.stdout.flush()
    except EvenstepError as error:
        say(str(error))
        return USAGE
    except KeyboardInterrupt:
        say("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in OUTSIDE:
            return _defect()
        say(_of_the_machine(error))
        _flush()
        return USAGE
    except MemoryError:
        say("there is not enough memory for this; ask for less of it at once")
        return USAGE
    except Exception:
        return _defect()
    return code


def _defect() -> int:
    """Our own mistake, with all that is known of it."""
    traceback.print_exc()
    say("this is a defect of evenstep; please report the above")
    return INTERNAL


def _flush() -> None:
    """Print what was said before, unless that is what cannot be done."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()


def _of_the_machine(error: OSError) -> str:
    """What the system refuses, in a sentence; a full disk without a name is our own output's."""
    if error.filename is not None:
        return f"{error.filename} cannot be read or written: {error.strerror}; name another place"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return f"the output cannot be written: {error.strerror}; send it to another place"
    return f"the system refuses what this needs: {error.strerror}"


def _dispatch(argv: list[str]) -> int:
    if not argv and traces.latest() is not None:
        argv = ["diagnose"]
    first = argv[0] if argv else "--help"
    if first in ("-h", "--help", "help"):
        print(overview())
        return FINE
    if first in ("-V", "--version"):
        from evenstep.version import __version__

        print(f"evenstep {__version__}")
        return FINE
    command = next((command for command in COMMANDS if command.name == first), None)
    if command is None:
        raise UsageError(_no_such(first))
    try:
        return _run(command, argv[1:])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        purpose = f"`evenstep {command.name}`"
        raise MissingExtra(package, extra=EXTRAS[package], purpose=purpose) from error


def parser_of(module: CommandModule, prog: str) -> Parser:
    """What a command's module understands, as `prog`."""
    parser = Parser(prog=prog, description=module.HELP, formatter_class=Help, allow_abbrev=False)
    module.add_arguments(parser)
    return parser


def _run(command: Command, argv: list[str]) -> int:
    module = module_of(command)
    own, wrapped = _split(argv) if command.wraps else (argv, None)
    args = parser_of(module, f"evenstep {command.name}").parse_args(own)
    if wrapped is not None:
        args.command = [*args.command, "--", *wrapped] if args.command else wrapped
    return module.main(args)


def module_of(command: Command) -> CommandModule:
    """The module of a command, imported now."""
    return cast(CommandModule, importlib.import_module(f"evenstep.cli.{command.name}"))


def _split(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Our own arguments, and what follows the first `--`."""
    if "--" not in argv:
        return argv, None
    end = argv.index("--")
    return argv[:end], argv[end + 1 :]


def overview() -> str:
    """The root help: commands by what a person wants."""
    lines = ["usage: evenstep COMMAND …", ""]
    lines += ["Tells you which rank your distributed training is waiting for, what it costs,"]
    lines += ["and what would fix it."]
    width = max(len(command.form) for command in COMMANDS)
    for group in dict.fromkeys(command.group for command in COMMANDS):
        lines += ["", f"{group}:"]
        rows = (command for command in COMMANDS if command.group == group)
        lines += [f"  {row.form:{width}}  {row.summary}" for row in rows]
    lines += ["", "`evenstep COMMAND --help` says more; `evenstep --version` the version."]
    return "\n".join(lines)


def _no_such(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [command.name for command in COMMANDS], n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`evenstep --help` lists them"
    return f"there is no command {name!r}; {hint}"


def _terminated(number: int, frame: FrameType | None) -> None:
    """Leave through the `finally` blocks, with the code a shell expects."""
    del frame
    raise SystemExit(128 + number)
