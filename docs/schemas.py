"""Writes `schemas.md` from the published JSON schemas: `python docs/schemas.py`."""

from __future__ import annotations

from pathlib import Path

from evenstep.report.schema import published, schema

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# JSON

Every command takes `--json` and then prints one object to standard output; messages, progress and
`Wrote FILE` go to standard error. (`evenstep watch --json` prints one object a line, and
`evenstep diagnose` a list where it is given several traces.) `evenstep run --json` and
`evenstep export --json` print a diagnosis.

Each object names its form in `schema`: `evenstep.diagnosis/1` is described by the schema
`diagnosis-1`, which comes with evenstep:

```
evenstep export --json-schema              # of a diagnosis
evenstep export --json-schema lab.run      # of any other, by its name
```

The schemas are [JSON Schema](https://json-schema.org/draft/2020-12/schema), draft 2020-12, and
strict: every key is named, and required unless it says otherwise. What may hold more is what others
fill in: a diagnosis's `run` and `summary`, the scenario of a calibration, the rows of an answer in
SQL, and objects whose keys are names. What a key means does not change within a version; a key that
is taken away or means something else makes a new version. A unit stands at the end of a name:
`_ns`, `_ms`, `_s`, `_bytes`, `_gBps` (10^9 bytes a second). Shares are of 1, not of 100; what is
not known is null.

| schema | what it describes |
| --- | --- |
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(map(row, published()))


def row(name: str) -> str:
    """One schema as a row of the table."""
    meaning = schema(name)["description"].replace("|", "\\|")
    return f"| `{name}` | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"Wrote {PAGE}")
