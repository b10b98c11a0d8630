"""The JSON that commands print: plain values of a result, by its type.

A result is a dataclass, printed with the fields of its repr and its computed properties, or a
dictionary with the keys of a `TypedDict`; a named tuple within is printed as an object. `Meta` in
an annotation adds bounds, allowed words and a meaning to the type. `docs/schemas.py` writes the
published schemas from the types, and a test holds that they are current.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, NamedTuple, TypedDict, is_typeddict


class Meta(NamedTuple):
    """Keywords of a field's schema beside its type. None: left out."""

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
    """The run of a result."""

    run_id: str | None
    attempt: Natural | None
    world: Natural


class Document:
    """A result that is printed with its fields."""

    __slots__ = ()
    schema: ClassVar[str] = ""  # of a whole document: its name and version
    computed: ClassVar[tuple[str, ...]] = ()  # properties that are printed after the fields

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON; unknown is null."""
        return dict(plain(self))


def plain(value: Any) -> Any:
    """A value in the types of JSON: an object for a dataclass or a named tuple, the name of an
    enumeration's member in lower case, null for a number that is not finite, Python's number for
    one of numpy."""
    if is_dataclass(value):
        found = {name: plain(getattr(value, name)) for name in printed_fields(value)}
        name = getattr(value, "schema", "")
        return {"schema": name, **found} if name else found
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def short(value: float) -> float:
    """A figure rounded to five digits."""
    return float(f"{value:.5g}")


def printed_fields(kind: Any) -> list[str]:
    """Names of the printed fields of a type, or of an object of it."""
    if is_typeddict(kind) or hasattr(kind, "_fields"):
        return list(kind.__annotations__)
    return [one.name for one in fields(kind) if one.repr] + list(getattr(kind, "computed", ()))
