"""What commands list instead of their work, with the standard library alone."""

from __future__ import annotations

import argparse

from evenstep.cli.explain import hanging_lines
from evenstep.cli.terminal import print_json, show
from evenstep.report.schema import schema
from evenstep.scenario import fields, presets

NAMES = 23  # columns of the list of presets


def main(args: argparse.Namespace) -> int:
    if getattr(args, "json_schema", None):
        print_json(schema(args.json_schema))
    elif args.fields:
        show(fields.document(), fields.describe_fields, as_json=args.json)
    else:
        found = presets.summaries()
        listed: presets.PresetsDocument = {"schema": "evenstep.presets/1", "presets": found}
        rows = (hanging_lines(f"{name:{NAMES}}", what) for name, what in found.items())
        show(listed, lambda: "\n".join(line for row in rows for line in row), as_json=args.json)
    return 0
