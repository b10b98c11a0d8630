"""Settings that document and check themselves, and conversion from and to TOML.

A settings class is a frozen dataclass whose fields are made by the functions below. The metadata of
a field has its meaning and allowed values (`evenstep.values`), from which documentation and error
messages are generated. A meaning that begins "of A and B: " limits its field to these choices of
another, or to where other fields of these names are given, in a list of tables those of the same
names; "A with F" to A where F is on.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple, TypeVar

from evenstep import values
from evenstep.errors import ConfigError
from evenstep.trace.spool.files import parse_toml
from evenstep.values import ValueKind, refusal, setting

Settings = TypeVar("Settings")

MOST_COUNT, MOST_NUMBER, MOST_BYTES = 2**31 - 1, 1e12, 10**18
_OF = re.compile(r"(?:^|; )of ([a-z0-9_, ]+): ")  # of what choices a field is
_BARE = re.compile(r"[+-]?(\.\d+|\d+\.)")  # a number that TOML does not take


class TableKind(NamedTuple):
    """A table of settings of their own, or a list of such tables."""

    settings: Any
    several: bool = False

    @property
    def expects(self) -> str:
        """What is allowed, in words that follow "must be"."""
        return "a list of tables" if self.several else "a table"


def count(default: int, meaning: str, *, least: int = 0, most: int = MOST_COUNT) -> Any:
    """A whole number."""
    return setting(default, values.count(least, most=most), meaning)


def number(
    default: float, meaning: str, *, low: float = 0.0, high: float = math.inf, above: bool = False
) -> Any:
    """A number; not negative unless `low` says so."""
    return setting(default, values.number(low, high, above=above, most=MOST_NUMBER), meaning)


def size(default: int, meaning: str) -> Any:
    """A number of bytes; kB, MB … are powers of 1,000, KiB, MiB … of 1,024."""
    return setting(default, values.byte_size(0, most=MOST_BYTES), meaning)


def choice(default: str, meaning: str, options: Sequence[str]) -> Any:
    """One of several words."""
    return setting(default, values.choice(options), meaning)


def flag(default: bool, meaning: str) -> Any:
    """True or false."""
    return setting(default, values.SWITCH, meaning)


def text(default: str, meaning: str) -> Any:
    """Text; where it has a syntax, its user checks that."""
    return setting(default, values.TEXT, meaning)


def numbers(meaning: str) -> Any:
    """A list of numbers, empty unless given."""
    return setting((), values.numbers(MOST_NUMBER), meaning)


def table(settings: type, meaning: str) -> Any:
    """A table of its own."""
    return setting(settings, TableKind(settings), meaning)


def tables(settings: type, meaning: str) -> Any:
    """A list of tables, `[[name]]` in TOML."""
    return setting((), TableKind(settings, several=True), meaning)


# -- in ------------------------------------------------------------------------------------------


def read(
    settings: type[Settings], data: Mapping[str, Any], where: str = "", whole: Any = None
) -> Settings:
    """Settings from plain values. Raises `ConfigError` that names the field and the allowed values,
    or for an unknown name the nearest one in this table or elsewhere in the `whole`."""
    known, whole = _kinds(settings), whole or settings
    for name in data:
        if name not in known:
            raise ConfigError(unknown(f"{where}{name}", name, known, _places(whole)))
    found = {n: _value(known[n], value, f"{where}{n}", whole) for n, value in data.items()}
    return settings(**found)


def _kinds(settings: Any) -> dict[str, ValueKind | TableKind]:
    return {field.name: field.metadata["kind"] for field in dataclasses.fields(settings)}


def _places(settings: Any, prefix: str = "") -> dict[str, list[str]]:
    """Full names, with dots, of every field below the top, by its own name."""
    found: dict[str, list[str]] = {}
    for name, kind in _kinds(settings).items():
        if prefix:
            found.setdefault(name, []).append(f"{prefix}{name}")
        if isinstance(kind, TableKind):
            inner = f"{prefix}{name}.0." if kind.several else f"{prefix}{name}."
            for each, places in _places(kind.settings, inner).items():
                found.setdefault(each, []).extend(places)
    return found


def _value(kind: ValueKind | TableKind, value: Any, place: str, whole: Any) -> Any:
    if isinstance(kind, ValueKind):
        return kind.checked(value, place)
    items = value if kind.several else [value]
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise refusal(place, kind.expects, value)
    if not kind.several:
        return read(kind.settings, value, f"{place}.", whole)
    return tuple(
        read(kind.settings, item, f"{place}[{index}].", whole) for index, item in enumerate(items)
    )


# -- one value from the command line ---------------------------------------------------------------


def assign(data: dict[str, Any], assignment: str) -> None:
    """Assign `a.b=c` in plain values; list entries by number, as in `noise.0.sigma=0.1`.

    The value is parsed as TOML, else taken as text.
    """
    path, equals, value = assignment.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set takes name=value, found {assignment!r}")
    *parents, last = [part.strip() for part in path.split(".")]
    place: Any = data
    for part, following in zip(parents, [*parents, last][1:], strict=True):
        place = _child(place, part, path, [] if following.isdecimal() else {})
    if isinstance(place, list):
        place[_index(place, last, path)] = parse(value)
    else:
        place[last] = parse(value)


def _child(place: Any, part: str, path: str, empty: Any) -> Any:
    """The table or list under a name or number; `empty` is inserted where there is none."""
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


def parse(value: str) -> Any:
    """A value from the command line: TOML, or a number such as .5, else text."""
    try:
        return parse_toml(f"value = {value}")["value"]
    except (ValueError, RecursionError) as error:
        if (text := value.strip()).startswith(("[", "{")):
            raise ConfigError(f"--set takes TOML, found {text:.60}: {error}") from None
        return float(text) if _BARE.fullmatch(text) else text


# -- out -----------------------------------------------------------------------------------------


def plain(settings: Any) -> dict[str, Any]:
    """Settings as plain values for JSON and TOML, without those at their defaults."""
    found = {
        field.name: _plain_value(getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if getattr(settings, field.name) != field.default
    }
    return {name: value for name, value in found.items() if value not in ({}, [])}


def _plain_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return plain(value)
    return [_plain_value(item) for item in value] if isinstance(value, tuple) else value


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
            lines.append(f"{name} = {literal(value)}\n")
    return "".join(lines + nested)


def literal(value: Any) -> str:
    """A plain value as TOML text; tables inline."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}={literal(item)}' for name, item in value.items())}}}"
    return json.dumps(value)


# -- what a choice does without --------------------------------------------------------------------


def unused_settings(settings: Any, place: str = "") -> Iterator[str]:
    """What is set but has no effect with what its table chooses, each as a sentence."""
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), f"{place}{field.name}"
        if isinstance(field.metadata["kind"], TableKind):
            for index, item in enumerate(value if isinstance(value, tuple) else [value]):
                yield from unused_settings(
                    item, f"{name}[{index}]." if item is not value else f"{name}."
                )
        elif value != field.default and (reason := no_part_of(settings, field.name)):
            yield f"{name} has no effect: it belongs to {place}{reason}"


def no_part_of(settings: Any, name: str) -> str:
    """What the table would have to choose for a field to have an effect; "" where it has one."""
    fields = {field.name: field.metadata for field in dataclasses.fields(settings)}
    meaning = fields[name]["meaning"]
    words = re.split(", | and ", ", ".join(_OF.findall(meaning))) if _OF.match(meaning) else []
    flag_of = {choice: flag for choice, _, flag in (word.partition(" with ") for word in words)}
    for chooser, metadata in fields.items():
        options = metadata["kind"].expects.removeprefix("one of ").split(", ")
        if words and flag_of.keys() <= set(options):
            chosen = getattr(settings, chooser)
            if chosen not in flag_of:
                return f"{chooser} {' or '.join(flag_of)}, not to {chosen}"
            is_on = not flag_of[chosen] or getattr(settings, flag_of[chosen])
            return "" if is_on else f"{flag_of[chosen]}, which is off"
    others = [word for word in words if word in fields]
    lists = [word for word in others if isinstance(fields[word]["kind"], TableKind)]
    places = [settings, *(item for one in lists for item in getattr(settings, one))]
    needed = [word for word in others if word not in lists]
    given = any(word in plain(place) for place in places for word in needed)
    return "" if given or not needed else f"{' or '.join(needed)}, which is not given"


# -- unknown names ---------------------------------------------------------------------------------


def unknown(
    place: str, name: str, known: Iterable[str],
    elsewhere: Mapping[str, Sequence[str]] | None = None,
) -> str:  # fmt: skip
    """The message for an unknown name, with the nearest known one; `elsewhere`: names of all tables
    with their full names."""
    here = values.nearest(name, known, least=0.6)
    there = values.nearest(name, elsewhere or {}, least=0.8)
    near = max(here, there, key=lambda one: SequenceMatcher(None, one, name).ratio())
    if near and near == here:
        hint = f"did you mean {near!r}?"
    elif near and elsewhere:
        places = sorted(elsewhere[near], key=lambda place: place.count(".0."))
        hint = "did you mean " + " or ".join(map(repr, places[:3])) + "?"
    else:
        hint = "there are " + ", ".join(known)
    return f"there is no {place}; {hint}"
