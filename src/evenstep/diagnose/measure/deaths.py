"""Deaths: which ranks ended wrongly, when, and which death led to the others.

A rank records the exception that ended its script, and a heartbeat several times a second; the
launcher records how each process of its machine ended. Both order the ends of a job's ranks, so
that the first is told from those that followed from it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from evenstep.diagnose.measure.stuck import Stuck, limit_ns, long_enough
from evenstep.trace.trace import RankInfo, Trace

RESOLUTION_NS = 500_000_000  # ends closer together than two heartbeats need other evidence
SILENT_NS = 2 * RESOLUTION_NS  # without a heartbeat for so long, a rank stood still
INTERRUPTED = "KeyboardInterrupt"
#: In messages of gloo, of NCCL's watchdog, of `monitored_barrier` and of torch's store; a script's
#: own (a request that timed out) have none of these words.
TIMEOUT = re.compile(
    r"timed out (?:waiting \d+ ?ms|in blocking wait)|wait timeout after \d+ ?ms"
    r"|collective operation timeout|timeout caused pair closure|failed to pass monitoredBarrier",
    re.IGNORECASE,
)


class Death(NamedTuple):
    """The wrong end of a rank."""

    rank: int
    at_ns: int  # on the wall clock; where unknown, its last heartbeat
    facts: dict[str, Any]  # of the rank: `ended`, `raised`, `closed`


def deaths(trace: Trace) -> list[Death]:
    """The ranks that ended wrongly, in the order of their ends.

    Ends that follow one on request do not count: Ctrl-C reaches some ranks, the others lose a peer.
    """
    asked = [wall_ns(info, ended_ns(info) or 0) for info in trace.ranks.values() if _stopped(info)]
    before_ns = min(asked, default=math.inf) - RESOLUTION_NS
    found = [
        Death(rank, wall_ns(info, ended_ns(info) or 0), info.facts)
        for rank, info in trace.ranks.items()
        if _wrong(info) and wall_ns(info, ended_ns(info) or 0) < before_ns
    ]
    if all(_interrupted(death.facts) for death in found):
        return []
    if found:  # the job is over: a rank that did not close its trace died, too
        known = {death.rank for death in found}
        cut = {rank: info for rank, info in trace.ranks.items() if _cut(info)}
        found += [
            Death(rank, wall_ns(info, ended_ns(info) or info.facts["heartbeat_ns"]), info.facts)
            for rank, info in cut.items()
            if rank not in known
        ]
    return sorted(found, key=lambda death: death.at_ns)


def first_of(found: Sequence[Death], awaited: Iterable[int]) -> list[Death]:
    """The deaths that led to the others: one, and those that raised the same error at its place.

    A killed process closes its connections a moment before it has ended, and its peers may raise
    within that moment. So of ends close together the first is that of a rank the others waited for
    (`awaited`), else that of a process that was gone before the others.
    """
    if not found:
        return []
    close = [death for death in found if death.at_ns - found[0].at_ns < RESOLUTION_NS]
    wanted = set(awaited)
    waited_for = [death for death in close if death.rank in wanted]
    gone = [death for death in close if _gone_ns(death) < _gone_ns(close[0])]
    silent = [death for death in gone if "raised" not in death.facts]
    first = next(iter(waited_for or silent or close))
    raised = _raised(first)
    alike = [each for each in found if raised and _raised(each) == raised and each is not first]
    return [first, *alike]


def hung_first(
    trace: Trace, places: Sequence[Stuck], found: Sequence[Death], step_ns: float
) -> list[Stuck]:
    """The operations in which the job hung, whatever ended it later: a timeout, a person, a
    scheduler. The longest steps take `step_ns`.

    An operation whose missing ranks (or, without any, a waiting one) had died or been stopped
    before it was in flight for long enough, or a waiting one gave up, is no hang; but a missing
    process without heartbeats before it ended is one. Where ranks died, so are differing calls and
    missing ranks that had left in order.
    """
    hung = []
    for place in places:
        if place.pause_ns is not None:  # a dump, whose processes are alive
            hung += [place] if long_enough(place, step_ns) else []
            continue
        entered_ns = wall_ns(trace.ranks[place.waiting[0]], place.entered_ns)
        gave_up_ns = min(_gave_up_ns(trace.ranks[rank]) for rank in place.waiting)
        soon_ns = min(entered_ns + limit_ns(place, step_ns), gave_up_ns)
        over = {rank: info for rank, info in trace.ranks.items() if _over(info, soon_ns)}
        stopped = {rank for rank, info in over.items() if _stopped(info)}
        left = {rank for rank, info in over.items() if not (_wrong(info) or _cut(info))} - stopped
        died = {death.rank for death in found if death.at_ns < soon_ns} | stopped
        awaited = set(place.missing)
        mismatched = place.different or (awaited and awaited <= left)
        bereft = awaited <= died if awaited else not died.isdisjoint(place.waiting)
        frozen = any(_stood_still(trace.ranks[rank]) for rank in place.missing)
        long = long_enough(place, step_ns) or gave_up_ns < math.inf
        if (found and mismatched) or (long and not bereft) or frozen:
            hung.append(place)
    return hung


def gave_up(facts: Mapping[str, Any]) -> bool:
    """Whether a timeout ended a rank: what it waited for did not come."""
    message = (facts.get("raised") or {}).get("message", "")
    return TIMEOUT.search(message) is not None


def _gave_up_ns(info: RankInfo) -> float:
    """When a rank gave up, on the wall clock of its host; inf where it did not."""
    at_ns = (info.facts.get("raised") or {}).get("monotonic_ns")
    return wall_ns(info, int(at_ns)) if at_ns and gave_up(info.facts) else math.inf


def _stood_still(info: RankInfo) -> bool:
    """Whether a process had no heartbeats for `SILENT_NS` before it raised, closed its trace or
    died; after that it is silent, and leaving may take seconds."""
    beat_ns = int(info.facts.get("heartbeat_ns", 0))
    return bool(beat_ns) and (ended_ns(info) or 0) - beat_ns > SILENT_NS


def _over(info: RankInfo, by_ns: float) -> bool:
    """Whether a rank is known to have ended by then."""
    ended = ended_ns(info)
    return ended is not None and wall_ns(info, ended) <= by_ns


def wall_ns(info: RankInfo, monotonic_ns: int) -> int:
    """A moment of a rank's own clock on the wall clock of its host."""
    anchors = (info.identity.get(f"anchor_{clock}_ns", 0) for clock in ("realtime", "monotonic"))
    real_ns, own_ns = map(int, anchors)
    return real_ns - own_ns + monotonic_ns


def ended_ns(info: RankInfo) -> int | None:
    """When a rank raised, closed its trace or died, whichever is first, on its own clock."""
    facts = (info.facts.get(name) or {} for name in ("raised", "closed", "ended"))
    moments = [int(each["monotonic_ns"]) for each in facts if "monotonic_ns" in each]
    return min(moments, default=None)


def _wrong(info: RankInfo) -> bool:
    """Whether the recorded end is a death."""
    ended, raised = info.facts.get("ended") or {}, info.facts.get("raised") or {}
    if _stopped(info):
        return False
    failed = ended.get("signal") or ended.get("exit_code") or raised
    return bool(failed) or ("ended" in info.facts and not info.closed and "exit_code" not in ended)


def _stopped(info: RankInfo) -> bool:
    """Whether a person or a scheduler ended it, by its launcher, or without one by itself."""
    ended = info.facts.get("ended")
    return bool(ended.get("asked")) if ended else _interrupted(info.facts)


def _interrupted(facts: dict[str, Any]) -> bool:
    return (facts.get("raised") or {}).get("type") == INTERRUPTED


def _cut(info: RankInfo) -> bool:
    """Whether its trace was not closed, though it had heartbeats and was not asked to end."""
    ended = info.facts.get("ended") or {}
    return not info.closed and not ended.get("asked") and "heartbeat_ns" in info.facts


def _gone_ns(death: Death) -> float:
    """When a launcher saw that its process had ended; else inf."""
    return float((death.facts.get("ended") or {}).get("realtime_ns", math.inf))


def _raised(death: Death) -> tuple[str, str] | None:
    """Type and innermost frame of the exception raised."""
    raised = death.facts.get("raised") or {}
    return (raised["type"], raised["frames"][0]) if raised.get("frames") else None
