"""The kinds of value a setting can have: what is expected, and how text becomes it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.agent.actions import action
from evenstep.agent.settings import selection

_SWITCHES = {"1": True, "true": True, "yes": True, "on": True}
_SWITCHES |= {"0": False, "false": False, "no": False, "off": False}

#: SI units are powers of 1,000, binary ones of 1,024; a bare k, M or G is SI.
_BYTES_IN: dict[str, int] = {"": 1, "b": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for unit, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_BYTE_SIZE = re.compile(r"(\d+)(?:\.(\d+))?\s*([a-z]*)", re.ASCII)


class ValueKind(NamedTuple):
    """A kind of value. `parse` takes text or a plain value and raises `ValueError`."""

    expects: str  # completes "must be …"
    parse: Callable[[Any], Any]


def switch(value: object) -> bool:
    """On or off."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in _SWITCHES:
        raise ValueError(text)
    return _SWITCHES[text]


def is_off(text: str) -> bool:
    """Whether text says off; text that says neither does not."""
    return _SWITCHES.get(text.strip().lower()) is False


def bytes_of(value: object) -> int:
    """A size in bytes: a whole number, or text such as "16MB" (10^6) or "1.5 GiB" (2^30)."""
    if isinstance(value, bool):
        raise ValueError(value)
    match = _BYTE_SIZE.fullmatch(str(value).strip().lower())
    if match is None or match[3] not in _BYTES_IN:
        raise ValueError(value)
    digits = match[2] or ""
    decimals: int = 10 ** len(digits)
    size, rest = divmod(int(match[1] + digits) * _BYTES_IN[match[3]], decimals)
    if rest:
        raise ValueError(f"{value} is not a whole number of bytes")
    return size


def byte_size(smallest: int) -> ValueKind:
    """A size in bytes, with a lower bound."""

    def parse(value: object) -> int:
        size = bytes_of(value)
        if size < smallest:
            raise ValueError(size)
        return size

    return ValueKind(f"a size in bytes such as 16MB or 8MiB, at least {smallest}", parse)


def choice(*options: str) -> ValueKind:
    """One of several words."""

    def parse(value: object) -> str:
        text = str(value).strip().lower()
        if text not in options:
            raise ValueError(value)
        return text

    return ValueKind("one of " + ", ".join(options), parse)


def number(low: float, high: float) -> ValueKind:
    """A number between two bounds, both included."""

    def parse(value: object) -> float:
        if isinstance(value, bool):
            raise ValueError(value)
        result = float(str(value))
        if not (math.isfinite(result) and low <= result <= high):
            raise ValueError(value)
        return result

    return ValueKind(f"a number from {low:g} to {high:g}", parse)


def share(high: float, *, whole: bool = False) -> ValueKind:
    """A share of a whole, below a bound (`whole`: the bound included): 0.1 or "10%"."""

    def parse(value: object) -> float:
        text = str(value).strip()
        part = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        below = part <= high if whole else part < high
        if isinstance(value, bool) or not (part >= 0.0 and below):
            raise ValueError(value)
        return part

    bound = f"{high:g}" if whole else f"below {high:g}"
    return ValueKind(f"a share from 0 to {bound}, or a percentage such as 3%", parse)


def _count(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(value)
    return int(text)


def _count_or_all(value: object) -> int | None:
    return None if value == selection.ALL else _count(value)


def _path(value: object) -> Path:
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise ValueError(value)
    return Path(value).expanduser()


def _actions(value: object) -> str:
    """Actions in their usual order, or off."""
    text = str(value).strip().lower()
    names = {part.strip() for part in text.split(",")}
    if text == action.OFF:
        return text
    if text == action.AUTO:
        names = set(action.ACTIONS)
    if isinstance(value, bool) or not names <= set(action.ACTIONS):
        raise ValueError(value)
    return ",".join(name for name in action.ACTIONS if name in names)


def link(value: object) -> str:
    """A link group, with the place of its server where it has one; raises `ValueError`."""
    text = str(value)
    found = re.fullmatch(r"[\w.-]{1,64}(@[\w.:\[\]-]+:(\d{1,5}))?", text, re.ASCII)
    if isinstance(value, bool) or not found or not int(found[2] or 0) < 1 << 16:
        raise ValueError(value)
    return text


SWITCH = ValueKind("1 or 0 (also true, yes, on; false, no, off)", switch)
COUNT = ValueKind("a whole number from 1", _count)
PATH = ValueKind("a path", _path)
LINK = ValueKind("a name of letters, digits, dots and dashes, or NAME@HOST:PORT", link)
RANKS = ValueKind("ranks such as 0-7,16, or all", selection.ranks_text)
NODES = ValueKind("nodes such as gpu0[01-16],login1, or all", selection.nodes_text)
NAMES = ValueKind("names separated by commas, or all", selection.names_text)
ACTIONS = ValueKind(f"some of {','.join(action.ACTIONS)}, auto for all of them, or off", _actions)
COUNT_OR_ALL = ValueKind("a whole number from 1, or all", _count_or_all)
