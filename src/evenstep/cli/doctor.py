"""`evenstep doctor`: check whether this host is fit for distributed training."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from evenstep.cli.arguments import add_json, whole
from evenstep.cli.terminal import show
from evenstep.errors import UsageError

if TYPE_CHECKING:
    from evenstep.doctor.check import Check

HELP = """Check this host for what slows or breaks distributed training: versions, NCCL_* and other
variables, cores and threads, kernel settings, limits, network adapters, PCIe links, GPUs and their
distance to the adapters. Each finding says why it matters and how to fix it. Nothing is changed.

Output collected on another machine can be checked too: `nvidia-smi topo -m`, the XML of lstopo, a
log of NCCL_DEBUG=INFO. --root checks a copy of another host's /proc and /sys. The exit code is 1 if
there is a problem, else 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_json(parser, "the checks")
    add("--all", action="store_true", help="also list passed checks in full")
    add("--ranks", metavar="N", type=whole(999_999),
        help="ranks on this host (default: from the launcher, or one per GPU)")  # fmt: skip
    add("--topology", metavar="FILE", type=Path, help="output of `nvidia-smi topo -m`")
    add("--lstopo", metavar="FILE", type=Path, help="output of `lstopo --of xml`")
    add("--nccl-log", metavar="FILE", type=Path, help="log of a job with NCCL_DEBUG=INFO")
    add("--root", metavar="DIR", type=Path, default=Path("/"),
        help="a copy of another host's files: DIR/proc, DIR/sys")  # fmt: skip


def main(args: argparse.Namespace) -> int:
    from evenstep.agent.settings.config import load
    from evenstep.doctor.check import Severity
    from evenstep.doctor.examination import examine, render
    from evenstep.doctor.host import this_host

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
    from evenstep.doctor.versions import recorder
    from evenstep.hooks.torch import library

    torch = library.installed()
    if torch is not None:
        yield recorder(library.built(torch))
