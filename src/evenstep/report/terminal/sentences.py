"""A summary in sentences: how a run moves, what pacing and other actions did, what stragglers cost.

Each reads one entry of the summary and says nothing where that has nothing to say.
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
    some_ranks,
)

STEADY = 0.95  # share of steps of one regime, from which there is no other worth telling
WORTH = 0.10  # share of steps or of waiting: less is not worth a line
MOVED = 0.5  # of the blame, from one end of the run to the other
SHOWN = 4  # parts of a kind, the slowest first
_PARTS = (("stage", "stage"), ("dp_rank", "data-parallel rank"), ("optype", "operation"))
BOUND_NAMES = {"compute": "compute", "transfer": "transfer", "wait": "waiting", "input": "input"}


def movement(summary: Mapping[str, Any]) -> Iterator[str]:
    """The sentences that this summary has."""
    for name, say in _SAID.items():
        if found := summary.get(name):
            yield from say(found)


def growth(found: Mapping[str, Any] | None) -> Iterator[str]:
    """That steps grow longer, where it is worth a word."""
    if found and found["last_ns"] >= (1 + WORTH) * found["first_ns"]:
        first, last = duration(found["first_ns"]), duration(found["last_ns"])
        yield f"steps grow longer: {first} in the first quarter of the run, {last} in the last"


def regimes(found: Mapping[str, Any]) -> Iterator[str]:
    """What steps are bound by, where that is not one thing throughout."""
    shares = {name: share for name, share in found["shares"].items() if share >= 1 - STEADY}
    if len(shares) < 2:
        return
    order = sorted(shares, key=lambda name: -shares[name])
    parts = [f"{BOUND_NAMES.get(name, name)} in {percent(shares[name])}" for name in order]
    changes = plural(found["changes"], "change")
    text = f"steps are bound by {', by '.join(parts)} of them, with {changes}"
    if is_known(period := found.get("period_steps")):
        text += f"; it comes back every {number(period)} steps"
    yield text


def critical_path(found: Mapping[str, Any]) -> Iterator[str]:
    """Who bounds the steps, and how that moves."""
    bounds = [row for row in found["bounds"] if row["share"] >= WORTH]
    if not bounds:
        return
    said = [f"rank {row['rank']} in {row['phase']} ({percent(row['share'])}" for row in bounds]
    text = f"the critical path runs through {'), '.join(said)} of steps)"
    if (moves := found.get("moves_share") or 0.0) >= WORTH:
        text += f", and moves to another rank in {percent(moves)} of them"
    yield text


def blame(found: Mapping[str, Any]) -> Iterator[str]:
    """Who is waited for, whether it moves over the run, and what one large delay did."""
    culprits = [row for row in found["culprits"] if row["share"] >= WORTH]
    if culprits:
        said = ", ".join(f"rank {row['rank']} ({percent(row['share'])})" for row in culprits)
        yield f"of {duration(1e9 * found['rank_seconds'])} of waiting, most is for {said}"
    if (drift := found.get("drift") or 0.0) >= MOVED:
        yield f"who is waited for changes: {percent(drift)} of it moves from first to last steps"
    if event := found.get("largest_delay"):
        yield from _largest(event)


def _largest(event: Mapping[str, Any]) -> Iterator[str]:
    decay = event.get("steps_to_decay")
    victims = event["victims_count"]
    lost = duration(1e9 * event["rank_seconds_lost"])
    lose = f"1 rank loses {lost}" if victims == 1 else f"{victims:,} ranks lose {lost} together"
    gone = f", gone after {plural(decay, 'step')}" if decay else ""
    yield (
        f"largest delay: rank {event['rank']} is {duration(event['delay_ns'])} late in step "
        f"{event['step']}; {lose}{gone}"
    )


def checkpoints(found: Mapping[str, Any]) -> Iterator[str]:
    """What checkpoints and restarts do to unsteadiness."""
    words = {"reset": "steadier", "amplified": "less steady", "unchanged": "as it was"}
    parts = [
        f"{text} {plural(found[name], 'time')}" for name, text in words.items() if found.get(name)
    ]
    if parts:
        yield f"after checkpoints and restarts the run is {', '.join(parts)}"


def asynchrony(found: Mapping[str, Any]) -> Iterator[str]:
    """How loosely ranks are coupled."""
    if is_known(rounds := found.get("steps_per_round")):
        uneven = "" if found.get("regular_rounds") else ", not always"
        yield f"ranks synchronize every {number(rounds)} steps{uneven}"
    if stale := found.get("staleness"):
        yield (
            f"updates are {number(stale['mean'])} steps stale on average, "
            f"{number(stale['p95'])} at the 95 % quantile, {number(stale['max'])} at most"
        )


def tokens(found: Mapping[str, Any]) -> Iterator[str]:
    """How much more the fullest rank of an all-to-all receives."""
    fullest = found["fullest"][0]
    yield (
        f"all-to-alls are uneven: the fullest rank receives {number(found['imbalance'])} times the "
        f"mean; most often it is rank {fullest['rank']} ({percent(fullest['share'])} of the calls)"
    )


def ports(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How unevenly ports of network adapters carry what is sent."""
    sent = sorted(
        (each["sent_gBps"], each["node"], each["port"])
        for each in found
        if is_known(each.get("sent_gBps"))
    )
    if len({node for _, node, _ in sent}) < 2:  # of one host, they carry nothing of the job
        return
    (low, node, port), high = sent[0], sent[-1][0]
    yield (
        f"ports of network adapters send {number(low)} to {number(high)} GB/s; least: port {port} "
        f"of {node or 'the node'}"
    )


_SAID: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "growth": growth,
    "regimes": regimes,
    "critical_path": critical_path,
    "blame": blame,
    "checkpoints": checkpoints,
    "asynchrony": asynchrony,
    "all_to_all": tokens,
    "ports": ports,
}


# -- pacing ----------------------------------------------------------------------------------------


def pacing(found: Mapping[str, Any]) -> Iterator[str]:
    """The sentences about one run's pacing, honest about what was not resolved."""
    ranks = found["held_ranks"]
    yield from _part(found)
    if not ranks:
        yield "pacing held nobody: no rank was early often enough, or its guard forbade it"
        yield from _verdicts(found)
        return
    yield (
        f"pacing held {_ranks(ranks)} in {percent(found['held_share'])} of the paced ranks' "
        f"steps, by {duration(found['held_mean_ns'])} on average"
    )
    if is_known(lost := found["lost_at_most"]):
        yield f"its ledger allows for a loss of at most {percent(lost)} of their time"
    if effect := found["effect"]:
        yield _effect(effect)
    yield from _verdicts(found)


def _part(found: Mapping[str, Any]) -> Iterator[str]:
    """Which part of the job was paced, and how it did beside the rest."""
    beside = found.get("beside")
    if not beside:
        return
    chosen = f", as chosen ({found['part']})" if found.get("part") else ""
    yield (
        f"only {_ranks(beside['paced']['ranks'])} may be held{chosen}; "
        f"{_ranks(beside['unpaced']['ranks'])} decided and recorded only"
    )
    yield f"{_kind('paced', beside['paced'])}; {_kind('unpaced', beside['unpaced'])}"


def _kind(name: str, found: Mapping[str, Any]) -> str:
    if not is_known(found["step_mean_ns"]):
        return f"{name} ranks: no step"
    words = f"{name} ranks: steps of {duration(found['step_mean_ns'])}, CV {found['step_cv']:.2g}"
    words += f", held {percent(found['held'])} of the time"
    return words + (f", waiting {percent(found['wait'])}" if is_known(found["wait"]) else "")


def _effect(effect: Mapping[str, Any]) -> str:
    pairs = f"{plural(effect['pairs'], 'pair')} of paced and unpaced blocks of steps"
    if not is_known(effect["low"]):
        return f"{pairs}: too little for an interval; run longer"
    low, high = effect["low"], effect["high"]
    span = f"{100 * effect['gain']:+.1f} % (95 % interval {100 * low:+.1f} to {100 * high:+.1f})"
    if low > 0:
        says = "it gains here: the ranks held back leave something to those that are late"
    elif high < 0:
        says = "it costs here, and the guard switches it off"
    else:
        says = (
            "no effect can be told; a job that shares nothing with others cannot win by waiting, "
            "so mend the cause instead"
        )
    return f"throughput with pacing, from {pairs}: {span}; {says}"


def _verdicts(found: Mapping[str, Any]) -> Iterator[str]:
    total = len(found["ranks"])
    parts = [
        word if count == total else f"{word} ({plural(count, 'rank')})"
        for word, count in found["verdicts"].items()
    ]
    yield f"its guards' verdict: {', '.join(parts)}"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {some_ranks(ranks)}"


def acted(summary: Mapping[str, Any]) -> Iterator[str]:
    """What pacing did, and every other action: its word, and what its trial has compared."""
    if found := summary.get("pacing"):
        yield from pacing(found)
    for one in summary.get("acted") or ():
        name = one["action"] + (f", {one['of']}" if one.get("of") else "")
        words = f"{name}: {one.get('note') or one['word']}"
        if one.get("acted_steps"):
            words += f"; acted in {plural(one['acted_steps'], 'step')}"
        if one.get("pairs"):
            pairs, sign = plural(one["pairs"], "pair"), -1 if one["gain"] < 0 else 1
            ends = ", no interval yet"
            if is_known(one.get("low")):
                ends = f" {interval(*sorted((sign * one['low'], sign * one['high'])))}"
            words += f"; a step is {'longer' if sign < 0 else 'shorter'} by "
            words += f"{percent(abs(one['gain']))}{ends}, by {pairs} of blocks"
        yield words + (f"; {one['reason']}" if one.get("reason") else "")


# -- a table of all operations ---------------------------------------------------------------------


def stragglers(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines for the report: Lin et al. (OSDI 2025), equations 1, 2, 4 and 5, and section 5.2."""
    slowdown = found.get("blocking_slowdown")
    if not is_known(slowdown):
        return
    text = f"slowdown {_times(slowdown)}: the step as it was over one with every operation as usual"
    if is_known(late := found.get("launch_slowdown")):
        text += f"; {_times(late)} by work that was not recorded"
    yield text
    last, slowest = found["ms"]["Ms"], found["mw"]["Mw"]
    yield (
        f"of the slowdown, {percent(last)} goes with the last stage as usual (M_S) and "
        f"{percent(slowest)} with the slowest workers as usual (M_W)"
    )
    for kind, name in _PARTS:
        parts = found.get(f"blocking_decompose_by_{kind}") or {}
        shown = [f"{printable(str(part))} {_times(by)}" for part, by in list(parts.items())[:SHOWN]]
        if shown:
            yield f"slowdown by {name}: {', '.join(shown)}" + (" …" if len(parts) > SHOWN else "")


def _times(value: float | None) -> str:
    return f"{number(value)} ×"
