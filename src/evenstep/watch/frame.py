"""The state of a running job as plain values, for terminal, page and JSON.

Values come from the latest steps of every rank; of a job that takes no more of them, from its
diagnosis. Shares are of the step: `compute` is forward, backward and optimizer, `wait` the waits
that the agent could tell from transfers; other time blocked on communication counts as transfer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, TypedDict, cast

import numpy as np

from evenstep import lateness
from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.measure.overview import MeasuredTime, step_time
from evenstep.documents import Amount, Document, Meta, Natural, Portion, Positive
from evenstep.trace.columns import Array
from evenstep.trace.spool.layout import Phase
from evenstep.watch.run import WINDOW_STEPS, FollowedRun, RankWindow, SeenRank
from evenstep.words import capital, is_known, percent
from evenstep.words import meeting as meeting_words

CURVE_STEPS = 60
MOST_ROWS = 64  # as the schema says

_COMPUTE = [int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.OPTIMIZER)]


class LiveShares(TypedDict, total=False):
    """Shares of the step, by the names of `words.SHARES`."""

    compute: Portion
    exposed_communication: Portion
    wait: Portion
    input: Portion
    other: Portion


OfTheStep = Annotated[
    LiveShares, Meta("Shares of the step; wait only if known; empty before the first step.")
]
RankState = Literal["", "ended", "gone", "failed", "silent"]


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank over its latest steps. None is unknown."""

    rank: Natural
    host: str
    step: Natural | None
    step_ns: Amount | None
    late_ns: Annotated[float | None, Meta("Work per step above that of the median rank.")]
    shares: OfTheStep
    wait_known: bool
    held: Annotated[float | None, Meta("Pacing delay as a share of the step.", 0)]
    state: RankState
    silent_s: Amount
    inside: Annotated[str, Meta("The operation that a silent rank is in.")]


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """A current finding, by the name of its failure mode."""

    mode: str
    ranks: Annotated[tuple[Natural, ...], Meta("Culprits only.")]
    share: float | None  # of step time
    text: str


class Pacing(TypedDict, total=False):
    """Pacing modes in force, the last request, and delays."""

    modes: Annotated[Mapping[str, Positive], Meta("Number of ranks in each mode.")]
    threshold: Amount | None
    max_delay: Amount | None
    held: Amount
    held_ranks: Natural
    request: Natural | None
    requested: Annotated[str, Meta("The last request in words: a pacing mode, or act and names.")]
    requested_mode: str | None
    followed_by: Natural | None
    note: str


RunState = Literal["waiting", "starting", "running", "silent", "ended"]  # waiting: no rank yet


@dataclass(frozen=True, slots=True)
class Frame(Document):
    """The state of the whole job."""

    schema: ClassVar[str] = "evenstep.watch/1"

    run: str
    state: RunState
    verdict: str
    attempt: Natural | None
    attempts: Natural
    world: Natural
    ranks_seen: Natural
    hosts: Natural
    step: Natural | None
    steps_per_s: Amount | None
    step_time: MeasuredTime
    curve_ns: Annotated[Sequence[Amount], Meta("Times of the latest steps, oldest first.")]
    shares: OfTheStep  # mean over ranks
    rows: Annotated[Sequence[RankRow], Meta("Culprits, silent ranks, the latest; at most 64.")]
    findings: Sequence[LiveFinding]
    diagnosed: Annotated[bool, Meta("Verdict, times, shares, findings are of all steps.")] = False
    pacing: Annotated[Pacing, Meta("The pacing state; empty if no rank reports one.")] = field(
        default_factory=Pacing
    )


def shares_of(window: RankWindow) -> Array:
    """Return shares of the step, (ranks, parts) in the order of `words.SHARES`; rows sum to 1."""
    waits = np.nan_to_num(window.wait_ns)
    phases = window.phase_ns
    compute, given = phases[:, _COMPUTE].sum(axis=1), phases[:, int(Phase.INPUT)]
    transfer = window.sync_ns - waits
    spent = compute + given + window.sync_ns
    other = np.maximum(window.step_ns - spent, 0.0)
    parts = np.stack([compute, transfer, waits, given, other], axis=1)
    total = parts.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(parts, total, out=np.zeros_like(parts), where=total > 0))


def frame(
    run: FollowedRun, findings: Sequence[LiveFinding], diagnosis: Diagnosis | None = None
) -> Frame:
    """The state of a run by its latest steps; of one that takes no more of them as diagnosed."""
    window, shares = run.window, shares_of(run.window)
    curve = run.steps.time_ns[-CURVE_STEPS:]
    latest = curve[-WINDOW_STEPS:]
    state, found = _state(run), diagnosis.findings if diagnosis else []
    named = {rank for each in found for rank in each.where.ranks}
    shown = Frame(
        run=str(run.path), state=state, verdict=_verdict(run, state, findings),
        attempt=run.attempt, attempts=run.attempts, world=run.world, ranks_seen=len(run.states),
        hosts=len({rank.host for rank in run.states}),
        step=int(np.median(window.last_step)) if len(window.ranks) else None,
        steps_per_s=1e9 / float(latest.mean()) if len(latest) and latest.mean() > 0 else None,
        step_time=step_time(latest), curve_ns=[float(value) for value in curve],
        shares=_name_shares(shares.mean(axis=0), window.wait_ns) if len(shares) else {},
        rows=_rows(run, shares, named), findings=list(findings), pacing=pacing(run),
    )  # fmt: skip
    return shown if diagnosis is None else _as_diagnosed(shown, diagnosis)


def _as_diagnosed(shown: Frame, diagnosis: Diagnosis) -> Frame:
    """The frame with what is known of all steps."""
    summary = diagnosis.summary
    shares = {name: share for name, share in (summary["shares"] or {}).items() if is_known(share)}
    return replace(
        shown, diagnosed=True, verdict=diagnosis.verdict, steps_per_s=None,
        step_time=summary["step_time"] or step_time(np.zeros(0)), shares=cast(LiveShares, shares),
        findings=[
            LiveFinding(each.mode, tuple(each.where.ranks), each.severity,
                        f"{each.title}: {percent(each.severity)} of {diagnosis.whole}")
            for each in diagnosis.findings
        ],
    )  # fmt: skip


def _name_shares(shares: Array, wait_ns: Array) -> LiveShares:
    """Name the shares; unless all ranks know their waits, waits are part of communication."""
    compute, transfer, wait, given, other = map(float, shares)
    known = LiveShares(compute=compute, exposed_communication=transfer, input=given, other=other)
    if np.isfinite(wait_ns).all():
        return known | LiveShares(wait=wait)
    return known | LiveShares(exposed_communication=transfer + wait)


def lateness_ns(run: FollowedRun) -> Array:
    """Return each rank's work above the median rank's (of two ranks: the smaller), per step."""
    window = run.window
    step_ns = float(np.median(window.step_ns)) if len(window.ranks) else 0.0
    return np.array(lateness.excess(window.work_ns.tolist(), queued_ns(run), step_ns))


def queued_ns(run: FollowedRun) -> list[float]:
    """Return each rank's wait per step for workers of its loader; 0 where it loads itself."""
    own = {state.rank for state in run.states if not state.facts.get("loader_workers")}
    waits = run.window.phase_ns[:, int(Phase.INPUT)] * ~np.isin(run.window.ranks, list(own))
    return [float(wait) for wait in waits]


def _rows(run: FollowedRun, shares: Array, named: Collection[int]) -> list[RankRow]:
    place = {int(rank): index for index, rank in enumerate(run.window.ranks)}
    late = lateness_ns(run)

    def weight(state: SeenRank) -> tuple[bool, bool, float, int]:
        index = place.get(state.rank)
        lateness = float("inf") if index is None else float(late[index])
        return state.rank not in named, not (state.silent_s or state.gone), -lateness, state.rank

    shown = sorted(run.states, key=weight)[:MOST_ROWS]
    return [_row(state, place.get(state.rank), run.window, late, shares) for state in shown]


def _row(
    state: SeenRank, index: int | None, window: RankWindow, late: Array, shares: Array
) -> RankRow:
    inside = state.inside.op if state.inside else ""
    known = index is not None
    step_ns = float(window.step_ns[index]) if known else None
    return RankRow(
        rank=state.rank, host=state.host, step=int(window.last_step[index]) if known else None,
        step_ns=step_ns, late_ns=float(late[index]) if known else None,
        shares=_name_shares(shares[index], window.wait_ns[index]) if known else {},
        wait_known=known and bool(np.isfinite(window.wait_ns[index])),
        held=float(window.held_ns[index]) / step_ns if step_ns else None, state=rank_state(state),
        silent_s=state.silent_s, inside=inside,
    )  # fmt: skip


def rank_state(state: SeenRank) -> RankState:
    """Return the state of a rank in one word; "" while it makes progress."""
    if state.closed:
        return "ended"
    if state.gone:
        return "gone"
    if "failure" in state.facts:
        return "failed"
    return "silent" if state.silent_s else ""


def pacing(run: FollowedRun) -> Pacing:
    step_ns, held_ns = run.window.step_ns, run.window.held_ns
    known = list(run.paces.values())
    if not known:
        return {}
    asked = run.request.get("number")
    return {
        "modes": Counter(str(fact.get("mode")) for fact in known),
        "threshold": known[0].get("threshold"),
        "max_delay": known[0].get("max_delay"),
        "held": float(held_ns.sum() / step_ns.sum()) if step_ns.sum() else 0.0,
        "held_ranks": int((held_ns > 0).sum()),
        "request": asked,
        "requested": request_words(run.request),
        "requested_mode": run.request.get("mode"),
        "followed_by": sum(fact.get("request") == asked for fact in known) if asked else None,
        "note": next((str(s.facts["pacing"]) for s in run.states if "pacing" in s.facts), ""),
    }


def request_words(request: Mapping[str, Any]) -> str:
    """Return what `evenstep ctl` was asked for: its actions, else its mode of pacing."""
    acts = request.get("act")
    return str(request.get("mode")) if acts is None else f"act {acts}"


def _state(run: FollowedRun) -> RunState:
    if not run.states:
        return "waiting"
    if run.over:
        return "ended"
    if all(rank_state(state) in ("silent", "gone", "ended", "failed") for state in run.states):
        return "silent"
    return "running" if len(run.window.ranks) else "starting"


def _verdict(run: FollowedRun, state: str, findings: Sequence[LiveFinding]) -> str:
    if state == "waiting":
        told = f": {meeting_words(run.meeting)}" if run.meeting else ""
        return f"waiting for the first rank{told}"
    if state == "ended":
        died = [finding.text for finding in findings if finding.mode == "rank_failed"]
        return capital(died[0]) if died else "the run has ended"
    current = [finding for finding in findings if finding.mode != "restart_amplification"]
    if current:
        return capital(current[0].text)
    if state == "starting":
        return f"{len(run.states)} of {run.world} ranks have started; none has finished a step yet"
    if run.world > 1 and not run.window.sync_ns.any():
        return "Hosts do not wait; evenstep diagnose can tell what devices wait for"
    return "No rank is late, and there are no findings in the latest steps"
