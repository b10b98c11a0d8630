"""`scaling_collapse`: throughput per rank falls as ranks are added; asked of several runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Option, Projection, When, Where
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Case, found
from evenstep.diagnose.modes.mode import Mode
from evenstep.diagnose.sizes.scaling import HALF, Curve, Law, fit
from evenstep.diagnose.sizes.scaling_shape import Doubling, last_doubling, stretches
from evenstep.statistics.interval import Share

Array = npt.NDArray[Any]

FACTORS = (2, 4)


def find(case: Case) -> list[Finding]:
    """Nothing: one run has one size. `several.diagnose_together` asks `collapse` of all runs."""
    del case
    return []


def collapse(curve: Curve, unit: str, largest: Finding | None = None) -> list[Finding]:
    """The finding of a scaling curve; `largest`: what costs most in the largest run by itself."""
    share = lost(curve)
    if len(curve.ranks) < 2 or share.value < SMALLEST_SHARE:
        return []
    law, doubling = curve.law, last_doubling(curve)
    return [
        found(
            "scaling_collapse",
            "coupling",
            share,
            observation=_observation(curve, unit),
            cause=_cause(curve, law, largest),
            where=Where(),
            when=When(),
            projected=_projected(curve, law),
            options=_options(curve, law, share, largest),
            evidence=_evidence(curve, doubling),
        )
    ]


def lost(curve: Curve) -> Share:
    """Share of the largest run's time that the smallest one's efficiency would save."""

    def efficiency(throughput: Array) -> float:
        each = throughput / curve.ranks
        return float(each[-1] / each[0])

    value = 1 - efficiency(curve.throughput)
    if not len(curve.draws):
        return Share(max(value, 0.0), max(value, 0.0), max(value, 0.0))
    low, high = np.quantile([1 - efficiency(draw) for draw in curve.draws], [0.025, 0.975])
    return Share(max(value, 0.0), max(float(min(low, value)), 0.0), max(float(high), value, 0.0))


def recommended(curve: Curve) -> int | None:
    """The most ranks worth using, where that is fewer than were used; None else.

    At the peak more ranks do less; past the knee one adds less than half of what the first did.
    """
    law = curve.law
    bounds = [bound for bound in (law.peak, law.knee) if bound is not None]
    if not bounds or min(bounds) >= curve.ranks[-1]:
        return None
    return max(int(min(bounds)), 1)


def _observation(curve: Curve, unit: str) -> str:
    n, x = curve.ranks, curve.throughput
    each = (x[-1] / n[-1]) / (x[0] / n[0])
    shapes = ", then ".join(f"{one.shape} from {one.begins:,} ranks" for one in stretches(curve))
    return (
        f"{n[-1]:,} ranks reach {x[-1]:.4g} {unit}, {n[0]:,} reach {x[0]:.4g}: each rank does "
        f"{words.percent(float(each))} of what it did; {shapes}"
    )


def _cause(curve: Curve, law: Law, largest: Finding | None) -> str:
    n = float(curve.ranks[-1])
    serial, coupled = law.contention * (n - 1), law.coherency * n * (n - 1)
    if stretches(curve)[0].shape == "oscillatory":
        what = "throughput goes up and down with the size: which sizes fit the fabric or the nodes"
    elif any(one.shape == "cliff" for one in stretches(curve)):
        what = "a fall at one size that no smooth law explains: a boundary is crossed there"
    elif coupled > serial:
        what = "every rank waits for every other: a coupling that grows with the square of ranks"
    else:
        what = "a part that does not get faster with ranks: serialised work or a shared resource"
    more = (
        f"; in the largest run by itself {largest.mode.replace('_', ' ')} costs "
        f"{words.percent(largest.severity)}"
        if largest
        else ""
    )
    return what + more


def _projected(curve: Curve, law: Law) -> list[Projection]:
    start = curve.throughput[0] / curve.ranks[0]
    laws = [fit(curve.ranks, draw) for draw in curve.draws] or [law]
    points = []
    for factor in FACTORS:
        n = int(curve.ranks[-1]) * factor
        each = [1 - float(one.throughput(np.array([n]))[0]) / n / start for one in laws]
        value = 1 - float(law.throughput(np.array([n]))[0]) / n / start
        low, high = np.quantile(each, [0.025, 0.975])
        ends = (min(float(low), value), value, max(float(high), value))
        low_, value_, high_ = (round(min(max(end, 0.0), 1.0), 4) for end in ends)
        points.append(Projection(n, value_, low_, high_))
    return points


def _options(curve: Curve, law: Law, share: Share, largest: Finding | None) -> list[Option]:
    options = []
    fewer = recommended(curve)
    if fewer is not None:
        each = float(law.throughput(np.array([fewer]))[0]) / fewer
        now = float(curve.throughput[-1] / curve.ranks[-1])
        saved = max(0.0, 1 - now / each)
        speed = float(law.throughput(np.array([fewer]))[0] / curve.throughput[-1])
        options.append(
            Option(
                f"use about {fewer:,} ranks instead of {int(curve.ranks[-1]):,}",
                round(saved, 4),
                None,
                None,
                f"{speed:.0%} of the throughput for {fewer / curve.ranks[-1]:.0%} of the cost",
                "universal scalability law fitted to the measured sizes; gain in rank-hours",
            )
        )
    if largest is not None and largest.options:
        first = largest.options[0]
        options.append(
            Option(first.action, first.gain, first.low, first.high, first.cost, first.method)
        )
    else:
        options.append(
            Option(
                "take the loss of the largest run apart: evenstep diagnose on it alone",
                *share.rounded(),
                "none",
                "at most what separates its efficiency from the smallest run's",
            )
        )
    return options


def _evidence(curve: Curve, doubling: Doubling | None) -> list[Evidence]:
    n, x = curve.ranks, curve.throughput
    items = [
        Evidence("scaling_efficiency", _short((x[-1] / n[-1]) / (x[0] / n[0])), 1.0, "share"),
        Evidence("contention_sigma", _short(curve.law.contention), 0.0, "1"),
        Evidence("coherency_kappa", _short(curve.law.coherency), 0.0, "1"),
        Evidence("peak", _short(curve.law.peak), None, "ranks"),
        Evidence("knee", _short(curve.law.knee), None, "ranks"),
    ]
    if doubling is not None:
        items.append(Evidence("gain_of_the_last_doubling", _short(doubling.gain), 1.0, "share"))
        items.append(Evidence("worth_of_a_rank_added", _short(doubling.marginal), 1.0, "ranks"))
        items.append(Evidence("cost_of_added_work", _short(doubling.marginal_cost), 1.0, "factor"))
    return items


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


MODE = Mode(
    name="scaling_collapse",
    layer="coupling",
    symptom="Every rank added brings less than the one before, in the end nothing or worse.",
    look_at=(
        "throughput per rank at each size, and the shape of the curve",
        "σ and κ of the universal scalability law, its knee and its peak",
        "which share grows from the smallest run to the largest: wait or exposed communication",
    ),
    remedy=(
        "mend what costs most in the largest run by itself",
        f"stay below the knee, where a rank added brings at least {HALF:.0%} of the first",
        "make the coupling rarer: larger batches, accumulation, local SGD",
    ),
    confirm="run one size between the two largest: the law predicts its throughput.",
    find=find,
)
