"""The `evenstep` command: run one subcommand and return its exit code.

0 fine, 1 findings above the threshold, 2 usage or bad input, 3 an internal error, 128 + n on
signal n. `evenstep run` returns its command's own code.
"""

from __future__ import annotations

import errno
import importlib
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from evenstep.cli import traces
from evenstep.cli.arguments import Help, Parser
from evenstep.cli.terminal import drop_output, open_streams, say
from evenstep.errors import EvenstepError, MissingExtra, UsageError

FINE, FINDINGS, USAGE, INTERNAL = 0, 1, 2, 3


class Command(NamedTuple):
    """A row of the root help. The module of a command is imported when it runs."""

    group: str
    name: str
    form: str
    summary: str
    wraps: bool = False  # arguments after `--` are another program's command line


COMMANDS = (
    Command("see", "run", "run -- COMMAND…", "run a training command and record it", wraps=True),
    Command("see", "env", "env", "print environment variables that attach without `run`"),
    Command("see", "watch", "watch RUN", "show a running job: late ranks and live findings"),
    Command("see", "doctor", "doctor", "check this host for what slows or breaks training"),
    Command("see", "probe", "probe", "measure ranks and links before a job; name slow ones"),
    Command("see", "collect", "collect RUN", "copy the traces of a node to shared storage"),
    Command("see", "completion", "completion SHELL", "print the shell's completion script"),
    Command("explain", "diagnose", "diagnose TRACE…", "report slow ranks, causes and fixes"),
    Command("explain", "explain", "explain [TOPIC] …", "explain a failure mode or a formula"),
    Command("explain", "compare", "compare A B…", "report what changed between runs"),
    Command("explain", "history", "history DIR", "report how step time and cost of runs developed"),
    Command("explain", "export", "export RUN", "write a run in the formats of other tools"),
    Command("explain", "sql", "sql QUERY RUN", "query a run in SQL"),
    Command("predict", "simulate", "simulate SCENARIO", "simulate a job that does not exist yet"),
    Command("predict", "sweep", "sweep SCENARIO", "simulate every combination of some values"),
    Command("predict", "scaling", "scaling SCENARIO", "find how far a job scales, and its limit"),
    Command("predict", "strategies", "strategies SCENARIO", "compare ways to synchronize ranks"),
    Command("predict", "calibrate", "calibrate TRACE…", "fit a scenario to a measured run"),
    Command("predict", "project", "project TRACE…", "predict a run at other numbers of ranks"),
    Command("act", "ctl", "ctl RUN pace …", "change pacing and actions of a running job"),
    Command("act", "link", "link NAME@HOST:PORT", "let jobs on several hosts take turns on a link"),
    Command("prove", "selftest", "selftest", "delay one rank by 50 ms and check that it is found"),
    Command("prove", "demo", "demo", "train a small job here and see who waits for whom"),
    Command("prove", "reproduce", "reproduce NAME", "recompute a published result"),
)

#: Packages that commands import, and the extra that installs each.
EXTRAS = {
    **dict.fromkeys(("numpy", "scipy", "rich", "msgspec", "zstandard", "duckdb"), "analyze"),
    "jinja2": "report",
    "mpi4py": "mpi",
    "ray": "ray",
}

#: Errors of the system (permissions, disk, limits) rather than defects of evenstep.
SYSTEM_ERRORS = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO),
        *(errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG, errno.ELOOP, errno.ESTALE),
        *(errno.EISDIR, errno.ENOTDIR),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    return run_command_line(_dispatch, argv)


def run_command_line(dispatch: Callable[[list[str]], int], argv: Sequence[str] | None) -> int:
    """Dispatch `argv`, or this process's own arguments if None, and return the exit code."""
    if argv is None:
        argv = sys.argv[1:]
        open_streams()
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    return exit_code_of(lambda: dispatch(list(argv)))


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command and return its exit code; an exception becomes a message and a code."""
    try:
        code = command()
        sys.stdout.flush()
    except EvenstepError as error:
        say(str(error))
        return USAGE
    except KeyboardInterrupt:
        say("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in SYSTEM_ERRORS:
            return _defect()
        say(_system_message(error))
        _flush()
        return USAGE
    except MemoryError:
        say("not enough memory; use a smaller input or fewer steps")
        return USAGE
    except Exception:
        return _defect()
    return code


def _defect() -> int:
    traceback.print_exc()
    say("this is a defect in evenstep; please report the traceback above")
    return INTERNAL


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()


def _system_message(error: OSError) -> str:
    """Describe a system error; a full disk without a file name concerns standard output."""
    if error.filename is not None:
        return f"{error.filename} cannot be read or written: {error.strerror}; name another path"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return f"the output cannot be written: {error.strerror}; redirect it to another path"
    return f"the system refused an operation: {error.strerror}"


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
        from difflib import get_close_matches

        near = get_close_matches(first, [command.name for command in COMMANDS], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`evenstep --help` lists them"
        raise UsageError(f"there is no command {first!r}; {hint}")
    try:
        return _run(command, argv[1:])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        purpose = f"`evenstep {command.name}`"
        raise MissingExtra(package, extra=EXTRAS[package], purpose=purpose) from error


def parser_of(module: Any, prog: str) -> Parser:
    parser = Parser(prog=prog, description=module.HELP, formatter_class=Help, allow_abbrev=False)
    module.add_arguments(parser)
    return parser


def _run(command: Command, argv: list[str]) -> int:
    module = module_of(command)
    own, wrapped = _split(argv) if command.wraps else (argv, None)
    args = parser_of(module, f"evenstep {command.name}").parse_args(own)
    if wrapped is not None:
        args.command = [*args.command, "--", *wrapped] if args.command else wrapped
    return int(module.main(args))


def module_of(command: Command) -> Any:
    return importlib.import_module(f"evenstep.cli.{command.name}")


def _split(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Split arguments at the first `--`; None if there is none."""
    if "--" not in argv:
        return argv, None
    end = argv.index("--")
    return argv[:end], argv[end + 1 :]


def overview() -> str:
    """Return the root help: commands grouped by purpose."""
    lines = ["usage: evenstep COMMAND …", ""]
    lines += ["Tells you which rank your distributed training is waiting for, what it costs,"]
    lines += ["and what would fix it."]
    width = max(len(command.form) for command in COMMANDS)
    for group in dict.fromkeys(command.group for command in COMMANDS):
        lines += ["", f"{group}:"]
        rows = (command for command in COMMANDS if command.group == group)
        lines += [f"  {row.form:{width}}  {row.summary}" for row in rows]
    lines += ["", "`evenstep COMMAND --help` lists the options of a command."]
    return "\n".join(lines)
