"""Kinds of values of settings, scenarios and options: what each expects, and how to parse it from
text or a plain value.

A value is refused in one sentence: its place, what must be there, what was found. Standard library
only, as a training process reads its settings with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.errors import ConfigError

LEAST_ABOVE = 1e-9  # the least number where it must be above 0
LARGEST = 1 << 1000  # integers below it are finite as floats

_SWITCHES = {"1": True, "true": True, "yes": True, "on": True}
_SWITCHES |= {"0": False, "false": False, "no": False, "off": False}

#: SI units are powers of 1,000, binary ones of 1,024; a bare k, M or G is SI.
_BYTES_IN: dict[str, int] = {"": 1, "b": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for unit, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_BYTE_SIZE = r"(?a)(\d+)(?:\.(\d+))?\s*([a-z]*)"  # compiled when it is used


class ValueKind(NamedTuple):
    """A kind of value. `parse` takes text or a plain value and raises ValueError, TypeError or
    OverflowError; a `BadValueError` has a more exact expectation than `expects`."""

    expects: str  # completes "must be …"
    parse: Callable[[Any], Any]

    def checked(self, value: object, place: str) -> Any:
        """The parsed value of the setting `place`. Raises `ConfigError`."""
        try:
            return self.parse(value)
        except BadValueError as error:
            raise refusal(place, str(error), value) from None
        except (ValueError, TypeError, OverflowError):
            raise refusal(place, self.expects, value) from None


class BadValueError(ValueError):
    """An invalid value; the message says what must be there."""


def refusal(place: str, expects: str, value: object) -> ConfigError:
    """The error of an invalid value: its place, what must be there, and what was found."""
    return ConfigError(f"{place} must be {expects}, found {value!r}")


def setting(default: Any, kind: Any, meaning: str) -> Any:
    """A field of a settings class, a frozen dataclass that documents and checks itself. A class as
    the default is called for each object."""
    metadata = {"kind": kind, "meaning": meaning}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


# -- kinds -----------------------------------------------------------------------------------------


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values of both; of one that both have, that of `above`, but tables are merged, too."""
    found = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], Mapping) and isinstance(above[name], Mapping):
            found[name] = merged(below[name], above[name])
    return found


def switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in _SWITCHES:
        raise ValueError(text)
    return _SWITCHES[text]


def is_off(text: str) -> bool:
    """Whether text says off; False for text that says neither on nor off."""
    return _SWITCHES.get(text.strip().lower()) is False


def nearest(name: str, known: Iterable[str], *, least: float = 0.6) -> str:
    """The known name most like `name`, of at least the likeness `least`; else empty."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=least)), "")


def choice(options: Sequence[str]) -> ValueKind:
    """One of several words, in any case."""
    expects = "one of " + ", ".join(option or '""' for option in options)

    def parse(value: object) -> str:
        text = str(value).strip().lower()
        if text in options:
            return text
        near = nearest(text, options, least=0.5)
        raise BadValueError(f"{expects} (did you mean {near!r}?)" if near else expects)

    return ValueKind(expects, parse)


def number(
    low: float, high: float = math.inf, *, above: bool = False, most: float = math.inf,
    what: str = "a number", whole: bool = False,
) -> ValueKind:  # fmt: skip
    """A number between two bounds, both included unless it must be `above` the lower one. Beyond
    `most` a unit must be wrong, or no memory suffices."""
    expects = f"{what} {'above' if above else 'of at least'} {low:g}"
    if high < math.inf:
        bounds = f"above {low:g}, at most" if above else f"from {low:g} to"
        expects = f"{what} {bounds} {high:,.16g}"

    def parse(value: object) -> float:
        found = _numeric(value)
        if whole and isinstance(found, float):
            if not found.is_integer():
                raise ValueError(value)
            found = int(found)
        if not low <= found <= high or (above and found == low):
            raise ValueError(value)
        if abs(found) > most:
            raise BadValueError(f"{expects}, at most {most:,.16g}")
        if above and low == 0 and found < LEAST_ABOVE:
            raise BadValueError(f"{expects}, at least {LEAST_ABOVE:g}")
        return found if whole else float(found)

    return ValueKind(expects, parse)


def count(least: int, high: float = math.inf, *, most: float = math.inf) -> ValueKind:
    return number(least, high, most=most, what="a whole number", whole=True)


def _numeric(value: object) -> int | float:
    """A finite number, given as such or as text."""
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if re.fullmatch(r"[+-]?\d{1,300}", text, re.ASCII) else float(text)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(value)
    if not (abs(value) < LARGEST if isinstance(value, int) else math.isfinite(value)):
        raise ValueError(value)
    return value


def share(high: float, *, whole: bool = False) -> ValueKind:
    """A share below a bound, such as 0.1 or "10%"; `whole` includes the bound."""

    def parse(value: object) -> float:
        text = str(value).strip()
        part = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        below = part <= high if whole else part < high
        if isinstance(value, bool) or not (part >= 0.0 and below):
            raise ValueError(value)
        return part

    bound = f"{high:g}" if whole else f"below {high:g}"
    return ValueKind(f"a share from 0 to {bound}, or a percentage such as 3%", parse)


def bytes_of(value: object) -> int:
    """A size in bytes: a whole number, or text such as "16MB" (10^6) or "1.5 GiB" (2^30)."""
    if isinstance(value, bool):
        raise ValueError(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    match = re.fullmatch(_BYTE_SIZE, str(value).strip().lower())
    if match is None or match[3] not in _BYTES_IN:
        raise ValueError(value)
    digits = match[2] or ""
    decimals: int = 10 ** len(digits)
    size, rest = divmod(int(match[1] + digits) * _BYTES_IN[match[3]], decimals)
    if rest:
        raise ValueError(f"{value} is not a whole number of bytes")
    return size


def byte_size(least: int, *, most: float = math.inf) -> ValueKind:
    """A size in bytes, with a lower bound."""
    expects = f"a size in bytes such as 25MB or 8MiB, at least {least}"

    def parse(value: object) -> int:
        size = bytes_of(value)
        if size < least:
            raise ValueError(size)
        if size > most:
            raise BadValueError(f"{expects}, at most {most:,.16g}")
        return size

    return ValueKind(expects, parse)


def _path(value: object) -> Path:
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise ValueError(value)
    return Path(value).expanduser()


def _text(value: object) -> str:
    """Text, or a whole number as text, as for one rank where ranks are "0-3,8"."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TypeError(value)
    return str(value)


def numbers(most: float) -> ValueKind:
    """A list of numbers, none beyond `most` or its negative."""

    def parse(value: object) -> tuple[float, ...]:
        if not isinstance(value, list) or any(isinstance(item, str) for item in value):
            raise TypeError(value)
        found = tuple(map(_numeric, value))
        if found and max(map(abs, found)) > most:
            raise BadValueError(f"a list of numbers, none beyond {most:,.16g}")
        return found

    return ValueKind("a list of numbers", parse)


SWITCH = ValueKind("true or false (also 1, yes, on; 0, no, off)", switch)
PATH = ValueKind("a path", _path)
TEXT = ValueKind("text", _text)
