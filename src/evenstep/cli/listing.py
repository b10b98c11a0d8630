"""What commands list instead of their work, with the standard library alone."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypedDict

from evenstep.cli.explain import hanging_lines
from evenstep.cli.terminal import print_json, show
from evenstep.documents import Meta
from evenstep.report import schema as report_schema
from evenstep.scenario import presets, schema
from evenstep.scenario.scenario import Scenario

NAMES = 23  # columns of the list of presets
WIDEST = 80


def main(args: argparse.Namespace) -> int:
    if getattr(args, "json_schema", None):
        print_json(report_schema.schema(args.json_schema))
    elif args.fields:
        show(document(), describe_fields, as_json=args.json)
    else:
        found = presets.summaries()
        listed: presets.PresetsDocument = {"schema": "evenstep.presets/1", "presets": found}
        rows = (hanging_lines(f"{name:{NAMES}}", what) for name, what in found.items())
        show(listed, lambda: "\n".join(line for row in rows for line in row), as_json=args.json)
    return 0


class FieldEntry(TypedDict):
    """A field of a scenario."""

    name: Annotated[str, Meta("With dots; [] where there may be several.")]
    default: str | float | bool | Sequence[str | float] | None
    allowed: str
    meaning: str


class FieldsDocument(TypedDict):
    """What a scenario may say."""

    schema: Literal["evenstep.fields/1"]
    fields: list[FieldEntry]


def describe_fields(settings: Any = Scenario) -> str:
    """Every field with its default, allowed values and meaning, as commented TOML."""
    return "".join(f"{line}\n" for line in _lines(settings, ""))


def document(settings: Any = Scenario) -> FieldsDocument:
    """Every field for JSON; a table has no default."""
    return {"schema": "evenstep.fields/1", "fields": list(_entries(settings, ""))}


def _entries(settings: Any, prefix: str) -> Iterator[FieldEntry]:
    for field in dataclasses.fields(settings):
        kind = field.metadata["kind"]
        default: Any = field.default
        name = f"{prefix}{field.name}"
        nested = isinstance(kind, schema.TableKind)
        yield {
            "name": name,
            "default": None if nested else default,
            "allowed": kind.expects,
            "meaning": field.metadata["meaning"],
        }
        if nested:
            yield from _entries(kind.settings, f"{name}[]." if kind.several else f"{name}.")


def _lines(settings: Any, prefix: str) -> Iterator[str]:
    later = []
    for field in dataclasses.fields(settings):
        kind = field.metadata["kind"]
        if isinstance(kind, schema.TableKind):
            later.append((field, kind))
            continue
        yield from _comment(f"{field.metadata['meaning']}: {kind.expects}")
        yield f"{field.name} = {schema.literal(field.default)}"
    for field, kind in later:
        head = f"[[{prefix}{field.name}]]" if kind.several else f"[{prefix}{field.name}]"
        yield from ("", *_comment(field.metadata["meaning"]), head)
        yield from _lines(kind.settings, f"{prefix}{field.name}.")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDEST, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
