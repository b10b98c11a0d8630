"""Real systems and models as parts of scenarios: TOML files with the origin of every number.

A scenario names one or several in `preset`; its own values override theirs. A preset may name
others in the same way. Its first line describes it; the comment below gives the origin of its
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal, TypedDict

from evenstep.documents import Meta
from evenstep.errors import ConfigError
from evenstep.scenario import schema
from evenstep.trace.spool.files import parse_toml
from evenstep.values import merged, refusal


def names() -> tuple[str, ...]:
    found = (file.name for file in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def merge_presets(data: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario's plain values over those of its presets, without the field `preset`.

    Tables are merged field by field; lists and values replace. Raises `ConfigError` for an unknown
    preset.
    """
    own = dict(data)
    named = own.pop("preset", [])
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise refusal("preset", "a name or a list of names", named)
    found: dict[str, Any] = {}
    for name in named:
        found = merged(found, merge_presets(parse_toml(text(name))))
    return merged(found, own)


class PresetsDocument(TypedDict):
    """What `evenstep simulate --presets --json` prints."""

    schema: Literal["evenstep.presets/1"]
    presets: Annotated[dict[str, str], Meta("What each is, by name.")]


def summaries() -> dict[str, str]:
    """The first line of each preset, its description."""
    return {name: text(name).partition("\n")[0].removeprefix("# ") for name in names()}


def text(name: str) -> str:
    """The text of a preset's file. Raises `ConfigError` for an unknown preset."""
    if name not in names():
        raise ConfigError(schema.unknown(f"preset {name!r}", name, names()))
    return (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
