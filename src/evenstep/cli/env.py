"""`evenstep env`: environment variables that attach to a job whose launcher cannot be wrapped."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

import evenstep
from evenstep.agent.settings import config
from evenstep.cli.arguments import PARTS
from evenstep.cli.terminal import show
from evenstep.documents import Document, Meta

BOOTSTRAP = Path(evenstep.__file__).parent / "agent" / "bootstrap"
SettingValue = str | float | bool | Sequence[str] | None


class SettingInForce(TypedDict):
    """A setting, its value and its source."""

    name: str
    variable: str
    default: SettingValue
    expects: str
    meaning: str
    value: SettingValue
    source: Annotated[str, Meta("Where the value comes from.")]


@dataclass(frozen=True)
class Environment(Document):
    """Variables that attach to a job, and the settings in force."""

    schema: ClassVar[str] = "evenstep.env/1"

    variables: Mapping[str, str]
    settings: Sequence[SettingInForce]
    warnings: Sequence[str]


def main(args: argparse.Namespace) -> int:
    given = parse_settings(args)
    settings = config.load(given)
    rows: Any = config.describe(settings)
    document = Environment(variables(os.environ, given), rows, settings.warnings)
    after = {"PYTHONPATH": '"${PYTHONPATH:+:$PYTHONPATH}"'}
    own = variables({}, given).items()
    lines = [f"export {name}={shlex.quote(value)}{after.get(name, '')}" for name, value in own]
    show(document.to_json(), lambda: "\n".join(lines), as_json=args.json)
    return 0


def parse_settings(args: argparse.Namespace) -> dict[str, str]:
    parts = [f"{table}_{name}" for table in config.TABLES for name in PARTS]
    values = {name: getattr(args, name) for name in ("out", "pace", "act", "probe_every", *parts)}
    return {name: value for name, value in values.items() if value is not None}


def variables(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that, added to `environ`, attach every rank with these settings."""
    rest = environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [str(BOOTSTRAP), *(entry for entry in rest if entry not in ("", str(BOOTSTRAP)))]
    found = {"EVENSTEP": "1", "PYTHONPATH": os.pathsep.join(path)}
    for name, value in settings.items():
        variable = "PACE_MODE" if name == "pace" else name.upper()
        found[f"EVENSTEP_{variable}"] = str(Path(value).absolute()) if name == "out" else value
    return found
