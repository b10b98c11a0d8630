"""The rows that JSON holds: objects in a list, columns as lists, values by rank, at any depth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

_RANK = re.compile(r"(?:(?:global_?)?(?:rank|worker)[ _-]?)?(\d{1,7})", re.IGNORECASE)
_STEP = re.compile(r"(?:.*_)?(?<!per_)(?:step|iter|iteration)", re.IGNORECASE)
_PER_RANK = re.compile(r"per_?rank_(?=.)|_(?:per|by)_?rank$", re.IGNORECASE)
_TIME = re.compile(r"time|duration|second|(?:^|[^a-z])[mun]?s\W?$", re.IGNORECASE)
MOST_AROUND = 64  # values of an object that each row in it has
UNNAMED = "step_time"  # a list of numbers by rank alone

Row = dict[str, Any]


def rows(value: Any) -> Iterator[Row]:
    """Each row with the single values of all objects around it. The objects in an object have a
    name before their values' (`timings/forward_ms`), unless their names are ranks, or numbers of
    the objects of "steps". In a list of times, and lists beside it, each has its place as the step
    or, of a known step, as the rank."""
    if isinstance(value, dict) and not any(isinstance(v, dict | list) for v in value.values()):
        yield value
    else:
        yield from _inside(value, {}, "")


def _inside(value: Any, around: Row, name: str) -> Iterator[Row]:
    if isinstance(value, list) and not all(isinstance(each, dict) for each in value):
        value = {name or UNNAMED: value}
    if isinstance(value, list):
        for each in value:
            yield from _inside(each, around, name)
    elif _by_rank(value):
        objects = all(isinstance(each, dict) and not _by_rank(each) for each in value.values())
        numbered = objects and all(map(str.isdecimal, value))  # a `rank0` says what it is
        steps = numbered and _STEP.match(name.rpartition("/")[2]) and "step" not in around
        place = "step" if steps else "rank"
        for key, each in value.items():
            number = int(_RANK.fullmatch(key)[1])  # type: ignore[index]
            held = each if isinstance(each, dict | list) else {name or UNNAMED: each}
            yield from _inside(held, {**around, place: number}, name)
    else:
        yield from _of_object(value, around)


def _of_object(value: Mapping[str, Any], around: Row) -> Iterator[Row]:
    by_row = {key: list(one.values()) for key, one in value.items() if _by_rank(one)
              and not any(isinstance(each, dict) for each in one.values())}  # fmt: skip
    value = {**value, **by_row} if any(map(_STEP.fullmatch, by_row)) else value
    flat = _flat(value)
    row = around | {key: one for key, one in flat.items() if not isinstance(one, dict | list)}
    inner = {key: one for key, one in flat.items() if isinstance(one, dict | list) and one}
    tables = {key: one for key, one in inner.items()
              if isinstance(one, dict) or all(isinstance(each, dict) for each in one)}  # fmt: skip
    long = next((len(one) for key, one in inner.items() if _TIME.search(key)), 0)
    columns = [key for key, one in inner.items() if len(one) == long and key not in tables]
    place = "rank" if any(_STEP.fullmatch(key) for key in row) else "step"
    if tables:
        row = dict(islice(row.items(), MOST_AROUND))
        for key, one in tables.items():
            yield from _inside(one, row, key)
    elif columns:
        for at, values in enumerate(zip(*(inner[key] for key in columns), strict=False)):
            yield {place: at, **row, **dict(zip(columns, values, strict=True))}
    else:
        yield row


def _flat(value: Mapping[str, Any]) -> Row:
    """An object with the values of those in it as its own; an object of ranks stays one, and a
    list `per_rank_step_time` becomes one."""
    found: Row = {}
    for key, one in value.items():
        if isinstance(one, list) and _PER_RANK.search(key):
            found[_PER_RANK.sub("", key)] = {str(rank): each for rank, each in enumerate(one)}
        elif isinstance(one, dict) and one and not _by_rank(one):
            found |= {f"{key}/{name}": inner for name, inner in _flat(one).items()}
        else:
            found[key] = one
    return found


def _by_rank(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(map(_RANK.fullmatch, value))
