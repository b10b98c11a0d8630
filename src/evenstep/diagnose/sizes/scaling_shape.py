"""What a scaling curve looks like, and at which size each stretch of it begins.

The exponent between two sizes is the slope of log X over log N: 1 is linear, 0 a plateau, and below
0 more ranks do less (post-linear). A cliff is a fall that no smooth law explains; a curve that
goes above and below the law in turn is oscillatory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.sizes.scaling import Curve, Law, fit

Array = npt.NDArray[Any]

LINEAR = 0.9  # exponent at least
PLATEAU = 0.15  # exponent at most
FALLING = -0.05  # exponent at most
BEYOND = 0.04  # relative deviation from the law that is worth a word
NOISES = 3.0  # … and standard errors
TURNS = 3  # changes of side that make an oscillation
FALL = 0.85  # factor from which a step is a cliff
BETTER = 0.5  # what a cliff leaves of the smooth law's deviation, at most
FEWEST_FOR_CLIFF = 4
FEWEST_FOR_TURNS = 5


class Stretch(NamedTuple):
    """A part of the curve of one shape."""

    shape: str  # linear, sublinear, plateau, cliff, oscillatory or post-linear
    begins: int  # ranks
    exponent: float | None  # of its first interval


class Doubling(NamedTuple):
    """The last growth of a curve, in ranks' worth at its beginning."""

    ranks: tuple[int, int]
    gain: float  # relative growth of throughput
    marginal: float  # what an added rank brought, against one of the smallest run
    marginal_cost: float | None  # rank-hours per unit of added work against the smallest; None: ∞


def stretches(curve: Curve) -> list[Stretch]:
    """The shapes in order of size; one of a kind follows another of a different kind."""
    if len(curve.ranks) < 2:
        return []
    exponent = exponents(curve)
    cliff = _cliff(curve)
    if cliff is None and _oscillates(curve):
        return [Stretch("oscillatory", int(curve.ranks[0]), None)]
    found: list[Stretch] = []
    for index, value in enumerate(exponent):
        shape = "cliff" if index + 1 == cliff else _shape(float(value))
        begins = int(curve.ranks[index + 1] if shape == "cliff" else curve.ranks[index])
        if not found or found[-1].shape != shape:
            found.append(Stretch(shape, begins, round(float(value), 4)))
    return found


def exponents(curve: Curve) -> Array:
    """Slope of log throughput over log ranks between neighbouring sizes."""
    return np.asarray(np.diff(np.log(curve.throughput)) / np.diff(np.log(curve.ranks)))


def _shape(exponent: float) -> str:
    if exponent <= FALLING:
        return "post-linear"
    if exponent <= PLATEAU:
        return "plateau"
    return "linear" if exponent >= LINEAR else "sublinear"


def _deviation(curve: Curve, law: Law) -> Array:
    return np.asarray(np.log(curve.throughput / law.throughput(curve.ranks)))


def _oscillates(curve: Curve) -> bool:
    """Whether the curve changes sides of the law from size to size by more than its error."""
    if len(curve.ranks) < FEWEST_FOR_TURNS:
        return False
    off = _deviation(curve, curve.law)
    least = max(BEYOND, NOISES * curve.error)
    clear = off[np.abs(off) > least]
    turns = np.count_nonzero(np.diff(np.sign(clear)) != 0)
    up_and_down = np.count_nonzero(np.diff(np.sign(np.diff(exponents(curve)))) != 0)
    return bool(turns >= TURNS and up_and_down >= TURNS - 1)


def _cliff(curve: Curve) -> int | None:
    """Index of the first size beyond a fall that the smooth law does not explain."""
    if len(curve.ranks) < FEWEST_FOR_CLIFF:
        return None
    smooth = float(np.sqrt((_deviation(curve, curve.law) ** 2).mean()))
    if smooth <= max(BEYOND, NOISES * curve.error) / 2:
        return None
    fits = [_stepped(curve, place) for place in range(1, len(curve.ranks))]
    place = int(np.argmin([error for error, _ in fits]))
    error, factor = fits[place]
    return place + 1 if factor < FALL and error < BETTER * smooth else None


def _stepped(curve: Curve, place: int) -> tuple[float, float]:
    """Error of a law whose throughput is multiplied by a factor from `place` on; that factor."""
    best = (np.inf, 1.0)
    for factor in np.geomspace(0.05, 1.0, 61):
        lifted = curve.throughput.copy()
        lifted[place:] /= factor
        flat = _serial(curve.ranks, lifted)
        error = float(np.sqrt((np.log(lifted / flat.throughput(curve.ranks)) ** 2).mean()))
        best = min(best, (error, float(factor)))
    return best


def _serial(ranks: Array, throughput: Array) -> Law:
    """A law without coherency: σ alone, so that a step does not hide in κ."""
    law = fit(ranks, throughput)
    if law.coherency == 0:
        return law
    n, x = ranks.astype(float), throughput
    table = np.stack([np.ones(len(n)), n - 1], axis=1) * (x / n)[:, None]
    constant, linear = np.linalg.lstsq(table, np.ones(len(n)), rcond=None)[0]
    if constant <= 0 or linear < 0:
        return Law(float((x / n).mean()), 0.0, 0.0)
    return Law(1 / float(constant), float(linear / constant), 0.0)


def last_doubling(curve: Curve) -> Doubling | None:
    """What going from the last size but one (half the largest, if measured) to the largest gave."""
    if len(curve.ranks) < 2:
        return None
    half = np.flatnonzero(curve.ranks <= curve.ranks[-1] / 2)
    start = int(half[-1]) if len(half) else len(curve.ranks) - 2
    n, x = curve.ranks.astype(float), curve.throughput
    each = (x[-1] - x[start]) / (n[-1] - n[start])
    marginal = float(each / (x[0] / n[0]))
    return Doubling(
        (int(n[start]), int(n[-1])),
        float(x[-1] / x[start] - 1),
        marginal,
        1 / marginal if marginal > 1e-6 else None,
    )
