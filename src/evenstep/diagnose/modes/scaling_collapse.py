"""`scaling_collapse`: throughput per rank falls as ranks are added; asked of several runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import Evidence, Finding, Projection, When, Where
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Case
from evenstep.diagnose.sentences import found, say
from evenstep.diagnose.sizes.scaling import Curve, Law, fit
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
    law, n, x = curve.law, curve.ranks, curve.throughput
    numbers: dict[str, Any] = {
        "most": n[-1], "last": x[-1], "fewest": n[0], "first": x[0], "unit": unit,
        "each": float((x[-1] / n[-1]) / (x[0] / n[0])),
        "shapes": ", then ".join(f"{s.shape} from {s.begins:,} ranks" for s in stretches(curve)),
        "why": _why(curve, law),
        "largest": say(
            "scaling_collapse.largest",
            mode=largest.mode.replace("_", " "), share=largest.severity,
        ) if largest else "",
    }  # fmt: skip
    options: dict[str, Share | None] = {}
    if (fewer := recommended(curve)) is not None:
        there = float(law.throughput(np.array([fewer]))[0])
        saved = max(0.0, 1 - float(x[-1] / n[-1]) / (there / fewer))
        options["fewer"] = Share(saved, np.nan, np.nan)
        numbers |= {"fewer": fewer, "speed": there / x[-1], "cost": fewer / n[-1]}
    theirs = list(largest.options[:1]) if largest else []
    finding = found(
        "scaling_collapse",
        share,
        numbers=numbers,
        where=Where(),
        when=When(),
        projected=_projected(curve, law),
        options=options if theirs else options | {"alone": share},
        evidence=_evidence(curve, last_doubling(curve)),
    )
    return [replace(finding, options=[*finding.options, *theirs])]


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


def _why(curve: Curve, law: Law) -> str:
    n = float(curve.ranks[-1])
    serial, coupled = law.contention * (n - 1), law.coherency * n * (n - 1)
    shapes = [one.shape for one in stretches(curve)]
    what = "coupled" if coupled > serial else "serial"
    if shapes[0] == "oscillatory" or "cliff" in shapes:
        what = "oscillatory" if shapes[0] == "oscillatory" else "cliff"
    return say(f"scaling_collapse.{what}")


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
