"""Names that do not exist, and the one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import NamedTuple


def unknown(
    place: str,
    name: str,
    known: Iterable[str],
    elsewhere: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """There is no such thing, and the nearest one that there is; `elsewhere`: names of all tables,
    with where they stand."""
    here, there = _nearest(name, known, 0.6), _nearest(name, elsewhere or {}, 0.8)
    if there.likeness > here.likeness and elsewhere:
        places = sorted(elsewhere[there.name], key=lambda place: place.count(".0."))
        hint = "did you mean " + " or ".join(map(repr, places[:3])) + "?"
    elif here.name:
        hint = f"did you mean {here.name!r}?"
    else:
        hint = "there are " + ", ".join(known)
    return f"there is no {place}; {hint}"


class _Near(NamedTuple):
    name: str
    likeness: float


def _nearest(name: str, known: Iterable[str], least: float) -> _Near:
    """The name most like another; none where all are less like it than `least`."""
    near = get_close_matches(name, known, n=1, cutoff=least)
    return _Near(near[0], SequenceMatcher(None, near[0], name).ratio()) if near else _Near("", 0.0)
