"""`evenstep reproduce`: a published result beside ours, computed anew."""

from __future__ import annotations

import argparse
import importlib
from typing import NamedTuple, Protocol, cast

HELP = """Compute a published result anew and show it beside what was printed.

`evenstep reproduce NAME --help` lists the options of one."""


class Reproduction(NamedTuple):
    """A row of the table; its module is imported when it runs."""

    name: str
    module: str
    summary: str


REPRODUCTIONS = (
    Reproduction(
        "table1", "evenstep.cli.reproduce_table1", "throughput and CV at 4 to 64 nodes, and pacing"
    ),
    Reproduction(
        "evaluation", "evenstep.cli.reproduce_evaluation", "clusters × placement × coordination"
    ),
)


class ReproductionModule(Protocol):
    """What a reproduction's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def main(self, args: argparse.Namespace) -> int: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-command for each reproduction."""
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for row in REPRODUCTIONS:
        module = cast(ReproductionModule, importlib.import_module(row.module))
        module.add_arguments(names.add_parser(row.name, help=row.summary, allow_abbrev=False))


def main(args: argparse.Namespace) -> int:
    """Run the one that was named."""
    row = next(row for row in REPRODUCTIONS if row.name == args.name)
    module = cast(ReproductionModule, importlib.import_module(row.module))
    return module.main(args)
