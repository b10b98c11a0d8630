"""`evenstep collect`: from the disks of the nodes to where everybody can read."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from evenstep.errors import TraceError, UsageError
from evenstep.trace.folder import RunFolder
from evenstep.trace.pack import Found, look, write_pack

HELP = """Bring a node's traces to where everybody can read them, as one file.

    evenstep run --out /local/run -- COMMAND…
    evenstep collect /local/run --into /shared/run

Run it on every node, when its job has ended. DIR becomes the run's folder with one file for each
node and attempt, which every command reads. A file appears whole or not at all; one that is
complete is not written again, so that collecting may be interrupted and repeated. With --every it
goes on while the job runs, and ends with it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep collect`."""
    parser.add_argument("run", metavar="RUN", type=Path)
    parser.add_argument("--into", metavar="DIR", type=Path, required=True)
    parser.add_argument(
        "--every", metavar="SECONDS", type=_period, help="collect again and again until the end"
    )


def main(args: argparse.Namespace) -> int:
    """Collect once, or until every rank has ended."""
    source, target = RunFolder(args.run), RunFolder(args.into)
    if source.path == target.path:
        raise UsageError(f"RUN and --into are both {source.path}; name another folder")
    if target.path.exists() and not target.path.is_dir():
        raise UsageError(f"--into {target.path} is a file; name a folder")
    if not source.path.is_dir():
        raise TraceError(f"there is no folder {source.path}; give the run's folder on this node")
    while True:
        spools = dict(_spools(source))
        if not spools and args.every is None:
            raise TraceError(f"no rank has begun in {source.path}: there is nothing to collect")
        if spools and source.facts_path.exists():
            target.write({key: fact for key, fact in source.read().items() if key != "schema"})
        for (attempt, node), found in spools.items():
            _collect(target, attempt, node, found)
            _take_mark(source.preemption_path(attempt), target.preemption_path(attempt))
        ended = bool(spools) and all(each.closed for found in spools.values() for each in found)
        if args.every is None or ended:
            return 0
        time.sleep(args.every)


def _spools(source: RunFolder) -> Iterator[tuple[tuple[int, str], list[Found]]]:
    """What there is of each attempt and node."""
    for attempt in source.attempts():
        nodes: dict[str, list[Found]] = {}
        for path in sorted(source.spool_path(attempt, 0).parent.glob("rank-*.spool")):
            found = look(path)
            if found is not None:
                nodes.setdefault(found.node, []).append(found)
        for node, spools in nodes.items():
            yield (attempt, node), spools


def _collect(target: RunFolder, attempt: int, node: str, spools: list[Found]) -> None:
    pack = target.pack_path(attempt, node)
    if pack.exists() and all(spool.closed for spool in spools):
        newest = max(spool.path.stat().st_mtime_ns for spool in spools)
        if pack.stat().st_mtime_ns > newest:
            print(f"{pack} is complete", file=sys.stderr)
            return
    size = write_pack([spool.path for spool in spools], pack)
    word = "rank" if len(spools) == 1 else "ranks"
    print(f"Wrote {pack} ({len(spools)} {word}, {size:,} bytes)", file=sys.stderr, flush=True)


def _take_mark(mark: Path, target: Path) -> None:
    """That an attempt was preempted, as the first node that knows of it says."""
    if mark.exists() and not target.exists():
        target.write_bytes(mark.read_bytes())


def _period(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"must be seconds from 0.1 to 86400, found {text!r}")
    return value
