"""`python -m benchmarks [NAME…]`: run benchmarks, print their rows, and renew the page's table."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import load_average, machine
from benchmarks.measure import Row
from benchmarks.ranks import JobError
from benchmarks.table import render, renew
from evenstep.cli.arguments import Parser

NAMES = (
    "import_cost",
    "collective_cost",
    "recording_cost",
    "gloo_cost",
    "mpi_cost",
    "memory",
    "sharing_scale",
    "endurance",
    "waits",
    "deaths",
    "unmarked",
    "stacks",
    "beside",
    "first_verdict",
    "one_host",
    "seams",
    "gpu",
    "step_time",
    "toggles",
    "acting",
    "trial",
    "corpus",
    "independent_corpus",
    "thresholds",
    "published",
    "what_if",
    "kineto_loading",
    "sources",
    "diagnose_scale",
    "store",
    "watch_scale",
    "simulator",
    "page",
    "pacing_worlds",
    "lab",
    "lab_validation",
    "lab_mpi",
    "ray_sweep",
)
PAGE = Path(__file__).with_name("README.md")


def main(argv: Sequence[str]) -> int:
    """Run what is named (everything, if nothing is); 1 where a bar was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Options of one benchmark follow its name: python -m benchmarks NAME --help.",
    )
    parser.add_argument("--write", action="store_true", help="renew the rows in README.md")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    own, rest = _split(argv)
    args = parser.parse_args(own)
    unknown = [name for name in args.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if rest and len(args.names) != 1:
        parser.error(f"{' '.join(rest)}: options belong to one benchmark; name that one")
    met = True
    for name in args.names or NAMES:
        met &= _run(name, rest, write=args.write, as_json=args.json)
    return 0 if met else 1


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is ours (names, --write, --json), and what follows the name of one benchmark."""
    ours = [text for text in argv if text in ("--write", "--json")]
    others = [text for text in argv if text not in ours]
    names = 0
    while names < len(others) and not others[names].startswith("-"):
        names += 1
    if not names:
        return list(argv), []
    return ours + others[:names], others[names:]


def _run(name: str, options: Sequence[str], *, write: bool, as_json: bool) -> bool:
    """Run one benchmark and show its rows; whether no bar was missed."""
    module = importlib.import_module(f"benchmarks.{name}")
    parser = Parser(prog=f"python -m benchmarks {name}")
    module.add_arguments(parser)
    args = parser.parse_args(options)
    print(f"{name}: load average {load_average():.2f} at the start", file=sys.stderr, flush=True)
    where = machine(getattr(args, "python", sys.executable))
    rows: list[Row] = []
    try:
        for row in module.run(args):
            rows.append(row)
            if not as_json:
                print(render([row], where, head=len(rows) == 1), flush=True)
    except JobError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    if as_json:
        print(json.dumps([{**row._asdict(), "machine": where} for row in rows], indent=2))
    if write:
        PAGE.write_text(renew(PAGE.read_text(), rows, where))
        print(f"Wrote {PAGE}", file=sys.stderr)
    return all(row.met is not False for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
