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
from evenstep.agent.settings.kinds import NAMED
from evenstep.cli.arguments import add_json
from evenstep.cli.terminal import show
from evenstep.documents import Document, Meta

HELP = """Print environment variables that record a job whose launcher cannot be wrapped by
`evenstep run` (srun, Kubernetes, a scheduler's own agent). Set them for every rank:

    eval "$(evenstep env --out /shared/my-run)"; srun python train.py

With --json the settings in force and the source of each are printed too."""

#: Ways to select a part of the job, named as in `Selection`.
PARTS = {
    "ranks": ("0-7,16", "these ranks"),
    "nodes": ("gpu0[01-16]", "the ranks on these nodes"),
    "partitions": ("NAMES", "the ranks in these partitions of the cluster"),
    "first_nodes": ("N", "the ranks on the first N nodes of the job"),
}
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--shell", action="store_true", help="print shell exports (default)")
    add_json(form, "variables, settings and their sources")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options for settings, shared with `evenstep run`."""
    add = parser.add_argument
    add("--out", metavar="DIR", help="run folder, the same for all nodes")
    modes = ("off", "observe", "on")
    add("--pace", choices=modes, help="pacing: off, observe (default) or on")
    add("--act", metavar="NAME,…",
        help="actions to try, and to keep if they pay: "
        f"{', '.join(NAMED)}, or auto")  # fmt: skip
    add("--probe-every", metavar="N", help="measure each rank's machine for 20 ms every N steps")
    for table, what in (("pace", "pace only"), ("record", "record only")):
        add_part(parser, what, prefix=f"{table}-")


def add_part(parser: argparse.ArgumentParser, what: str, *, prefix: str = "") -> None:
    group = parser.add_argument_group(f"{what} a part of the job", "several options intersect")
    for name, (metavar, meaning) in PARTS.items():
        option = f"--{prefix}{name.replace('_', '-')}"
        group.add_argument(option, metavar=metavar, help=f"{what} {meaning}")


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
