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
from evenstep.diagnose.measure.transfer import Transfers
from evenstep.diagnose.sentences import found
from evenstep.statistics.interval import Share
from evenstep.statistics.spectrum import Peak, uneven

SLOWER = 0.10  # above the quiet level; what is less may be anything
SIGMAS = 5.0
FEWEST = 6  # slow collectives, below which nothing is said
FEWEST_STEPS = 3  # they lie in
CLUSTERED = 4.0  # standard deviations of the number of slow neighbours, if they were independent
APART = 3.0  # Ashman's D (1994) between quiet and slow: two states, not one with a tail
PERIODIC = 0.5  # of the variance at least is in a period that is believed
PLACED = 0.8  # of the variance of what is slow is explained by the place in the step
MOSTLY = 0.5  # of the worst group's share of slow time: a group is concerned


class Slow(NamedTuple):
    """Which transfers are above their quiet level, and by how much. One entry per row."""

    judged: Array  # enough of its kind to know what is quiet
    mask: Array
    excess_ns: Array


def slowed(measured: Transfers, named: Array | None = None) -> Slow:
    """Transfers well outside the noise of their kind, but for those with a name already."""
    quiet, noise = measured.of_kind("quiet_ns"), measured.of_kind("noise_ns")
    judged = np.isfinite(noise) & (quiet > 0)
    if named is not None:
        judged &= ~named
    limit = quiet + np.maximum(SLOWER * quiet, SIGMAS * np.nan_to_num(noise))
    mask = judged & (measured.rows.transfer_ns > limit)
    return Slow(judged, mask, np.where(mask, measured.rows.transfer_ns - quiet, 0.0))


def find(case: Case) -> list[Finding]:
    """Episodes in which what is left of the exposed transfer is above its quiet level."""
    if not case.transfers_known or len(case.trace.nodes) == 1:  # one host has no fabric
        return []
    measured = case.transfers
    slow = slowed(measured, case.claims.moves)
    steps_hit = np.unique(measured.rows.step[slow.mask])
    if np.count_nonzero(slow.mask) < FEWEST or len(steps_hit) < FEWEST_STEPS:
        return []
    lost = case.gained(slow.excess_ns)
    share = case.share(lost)
    if share.value < SMALLEST_SHARE:
        return []
    period = _period(measured, slow)
    sure = period or _clustered(measured, slow) or _two_states(measured, slow)
    if not sure or _by_place(measured, slow):
        return []
    case.claims.slow_ns += lost
    return [_finding(case, slow, share, period)]


# -- whether it is more than noise -----------------------------------------------------------------


def _clustered(measured: Transfers, slow: Slow) -> bool:
    """Whether slow transfers follow one another more often than independent ones would."""
    order = np.argsort(measured.rows.begin_ns[slow.judged], kind="stable")
    flags = slow.mask[slow.judged][order]
    chance = float(flags.mean()) ** 2
    pairs = np.count_nonzero(flags[1:] & flags[:-1])
    expected, spread = chance * (len(flags) - 1), np.sqrt(chance * max(len(flags) - 1, 1))
    return bool(pairs - expected > CLUSTERED * max(spread, 1.0))


def _two_states(measured: Transfers, slow: Slow) -> bool:
    """Whether the slow ones are a population of their own."""
    quiet_ns = measured.of_kind("quiet_ns")
    ratio = np.log(np.maximum(measured.rows.transfer_ns, 1) / np.maximum(quiet_ns, 1))
    above, below = ratio[slow.mask], ratio[slow.judged & ~slow.mask]
    if len(below) < FEWEST:
        return False
    spread = np.sqrt((above.var() + below.var()) / 2)
    return bool(above.mean() - below.mean() > APART * max(float(spread), 1e-9))


def _by_place(measured: Transfers, slow: Slow) -> bool:
    """Whether it is the same collectives of every step that are slow: then it is the program's."""
    rows = measured.rows
    order = np.lexsort([rows.begin_ns, rows.step, rows.group])
    changed = (np.diff(rows.step[order], prepend=-1) != 0) | (
        np.diff(rows.group[order], prepend=-1) != 0
    )
    first = np.flatnonzero(changed)
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows))))
    key = np.unique(np.stack([rows.kind, place]), axis=1, return_inverse=True)[1].reshape(-1)
    key, flags = key[slow.judged], slow.mask[slow.judged]
    usual = np.bincount(key, flags) / np.maximum(np.bincount(key), 1)
    whole = float(flags.var())
    return whole > 0 and float(((flags - usual[key]) ** 2).mean()) < (1 - PLACED) * whole


def _period(measured: Transfers, slow: Slow) -> Peak | None:
    """A period in seconds of the relative excess, as a neighbour with steps of its own has."""
    rows = measured.rows
    quiet = measured.of_kind("quiet_ns")[slow.judged]
    middle = (rows.begin_ns + rows.end_ns)[slow.judged] / 2
    ratio = np.minimum(rows.transfer_ns[slow.judged] / quiet, 1 + 10 * SLOWER)
    peak = uneven((middle - middle.min()) / 1e9, ratio) if len(ratio) else None
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
