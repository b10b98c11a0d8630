"""Argument parsing that commands share: the parser, common options and types of values."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from evenstep import values
from evenstep.cli.terminal import say
from evenstep.errors import UsageError
from evenstep.values import ValueKind

if TYPE_CHECKING:
    from evenstep.workers import Engine

USAGE = 2
MOST_RANKS = 1_000_000
MOST_WORKERS, MOST_REPEATS = 4096, 100_000
MOST_STEPS = 1_000_000_000
LOOPBACK = "127.0.0.1"
#: Ways to select a part of the job, named as in `Selection`.
PARTS = {
    "ranks": ("0-7,16", "these ranks"),
    "nodes": ("gpu0[01-16]", "the ranks on these nodes"),
    "partitions": ("NAMES", "the ranks in these partitions of the cluster"),
    "first_nodes": ("N", "the ranks on the first N nodes of the job"),
}


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one sentence and exits with 2."""

    def error(self, message: str) -> NoReturn:
        what = message.removeprefix("argument ")
        unknown = what.removeprefix("unrecognized arguments: ")
        if unknown != what:
            options = {name.lstrip("-"): name for name in self._option_string_actions}
            near = values.nearest(unknown.partition(" ")[0].lstrip("-"), options)
            what += f"; did you mean {options[near]}?" if near else ""
        say(f"{what}; see `{self.prog} --help`", who=self.prog)
        raise SystemExit(USAGE)

    def flag(self, name: str, meaning: str) -> None:
        self.add_argument(name, action="store_true", help=meaning)

    def choice(
        self, name: str, choices: Sequence[str], meaning: str, default: Any = None, **more: Any
    ) -> None:
        self.add_argument(name, choices=choices, help=meaning, default=default, **more)

    def value(
        self, name: str, metavar: str, kind: Any, meaning: str, default: Any = None, **more: Any
    ) -> None:
        """Add an option or argument whose value `kind` parses."""
        self.add_argument(name, metavar=metavar, type=kind, help=meaning, default=default, **more)

    def json(self, what: str, form: argparse._ActionsContainer | None = None) -> None:
        """Add `--json`, to the forms of output that exclude each other if there are some."""
        help = f"print {what} as JSON"
        (form or self).add_argument("--json", action="store_true", help=help)

    def workers(self, what: str = "one for each core") -> None:
        """Add `--workers N`; `what` describes the default."""
        self.value("--workers", "N", whole(MOST_WORKERS), f"processes ({what})")

    def engine(self) -> None:
        """Add `--engine` and `--address`: where the work runs."""
        what = "processes on this machine (default), or a Ray cluster"
        self.choice("--engine", ("local", "ray"), what, "local")
        where = "running Ray cluster (default: start a local one)"
        self.value("--address", "HOST:PORT", str, where)

    def several(self, name: str, metavar: str, meaning: str, kind: Any = str) -> None:
        """Add an option that may be given several times."""
        self.value(name, metavar, kind, meaning, [], action="append")

    def files(self, **options: str) -> None:
        """Add an option for each output file (name and help), and `--force`."""
        for name, meaning in options.items():
            self.value(f"--{name}", "FILE", Path, meaning)
        self.flag("--force", "overwrite existing output")

    def repeats(self, default: int) -> None:
        meaning = f"simulations of each, with different seeds ({default})"
        self.value("--repeats", "N", whole(MOST_REPEATS), meaning, default)

    def part(self, what: str, *, prefix: str = "") -> None:
        """Add the options that select a part of the job."""
        group = self.add_argument_group(f"{what} a part of the job", "several options intersect")
        for name, (metavar, meaning) in PARTS.items():
            option = f"--{prefix}{name.replace('_', '-')}"
            group.add_argument(option, metavar=metavar, help=f"{what} {meaning}")


class Help(argparse.RawDescriptionHelpFormatter):
    """A help formatter that wraps prose to the terminal's width and keeps indented examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._filled(block, width, indent) for block in text.split("\n\n"))

    def _filled(self, block: str, width: int, indent: str) -> str:
        if any(line.startswith(" ") for line in block.splitlines()):
            return super()._fill_text(block, width, indent)
        return textwrap.fill(
            block, width, initial_indent=indent, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


class Command(NamedTuple):
    """A command: a row of the root help, and the function that declares its arguments. Its name is
    the function's, its help the function's docstring."""

    form: str
    summary: str
    wraps: bool  # arguments after `--` are another program's command line
    declare: Callable[[Parser], None]

    @property
    def name(self) -> str:
        return self.declare.__name__

    def parser(self) -> Parser:
        parser = new_parser(f"evenstep {self.name}", getdoc(self.declare))
        self.declare(parser)
        return parser


def command(
    form: str, summary: str, *, wraps: bool = False
) -> Callable[[Callable[[Parser], None]], Command]:
    """Make a command of the function that declares its arguments."""
    return lambda declare: Command(form, summary, wraps, declare)


def new_parser(prog: str, description: str | None) -> Parser:
    return Parser(prog=prog, description=description, formatter_class=Help, allow_abbrev=False)


def engine_of(args: argparse.Namespace, *, workers: int | None = None) -> Engine:
    """Return the engine of the options. Raises `UsageError` for options that contradict."""
    if args.engine == "ray":
        from evenstep.workers import RayEngine

        return RayEngine(args.address, args.workers)
    if args.address is not None:
        raise UsageError("--address needs --engine ray")
    from evenstep.workers import Local

    return Local(args.workers or workers)


# -- values ----------------------------------------------------------------------------------------


def argument(kind: ValueKind) -> Callable[[str], Any]:
    """Return an argparse type for values of this kind."""

    def parse(text: str) -> Any:
        try:
            return kind.parse(text)
        except (ValueError, TypeError, OverflowError):
            raise argparse.ArgumentTypeError(f"must be {kind.expects}, found {text!r}") from None

    return parse


def seconds(least: float, most: float) -> Callable[[str], Any]:
    return argument(values.number(least, most, what="seconds"))


def whole(most: int) -> Callable[[str], Any]:
    return argument(values.count(1, most))


price = argument(ValueKind("a price such as 2.5", values.number(0).parse))
#: A share of the step time, written as in settings: .05 or 5%.
severity = argument(values.share(1.0, whole=True))


def several(kind: ValueKind, expects: str = "") -> Callable[[str], Any]:
    """Return an argparse type for comma-separated values without duplicates."""

    def parse(text: str) -> list[Any]:
        return list(dict.fromkeys(kind.parse(part.strip()) for part in text.split(",")))

    return argument(ValueKind(expects or f"{kind.expects}; several with commas", parse))


_SIZES = f"numbers of ranks from 1 to {MOST_RANKS:,} such as 8,64,512"
_sizes = several(values.count(1, MOST_RANKS), _SIZES)


def sizes(text: str) -> list[int]:
    """Parse comma-separated numbers of ranks: ascending, without duplicates."""
    return sorted(_sizes(text))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host or LOOPBACK, values.count(0, 65_535).parse(port)


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    lowest = values.count(0).parse(first)
    return lowest, values.count(lowest).parse(last or first)


address = argument(ValueKind("HOST:PORT or :PORT such as :9400", _address))
steps = argument(ValueKind("steps such as 100-160", _steps))
