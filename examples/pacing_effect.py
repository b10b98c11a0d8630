"""What pacing did to throughput: paced blocks of steps against unpaced ones of the same run.

With `--pace on` a run paces every other block of 8 steps, in an order drawn for each pair of
blocks (`evenstep.pacing.blocks`), until its guard has seen enough. What drifts during a run
therefore touches both sides alike, and no second run is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import expm1, log
from typing import NamedTuple

import numpy as np

from evenstep.pacing.blocks import BLOCK_STEPS, block_is_paced
from evenstep.pacing.comparison import FEWEST_PAIRS, PairedComparison
from evenstep.trace.layout import Kind
from evenstep.trace.ranks import format_ranks
from evenstep.trace.trace import Trace


class PacingEffect(NamedTuple):
    """Change of throughput by pacing, a share, with its 95 % interval, and what was held for it."""

    pairs: int  # of blocks in which the paced one was really held and the other was not
    gain: float
    low: float
    high: float
    held_ns: float  # per paced step, mean over the held ranks
    held_ranks: tuple[int, ...]


def pacing_effect(trace: Trace) -> PacingEffect:
    """Compare the run's paced blocks with their unpaced partners.

    The interval is the guard's own: valid at any number of pairs, infinite below five.
    """
    steps = trace.of_kind(Kind.STEP)
    block = steps.step // BLOCK_STEPS
    time_ns = np.bincount(block, steps.exit_ns - steps.enter_ns)
    held_ns = np.bincount(block, steps.held_ns)
    whole = np.bincount(block) == BLOCK_STEPS * trace.world
    comparison, counted = PairedComparison(), []
    for paced, unpaced in block_pairs(trace, len(whole)):
        if whole[paced] and whole[unpaced] and held_ns[paced] and not held_ns[unpaced]:
            comparison.add(log(time_ns[unpaced] / time_ns[paced]))
            counted.append(paced)
    held = steps.select(np.isin(block, counted) & (steps.held_ns > 0))
    ranks = tuple(int(rank) for rank in np.unique(held.rank))
    spent = held.held_ns.sum() / max(1, len(counted) * BLOCK_STEPS * len(ranks))
    gain, low, high = map(expm1, (comparison.mean, comparison.low, comparison.high))
    return PacingEffect(comparison.count, gain, low, high, float(spent), ranks)


def block_pairs(trace: Trace, blocks: int) -> Iterator[tuple[int, int]]:
    """(paced, unpaced) of each pair of neighbouring blocks, as the run's guards drew them."""
    run_id = str(trace.ranks[min(trace.ranks)].identity["run_id"])
    for first in range(0, blocks - 1, 2):
        paced = first if block_is_paced(run_id, trace.attempt, first) else first + 1
        yield paced, 2 * first + 1 - paced


def describe(effect: PacingEffect) -> str:
    """The effect in words, honest about what was not resolved."""
    if not effect.pairs:
        return "Pacing held nobody: no rank was early often enough, so there is no effect to show."
    ranks = f"rank{'s' if len(effect.held_ranks) > 1 else ''} {format_ranks(effect.held_ranks)}"
    lines = [
        f"{effect.pairs} pairs of paced and unpaced blocks, {BLOCK_STEPS} steps each; paced, "
        f"{ranks} began {effect.held_ns * 1e-6:.1f} ms late.",
    ]
    if effect.pairs < FEWEST_PAIRS:
        lines += [f"That is too little for an interval, which takes {FEWEST_PAIRS}: run longer."]
        return "\n".join(lines)
    lines += [
        f"Throughput with pacing: {effect.gain:+.1%} "
        f"(95 % interval {effect.low:+.1%} to {effect.high:+.1%})."
    ]
    return "\n".join([*lines, conclusion(effect)])


def conclusion(effect: PacingEffect) -> str:
    """What the interval allows to say."""
    if effect.low > 0:
        return "It gains here: the ranks held back leave something to those that are late."
    if effect.high < 0:
        return "It costs here, and its guard switches it off."
    return (
        "So no effect can be told, and no gain was to be expected: a job that shares nothing with\n"
        "others cannot win by waiting. Mend the cause instead; the verdict above names it."
    )
