"""Writes `scenario.md` from the scenario's own fields: `python docs/scenario.py`."""

from __future__ import annotations

from pathlib import Path

from evenstep.cli import listing
from evenstep.scenario import schema

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Scenarios, field by field

A scenario is one TOML file; every field has a default. `--set a.b=c` on the command line sets any
field. An invalid value is refused with one sentence that names the field, the allowed values and
the nearest name. A field whose meaning begins "of A and B:" has an effect only with these choices
of its table ("A with F": where F is on), or where these other fields of it are given; `simulate`
and `scaling` say which of those given have none. The [simulator guide](simulator.md) explains how
to use scenarios.

| field | default | must be | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(map(row, listing.document()["fields"]))


def row(field: listing.FieldEntry) -> str:
    """One field as a row of the table."""
    default = "" if field["default"] is None else f"`{schema.literal(field['default'])}`"
    cells = (f"`{field['name']}`", default, field["allowed"], field["meaning"])
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"Wrote {PAGE}")
