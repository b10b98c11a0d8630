"""How a run moves, as sentences: regimes, critical path, blame, checkpoints, asynchrony.

Each reads one entry of a diagnosis's summary and says nothing where that has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evenstep.words import duration, is_known, number, percent, plural

STEADY = 0.95  # share of steps of one regime, from which there is no other worth telling
WORTH = 0.10  # share of steps or of waiting: less is not worth a line
MOVED = 0.5  # of the blame, from one end of the run to the other
BOUND_NAMES = {"compute": "compute", "transfer": "transfer", "wait": "waiting", "input": "input"}


def movement(summary: Mapping[str, Any]) -> Iterator[str]:
    """The sentences that this summary has."""
    for name, say in _SAID.items():
        if found := summary.get(name):
            yield from say(found)


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
    "regimes": regimes,
    "critical_path": critical_path,
    "blame": blame,
    "checkpoints": checkpoints,
    "asynchrony": asynchrony,
    "all_to_all": tokens,
    "ports": ports,
}
