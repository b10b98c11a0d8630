"""`python -m lab`: the command line of the laboratory, from a checkout."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from evenstep.cli.arguments import new_parser
from evenstep.cli.main import run_command_line
from lab import command


def main(argv: Sequence[str] | None = None) -> int:
    """Do what was asked and return the exit code."""
    return run_command_line(_dispatch, argv)


def _dispatch(argv: list[str]) -> int:
    parser = new_parser("python -m lab", command.HELP)
    command.add_arguments(parser)
    return command.main(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
