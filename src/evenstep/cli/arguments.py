"""How commands read their arguments: one sentence for a mistake, and the values several share."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import NoReturn

from evenstep.cli.terminal import say

USAGE = 2
MOST_RANKS = 1_000_000


class Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong, and where more is said; exits with 2."""

    def error(self, message: str) -> NoReturn:
        """Leave."""
        what = message.removeprefix("argument ")
        say(f"{what}; `{self.prog} --help` says more", who=self.prog)
        raise SystemExit(USAGE)


class Help(argparse.RawDescriptionHelpFormatter):
    """Fills sentences to the terminal's width, and leaves examples as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._filled(block, width, indent) for block in text.split("\n\n"))

    def _filled(self, block: str, width: int, indent: str) -> str:
        if any(line.startswith(" ") for line in block.splitlines()):
            return super()._fill_text(block, width, indent)
        return textwrap.fill(
            block, width, initial_indent=indent, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


# -- values ----------------------------------------------------------------------------------------


def seconds(least: float, most: float) -> Callable[[str], float]:
    """A time between two bounds."""

    def parse(text: str) -> float:
        value = _number(text)
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"must be seconds from {least:g} to {most:g}, found {text!r}"
            )
        return value

    return parse


def count(most: int) -> Callable[[str], int]:
    """A whole number from 1."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"must be 1 to {most:,}, found {text!r}")
        return int(text)

    return parse


def price(text: str) -> float:
    """Money, from zero."""
    value = _number(text)
    if value is None or not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a price such as 2.5, found {text!r}")
    return value


def severity(text: str) -> float:
    """A share of the step time, as settings have it: .05 or 5%."""
    from evenstep.agent.values import share

    kind = share(1.0, whole=True)
    try:
        return float(kind.parse(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {kind.expects}, found {text!r}") from None


def sizes(text: str) -> list[int]:
    """Numbers of ranks, ascending, each once."""
    found = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit() and 1 <= int(word) <= MOST_RANKS):
            raise argparse.ArgumentTypeError(
                f"must be numbers of ranks from 1 to {MOST_RANKS:,} such as 8,64,512; "
                f"found {word!r}"
            )
        found.append(int(word))
    return sorted(set(found))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
