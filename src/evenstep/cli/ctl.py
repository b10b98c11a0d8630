"""`evenstep ctl`: change pacing and actions of a running job."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict

from evenstep.agent.settings import request
from evenstep.agent.settings.selection import ACTIONS, OFF, PACE
from evenstep.cli.syntax.act import MODES
from evenstep.cli.terminal import say, show, tell_written
from evenstep.documents import Amount, Document, Meta, Natural
from evenstep.errors import ConfigError, TraceError, UsageError
from evenstep.trace.ranks import format_ranks
from evenstep.watch.frame import request_words
from evenstep.watch.run import LiveRun
from evenstep.words import percent, plural


def main(args: argparse.Namespace) -> int:
    if args.what == "pace" and args.action not in MODES:
        raise UsageError(f"pace takes one of {', '.join(MODES)}, found {args.action!r}")
    if args.what == "act" and args.action != "status":
        try:
            ACTIONS.parse(args.action)
        except ValueError:
            takes = f"status, {ACTIONS.expects}"
            raise UsageError(f"act takes {takes}, found {args.action!r}") from None
    folder = args.run.absolute()
    run = LiveRun(folder)
    run.refresh()
    if not run.states:
        raise TraceError(f"no rank has started in {folder}; give the folder of a run that has")
    run_id = run.run_id
    if args.action == "status":
        if given := [name for name in request.VALUES[1:] if getattr(args, name) is not None]:
            option = f"--{given[0].replace('_', '-')}"
            raise UsageError(f"status changes nothing; give {option} with on, off or observe")
        if run.ended and not args.json:
            print("the run has ended; its last state:")
        path = None
    elif run.ended:
        raise UsageError(f"the run in {folder} has ended")
    else:
        path = request.write(folder, _request(args, run, run_id), run_id)
        if not any(state.rank == 0 for state in run.states):
            say("rank 0 records in another folder: only the ranks that record here get the request")
    state = _state(run, request.read(folder, run_id))
    show(state, lambda: "\n".join(status_lines(state)), as_json=args.json)
    if path is not None:
        tell_written(path)
    return 0


def _request(args: argparse.Namespace, run: LiveRun, run_id: str) -> request.SettingsChange:
    """Return the new request: the options given, and the last request for all others."""
    try:
        before = request.read(run.path, run_id)
    except ConfigError:  # overwrite a damaged file
        before = None
    values = {name: getattr(args, name, None) for name in request.VALUES}
    values |= {"mode" if args.what == "pace" else "act": args.action}
    followed = [int(pace.get("request") or 0) for pace in run.paces.values()]
    if before is not None:
        kept = before._asdict()
        values |= {name: kept[name] for name, value in values.items() if value is None}
        if args.what == "pace" and before.act is not None:  # `pace` is one of the actions
            others = [name for name in before.act.split(",") if name not in (PACE, OFF)]
            values["act"] = ",".join([*others, *[PACE] * (args.action == "on")]) or OFF
        followed.append(before.number)
    return request.valid(values, number=1 + max(followed, default=0))


class RankMode(TypedDict):
    """The pacing state that every rank reports …"""

    mode: str


class RankPace(RankMode, total=False):
    """… and what it reports where known."""

    asked: str
    part: str
    threshold: Amount
    max_delay: Amount
    request: Natural
    since_step: Natural


@dataclass(frozen=True)
class PaceState(Document):
    """The pacing state of every rank that reports one."""

    schema: ClassVar[str] = "evenstep.ctl/1"

    run: str
    attempt: Natural | None
    world: Natural
    asked: Annotated[request.SettingsChange | None, Meta("What was asked for last.")]
    followed_by: Annotated[
        Sequence[Natural] | None, Meta("Ranks that follow it; null where nothing was asked for.")
    ]
    ranks: Mapping[str, RankPace]
    acts: Mapping[str, str]
    notes: Sequence[str]


def _state(run: LiveRun, asked: request.SettingsChange | None) -> dict[str, Any]:
    facts = {state.rank: state.facts for state in run.states}
    followed = [r for r, pace in run.paces.items() if asked and pace.get("request") == asked.number]
    ranks: Any = {str(rank): dict(pace) for rank, pace in run.paces.items()}
    return PaceState(
        run=str(run.path),
        attempt=run.attempt,
        world=run.world,
        asked=asked,
        followed_by=followed if asked else None,
        ranks=ranks,
        acts={str(r): str(each["act"]["asked"]) for r, each in facts.items() if "act" in each},
        notes=sorted({str(each["pacing"]) for each in facts.values() if "pacing" in each}),
    ).to_json()


def status_lines(state: Mapping[str, Any]) -> list[str]:
    """Describe the state: pacing and actions in force, the pending request, obstacles."""
    ranks: Mapping[str, Mapping[str, Any]] = state["ranks"]
    found = []
    modes = Counter(str(pace.get("mode")) for pace in ranks.values())
    for mode, count in modes.most_common():
        members = [(int(rank), pace) for rank, pace in ranks.items() if pace.get("mode") == mode]
        where = f"{plural(count, 'rank')} ({format_ranks(rank for rank, _ in members)})"
        line = f"pacing is {mode}: {where}"
        following = [pace for _, pace in members if "since_step" in pace]
        if following:
            pace, steps = following[0], [each["since_step"] for each in following]
            span = f"{min(steps)}" if min(steps) == max(steps) else f"{min(steps)} to {max(steps)}"
            line += f" since step {span}, threshold {percent(pace['threshold'])},"
            line += f" max delay {percent(pace['max_delay'])}"
        parts = {pace["part"] for _, pace in members if pace.get("asked") not in (None, mode)}
        if parts:
            line += f"; only {' or '.join(sorted(parts))} may be paced"
        found.append(line)
    for names in sorted(set(state["acts"].values())):
        acting = format_ranks(int(r) for r, acts in state["acts"].items() if acts == names)
        found.append(f"actions: {names.replace(',', ', ')} (ranks {acting})")
    asked = state["asked"]
    if asked and len(state["followed_by"]) < len(ranks):
        followed = f"{len(state['followed_by'])} of {len(ranks)} ranks follow so far"
        found.append(f"requested: {request_words(asked)}; {followed}")
    return [*found, *state["notes"]] or ["no rank reports a pacing state"]
