"""Which rank a file is of, as far as its name and its folders tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from evenstep.trace.ranks import MOST_RANKS

_RANK = re.compile(r"(?<![a-z])rank[_\-.= ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST = re.compile(r"(?<!\d)(\d{1,7})(?:\.[a-z]\w*)*$", re.IGNORECASE)  # before any suffixes
_DIGITS = re.compile(r"(\d+)")
_FOLDERS = 3  # above the file that are looked at, the nearest first


def ranks_by_paths(paths: Sequence[Path]) -> dict[Path, int]:
    """Ranks of the files whose paths tell: `rank3.json`, `rank3/trace.json`, `gpu3.json` of many.

    A folder's number is that of a rank where it is all of the folder's name, or files of several
    such folders are given: all ranks of one run may lie in `rank8_run`.
    """
    found: dict[Path, int] = {}
    for level in range(1 + _FOLDERS):
        left = [path for path in paths if path not in found]
        named = {path: rank for path in left if (rank := _rank_in(path, level)) is not None}
        whole = len(named) == 1 and _RANK.fullmatch(next(iter(named)).parts[-1 - level])
        if level == 0 or whole or len(set(named.values())) > 1:
            found |= named
    left = [path for path in paths if path not in found]
    return found | dict(zip(left, ranks_by_names(left) or [], strict=False))


def in_rank_folders(paths: Sequence[Path]) -> bool:
    """Whether each file is in a folder of its own rank: `run/rank0/a.json`, `run/rank1/a.json`."""
    for level in range(1, 1 + _FOLDERS):
        ranks = [_rank_in(path, level) for path in paths]
        if None not in ranks and len(set(ranks)) == len(paths):
            return len({path.parts[: -1 - level] for path in paths}) == 1
    return False


def _rank_in(path: Path, level: int) -> int | None:
    """The rank in a file's name, or in that of the n-th folder above it."""
    parts = path.parts[::-1]
    found = _RANK.search(parts[level]) if level < len(parts) else None
    return int(found[1]) if found and int(found[1]) < MOST_RANKS else None


def last_number(path: Path) -> int | None:
    """The number that a file's name ends with: `nccl_trace_3`, `dump-3.json.gz`."""
    found = _LAST.search(path.name)
    return int(found[1]) if found and int(found[1]) < MOST_RANKS else None


def ranks_by_names(paths: Sequence[Path]) -> list[int] | None:
    """Ranks of files whose paths are alike but for one number: `gpu0.json`, `gpu3.json`.

    None where there is no such number, or it is too large to count ranks: a process, a time.
    """
    parts = [_DIGITS.split(str(path)) for path in paths]
    if len(paths) < 2 or len({(len(each), *each[::2]) for each in parts}) > 1:
        return None
    columns = [[int(text) for text in column] for column in list(zip(*parts, strict=True))[1::2]]
    varying = [column for column in columns if len(set(column)) > 1]
    if len(varying) != 1 or len(set(varying[0])) < len(paths) or max(varying[0]) >= 2 * len(paths):
        return None
    return varying[0]


def natural(path: Path) -> list[str | int]:
    """Sorts paths as people number them: rank 2 before rank 10."""
    parts = _DIGITS.split(str(path))  # text and digits in turn
    return [int(part[:18]) if place % 2 else part for place, part in enumerate(parts)]
