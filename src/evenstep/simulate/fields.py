"""What a scenario may say, generated from the settings themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from evenstep.simulate import schema
from evenstep.simulate.scenario import Scenario


def described() -> str:
    """Every field with its default, what it may be and what it means, as commented TOML."""
    return "".join(f"{line}\n" for line in _lines(Scenario, ""))


def rows(settings: Any = Scenario, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(name, default, allowed, meaning) of every field, nested ones with dots."""
    for field in dataclasses.fields(settings):
        check = field.metadata["check"]
        name = f"{prefix}{field.name}"
        if check.kind in ("table", "tables"):
            yield name, "", check.allowed, check.meaning
            inner = f"{name}." if check.kind == "table" else f"{name}[]."
            yield from rows(check.settings, inner)
        else:
            yield name, literal(field.default), check.allowed, check.meaning


def literal(value: Any) -> str:
    """A default as TOML would have it."""
    return schema.to_toml({"x": list(value) if isinstance(value, tuple) else value})[4:-1]


def _lines(settings: Any, prefix: str) -> Iterator[str]:
    later = []
    for name, check in schema.checks(settings).items():
        default = next(f.default for f in dataclasses.fields(settings) if f.name == name)
        if check.kind in ("table", "tables"):
            later.append((name, check))
            continue
        yield f"# {check.meaning}: {check.allowed}"
        yield f"{name} = {literal(default)}"
    for name, check in later:
        head = f"[{prefix}{name}]" if check.kind == "table" else f"[[{prefix}{name}]]"
        yield from ("", f"# {check.meaning}", head)
        yield from _lines(check.settings, f"{prefix}{name}.")
