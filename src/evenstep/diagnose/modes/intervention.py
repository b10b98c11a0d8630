"""From an intervention to a finding: what the run's replay gains without a cause.

A mode gives the intervention (a `Change` of the graph, or late cells to relieve), its evidence, and
the numbers of its sentences. The cost, its interval, the cost at other sizes and the gain of each
remedy follow from the replay.

A loss recurs over steps as a pattern of late cells, and at other sizes by closed form. A rank that
is always late costs the same share at any size. Independent delays with probability p per rank and
step hit a step of n ranks with probability 1 − (1 − p)^n. Noise without outliers grows with the
expected maximum of n normal draws (Blom 1958: Φ⁻¹((n − .375)/(n + .25))).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Finding, Projection, When, Where
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.lateness.thresholds import FEWEST_STEPS
from evenstep.diagnose.levels import DOMINANT, LISTED, MOST, SEVERAL
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.sentences import make_finding
from evenstep.statistics.interval import Share, share_of
from evenstep.trace.columns import Array, begins, finishes


class Gain(NamedTuple):
    """What the run gains by an intervention, as a share of the step time."""

    share: Share
    #: To the run without the cause, alone or on top of another change; None: it cannot be replayed.
    change: Change | Callable[[Change], Change] | None = None
    saved_ns: Array | float = 0.0  # of each step; 0 where only the share is known


def gain_of(case: Case, change: Change) -> Gain:
    """What the replay gains by a change alone; beside another cause it may gain more."""
    saved_ns = case.saved(change)
    return Gain(case.share(saved_ns), change, saved_ns)


def finding_of(
    case: Case,
    name: str,
    gain: Change | Gain,
    *,
    options: Sequence[str] | Mapping[str, Share | None],
    at: When | None = None,
    projected: Callable[[Share, int], list[Projection]] | None = None,
    **fields: Any,
) -> list[Finding]:
    """The finding of a cause, as a list.

    `name` and `fields` are those of `make_finding`. Options without a gain of their own give back
    the whole gain. `at` defaults to all steps; `projected` takes the share and the number of ranks.
    """
    if isinstance(gain, Change):
        gain = gain_of(case, gain)
    share, ranks = gain.share, len(case.grid.ranks)
    finding = make_finding(
        name, share, when=at or throughout(case.grid.steps), change=gain.change,
        projected=projected(share, ranks) if projected and ranks > 1 else (),
        options=options if isinstance(options, Mapping) else dict.fromkeys(options, share),
        **fields,
    )  # fmt: skip
    return [finding]


def finding_of_late(
    case: Case,
    name: str,
    cells: Array,
    cause: Cause = Cause.WORK,
    *,
    numbers: Mapping[str, Any],
    nobody: bool = False,
    at: When | None = None,
    ranks: Sequence[int] = (),
    change: Change | None = None,
    **fields: Any,
) -> list[Finding]:
    """The finding of cells (steps × ranks, boolean) that are late for one cause, if there are any.

    `nobody`: no rank is named as a culprit; `at` defaults to the steps of these cells, `ranks` to
    their culprits, `change` to the one without their lateness; `fields` are those of `finding_of`.
    Sentences may use, beside `numbers`, `waiting`, `who`, `lead` (the culprits, or that they take
    turns), `those`, `hosts` and those of `Case.waits`.
    """
    if not cells.any():
        return []
    ranks = list(ranks) or case.culprits(cells, cause)
    gain = change or Gain(case.share(case.loss(cells, cause)), case.relieved(cells, cause))
    recurs = at or when(cells & np.isin(case.grid.ranks, ranks), case.grid)
    where, who = case.where(ranks), case.ranks_in_words(ranks)
    turns = f"the late rank changes ({words.ranks(ranks)} take turns)"
    hits = share_of(cells.any(axis=1).astype(float), np.ones(len(cells)))
    same = recurs.pattern == "chronic" or len(ranks) == 1
    lead = turns if recurs.pattern == "rotating" else who
    common: dict[str, object] = {"who": who, "lead": lead, "waiting": case.waiting_in_words(cells)}
    common |= {"those": ranks, "hosts": words.some(where.nodes) or "its host", **case.waits(cells)}
    return finding_of(
        case, name, gain, numbers=common | dict(numbers), where=Where() if nobody else where,
        # delays of several ranks now and then are independent of each other
        projected=constant if same else partial(by_chance, hits=hits), at=recurs, **fields,
    )  # fmt: skip


# -- over steps ------------------------------------------------------------------------------------


def pattern_of(late: Array) -> str | None:
    """Pattern of late cells (steps, ranks); None without any, or with too few steps.

    chronic: the same ranks in most steps; rotating: most steps, another rank each time; bursty:
    runs of steps (`SEVERAL` on average); transient: single steps.
    """
    per_rank = late.sum(axis=0)
    any_late = np.asarray(late.any(axis=1))
    if not any_late.any() or len(late) < FEWEST_STEPS:
        return None
    share = float(any_late.mean())
    usual = per_rank >= MOST * len(late)
    at_once = late[:, usual].sum(axis=1)
    in_turns = usual.sum() > 1 and (at_once == 1).sum() >= DOMINANT * (at_once > 0).sum()
    if per_rank[usual].sum() >= DOMINANT * per_rank.sum() and not in_turns:
        return "chronic"
    if share >= MOST and per_rank.max() < DOMINANT * per_rank.sum():
        return "rotating"
    runs = np.count_nonzero(np.diff(any_late.astype(int), prepend=0) > 0)
    return "bursty" if any_late.sum() >= SEVERAL * runs else "transient"


def when(late: Array, grid: StepGrid) -> When:
    """The steps with late cells, as ranges, and their pattern.

    A chronic or rotating pattern is one range; of others the `LISTED` ranges that took most time
    are listed, in order.
    """
    pattern, any_late = pattern_of(late), late.any(axis=1)
    concerned = grid.steps[any_late]
    if not len(concerned):
        return When()
    if pattern in ("chronic", "rotating"):
        return When([(int(concerned[0]), int(concerned[-1]))], pattern)
    run = concerned - np.arange(len(concerned))
    first, last = concerned[begins(run)], concerned[finishes(run)]
    took_ns = np.add.reduceat(grid.step_ns[any_late], np.flatnonzero(begins(run)))
    longest = np.sort(np.argsort(-took_ns, kind="stable")[:LISTED])
    return When([(int(first[i]), int(last[i])) for i in longest], pattern)


def throughout(steps: Array, pattern: str = "chronic") -> When:
    """All of these steps."""
    return When([(int(steps[0]), int(steps[-1]))], pattern)


# -- at other sizes --------------------------------------------------------------------------------

FACTORS = (2, 4)


def expected_maximum(ranks: int) -> float:
    """E[max] of `ranks` standard normal draws, in standard deviations (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def _project(share: Share, ranks: int, grown: Callable[[float, int], float]) -> list[Projection]:
    """The share at other sizes; `grown` gives it for a multiple of the ranks."""
    return [
        Projection(ranks * factor, *(min(max(grown(value, factor), 0.0), 1.0) for value in share))
        for factor in FACTORS
    ]


def constant(share: Share, ranks: int) -> list[Projection]:
    """A persistent cause: the same share at any size."""
    return _project(share, ranks, lambda value, _: value)


def by_growth(share: Share, ranks: int, growth: Callable[[int, int], float]) -> list[Projection]:
    """A cause that takes `growth(ranks, factor)` times as long with `factor` times the ranks."""

    def grown(value: float, factor: int) -> float:
        times = growth(ranks, factor)
        return value * times / (1 + value * (times - 1))

    return _project(share, ranks, grown)


def by_noise(share: Share, ranks: int) -> list[Projection]:
    """Noise of all ranks: its time grows like the expected maximum."""
    now = expected_maximum(max(ranks, 2))
    return by_growth(share, ranks, lambda few, factor: expected_maximum(few * factor) / now)


def by_chance(share: Share, ranks: int, hits: Share) -> list[Projection]:
    """Independent delays; `hits` is the probability, with its interval, that a step has one now.
    Each rank keeps its probability."""
    if share.value <= 0 or hits.value <= 0:
        return []
    cost = share.value / (1 - share.value) / hits.value if share.value < 1 else 0.0
    spread = max(share.high - share.value, share.value - share.low) / share.value

    def grown(chance: float, factor: int) -> float:
        lost = cost * (1 - (1 - min(chance, 0.999999)) ** factor)
        return lost / (1 + lost)

    found = []
    for factor in FACTORS:
        middle, low, high = (grown(chance, factor) for chance in hits)
        ends = min(low, middle * (1 - spread)), max(high, middle * (1 + spread))
        found.append(Projection(ranks * factor, middle, max(0.0, ends[0]), min(1.0, ends[1])))
    return found
