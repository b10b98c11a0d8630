"""`evenstep collect`: copy the traces of a node to shared storage."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from evenstep.cli import files
from evenstep.cli.progress import RestartGrace
from evenstep.cli.terminal import print_json, tell_written
from evenstep.documents import Document, Meta, Natural, Positive
from evenstep.errors import TraceError, UsageError
from evenstep.trace.pack import CollectableSpool, collectable, write_pack
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.folder import RunFolder
from evenstep.words import plural


@dataclass(frozen=True, slots=True)
class CollectedPack:
    """A file with the traces of a node."""

    path: str
    attempt: Natural
    node: str
    ranks: Positive
    bytes: Natural
    written: Annotated[bool, Meta("False if the file was complete before.")]


@dataclass(frozen=True, slots=True)
class Collection(Document):
    """The collected files of a run."""

    schema: ClassVar[str] = "evenstep.collection/1"

    run: str
    into: str
    packs: tuple[CollectedPack, ...]


def main(args: argparse.Namespace) -> int:
    source, target = RunFolder(args.run), RunFolder(args.into)
    if source.path == target.path:
        raise UsageError(f"RUN and --into are both {source.path}; name another folder")
    files.check_folder(target.path)
    if not source.path.is_dir():
        raise TraceError(f"there is no folder {source.path}; give the run folder on this node")
    grace = RestartGrace()
    while True:
        spools = dict(_spools(source))
        if not spools and args.every is None:
            raise TraceError(f"no rank has started in {source.path}: there is nothing to collect")
        packs = _collect_spools(source, target, spools)
        known = [each for found in spools.values() for each in found]
        closed = bool(known) and all(each.closed for each in known)
        over = bool(known) and all(each.over for each in known)
        if args.every is None or closed or grace.is_out(ended=False, died=over):
            break
        time.sleep(args.every)
    if args.json:
        print_json(Collection(str(source.path), str(target.path), tuple(packs)).to_json())
    return 0


def _collect_spools(
    source: RunFolder, target: RunFolder, spools: Mapping[tuple[int, str], list[CollectableSpool]]
) -> list[CollectedPack]:
    """Write new files and return all files."""
    if spools and source.facts_path.exists():
        target.write({key: fact for key, fact in source.read().items() if key != "schema"})
    packs = []
    for (attempt, node), found in spools.items():
        pack = target.pack_path(attempt, node)
        written = _collect(pack, found)
        mark, copied = source.preemption_path(attempt), target.preemption_path(attempt)
        if mark.exists() and not copied.exists():  # else another node has copied it
            write_whole(copied, mark.read_bytes())
        size, ranks = pack.stat().st_size, len(found)
        packs.append(CollectedPack(str(pack), attempt, node, ranks, size, written))
    return packs


def _spools(source: RunFolder) -> Iterator[tuple[tuple[int, str], list[CollectableSpool]]]:
    for attempt in source.attempts():
        nodes: dict[str, list[CollectableSpool]] = {}
        for found in filter(None, map(collectable, source.spools(attempt))):
            nodes.setdefault(found.node, []).append(found)
        for node, spools in nodes.items():
            yield (attempt, node), spools


def _collect(pack: Path, spools: list[CollectableSpool]) -> bool:
    """Write the file of a node and return whether it had to be written."""
    if pack.exists() and all(spool.over for spool in spools):
        newest = max(spool.path.stat().st_mtime_ns for spool in spools)
        if pack.stat().st_mtime_ns > newest:
            print(f"{pack} is complete", file=sys.stderr)
            return False
    size = write_pack([spool.path for spool in spools], pack)
    tell_written(pack, f" ({plural(len(spools), 'rank')}, {size:,} bytes)")
    return True
