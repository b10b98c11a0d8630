"""Argument parsing that commands share: the parser, common options and types of values."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from evenstep import values
from evenstep.cli.terminal import say
from evenstep.errors import UsageError
from evenstep.values import ValueKind

if TYPE_CHECKING:
    from evenstep.workers.engines import Engine

USAGE = 2
MOST_RANKS = 1_000_000
MOST_WORKERS, MOST_REPEATS = 4096, 100_000
MOST_STEPS = 1_000_000_000


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one sentence and exits with 2."""

    def error(self, message: str) -> NoReturn:
        what = message.removeprefix("argument ")
        unknown = what.removeprefix("unrecognized arguments: ")
        if unknown != what:
            near = get_close_matches(unknown.split()[0], self._option_string_actions, n=1)
            what += f"; did you mean {near[0]}?" if near else ""
        say(f"{what}; see `{self.prog} --help`", who=self.prog)
        raise SystemExit(USAGE)


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


# -- options ---------------------------------------------------------------------------------------


def add_json(parser: argparse._ActionsContainer, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def add_files(parser: argparse.ArgumentParser, /, **options: str) -> None:
    """Add an option for each output file (name and help), and `--force`."""
    for name, meaning in options.items():
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, help=meaning)
    parser.add_argument("--force", action="store_true", help="overwrite existing output")


def add_set(parser: argparse.ArgumentParser, what: str = "change one field") -> None:
    """Add `--set NAME=VALUE`, which changes a scenario."""
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help=what)


def add_repeats(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--repeats", metavar="N", type=whole(MOST_REPEATS), default=default,
        help=f"simulations of each, with different seeds ({default})",
    )  # fmt: skip


def add_workers(parser: argparse.ArgumentParser, what: str = "one for each core") -> None:
    """Add `--workers N`; `what` describes the default."""
    number = whole(MOST_WORKERS)
    parser.add_argument("--workers", metavar="N", type=number, help=f"processes ({what})")


def add_engine(parser: argparse.ArgumentParser, *, workers: str) -> None:
    """Add `--engine`, `--address` and `--workers`: where the work runs."""
    add = parser.add_argument
    add("--engine", choices=("local", "ray"), default="local",
        help="processes on this machine (default), or a Ray cluster")  # fmt: skip
    add("--address", metavar="HOST:PORT", help="running Ray cluster (default: start a local one)")
    add_workers(parser, workers)


def engine_of(args: argparse.Namespace, *, workers: int | None = None) -> Engine:
    """Return the engine of the options. Raises `UsageError` for options that contradict."""
    if args.engine == "ray":
        from evenstep.workers.ray_engine import RayEngine

        return RayEngine(args.address, args.workers)
    if args.address is not None:
        raise UsageError("--address needs --engine ray")
    from evenstep.workers.engines import Local

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
