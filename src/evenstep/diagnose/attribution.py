"""What each finding is worth beside the others: their changes replayed alone and together.

The share of a finding is its Shapley value: what its change saves on average over all orders in
which the changes could be made. All together they save what all changes at once save, and no order
of asking has any meaning. Of very many findings the smallest are made last, in order of size. What
only says of the rest of the work that it should be otherwise comes after all that is definite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.diagnose.finding import TERMINAL, Effect, Finding, Option
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Case

Array = npt.NDArray[Any]

MOST = 4  # findings of which all orders are replayed


def worth_telling(case: Case, finding: Finding) -> bool:
    """Whether its part of all lateness, or what the job is spared without it, is large enough: of
    many that are late at once each has a part, and one alone may cost more than in proportion."""
    if finding.severity >= SMALLEST_SHARE or finding.mode in TERMINAL:
        return True
    change = finding.change
    return isinstance(change, Change) and case.share(case.saved(change)).value >= SMALLEST_SHARE


def attributed(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, the costliest first, each with its own part of what all of them cost."""
    ranked = sorted(findings, key=lambda finding: -finding.severity)
    changing = [one for one in ranked if isinstance(one.change, Change)]
    last = [one for one in findings if callable(one.change)]
    if case.costs is None or not (changing or last):
        return ranked
    changes = [one.change for one in changing]
    parts = dict(zip(map(id, changing), _values(case, changes), strict=True))
    parts |= dict(zip(map(id, last), _left(case, changes, last), strict=True))
    told = [_scaled(case, one, parts[id(one)]) if id(one) in parts else one for one in ranked]
    worth = [one for one in told if one.change is None or one.severity >= SMALLEST_SHARE]
    return sorted(worth, key=lambda finding: -finding.severity)


def _left(case: Case, changes: Sequence[Change], last: Sequence[Finding]) -> list[Array]:
    """What those save that change whatever is left once everything else has been changed."""
    assert case.costs is not None
    steps = [case.costs.together(changes)]
    for finding in last:
        steps.append(finding.change(steps[-1]))
    return list(np.diff(np.stack(case.all_saved(steps)), axis=0))


def _values(case: Case, changes: Sequence[Change]) -> list[Array]:
    """What each change saves of each step, in its turn."""
    assert case.costs is not None
    few = range(min(len(changes), MOST))
    sets = [chosen for size in range(len(few) + 1) for chosen in combinations(few, size)]
    sets += [tuple(range(last + 1)) for last in range(len(few), len(changes))]
    asked = [case.costs.together([changes[i] for i in chosen]) for chosen in sets]
    saved = dict(zip(sets, case.all_saved(asked), strict=True))
    rest = range(len(few), len(changes))
    return [
        *(_shapley(saved, number, len(few)) for number in few),
        *(saved[tuple(range(last + 1))] - saved[tuple(range(last))] for last in rest),
    ]


def _shapley(saved: dict[tuple[int, ...], Array], number: int, count: int) -> Array:
    """Shapley (1953): the mean of what one adds to those before it, over all orders."""
    total: Array = np.zeros_like(saved[()])
    for chosen, value in saved.items():
        if number in chosen and max(chosen) < count:
            others = tuple(one for one in chosen if one != number)
            orders = factorial(len(others)) * factorial(count - len(chosen)) / factorial(count)
            total = total + orders * (value - saved[others])
    return total


def _scaled(case: Case, finding: Finding, saved_ns: Array) -> Finding:
    """The finding with its part, and its options with as much of theirs."""
    share = case.share(saved_ns)
    scale = share.value / finding.severity if finding.severity > 0 else 0.0
    if abs(scale - 1) < 0.01:
        return finding
    return replace(
        finding,
        severity=round(share.value, 4),
        effect=Effect(round(share.value, 4), finding.effect.projected),
        options=[_option(option, scale) for option in finding.options],
    )


def _option(option: Option, scale: float) -> Option:
    gain, low, high = (
        None if value is None else round(min(max(value * scale, 0.0), 1.0), 4)
        for value in (option.gain, option.low, option.high)
    )
    return replace(option, gain=gain, low=low, high=high)
