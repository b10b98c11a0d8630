"""What commands print as JSON: plain values of a result, by its type.

A result is a dataclass, of which the fields are printed that its repr shows, and what it computes;
or it is put together as a dictionary, whose keys a `TypedDict` names; a named tuple within is
printed by its names. `Meta` in an annotation says of a field what its type does not: bounds, words,
a meaning. `docs/schemas.py` writes published schemas from the types, and a test holds them to be
current.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, NamedTuple, TypedDict, is_typeddict


class Meta(NamedTuple):
    """What a schema says of a field beside its type. None is left out."""

    description: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    enum: Sequence[str | None] | None = None
    pattern: str | None = None


Natural = Annotated[int, Meta(minimum=0)]
Positive = Annotated[int, Meta(minimum=1)]
Portion = Annotated[float, Meta(minimum=0, maximum=1)]  # of a whole
Amount = Annotated[float, Meta(minimum=0)]


class RunName(TypedDict):
    """Which run a result is of."""

    run_id: str | None
    attempt: Natural | None
    world: Natural


class Document:
    """A result that is printed as it is."""

    __slots__ = ()
    schema: ClassVar[str] = ""  # of a whole document: its name and version
    computed: ClassVar[tuple[str, ...]] = ()  # properties that are printed behind the fields

    def to_json(self) -> dict[str, Any]:
        """Plain values, as JSON has them; unknown is null."""
        found: dict[str, Any] = plain(self)
        return found


def plain(value: Any) -> Any:
    """Values that JSON knows: objects of dataclasses, words of enumerations, null for no number."""
    if is_dataclass(value):
        name = getattr(value, "schema", "")
        return ({"schema": name} if name else {}) | {
            name: plain(getattr(value, name)) for name in printed(value)
        }
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printed(kind: Any) -> list[str]:
    """Names of what is printed of a type, or of an object of it."""
    if is_typeddict(kind) or hasattr(kind, "_fields"):
        return list(kind.__annotations__)
    return [one.name for one in fields(kind) if one.repr] + list(getattr(kind, "computed", ()))
