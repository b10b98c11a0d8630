"""What commands print as JSON: plain values of a result, and the schema, both from its type.

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
from functools import reduce
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)


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


_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}


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
            name: plain(getattr(value, name)) for name in _printed(value)
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


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of what `plain` makes of this type. Raises TypeError for one it cannot."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return reduce(_annotated, arguments[1:], schema_of(arguments[0]))
    if origin is Literal:
        return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return _union([schema_of(one) for one in arguments])
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [schema_of(one) for one in arguments]
        size = {"minItems": len(items), "maxItems": len(items)}
        alike = all(one == items[0] for one in items)
        return {
            "type": "array",
            **({"items": items[0]} if alike else {"prefixItems": items}),
            **size,
        }
    if isinstance(origin, type) and issubclass(origin, Mapping):
        held = {} if arguments[1] is Any else {"additionalProperties": schema_of(arguments[1])}
        return {"type": "object", **held}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "_fields"):
        return _object(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [one.name.lower() for one in reversed(kind)]}
    if kind not in _PLAIN:
        raise TypeError(f"a document cannot hold {kind}")
    return {"type": _PLAIN[kind]}


def _printed(kind: Any) -> list[str]:
    if is_typeddict(kind) or hasattr(kind, "_fields"):
        return list(kind.__annotations__)
    return [one.name for one in fields(kind) if one.repr] + list(getattr(kind, "computed", ()))


def _object(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    for name in getattr(kind, "computed", ()):
        hints[name] = get_type_hints(getattr(kind, name).fget, include_extras=True)["return"]
    shown = {"schema": {"const": kind.schema}} if getattr(kind, "schema", "") else {}
    shown |= {name: schema_of(hints[name]) for name in _printed(kind)}
    required = [name for name in shown if name in getattr(kind, "__required_keys__", shown)]
    return {
        "type": "object", "properties": shown, **({"required": required} if required else {}),
        "additionalProperties": False,
    }  # fmt: skip


def _annotated(found: dict[str, Any], meta: Meta) -> dict[str, Any]:
    more = {key: value for key, value in meta._asdict().items() if value is not None}
    if meta.enum is not None:
        found = {key: value for key, value in found.items() if key != "type"}
        more["enum"] = list(meta.enum)
    return found | more


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Values of simple types, or one or null: one schema whose type is any of them."""
    if all(part.keys() == {"type"} for part in parts):
        return {"type": [part["type"] for part in parts]}
    value, *rest = [one for one in parts if one != {"type": "null"}]
    if rest or len(parts) == 1:
        return {"anyOf": parts}
    if "enum" in value:
        return value | {"enum": [*value["enum"], None]}
    return value | {"type": [value["type"], "null"]}
