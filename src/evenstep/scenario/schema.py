"""Settings that document and check themselves, and their way to and from TOML.

A settings class is a frozen dataclass whose fields are made by the functions below. Each field
knows what it means and what it may be; docs and error messages are generated from that.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

from evenstep.errors import ConfigError
from evenstep.scenario import spelling
from evenstep.trace.spool.toml import parse_toml

Settings = TypeVar("Settings")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B")
MOST_COUNT, MOST_NUMBER, MOST_BYTES = 2**31 - 1, 1e12, 10**18
LEAST_ABOVE = 1e-9  # of a number that must be above 0
LARGEST = 1 << 1000  # that is a finite float
_BARE = re.compile(r"[+-]?(\.\d+|\d+\.)")  # a number that TOML does not take
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}


class Constraint(NamedTuple):
    """What a field may be. `kind` is the type of value; bounds are inclusive."""

    kind: str  # count, number, choice, flag, text, size, list, table, tables
    meaning: str
    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # the low bound itself is excluded
    options: tuple[str, ...] = ()
    settings: Any = None  # the class of a table
    most: float = math.inf  # beyond it, a unit is mistaken or no memory would do

    @property
    def allowed(self) -> str:
        """What is allowed, in words that follow "must be"."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.options)
        if self.kind == "flag":
            return "true or false"
        if self.kind == "text":
            return "text"
        if self.kind == "list":
            return "a list of numbers"
        if self.kind in ("table", "tables"):
            return "a table" if self.kind == "table" else "a list of tables"
        what = {"count": "a whole number", "number": "a number"}.get(
            self.kind, 'a size in bytes, a whole number or text such as "25MB"'
        )
        if self.high < math.inf:
            return f"{what} from {self.low:g} to {self.high:g}"
        return f"{what} {'above' if self.above else 'of at least'} {self.low:g}"


def _field(default: Any, check: Constraint) -> Any:
    metadata = {"check": check}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def count(default: int, meaning: str, *, least: int = 0, most: int = MOST_COUNT) -> Any:
    """A whole number."""
    return _field(default, Constraint("count", meaning, least, most=most))


def number(
    default: float, meaning: str, *, low: float = 0.0, high: float = math.inf, above: bool = False
) -> Any:
    """A number; not negative unless `low` says so."""
    return _field(default, Constraint("number", meaning, low, high, above, most=MOST_NUMBER))


def size(default: int, meaning: str) -> Any:
    """A number of bytes; kB, MB … are powers of 1,000, KiB, MiB … of 1,024."""
    return _field(default, Constraint("size", meaning, 0, most=MOST_BYTES))


def choice(default: str, meaning: str, options: Sequence[str]) -> Any:
    """One of several words."""
    return _field(default, Constraint("choice", meaning, options=tuple(options)))


def flag(default: bool, meaning: str) -> Any:
    """True or false."""
    return _field(default, Constraint("flag", meaning))


def text(default: str, meaning: str) -> Any:
    """Free text, or text with a syntax of its own that its user checks."""
    return _field(default, Constraint("text", meaning))


def numbers(meaning: str) -> Any:
    """A list of numbers, empty unless given."""
    return _field((), Constraint("list", meaning))


def table(settings: type, meaning: str) -> Any:
    """A table of its own."""
    return _field(settings, Constraint("table", meaning, settings=settings))


def tables(settings: type, meaning: str) -> Any:
    """A list of tables, `[[name]]` in TOML."""
    return _field((), Constraint("tables", meaning, settings=settings))


def checks(settings: Any) -> dict[str, Constraint]:
    """Every field of a settings class with its check, in order."""
    return {field.name: field.metadata["check"] for field in dataclasses.fields(settings)}


# -- in ------------------------------------------------------------------------------------------


def read(
    settings: type[Settings], data: Mapping[str, Any], where: str = "", whole: Any = None
) -> Settings:
    """Settings from plain values. Raises `ConfigError` naming the field, what is allowed, and for
    an unknown name the nearest one there is, in this table or elsewhere in the `whole`."""
    known, whole = checks(settings), whole or settings
    for name in data:
        if name not in known:
            raise ConfigError(spelling.unknown(f"{where}{name}", name, known, _places(whole)))
    return settings(
        **{
            name: _value(known[name], value, f"{where}{name}", whole)
            for name, value in data.items()
        }
    )


def _places(settings: Any, prefix: str = "") -> dict[str, list[str]]:
    """Every field below the top by its own name: where it stands, with dots."""
    found: dict[str, list[str]] = {}
    for name, check in checks(settings).items():
        if prefix:
            found.setdefault(name, []).append(f"{prefix}{name}")
        if check.settings is not None:
            inner = f"{prefix}{name}." if check.kind == "table" else f"{prefix}{name}.0."
            for each, places in _places(check.settings, inner).items():
                found.setdefault(each, []).extend(places)
    return found


def _value(check: Constraint, value: Any, place: str, whole: Any) -> Any:
    if check.kind == "table":
        if not isinstance(value, Mapping):
            raise refused(place, check.allowed, value)
        return read(check.settings, value, f"{place}.", whole)
    if check.kind == "tables":
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise refused(place, check.allowed, value)
        return tuple(
            read(check.settings, item, f"{place}[{index}].", whole)
            for index, item in enumerate(value)
        )
    if check.kind == "list":
        if not isinstance(value, list) or not all(_is_number(item) for item in value):
            raise refused(place, check.allowed, value)
        return tuple(value)
    return _scalar(check, value, place)


def _scalar(check: Constraint, value: Any, place: str) -> Any:
    if check.kind == "choice":
        if value not in check.options:
            near = get_close_matches(str(value), check.options, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{place} must be {check.allowed}, found {value!r}{hint}")
        return value
    if check.kind == "text" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # one node or rank, of those that are text such as "0-3,8"
    if check.kind in ("flag", "text"):
        if not isinstance(value, bool if check.kind == "flag" else str):
            raise refused(place, check.allowed, value)
        return value
    if check.kind == "size" and isinstance(value, str):
        value = _bytes(value, place, check)
    whole, given = check.kind in ("count", "size"), value
    if whole and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not _is_number(value) or (whole and not isinstance(value, int)):
        raise refused(place, check.allowed, value)
    if not check.low <= value <= check.high or (check.above and value == check.low):
        raise refused(place, check.allowed, given)
    if abs(value) > check.most:
        raise refused(place, f"{check.allowed}, at most {check.most:,.16g}", given)
    if check.above and check.low == 0 and value < LEAST_ABOVE:
        raise refused(place, f"{check.allowed}, at least {LEAST_ABOVE:g}", value)
    return value if whole else float(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _bytes(value: str, place: str, check: Constraint) -> int:
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise refused(place, check.allowed, value)
    unit: int = (1024 if match[3] else 1000) ** _POWERS[match[2]]
    size = float(match[1]) * unit
    if not math.isfinite(size):
        raise refused(place, check.allowed, value)
    return round(size)


def refused(place: str, allowed: str, value: Any) -> ConfigError:
    """The field, what is allowed there, and what was found."""
    return ConfigError(f"{place} must be {allowed}, found {value!r}")


# -- one value from the command line ---------------------------------------------------------------


def assign(data: dict[str, Any], assignment: str) -> None:
    """Carry out `a.b=c` on plain values; list entries by number, as in `noise.0.sigma=0.1`.

    The value is read as TOML, and as text where it is not that.
    """
    path, equals, value = assignment.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set takes name=value, found {assignment!r}")
    *parents, last = [part.strip() for part in path.split(".")]
    place: Any = data
    for part, following in zip(parents, [*parents, last][1:], strict=True):
        place = _child(place, part, path, [] if following.isdecimal() else {})
    if isinstance(place, list):
        place[_index(place, last, path)] = parsed(value)
    else:
        place[last] = parsed(value)


def _child(place: Any, part: str, path: str, empty: Any) -> Any:
    """What is there under a name or number; `empty` where there is nothing yet."""
    if isinstance(place, list):
        if part == str(len(place)):
            place.append(empty)
        found = place[_index(place, part, path)]
    else:
        found = place.setdefault(part, empty)
    if not isinstance(found, (dict, list)):
        raise ConfigError(f"--set {path}: {part} is a value, not a table")
    return found


def _index(place: list[Any], part: str, path: str) -> int:
    if part.isdecimal() and int(part) < len(place):
        return int(part)
    raise ConfigError(
        f"--set {path}: {part!r} must be the number of an entry, or the next; there are "
        f"{len(place)}"
    )


def parsed(value: str) -> Any:
    """A value from the command line: TOML, also .5 where TOML wants 0.5; else text."""
    try:
        return parse_toml(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        text = value.strip()
        return float(text) if _BARE.fullmatch(text) else text


# -- out -----------------------------------------------------------------------------------------


def plain(settings: Any) -> dict[str, Any]:
    """Plain values again, for JSON and TOML; what is at its default is left out."""
    found = {
        field.name: _plain_value(field.metadata["check"].kind, getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != field.default
    }
    return {name: value for name, value in found.items() if value not in ({}, [])}


def _plain_value(kind: str, value: Any) -> Any:
    if kind == "table":
        return plain(value)
    if kind == "tables":
        return [plain(item) for item in value]
    return list(value) if kind == "list" else value


def to_toml(data: Mapping[str, Any], prefix: str = "") -> str:
    """Plain values as TOML text: scalars, then tables, then lists of tables."""
    lines = []
    nested = []
    for name, value in data.items():
        if isinstance(value, Mapping):
            nested.append(f"\n[{prefix}{name}]\n" + to_toml(value, f"{prefix}{name}."))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            nested += [
                f"\n[[{prefix}{name}]]\n" + to_toml(item, f"{prefix}{name}.") for item in value
            ]
        else:
            lines.append(f"{name} = {_literal(value)}\n")
    return "".join(lines + nested)


def _literal(value: Any) -> str:
    import json

    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return json.dumps(value)
