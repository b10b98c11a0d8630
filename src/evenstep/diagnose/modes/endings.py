"""Modes that end a job. `rank_failed`: the rank that died first, of what, and in which collective.
`hang`: a collective or message that some ranks entered and never left, and the ranks that did not.
`restart_amplification`: work done again and time lost between the attempts of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Effect, Evidence, Finding, Option, When
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.levels import SEVERAL
from evenstep.diagnose.measure.attempts import (
    INTERRUPTED,
    PRICE,
    SILENT_NS,
    Death,
    attempts_of,
    ended_ns,
    gave_up,
    lost_peer,
    wall_ns,
)
from evenstep.diagnose.measure.effects import AttemptsAccount, account, restarts
from evenstep.diagnose.measure.stuck import (
    EnteredCall,
    Stuck,
    calls_before,
    name_of,
    sizes_differ,
    stuck,
    title,
)
from evenstep.diagnose.modes.intervention import Gain, finding_of
from evenstep.diagnose.sentences import CERTAIN, LIKELY, say
from evenstep.statistics.interval import Share
from evenstep.trace.columns import Columns
from evenstep.trace.spool.faults import FATAL
from evenstep.trace.spool.layout import DType, Kind, Op
from evenstep.trace.trace import Trace

BRIEF_NS = 10_000_000_000  # while a dump is written, which may take seconds, other ranks go on
MEMORY = ("OutOfMemory", "MemoryError", "not enough memory", "out of memory", "alloc")
NEW = "never brought that size or type before"


def describe(trace: Trace, place: Stuck) -> str:
    """ "all_reduce 124", "recv 3 from rank 2 of group pp"; the group of all ranks needs no name."""
    operation = Op(place.op)
    direction = {Op.SEND: "to", Op.RECV: "from"}.get(operation) if place.peer >= 0 else None
    peer = f" {direction} rank {place.peer}" if direction else ""
    return f"{name_of(operation)} {place.sequence}{peer}{_of_group(trace, place.group)}"


def _of_group(trace: Trace, group: int) -> str:
    part = group >= 0 and len(trace.groups[group].ranks) < trace.world
    return f" of group {trace.groups[group].name}" if part else ""


def hang(case: Case) -> list[Finding]:
    """Operations that stood still much longer than a step takes, by the ranks that never came."""
    held_up = {rank for place in case.stuck for rank in place.waiting}
    alike: dict[tuple[bool, Sequence[int]], list[Stuck]] = {}
    for number, place in enumerate(case.stuck):
        circle = bool(place.missing) and set(place.missing) <= held_up
        those = _held_together(case.stuck, place) if circle else tuple(place.missing)
        alike.setdefault((circle, those or (-1 - number,)), []).append(place)
    return [_of_places(case, each, circle=circle) for (circle, _), each in alike.items()]


def _held_together(places: Sequence[Stuck], place: Stuck) -> tuple[int, ...]:
    """The ranks that wait in an operation and for it, and all that are tied to these by others."""
    ties = [{*one.waiting, *one.missing} for one in places]
    found, wider = set[int](), {*place.waiting, *place.missing}
    while found != wider:
        found, wider = wider, wider.union(*(tie for tie in ties if tie & wider))
    return tuple(sorted(found))


def _of_places(case: Case, places: list[Stuck], *, circle: bool) -> Finding:
    """The finding of operations that wait for the same ranks, or for each other in a circle; its
    sentences are of the longest."""
    place, trace = max(places, key=lambda one: one.since_ns), case.trace
    culprits = place.missing or place.different or list(place.untraced)
    if circle:
        culprits = sorted({rank for one in places for rank in one.missing})
    waiting = {rank for one in places for rank in one.waiting}
    elsewhere = [] if circle else sorted(waiting - set(place.waiting))
    sites = {trace.names[call.name] for rank, call in place.calls.items() if rank in place.waiting}
    site = sites.pop() if len(sites) == 1 else ""
    ended = place.missing and "had ended" in _clause_of_end(case.trace, place)
    brief = place.pause_ns is not None and not place.different and place.since_ns < BRIEF_NS
    sure = 0.9 if place.missing or place.different else 0.6 if place.untraced else 0.5
    rest = "missing" if place.missing else "untraced" if place.untraced else "transport"
    cause = _circle(trace, places) if circle else _cause(case, place)
    shifts = {out_of_step(trace, place, rank) for rank in place.different}
    differs = "sizes" if sizes_differ(place) and shifts <= {"", NEW} else "different"
    short = place.missing and not circle and _clause_of_left_out(trace, place)
    rest = "different" if short else "ended" if ended else rest
    what = differs if place.different else "circle" if circle else rest
    return _ending(
        "hang", round(min(sum(_share(case, one) for one in places), 1.0), 4), place.step,
        say(f"hang.do.{what}", those=culprits), "the last records of every rank",
        layer="framework" if culprits else "fabric",
        confidence=round(0.8 * sure, 2) if brief else sure,
        observation=say(
            "hang.observation",
            those=sorted(set(place.waiting) - set(place.different)) or place.waiting,
            where=describe(trace, place),
            since=say(f"hang.{'since' if place.timed else 'unknown'}", since=place.since_ns),
            called=f"; called in {site}" if site else "",
            others=say("hang.elsewhere", those=elsewhere) if elsewhere else "",
        ),
        cause=cause,
        where=case.where(culprits),
        title=words.capital(say("hang.circle", those=culprits) if circle else title(place)),
        evidence=[
            Evidence("in_flight_at_the_end", place.since_ns if place.timed else None, 0, "ns"),
            Evidence("ranks_waiting", len(waiting), 0, "ranks"),
        ],
    )  # fmt: skip


def _ending(mode: str, share: float, step: int, do: str, method: str, **fields: Any) -> Finding:
    """The finding of what ended the job in a step, with a remedy of unknown gain."""
    return Finding(
        mode=mode, severity=share, effect=Effect(share), when=When([(step, step)], "transient"),
        options=[Option(do, None, None, None, "none", method)], **fields,
    )  # fmt: skip


def _share(case: Case, place: Stuck) -> float:
    """Share of the job's time in which it stood still, divided among all stuck operations. Where a
    dump does not tell how long, no other time of the job is known."""
    if not all(other.timed for other in case.stuck):
        return 1 / len(case.stuck)
    whole = sum(other.since_ns for other in case.stuck)
    part = place.since_ns / whole if whole > 0 else 1 / len(case.stuck)
    stood, ran = case.hung_ns, case.ran_ns
    return part * (stood / (stood + ran) if stood + ran > 0 else 1.0)


# -- the cause, in words ---------------------------------------------------------------------------


def _cause(case: Case, place: Stuck) -> str:
    trace = case.trace
    if place.missing:
        wanted = "recv" if Op(place.op) is Op.SEND else "send"
        did = f"called the matching {wanted}" if place.peer >= 0 else "entered it"
        cause = f"{case.ranks_in_words(place.missing)} never {did}"
        last = _clause_of_last(trace, place.missing[0]) if len(place.missing) == 1 else ""
        return cause + _clause_of_end(trace, place) + _clause_of_left_out(trace, place) + last
    if place.different and place.peer >= 0:
        return f"{words.ranks(place.different)} disagree on the size of the message"
    if place.different:
        return _disagreement(case, place)
    return say(f"hang.{'untraced' if place.untraced else 'entered'}", those=place.untraced)


def _clause_of_end(trace: Trace, place: Stuck) -> str:
    """A clause on how the missing rank had ended by then, or since when it gave no sign of life."""
    info, waiting = trace.ranks[place.missing[0]], trace.ranks[place.waiting[0]]
    began_ns = wall_ns(waiting, place.entered_ns)
    ended, beat = ended_ns(info), info.facts.get("heartbeat_ns")
    if ended is not None and wall_ns(info, ended) < began_ns + place.since_ns / 2:
        return f", and had ended ({words.how_ended(info.facts)})"
    silent_ns = began_ns + place.since_ns - wall_ns(info, beat) if beat else 0
    if silent_ns > max(SILENT_NS, place.since_ns / 2):
        watched = any("ended" in other.facts for other in trace.ranks.values())
        who, was = ("they", "were") if len(place.missing) > 1 else ("it", "was")
        fate = f"{was} stopped or frozen" if watched else f"died, or {was} stopped or frozen"
        return f", and {was} not heard of for {words.duration(silent_ns)}: {who} {fate}"
    return ""


def _clause_of_left_out(trace: Trace, place: Stuck) -> str:
    """A clause on calls of the group that one missing rank did not make in a step in which a
    waiting one did, nor in a later one, as another thread may: its later calls ended those of
    earlier steps. "" for none."""
    rows, pair = trace.of_kind(Kind.COLLECTIVE), (place.waiting[0], place.missing[0])
    rows = rows.select((rows.group == place.group) & np.isin(rows["rank"], pair))
    own, lost = rows["rank"] == pair[1], any(trace.ranks[rank].dropped for rank in pair)
    if place.peer >= 0 or len(place.missing) > 1 or lost or not 0 < own.sum() < len(own):
        return ""
    steps, number = np.unique(rows.step, return_inverse=True)
    each = number[own], number[~own]
    both = slice(max(one.min() for one in each), min(one.max() for one in each))
    behind = np.cumsum(np.bincount(number, np.where(own, -1, 1))[both])
    first = max(np.flatnonzero(behind <= 0), default=-1) + 1
    if first == len(behind):
        return ""
    calls = words.plural(int(behind[first]), "call")
    return f"; it left out {calls} in step {steps[both][first]}, which {words.ranks(pair[:1])} made"


def _circle(trace: Trace, places: list[Stuck]) -> str:
    """Where the ranks of a circle wait."""
    waits = (f"{words.ranks(one.waiting)} in {describe(trace, one)}" for one in places[:SEVERAL])
    return f"{', '.join(waits)}: each waits for what another has yet to do"


def _disagreement(case: Case, place: Stuck) -> str:
    """The calls of the differing ranks, and that of the others where these did as before; of calls
    alike but for their size, the sizes and their common place."""
    trace, some = case.trace, place.different[:SEVERAL]
    shifts = {rank: out_of_step(trace, place, rank) for rank in some}
    sites = {trace.names[call.name] for call in place.calls.values()}
    sites -= {""} if NEW in shifts.values() else set()  # no call alike tells where it was made
    alike = sizes_differ(place) and len(sites) <= 1
    told = {
        rank: f"{call.size} B" if alike else _in_words(trace, call)
        for rank, call in place.calls.items()
    }
    did = "brought" if alike else "entered"
    alike_calls: dict[str, list[int]] = {}
    for rank in place.different:
        alike_calls.setdefault(told[rank], []).append(rank)
    each = [f"{case.ranks_in_words(who)} {did} {call}" for call, who in alike_calls.items()]
    calls = ", ".join(each[:SEVERAL]) + " …" * (len(each) > SEVERAL)
    if others := [rank for rank in place.calls if rank not in place.different]:
        who = words.ranks(others) if len(others) == 1 else "the others"
        calls += f", {who} {told[others[0]]}"
    calls += "".join(f" in {site}" for site in sites if site) if alike else ""
    return calls + "".join(f"; rank {rank} {shift}" for rank, shift in shifts.items() if shift)


def _in_words(trace: Trace, call: EnteredCall) -> str:
    """ "broadcast of 200 B FLOAT32 in step (train.py:31)"."""
    size = f" of {call.size} B" if call.size else ""
    dtype = f" {DType(call.dtype).name.lower()}" if call.size and call.dtype else ""
    site = trace.names[call.name]
    return f"{name_of(call.op)}{size}{dtype}" + (f" in {site}" if site else "")


def _clause_of_last(trace: Trace, rank: int) -> str:
    """A clause on the last collective or message that a rank entered; "" without any."""
    rows = trace.of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT)
    rows = rows.select(rows["rank"] == rank)
    if not len(rows):
        return ""
    last = int(rows.enter_ns.argmax())
    site = trace.names[int(rows.name[last])]
    text = f"{name_of(int(rows.op[last]))} {int(rows.group_seq[last])}"
    text = f"; the last it entered was {text}{_of_group(trace, int(rows.group[last]))}"
    return text + (f" in {site}" if site else "")


def endings(trace: Trace) -> list[str]:
    """For the limits: ranks whose trace has no end, and the operation they were in."""
    open_ended = [
        rank
        for rank, info in trace.ranks.items()
        if not info.closed and "dump" not in info.facts  # a dump is always of a living process
    ]
    inside = {
        rank: f", inside {describe(trace, place)} (step {place.step})"
        for place in (stuck(trace) if open_ended else ())
        for rank in place.waiting
    }
    return [
        f"rank {rank} did not end its trace (killed, or still running){inside.get(rank, '')}"
        for rank in open_ended
    ]


def out_of_step(trace: Trace, place: Stuck, rank: int) -> str:
    """A clause on how the calls of a differing rank are shifted against the others'; "" unknown.

    Training repeats its calls: the call that followed the others' present one before is the next. A
    rank that makes it already has left one out, though it is what the rank called before, in an
    earlier step. One that makes what always came here did as before, and the others' call is new.
    """
    if rank not in place.calls:
        return ""
    events, own = trace.of_kind(Kind.COLLECTIVE), place.calls[rank][:3]
    others = [other for other in place.calls if other not in place.different]
    if not others:
        return NEW if _is_new(events, place, rank) else ""
    made = calls_before(events, place.group, place.sequence, others[0])
    expected = place.calls[others[0]][:3]
    before = made[-1] if made else None
    usual = {later for call, later in pairwise(made) if call == before}
    if usual == {own}:
        return "did as in earlier steps"
    here = (events.group == place.group) & (events["rank"] == rank)
    mine = events.select(here & (events.group_seq <= place.sequence)).sorted_by("group_seq")
    if before == own and own not in usual and len(set(mine.step[-2:].tolist())) == 1:
        return "seems to have made the call before a second time"
    if own not in made and own[0] == expected[0] and len(others) == 1:
        return NEW
    followed = dict(pairwise([*made, expected]))
    return "seems to have left that call out" if followed.get(expected) == own else ""


def _is_new(events: Columns, place: Stuck, rank: int) -> bool:
    """Whether a rank brought what none did before, in a call that another made as ever."""
    before = (calls_before(events, place.group, place.sequence, each) for each in place.calls)
    made = {call for calls in before for call in calls}
    new = [each for each, call in place.calls.items() if call[:3] not in made]
    return sizes_differ(place) and new == [rank]


# -- ranks that died -------------------------------------------------------------------------------


def rank_failed(case: Case) -> list[Finding]:
    """The first death, where no hang came before it."""
    if not case.failed:
        return []
    first, ranks = case.failed[0], [death.rank for death in case.failed]
    mine = case.trace.summaries[case.trace.summary_rank == first.rank]  # also of steps not observed
    own = case.trace.of_kind(Kind.STEP)
    last = max([0, *own.step[own["rank"] == first.rank].tolist(), *mine["last_step"].tolist()])
    if absent := _absent(case, first):
        return [_never_came(case, first, absent, last)]
    others = [death for death in case.dead if death.rank not in ranks]
    after = f" after step {last}" if last else ""
    within = words.duration(max(others[-1].at_ns - first.at_ns, 0)) if others else ""
    theirs = words.ranks([death.rank for death in others])
    followed = f"; {theirs} followed within {within}" if others else ""
    out_of_memory = (first.facts.get("ended") or {}).get("out_of_memory_kills")
    lost = (
        sorted(set(range(case.trace.world)) - set(case.trace.ranks))
        if lost_peer(first.facts)
        else []
    )
    died = "lost a peer" if lost else "died"
    finding = _ending(
        "rank_failed", round(1.0 - case.running_share, 4), last, _remedy(first, lost),
        "how the rank ended",
        layer="model" if first.facts.get("raised") else "node" if out_of_memory else "framework",
        confidence=CERTAIN if ended_ns(case.trace.ranks[first.rank]) else LIKELY,
        observation=f"{case.ranks_in_words(ranks)} {died}{after}{followed}",
        cause=words.how_ended(first.facts) + _clause_of_last(case.trace, first.rank),
        where=case.where(ranks),
        title=words.capital(words.ranks(ranks))
        + f" {died}: {words.how_ended(first.facts, brief=True)}",
        evidence=[
            Evidence("ranks_failed_first", len(ranks), 0, "ranks"),
            Evidence("ranks_failed", len(case.dead), 0, "ranks"),
        ],
    )  # fmt: skip
    return [finding]


def _absent(case: Case, first: Death) -> list[int]:
    """The ranks that others gave up waiting for outside any collective, as at the store: those that
    went on meanwhile; and those that had left in order before another lost its peer."""
    if lost_peer(first.facts):
        died = {death.rank for death in case.dead}
        left = [(r, one) for r, one in case.trace.ranks.items() if one.closed and r not in died]
        return sorted(r for r, one in left if wall_ns(one, ended_ns(one) or 0) < first.at_ns)
    ends = {death.rank: death for death in case.dead}
    over = {rank for rank, death in ends.items() if death.at_ns <= first.at_ns}
    over |= {rank for rank, death in ends.items() if death.facts.get("raised")}
    # in `init_process_group` those are missing, too, that left no trace
    all_ = range(case.trace.world) if "before" in (first.facts.get("ended") or {}) else ()
    return sorted({*case.trace.ranks, *all_} - over) if gave_up(first.facts) else []


def _never_came(case: Case, first: Death, absent: list[int], step: int) -> Finding:
    """The finding of ranks that others gave up waiting for, or lost."""
    left, how = lost_peer(first.facts), words.how_ended(first.facts)
    apart = "apart" in (first.facts.get("ended") or {})
    waited = [death.rank for death in case.dead if left or gave_up(death.facts)]
    after = f" after step {step}" if step else ""
    until = "the other had ended" if left else "a timeout ended the job"
    end = f", and had ended ({words.how_ended(case.trace.ranks[absent[0]].facts)})" if left else ""
    return _ending(
        "hang", round(1.0 - case.running_share, 4), step,
        say(f"hang.do.{'ended' if left else 'missing'}", those=absent),
        "the last records of every rank", layer="framework", confidence=LIKELY,
        observation=f"{words.ranks(sorted(waited))} waited{after}, until {until}",
        cause=how if apart else f"{case.ranks_in_words(absent)} did not come{end}: {how}",
        where=case.where(absent), title=words.capital(f"{words.ranks(absent)} did not come"),
        evidence=[Evidence("ranks_waiting", len(waited), 0, "ranks")],
    )  # fmt: skip


def _remedy(first: Death, lost: Sequence[int]) -> str:
    """What to look at next, by how the rank ended, or for the peer among `lost`."""
    ended, raised = first.facts.get("ended") or {}, first.facts.get("raised") or {}
    left, name = first.facts.get("left") or {}, ended.get("signal")
    message = f"{raised.get('type', '')} {raised.get('message', '')}"
    holding = {
        "lost": lost,
        "memory": ended.get("out_of_memory_kills") or any(word in message for word in MEMORY),
        "worker": "DataLoader worker" in message,
        "raised": raised and raised.get("type") != INTERRUPTED,
        "struck": name in FATAL and left.get("by") == name,
        "invalid": name in FATAL,
        "signal": name,
        "left": left.get("by"),
        "exit": ended.get("exit_code") is not None,
        "unknown": True,
    }
    how = next(name for name, holds in holding.items() if holds)
    return say(f"rank_failed.do.{how}", type=raised.get("type"), by=left.get("by"), those=lost)


# -- restarts --------------------------------------------------------------------------------------


def restart_amplification(case: Case) -> list[Finding]:
    """One finding for all restarts of the run."""
    attempts = attempts_of(case.trace.run)
    total = account(attempts) if len(attempts) > 1 else None
    if total is None or total.elapsed_s <= 0:
        return []
    value = min(total.lost_s / total.elapsed_s, 1.0)
    unsure_s = total.unsure_steps * total.running_s / max(total.steps, 1)  # may be lost, too
    share = Share(value, value, min((total.lost_s + unsure_s) / total.elapsed_s, 1.0))
    return finding_of(
        case, "restart_amplification", Gain(share), at=When(),
        numbers=_causes_of_restarts(total) | _costs_of_restarts(total, case.trace.run.get(PRICE)),
        options=_gains_of_restarts(total, share),
    )  # fmt: skip


def _causes_of_restarts(total: AttemptsAccount) -> dict[str, Any]:
    before = total.attempts[:-1]
    preempted = [one.preempted for one in before if one.preempted]
    verdicts = [one["verdict"] for one in restarts(total.attempts)]
    steadiness = next((word for word in ("amplified", "reset") if word in verdicts), None)
    seen = any(loss.seen for loss in total.losses)
    why = "unseen" if not seen else "slow" if total.gap_s > total.work_s else "seen"
    failure = f"attempt {before[-1].number}: {before[-1].failure}; "
    return {
        "why": say(
            f"restart_amplification.{why}",
            each=1e9 * total.gap_s / len(total.losses), first=f"attempt-{before[0].number:03d}",
        ),
        "failed": failure if before[-1].failure else "",
        "preempted": say(
            "restart_amplification.preempted",
            number=len(preempted), of=len(before), signals=" and ".join(sorted(set(preempted))),
        ) if preempted else "",
        "steadiness": say(f"restart_amplification.{steadiness}") if steadiness else "",
    }  # fmt: skip


def _costs_of_restarts(total: AttemptsAccount, price: Any) -> dict[str, Any]:
    """What they cost; the cadence of checkpoints; energy, where every attempt has its counter; and
    CV and rate of the steps after the last restart, beside those before it."""
    *_, before, after = total.attempts
    joules = [one.energy_joules for one in total.attempts if one.energy_joules is not None]
    step_s, hours = total.running_s / max(total.steps, 1), after.ranks * 1000 / 3600
    paid, due = total.elapsed_s / total.net_steps * hours, step_s * hours
    found: dict[str, Any] = {
        "attempts": len(total.attempts), "elapsed": 1e9 * total.elapsed_s, "steps": total.steps,
        "up_to": "up to " if total.unsure_steps else "", "surely": total.lost_steps,
        "again": total.lost_steps + total.unsure_steps, "lost": 1e9 * total.lost_s,
        "restarts": words.plural(len(total.losses), "restart"), "gap": 1e9 * total.gap_s,
        "longest": 1e9 * max(loss.gap_s for loss in total.losses),
        "amplification": total.amplification, "hours": paid, "due_hours": due,
        "cv": after.cv_at_start, "cv_before": before.cv_at_end,
        "rate": after.rate_at_start, "rate_before": before.rate_at_end,
    }  # fmt: skip
    if isinstance(price, int | float):
        found |= {"cost": price * paid, "due_cost": price * due}
    if len(joules) == len(total.attempts):
        found["energy"] = sum(joules) / total.net_steps
        found["due_energy"] = sum(joules) / max(total.steps, 1)
    if (best := total.cadence) is not None:
        found |= {
            "best": 1e9 * best.best_s, "now": 1e9 * best.now_s, "write": 1e9 * best.checkpoint_s,
            "between_failures": 1e9 * best.between_failures_s,
            "often": "more often" if best.best_s < best.now_s else "less often",
        }  # fmt: skip
    return found


def _gains_of_restarts(total: AttemptsAccount, share: Share) -> dict[str, Share | None]:
    """Remedies with what each gives back at most, the best first."""
    gap, again = (min(each / total.elapsed_s, 1.0) for each in (total.gap_s, total.work_s))
    gains: dict[str, Share | None] = {"faster": Share(gap, 0.0, gap)}
    if total.cadence is None:
        gains = {"resume": Share(again, 0.0, again) if again else None, **gains}
    elif gain := total.cadence.saved(total.gap_s / len(total.losses)):
        gains = {"cadence": Share(min(gain, share.value), nan, nan), **gains}
    return dict(sorted(gains.items(), key=lambda item: -item[1].value if item[1] else 0.0))
