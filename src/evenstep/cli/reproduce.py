"""`evenstep reproduce`: a published result beside ours, computed anew."""

from __future__ import annotations

import argparse

from evenstep.cli import reproduce_evaluation, reproduce_table1

HELP = """Compute a published result anew and show it beside what was printed.

`evenstep reproduce NAME --help` lists the options of one."""

REPRODUCTIONS = {
    "table1": (reproduce_table1, "throughput and CV at 4 to 64 nodes, and pacing"),
    "evaluation": (reproduce_evaluation, "clusters × placement × coordination"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-command for each reproduction."""
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, (module, summary) in REPRODUCTIONS.items():
        module.add_arguments(names.add_parser(name, help=summary, allow_abbrev=False))


def main(args: argparse.Namespace) -> int:
    """Run the one that was named."""
    code: int = REPRODUCTIONS[args.name][0].main(args)
    return code
