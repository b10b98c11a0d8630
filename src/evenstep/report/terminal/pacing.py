"""What pacing did, as sentences: who was held and for how long, what it cost and what it gained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evenstep.words import duration, is_known, percent, plural, some_ranks


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
