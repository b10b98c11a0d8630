"""Ranks of files, as far as the names of files and folders tell them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evenstep.trace.ranks import MOST_RANKS, format_missing

#: A local rank is none: those of several nodes are equal.
_RANK = re.compile(r"(?<![a-z])(?<!local[_\-.= ])rank[_\-.= ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST = re.compile(r"(?<!\d)(\d{1,7})(?:\.[a-z]\w*)*$", re.IGNORECASE)  # before any suffixes
_DIGITS = re.compile(r"(\d+)")
APART_NS = 3_600_000_000_000  # files of the same steps or the same hang are much closer together
_FOLDERS = 3  # levels above the file that are examined, the nearest first


def misfits(
    files: Mapping[Path, tuple[int, int]], apart_ns: int = APART_NS
) -> tuple[dict[Path, str], int]:
    """The files that are of another run than most, and why; and that run's number of ranks (0
    unknown; of a tie, the first). Of each file are given the number of ranks that it states, 0 for
    none, and a time; those of one run differ by at most `apart_ns`."""
    known = [world for world, _ in files.values() if world]
    main = max(dict.fromkeys(known), key=known.count) if known else 0
    times = sorted(time for _, time in files.values())
    found = {}
    for path, (world, time) in files.items():
        apart = abs(time - times[(len(files) - 1) // 2])
        if apart > apart_ns:
            found[path] = (
                f"left out: {path} is {apart / 3.6e12:.0f} h away from most others: it is of "
                "another run, or that host's clock is wrong"
            )
        elif world not in (0, main):
            found[path] = f"left out: {path} is of a run of {world} ranks, not of {main}"
    return found, main


def absent(ranks: Iterable[int], world: int) -> list[str]:
    """A limit that names the ranks that are missing, if any are."""
    text = format_missing(ranks, min(world, MOST_RANKS))
    shown = text if len(text) < 60 else text[:57].rpartition(",")[0] + " …"
    word = "rank" if text.isdigit() else "ranks"
    said = (
        f"{word} {shown} of {world} left no file here: give all of them to see who waits for whom"
    )
    return [said] if text else []


def rank_of(value: Any) -> int | None:
    """A rank as a file states it; None for a value that is not a rank."""
    return value if type(value) is int and 0 <= value < MOST_RANKS else None


def ranks_by_paths(paths: Sequence[Path]) -> dict[Path, int]:
    """Ranks of files whose paths tell: `rank3.json`, `rank3/trace.json`, `gpu3.json` among others.

    A folder's number is a rank if it is the folder's whole name, or if the files are in several
    such folders: all ranks of one run may lie in `rank8_run`.
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


def ranks_or_numbers(paths: Sequence[Path]) -> dict[Path, int]:
    """Ranks as `ranks_by_paths`, else the numbers with which names end (`dump-3.json.gz`), if
    these are distinct."""
    found = ranks_by_paths(paths)
    last = {path: n for path in paths if (n := _number_in(path.name, _LAST)) is not None}
    return {**last, **found} if len(set(last.values())) == len(last) else found


def ranks_in_order(paths: Sequence[Path]) -> dict[Path, int]:
    """Ranks as `ranks_or_numbers`, else in the order of these paths."""
    found = {path: rank for rank, path in enumerate(paths)}
    return found | (ranks_or_numbers(paths) if len(paths) > 1 else {})


def in_rank_folders(paths: Sequence[Path]) -> bool:
    """Whether each file is in a folder per rank: `run/rank0/a.json`, `run/rank1/a.json`."""
    for level in range(1, 1 + _FOLDERS):
        ranks = [_rank_in(path, level) for path in paths]
        if None not in ranks and len(set(ranks)) == len(paths):
            return len({path.parts[: -1 - level] for path in paths}) == 1
    return False


def _rank_in(path: Path, level: int) -> int | None:
    """The rank in a file's name (level 0), or in the name of the n-th folder above it."""
    parts = path.parts[::-1]
    return _number_in(parts[level], _RANK) if level < len(parts) else None


def _number_in(text: str, pattern: re.Pattern[str]) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found and int(found[1]) < MOST_RANKS else None


def ranks_by_names(paths: Sequence[Path]) -> list[int] | None:
    """Ranks of files whose paths differ in one number only: `gpu0.json`, `gpu3.json`.

    None where they do not, or the number is too large for a rank: a process, a time.
    """
    parts = [_DIGITS.split(str(path)) for path in paths]
    if len(paths) < 2 or len({(len(each), *each[::2]) for each in parts}) > 1:
        return None
    columns = [[int(text) for text in column] for column in list(zip(*parts, strict=True))[1::2]]
    varying = [column for column in columns if len(set(column)) > 1]
    if len(varying) != 1 or len(set(varying[0])) < len(paths) or max(varying[0]) >= 2 * len(paths):
        return None
    return varying[0]
