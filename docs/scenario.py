"""Writes `scenario.md` from the scenario's own fields: `python docs/scenario.py`."""

from __future__ import annotations

from pathlib import Path

from evenstep.scenario import fields

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Scenarios, field by field

A scenario is one TOML file; every field has a default. `--set a.b=c` on the command line sets any
of them. A value that cannot be is refused in one sentence that names the field, what is allowed and
the nearest name. How to use them is in the [simulator guide](simulator.md).

| field | default | must be | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(map(row, fields.rows()))


def row(field: tuple[str, str, str, str]) -> str:
    """One field as a row of the table."""
    name, default, expects, meaning = (text.replace("|", "\\|") for text in field)
    shown = f"`{default}`" if default else ""
    return f"| `{name}` | {shown} | {expects} | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"Wrote {PAGE}")
