"""The `evenstep` command: run one subcommand and return its exit code.

0 fine (a server that was stopped, too), 1 findings above the threshold, 2 usage or bad input, 3 an
internal error, 128 + n on signal n. `evenstep run` returns its command's own code.
"""

from __future__ import annotations

import errno
import importlib
import signal
import sys
import traceback
from collections.abc import Callable, Sequence

from evenstep.cli import traces
from evenstep.cli.arguments import USAGE, Command
from evenstep.cli.syntax import COMMANDS, GROUPS
from evenstep.cli.terminal import drop_output, open_streams, say
from evenstep.errors import EvenstepError, MissingExtra, UsageError
from evenstep.values import nearest

FINE, INTERNAL = 0, 3
#: Options that list something instead of their command's work; they need no package.
LISTINGS = ("fields", "presets", "json_schema")

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
        try:
            sys.stdout.flush()
        except OSError:
            drop_output()
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


def _system_message(error: OSError) -> str:
    """Describe a system error; a full disk without a file name concerns standard output."""
    if error.filename is not None:
        return f"{error.filename} cannot be read or written: {error.strerror}; name another path"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return f"the output cannot be written: {error.strerror}; redirect it to another path"
    return f"the system refused an operation: {error.strerror}"


def _dispatch(argv: list[str]) -> int:
    if not argv and traces.latest()[0] is not None:
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
        verbs = (command.name for command in COMMANDS if command.summary.split()[0] == first)
        near = next(verbs, None) or nearest(first, (command.name for command in COMMANDS))
        hint = f"did you mean {near!r}?" if near else "`evenstep --help` lists them"
        kind = "option" if first.startswith("-") else "command"
        raise UsageError(f"there is no {kind} {first!r}; {hint}")
    try:
        return _run(command, argv[1:])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        purpose = f"`evenstep {command.name}`"
        raise MissingExtra(package, extra=EXTRAS[package], purpose=purpose) from error


def _run(command: Command, argv: list[str]) -> int:
    end = argv.index("--") if command.wraps and "--" in argv else len(argv)
    args = command.parser().parse_args(argv[:end])
    if end < len(argv):
        args.command = [*args.command, *argv[end:]] if args.command else argv[end + 1 :]
    listed = any(getattr(args, name, None) for name in LISTINGS)
    module = "listing" if listed else command.name
    return int(importlib.import_module(f"evenstep.cli.{module}").main(args))


def overview() -> str:
    """Return the root help: commands grouped by purpose."""
    lines = ["usage: evenstep COMMAND …", ""]
    what = "Tells you which rank your distributed training is waiting for, what it costs,"
    lines += [what, "and what would fix it."]
    width = max(len(command.form) for command in COMMANDS)
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {each.form:{width}}  {each.summary}" for each in commands]
    lines += ["", "`evenstep COMMAND --help` lists the options of a command."]
    return "\n".join(lines)
