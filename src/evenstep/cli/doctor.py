"""`evenstep doctor`: check whether this host is fit for distributed training."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from evenstep.agent.settings.config import load
from evenstep.cli.terminal import show
from evenstep.doctor.check import Check, Severity
from evenstep.doctor.examination import examine, render
from evenstep.doctor.host import this_host
from evenstep.doctor.versions import recorder
from evenstep.errors import UsageError
from evenstep.hooks.torch import library


def main(args: argparse.Namespace) -> int:
    if not args.root.is_dir():
        raise UsageError(f"there is no folder {args.root}; give one that holds proc and sys")
    if not any((args.root / name).is_dir() for name in ("proc", "sys")):
        raise UsageError(f"{args.root} holds neither proc nor sys; give a folder that holds both")
    spool = load().out or Path("evenstep-runs")
    host = this_host(root=args.root, ranks=args.ranks, spool=spool)
    also = _recorder() if args.root == Path("/") else ()
    found = examine(host, also, matrix=args.topology, tree=args.lstopo, log=args.nccl_log)
    show(found.to_json(), lambda: render(found, every=args.all), as_json=args.json)
    return int(found.severity == Severity.PROBLEM)


def _recorder() -> Iterator[Check]:
    """Check the compiled recorder for the installed torch; compile it if it is missing."""
    torch = library.installed_folder()
    if torch is not None:
        yield recorder(library.build_recorder(torch))
