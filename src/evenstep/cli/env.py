"""`evenstep env`: the variables that stand for `evenstep run` where it cannot wrap the launcher."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from evenstep.agent import config

HELP = """Print the environment variables that observe a job whose launcher cannot be wrapped
(srun, Kubernetes, a scheduler's own agent). Set them for every rank:

    eval "$(evenstep env --out /shared/my-run)"; srun python train.py

With --json, the settings in force and where each one comes from are printed too."""

BOOTSTRAP = Path(config.__file__).parent / "bootstrap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep env`."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--shell", action="store_true", help="export lines for a shell (default)")
    form.add_argument("--json", action="store_true", help="one JSON object")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The two settings that commands take as arguments; `run` has them as well."""
    parser.add_argument("--out", metavar="DIR", help="the run's folder, shared by all nodes")
    modes = ("off", "observe", "on")
    parser.add_argument("--pace", choices=modes, help="pacing: observe only (default), or act")


def main(args: argparse.Namespace) -> int:
    """Print the variables."""
    settings = config.load({"out": args.out, "pace": args.pace})
    if args.json:
        shown = {
            "variables": variables(os.environ, out=args.out, pace=args.pace),
            "settings": config.describe(settings),
            "warnings": list(settings.warnings),
        }
        print(json.dumps(shown, indent=2))
        return 0
    for name, value in variables({}, out=args.out, pace=args.pace).items():
        after = '"${PYTHONPATH:+:$PYTHONPATH}"' if name == "PYTHONPATH" else ""
        print(f"export {name}={shlex.quote(value)}{after}")
    return 0


def variables(environ: Mapping[str, str], *, out: str | None, pace: str | None) -> dict[str, str]:
    """What to add to an environment so that every rank in it is observed."""
    rest = environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [str(BOOTSTRAP), *(entry for entry in rest if entry not in ("", str(BOOTSTRAP)))]
    found = {"EVENSTEP": "1", "PYTHONPATH": os.pathsep.join(path)}
    if out is not None:
        found["EVENSTEP_OUT"] = str(Path(out).absolute())
    if pace is not None:
        found["EVENSTEP_PACE_MODE"] = pace
    return found
