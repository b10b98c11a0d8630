"""`fabric_contention`: from time to time data moves slower for everybody in a group at once.

Counted from the last entry on, so that no rank's lateness is in it, and against what the same
operations take when they are quiet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, When, Where
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Array, Case
from evenstep.diagnose.measure import places
from evenstep.diagnose.measure.expected import places_of
from evenstep.diagnose.measure.patterns import when
from evenstep.diagnose.measure.samples import congestion
from evenstep.diagnose.measure.transfer import Transfers, floors
from evenstep.diagnose.sentences import found
from evenstep.statistics.interval import Share
from evenstep.statistics.spectrum import Peak, uneven

SIGMAS = 5.0
CLUSTERED = 4.0  # standard deviations of the correlation of neighbours, if it were chance
APART = 3.0  # Ashman's D between quiet and slow: two states, not one with a tail
PERIODIC = 0.5  # of the variance at least is in a period that is believed
MOSTLY = 0.5  # of the worst group's share of slow time: a group is concerned


class Slow(NamedTuple):
    """Which transfers are above their quiet level, and by how much. One entry per row."""

    judged: Array  # enough of its kind to know what is quiet
    mask: Array
    excess_ns: Array
    ratio: Array  # logarithm of the time over the quiet level


def slowed(measured: Transfers, named: Array | None = None) -> Slow:
    """Transfers well outside the noise of their kind, but for those with a name already."""
    rows, noise = measured.rows, measured.of_kind("noise_ns")
    quiet = np.maximum(measured.of_kind("quiet_ns"), floors(rows.step, rows.kind, rows.transfer_ns))
    judged = np.isfinite(noise) & (quiet > 0)
    if named is not None:
        judged &= ~named
    excess = np.where(judged, rows.transfer_ns - quiet, 0.0)
    mask = excess > SIGMAS * np.nan_to_num(noise)
    ratio = np.log(np.maximum(rows.transfer_ns, 1) / np.maximum(quiet, 1))
    return Slow(judged, mask, np.where(mask, excess, 0.0), ratio)


def find(case: Case) -> list[Finding]:
    """Episodes in which what is left of the exposed transfer is above its quiet level."""
    if not case.transfers_known or len(case.trace.nodes) == 1:  # one host has no fabric
        return []
    slow = slowed(case.transfers, case.claims.moves)
    lost = case.gained(slow.excess_ns)
    share = case.share(lost)
    if share.value < SMALLEST_SHARE or not (clustered(case.transfers, slow) or two_states(slow)):
        return []
    case.claims.slow_ns += lost
    return [_finding(case, slow, share, _period(case.transfers, slow))]


# -- whether it is more than noise -----------------------------------------------------------------


def clustered(measured: Transfers, slow: Slow) -> bool:
    """Whether slow transfers follow slow ones: their correlation, in its deviations by chance."""
    order = np.argsort(measured.rows.begin_ns[slow.judged], kind="stable")
    excess = np.where(slow.mask, slow.ratio, 0.0)[slow.judged][order]
    excess -= excess.mean()
    power = float((excess**2).sum())
    least = CLUSTERED / float(np.sqrt(len(excess))) * power
    return float((excess[1:] * excess[:-1]).sum()) > least


def two_states(slow: Slow) -> bool:
    """Whether the slow ones are a population of their own: Ashman's D (1994)."""
    above, below = slow.ratio[slow.mask], slow.ratio[slow.judged & ~slow.mask]
    spread = np.sqrt((above.var() + below.var()) / 2) if len(below) else np.inf
    return bool(above.mean() - below.mean() > APART * max(float(spread), 1e-9))


def _period(measured: Transfers, slow: Slow) -> Peak | None:
    """A period in seconds of the relative excess, as a neighbour with steps of its own has."""
    middle = (measured.rows.begin_ns + measured.rows.end_ns)[slow.judged] / 2
    peak = uneven((middle - middle.min()) / 1e9, slow.mask[slow.judged].astype(float))
    return peak if peak is not None and peak.explained >= PERIODIC else None


# -- the finding -----------------------------------------------------------------------------------


def _concerned(measured: Transfers, slow: Slow) -> tuple[list[int], list[int]]:
    """Groups that are slow as often as the worst, by their share of the excess; and the others."""
    rows = measured.rows
    size = int(rows.group.max()) + 1
    moving = np.bincount(rows.group[slow.judged], rows.transfer_ns[slow.judged], minlength=size)
    excess = np.bincount(rows.group, slow.excess_ns, minlength=size)
    share = excess / np.maximum(moving, 1)
    judged = np.flatnonzero(moving > 0)
    hit = judged[share[judged] >= MOSTLY * share.max()]
    hit = hit[np.argsort(-excess[hit], kind="stable")]
    return [int(g) for g in hit], [int(g) for g in judged if g not in hit]


def _where(case: Case, slow: Slow) -> Where:
    """Groups and links, where not all are concerned alike."""
    hit, calm = _concerned(case.transfers, slow)
    names = [case.trace.groups[group].name for group in hit] if calm else []
    suspects = _links(case, hit) - _links(case, calm)
    nodes = {node for group in hit for node in places_of(case.trace, group)}
    told = suspects if calm or len(nodes) == 2 else set()
    return Where(groups=list(dict.fromkeys(names)), links=[f"{a}-{b}" for a, b in sorted(told)])


def _links(case: Case, groups: list[int]) -> set[tuple[str, str]]:
    return {link for group in groups for link in places.links(places_of(case.trace, group))}


def _finding(case: Case, slow: Slow, share: Share, period: Peak | None) -> Finding:
    rows = case.transfers.rows
    quiet = case.transfers.of_kind("quiet_ns")
    busy = rows.transfer_ns[slow.mask].sum() / rows.transfer_ns[slow.judged].sum()
    factor = float(np.median(rows.transfer_ns[slow.mask] / quiet[slow.mask]))
    late = case.steps_of(slow.mask)
    recurrence, where = when(late[:, None], case.grid.steps), _where(case, slow)
    return found(
        "fabric_contention",
        share,
        numbers={
            "factor": factor,
            "steps": float(late.mean()),
            "at": f" on the link {where.links[0]}" if len(where.links) == 1 else "",
            "again": f", every {words.duration(period.period * 1e9)}" if period else "",
            "neighbour": "another job with steps of its own" if period else "other traffic",
        },
        where=where,
        when=When(recurrence.steps, "oscillating") if period else recurrence,
        options={"apart": share} | ({"token": None} if period else {}),
        evidence=[
            Evidence("transfer_slowdown", round(factor, 3), 1.0, "factor"),
            Evidence("transfer_time_contended", round(float(busy), 4), 0.0, "share"),
            Evidence("steps_contended", round(float(late.mean()), 4), 0.0, "share"),
            *_period_evidence(period),
            *_counter_evidence(case, late),
        ],
        change=case.transferred(slow.excess_ns),
    )


def _period_evidence(period: Peak | None) -> list[Evidence]:
    if period is None:
        return []
    return [
        Evidence("contention_period", round(period.period, 4), None, "s"),
        Evidence("contention_period_explains", round(period.explained, 3), 0.0, "share"),
    ]


def _counter_evidence(case: Case, late: Array) -> list[Evidence]:
    """Congestion counters that grow faster in the slow steps than in the others."""
    seconds = case.grid.step_ns / 1e9
    items = []
    for metric, grown in congestion(case.trace, case.grid).items():
        rate, calm = (
            float(grown[part].sum() / max(seconds[part].sum(), 1e-9)) for part in (late, ~late)
        )
        if rate > 2 * calm:
            items.append(Evidence(f"{metric}_per_second", round(rate, 3), round(calm, 3), "1/s"))
    return items
