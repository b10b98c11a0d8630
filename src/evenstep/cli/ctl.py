"""`evenstep ctl`: change how a running job is paced, without touching the job."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.agent import control
from evenstep.errors import ConfigError, MissingExtra, TraceError, UsageError

if TYPE_CHECKING:
    from evenstep.report.live_run import LiveRun

HELP = """Change how a running job is paced, or say how it is.

    evenstep ctl RUN pace on --threshold 3% --max-delay 10%
    evenstep ctl RUN pace off
    evenstep ctl RUN pace status

The wish is written into the run's folder, where every rank looks once per sampling period; what is
not given stays as it was. With pace.sharing all ranks follow from the same step on. Only delays
change, never a result. EVENSTEP=0 in the job's environment wins over everything: such a rank does
not listen."""

ACTIONS = ("on", "off", "observe", "status")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep ctl`."""
    parser.add_argument("run", metavar="RUN", type=Path)
    parser.add_argument("what", choices=("pace",), help="what is controlled")
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument(
        "--threshold", metavar="SHARE", help="imbalance, of the step, below which nothing is paced"
    )
    parser.add_argument("--max-delay", metavar="SHARE", help="longest delay, of the median step")
    parser.add_argument("--json", action="store_true", help="print the state as JSON")


def main(args: argparse.Namespace) -> int:
    """Write the wish or print the state."""
    try:
        return _main(args)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "numpy":
            raise
        raise MissingExtra("numpy", extra="analyze", purpose="reading a run's state") from error


def _main(args: argparse.Namespace) -> int:
    from evenstep.report.live_run import LiveRun

    folder = args.run.absolute()
    run = LiveRun(folder)
    run.refresh()
    run_id = _run_id(run, folder)
    if args.action == "status":
        if args.threshold is not None or args.max_delay is not None:
            raise UsageError("status changes nothing; give --threshold with on, off or observe")
        _say(_state(run, control.read(folder, run_id)), as_json=args.json)
        return 0
    if run.ended:
        raise UsageError(f"the run in {folder} has ended: nobody is left to be paced")
    path = control.write(folder, _wish(args, folder, run_id), run_id)
    if args.json:
        _say(_state(run, control.read(folder, run_id)), as_json=True)
    print(f"Wrote {path}", file=sys.stderr)
    return 0


def _run_id(run: LiveRun, folder: Path) -> str:
    """The name the ranks know the run by."""
    for state in run.states:
        return str(state.tail.identity.get("run_id", ""))
    raise TraceError(f"no rank has begun in {folder}; give the folder of a run that has")


def _wish(args: argparse.Namespace, folder: Path, run_id: str) -> control.Change:
    """What is asked for now, on top of what was asked for before."""
    try:
        before = control.read(folder, run_id)
    except ConfigError:  # a damaged file is written anew
        before = None
    values = {"mode": args.action, "threshold": args.threshold, "max_delay": args.max_delay}
    if before is not None:
        kept = before._asdict()
        values |= {name: kept[name] for name, value in values.items() if value is None}
    return control.valid(values, number=1 if before is None else before.number + 1)


def _state(run: LiveRun, asked: control.Change | None) -> dict[str, Any]:
    """How pacing stands on every rank that says so."""
    facts = {state.rank: state.tail.facts for state in run.states}
    known = {
        rank: dict(each["pace"])
        for rank, each in facts.items()
        if isinstance(each.get("pace"), Mapping)
    }
    number = asked.number if asked else None
    return {
        "schema": "evenstep.ctl/1",
        "run": str(run.path),
        "attempt": run.attempt,
        "world": run.world,
        "asked": asked._asdict() if asked else None,
        "followed_by": [rank for rank, pace in known.items() if pace.get("request") == number]
        if asked
        else None,
        "ranks": {str(rank): pace for rank, pace in known.items()},
        "notes": sorted({str(each["pacing"]) for each in facts.values() if "pacing" in each}),
    }


def _say(state: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(state, indent=2, allow_nan=False))
        return
    for line in status_lines(state):
        print(line)


def status_lines(state: Mapping[str, Any]) -> list[str]:
    """The state in sentences: what is in force where, what was asked for, what is in its way."""
    from evenstep.report.quantities import percent, plural
    from evenstep.trace.ranks import format_ranks

    ranks: Mapping[str, Mapping[str, Any]] = state["ranks"]
    found = []
    modes = Counter(str(pace.get("mode")) for pace in ranks.values())
    for mode, count in modes.most_common():
        members = [(int(rank), pace) for rank, pace in ranks.items() if pace.get("mode") == mode]
        line = (
            f"pacing is {mode} on {plural(count, 'rank')} ({format_ranks(r for r, _ in members)})"
        )
        steps = [pace["since_step"] for _, pace in members if "since_step" in pace]
        if steps:
            pace = members[0][1]
            span = f"{min(steps)}" if min(steps) == max(steps) else f"{min(steps)} to {max(steps)}"
            line += f" since step {span}: threshold {percent(pace['threshold'])},"
            line += f" max delay {percent(pace['max_delay'])}"
        found.append(line)
    asked = state["asked"]
    if asked and len(state["followed_by"]) < len(ranks):
        followed = len(state["followed_by"])
        found.append(f"{asked['mode']} was asked for; {followed} of {len(ranks)} ranks follow yet")
    return [*found, *state["notes"]] or ["no rank says how it is paced"]
