"""Sentences for entries of a summary: changes over the run, actions, cost of stragglers.

Each function renders one entry, and yields nothing if the entry is not worth a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evenstep.words import (
    duration,
    interval,
    is_known,
    number,
    percent,
    plural,
    printable,
)
from evenstep.words import ranks as named

STEADY = 0.95  # share of steps of one regime from which others are not mentioned
WORTH = 0.10  # smallest share of steps or of waiting that is mentioned
MOVED = 0.5  # smallest share of the blame that moves between start and end of the run
SHOWN = 4  # ranks, or parts of a kind, slowest first
_PARTS = (("stage", "stage"), ("dp_rank", "data-parallel rank"), ("optype", "operation"))


def movement(summary: Mapping[str, Any]) -> Iterator[str]:
    for name, sentences in _SENTENCES.items():
        if found := summary.get(name):
            yield from sentences(found)


def growth(found: Mapping[str, Any] | None) -> Iterator[str]:
    if found and found["last_ns"] >= (1 + WORTH) * found["first_ns"]:
        first, last = duration(found["first_ns"]), duration(found["last_ns"])
        yield f"steps grow longer: {first} in the first quarter of the run, {last} in the last"


def regimes(found: Mapping[str, Any]) -> Iterator[str]:
    shares = {name: share for name, share in found["shares"].items() if share >= 1 - STEADY}
    if len(shares) < 2:
        return
    order = sorted(shares, key=lambda name: -shares[name])
    named = {"wait": "waiting", "compute": "own work"}  # also where no phases were recorded
    parts = [f"{named.get(name, name)} in {percent(shares[name])}" for name in order]
    changes = plural(found["changes"], "change")
    text = f"steps are bound by {', by '.join(parts)} of them, with {changes}"
    if is_known(period := found.get("period_steps")):
        text += f"; the pattern repeats every {number(period)} steps"
    yield text


def blame(found: Mapping[str, Any]) -> Iterator[str]:
    """Name the ranks that are waited for, changes over the run, and the largest delay."""
    if culprits := [row for row in found["culprits"][:SHOWN] if row["share"] >= WORTH]:
        said = ", ".join(f"rank {row['rank']} ({percent(row['share'])})" for row in culprits)
        most = sum(row["share"] for row in culprits) > MOVED
        text = f"most is for {said}" if most else "no rank causes most"
        yield f"of {duration(1e9 * found['rank_seconds'])} of waiting, {text}"
    if (drift := found.get("drift") or 0.0) >= MOVED:
        yield f"from start to end of the run {percent(drift)} of the waiting moves to other ranks"
    if event := found.get("largest_delay"):
        decay, victims = event.get("steps_to_decay"), event["victims_count"]
        lost = duration(1e9 * event["rank_seconds_lost"])
        lose = f"1 rank loses {lost}" if victims == 1 else f"{victims:,} ranks lose {lost} together"
        gone = f", gone after {plural(decay, 'step')}" if decay else ""
        yield (
            f"largest delay: rank {event['rank']} is {duration(event['delay_ns'])} late in step "
            f"{event['step']}; {lose}{gone}"
        )


def checkpoints(found: Mapping[str, Any]) -> Iterator[str]:
    """Describe how steady the run is after checkpoints and restarts, if not always as before."""
    words = {"reset": "steadier", "amplified": "less steady", "unchanged": "as before"}
    known = {text: found[name] for name, text in words.items() if found.get(name)}
    of = f"of {sum(known.values()):,}"
    if parts := [f"{text} after {n:,} {of}" for text, n in known.items() if text != "as before"]:
        yield f"checkpoints and restarts: the run is {' and '.join(parts)}"


def asynchrony(found: Mapping[str, Any]) -> Iterator[str]:
    """Describe how often ranks synchronize and how stale updates are."""
    if is_known(rounds := found.get("steps_per_round")):
        uneven = "" if found.get("regular_rounds") else ", not always"
        yield f"ranks synchronize every {number(rounds)} steps{uneven}"
    if stale := found.get("staleness"):
        yield (
            f"updates are {number(stale['mean'])} steps stale on average, "
            f"{number(stale['p95'])} at p95, {number(stale['max'])} at most"
        )


def tokens(found: Mapping[str, Any]) -> Iterator[str]:
    """Describe the imbalance of all-to-alls."""
    fullest = found["fullest"][0]
    yield (
        f"all-to-alls are uneven: the rank with most data receives {number(found['imbalance'])} "
        f"times the mean; most often it is rank {fullest['rank']} ({percent(fullest['share'])} of "
        "the uneven calls)"
    )


def ports(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Describe the range of sending rates over ports of network adapters."""
    known = (each for each in found if is_known(each.get("sent_gBps")))
    sent = sorted((each["sent_gBps"], each["node"], each["port"]) for each in known)
    if len({node for _, node, _ in sent}) < 2:  # on one host they carry no traffic of the job
        return
    (low, node, port), high = sent[0], sent[-1][0]
    yield (
        f"ports of network adapters send {number(low)} to {number(high)} GB/s; least: port {port} "
        f"of {node or 'the node'}"
    )


_SENTENCES: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "growth": growth,
    "regimes": regimes,
    "blame": blame,
    "checkpoints": checkpoints,
    "asynchrony": asynchrony,
    "all_to_all": tokens,
    "ports": ports,
}


# -- pacing ----------------------------------------------------------------------------------------


def pacing(found: Mapping[str, Any]) -> Iterator[str]:
    yield from _part(found)
    yield _held(found)
    if found["held_ranks"]:
        if is_known(lost := found["lost_at_most"]):
            yield f"the delays cost at most {percent(lost)} of their time"
        if effect := found["effect"]:
            yield _effect(effect)
    yield _tried(found)


def pacing_in_brief(found: Mapping[str, Any]) -> str:
    return f"{_held(found)}; {_tried(found)}"


def _held(found: Mapping[str, Any]) -> str:
    if ranks := found["held_ranks"]:
        return (
            f"pacing delayed {named(ranks)} in {percent(found['held_share'])} of the paced ranks' "
            f"steps, by {duration(found['held_mean_ns'])} on average"
        )
    ended = "" if _untried(found) else ", or the trial ended it"
    return f"pacing delayed no rank: none was early often enough{ended}"


def _tried(found: Mapping[str, Any]) -> str:
    if _untried(found):
        return "it was not tried"
    counts, total = found["verdicts"].items(), len(found["ranks"])
    parts = [word + f" ({plural(n, 'rank')})" * (n != total) for word, n in counts]
    return f"result of its trials: {', '.join(parts)}"


def _untried(found: Mapping[str, Any]) -> bool:
    return list(found["verdicts"]) == ["untested"]


def _part(found: Mapping[str, Any]) -> Iterator[str]:
    """Compare the paced part of the job with the rest."""
    beside = found.get("beside")
    if not beside:
        return
    chosen = f", as chosen ({found['part']})" if found.get("part") else ""
    yield (
        f"only {named(beside['paced']['ranks'])} may be paced{chosen}; "
        f"{named(beside['unpaced']['ranks'])} only decided and recorded"
    )
    yield f"{_kind('paced', beside['paced'])}; {_kind('unpaced', beside['unpaced'])}"


def _kind(name: str, found: Mapping[str, Any]) -> str:
    if not is_known(found["step_mean_ns"]):
        return f"{name} ranks: no step"
    words = f"{name} ranks: steps of {duration(found['step_mean_ns'])}, CV {found['step_cv']:.2g}"
    words += f", delayed {percent(found['held'])} of the time"
    return words + (f", waiting {percent(found['wait'])}" if is_known(found["wait"]) else "")


def _effect(effect: Mapping[str, Any]) -> str:
    pairs = f"{plural(effect['pairs'], 'pair')} of paced and unpaced blocks of steps"
    if not is_known(effect["low"]):
        return f"{pairs}: too few for an interval; run longer"
    low, high = effect["low"], effect["high"]
    span = f"{100 * effect['gain']:+.1f} % (95 % interval {100 * low:+.1f} to {100 * high:+.1f})"
    if low > 0:
        says = "it gains here: the delayed ranks leave a resource to the late ones"
    elif high < 0:
        says = "it costs here, and the trial switches it off"
    else:
        says = (
            "no effect can be told; a job that shares nothing with others cannot gain by waiting, "
            "so fix the cause instead"
        )
    return f"throughput with pacing, from {pairs}: {span}; {says}"


#: Where an action is tried at all.
APPLIES = {
    "gc": "it is for collections that the script has not called, .3 % of the time or 5 % of a step",
    "cores": "it is for ranks that wait for a core 2 % of the time, and that nobody has bound",
}


def describe_actions(summary: Mapping[str, Any]) -> Iterator[str]:
    """Describe pacing and every other action: its result, steps, gain and reason."""
    if found := summary.get("pacing"):
        yield from pacing(found)
    for one in summary.get("acted") or ():
        name = one["action"] + (f", {one['of']}" if one.get("of") else "")
        words = f"{name}: {one.get('note') or one['word']}"
        if one.get("acted_steps"):
            words += f"; active in {plural(one['acted_steps'], 'step')}"
        if one.get("pairs"):
            pairs, sign = plural(one["pairs"], "pair"), -1 if one["gain"] < 0 else 1
            ends = ", no interval yet"
            if is_known(one.get("low")):
                both = sorted((sign * one["low"], sign * one["high"]))
                ends = f" {interval(*both)}".rstrip()
            words += f"; a step is {'longer' if sign < 0 else 'shorter'} by "
            words += f"{percent(abs(one['gain']))}{ends}, from {pairs} of blocks"
        reason = one.get("reason") or (APPLIES.get(name) if one["word"] == "untested" else "")
        yield words + (f"; {reason}" if reason else "")


# -- operation tables ------------------------------------------------------------------------------


def stragglers(found: Mapping[str, Any]) -> Iterator[str]:
    """Describe the cost of stragglers as Lin et al. (OSDI 2025), equations 1, 2, 4, 5, §5.2."""
    slowdown = found.get("blocking_slowdown")
    if not is_known(slowdown):
        return
    text = f"slowdown {_times(slowdown)}: the step over one with every operation at its usual time"
    if is_known(late := found.get("launch_slowdown")):
        text += f"; {_times(late)} from work that was not recorded"
    yield text
    last, slowest = found["ms"]["Ms"], found["mw"]["Mw"]
    yield (
        f"of the slowdown, {percent(last)} disappears with a usual last stage (M_S) and "
        f"{percent(slowest)} with usual slowest workers (M_W)"
    )
    for kind, name in _PARTS:
        parts = found.get(f"blocking_decompose_by_{kind}") or {}
        shown = [f"{printable(str(part))} {_times(by)}" for part, by in list(parts.items())[:SHOWN]]
        if shown:
            yield f"slowdown by {name}: {', '.join(shown)}" + (" …" if len(parts) > SHOWN else "")


def _times(value: float | None) -> str:
    return f"{number(value)} ×"
