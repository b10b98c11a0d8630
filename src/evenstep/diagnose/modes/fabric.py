"""Slow transfers of a fabric that is shared: `incast` and `fabric_contention`.

Incast: many ranks send to one at once, and its link collapses instead of being merely busy. Bytes
alone make a transfer grow in line with its size. Where queues overflow, lost packets are sent
again, often after a timeout: the time jumps. Ranks that arrive apart avoid it.

Contention: transfers are slow from time to time, or those on one link slower than on others. They
count from the last entry, without any rank's lateness, against the quiet level of their operation
and size, or those of their size on links of their kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose import levels
from evenstep.diagnose.finding import Finding, When, Where
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.levels import SEVERAL
from evenstep.diagnose.measure.hosts import congestion
from evenstep.diagnose.measure.links import (
    INSIDE,
    PATH,
    SlowLink,
    Traffic,
    crossed,
    crossed_by,
    slow_links,
    where_of,
)
from evenstep.diagnose.measure.transfers import (
    LONGEST_HOP_NS,
    Shape,
    TransferLine,
    Transfers,
    message_kinds,
    quiet_level,
)
from evenstep.diagnose.modes.bound import of_slow_shapes
from evenstep.diagnose.modes.intervention import Gain, finding_of, gain_of, when
from evenstep.diagnose.sentences import say
from evenstep.statistics.spectrum import Peak, uneven
from evenstep.trace.columns import Array, key_numbers
from evenstep.trace.spool.layout import Op

COLLAPSED = 2.0  # times what its bytes take: a busy link alone does not take as long
MANY_TO_ONE = (int(Op.GATHER), int(Op.REDUCE), int(Op.ALL_TO_ALL))


# -- contention ------------------------------------------------------------------------------------


class _SlowTransfers(NamedTuple):
    """Transfers above their quiet level. One entry per transfer of the run."""

    judged: Array  # whether there are enough of its kind to know the quiet level
    mask: Array
    excess_ns: Array
    ratio: Array  # logarithm of the time over the quiet level


def _slow_transfers(measured: Transfers, named: Array) -> _SlowTransfers:
    """Transfers well outside the noise of their kind, except those named by another mode."""
    rows, (quiet, noise) = measured.rows, quiet_level(measured)
    judged = np.isfinite(noise) & (quiet > 0) & ~named
    excess = np.where(judged, rows.transfer_ns - quiet, 0.0)
    mask = excess > levels.SIGMAS * np.nan_to_num(noise)
    ratio = np.log(np.maximum(rows.transfer_ns, 1) / np.maximum(quiet, 1))
    return _SlowTransfers(judged, mask, np.where(mask, excess, 0.0), ratio)


def fabric_contention(case: Case) -> list[Finding]:
    """Slow links, and episodes of slow transfers."""
    if not case.waits_known:
        return []
    return [*_slow_links(case), *(_episodes(case) if case.transfers_known else [])]


def _episodes(case: Case) -> list[Finding]:
    """Transfers above their quiet level that are a population of their own, or else the tail of the
    calm ones, where it surely costs enough to be named."""
    slow = _slow_transfers(case.transfers, case.claims.moves)
    if case.trace.one_host or not slow.mask.any():
        return []
    sent, gain = case.transfers.rows.source >= 0, gain_of(case, case.transferred(slow.excess_ns))
    apart = _of_their_own(slow, sent) | _of_their_own(slow, ~sent)
    if not apart.any() and gain.share.low < levels.NAMED:
        return []
    case.claims.slow_ns += gain.saved_ns
    return _of_episodes(case, slow._replace(mask=apart) if apart.any() else slow, gain)


def _of_their_own(slow: _SlowTransfers, part: Array) -> Array:
    """The slow ones of a part of all that are a population of their own: about where most is lost,
    there are more than halfway to the calm ones. None in a tail, which has ever fewer."""
    calm, mine = slow.ratio[slow.judged & ~slow.mask & part], slow.mask & part
    level = np.average(slow.ratio[mine], weights=slow.excess_ns[mine]) if mine.any() else 0.0
    low = calm.mean() if len(calm) else level
    place = np.rint(2 * (slow.ratio - low) / max(level - low, 1e-9))[slow.judged & part]
    apart = np.count_nonzero(place == 2) > np.count_nonzero(place == 1)
    return np.asarray(mine & (slow.ratio > (level + low) / 2) & apart)


def _period(measured: Transfers, slow: _SlowTransfers) -> Peak | None:
    """The period in seconds of slow transfers, as a neighbour with steps of its own causes it."""
    middle = (measured.rows.begin_ns + measured.rows.end_ns)[slow.judged] / 2
    peak = uneven((middle - middle.min()) / 1e9, slow.mask[slow.judged].astype(float))
    return peak if peak is not None and peak.explained >= levels.MOST else None


# -- the finding -----------------------------------------------------------------------------------


def _where(case: Case, slow: _SlowTransfers) -> Where:
    """The groups with at least half the relative excess of the worst, the costliest first, and what
    only they, and messages as slow, cross; where all are slow, the path of two nodes."""
    rows, trace = case.transfers.rows, case.trace
    moving = np.bincount(rows.queue, rows.transfer_ns * slow.judged)
    excess = np.bincount(rows.queue, slow.excess_ns)
    share = excess / np.maximum(moving, 1)
    hit = (moving > 0) & (share >= levels.MOST * share.max())
    lost = np.where(hit, excess, 0.0)
    if lost.sum() < levels.DOMINANT * excess.sum():
        return Where()  # by chance these more often than others
    judged = np.flatnonzero(slow.judged)
    path = key_numbers(rows.queue, rows.op == int(Op.ALL_TO_ALL))  # all else goes around a ring
    heads = judged[np.unique(path[judged], return_index=True)[1]]
    heads = heads[np.argsort(-lost[rows.queue[heads]], kind="stable")]
    flows = [Traffic(crossed_by(trace, rows, at), "", float(lost[rows.queue[at]])) for at in heads]
    if hit[moving > 0].all():
        paths = {ends for one in flows for kind, ends, _ in one.crosses if kind == PATH}
        return Where(links=["-".join(map(str, ends)) for ends in paths] if len(paths) == 1 else [])
    groups = rows.group[heads[hit[rows.queue[heads]] & (rows.source[heads] < 0)]]
    names = [trace.groups[group].name for group in groups]
    return where_of(slow_links(flows), list(dict.fromkeys(names)))


def _of_episodes(case: Case, slow: _SlowTransfers, gain: Gain) -> list[Finding]:
    rows, period = case.transfers.rows, _period(case.transfers, slow)
    quiet = np.maximum(case.transfers.of_kind("quiet_ns"), 1)
    factor = float(np.median(rows.transfer_ns[slow.mask] / quiet[slow.mask]))
    late = case.steps_of(slow.mask)
    recurs, where = when(late[:, None], case.grid), _where(case, slow)
    at = [*where.nodes, *(f"the link {one}" for one in where.links)]
    # other traffic goes on, also where calm transfers of other groups come in between
    orders = np.argsort(rows.begin_ns, kind="stable"), np.lexsort([rows.begin_ns, rows.queue])
    going_on = max(np.sum(hit[1:] & hit[:-1]) for hit in (slow.mask[order] for order in orders))
    alone = period is None and bool(going_on <= levels.MOST * slow.mask.sum())
    return finding_of(
        case, f"fabric_contention{'.stalls' * alone}", gain,
        numbers={
            "factor": factor, "steps": float(late.mean()),
            "at": f" on {at[0]}" if len(at) == 1 else "",
            "again": f", every {words.duration(period.period * 1e9)}" if period else "",
            "neighbour": "another job with steps of its own" if period else "other traffic",
            **({"period": period.period} if period else {}),
        },
        where=where, at=When(recurs.steps, "oscillating") if period else recurs,
        options=({"errors": gain.share} if alone else {}) | {"apart": gain.share}
        | ({"token": None} if period else {}),
        evidence=congestion(case.trace, case.grid, late),
    )  # fmt: skip


# -- slow links ------------------------------------------------------------------------------------


def _slow_links(case: Case) -> list[Finding]:
    """Links that slow down the messages or collectives that cross them, beside others alike."""
    known = case.transfers_known and case.share(case.claims.slow_ns).value < levels.NAMED
    messages, groups = _messages(case), case.flows if known else []
    slow = [one for one in [*messages, *groups] if one.lost_ns]
    if not slow:
        return []
    excess, found = case.beyond_alike(slow), slow_links([*messages, *groups])
    gain = gain_of(case, case.transferred(excess))
    case.claims.slow_ns += gain.saved_ns
    case.claims.moves = case.claims.moves | ((excess > 0) & (case.transfers.rows.source >= 0))
    where = where_of(found, case.groups_named(one.group for one in slow if one.group >= 0))
    return _of_slow_links(case, found[0] if found else SlowLink([], slow), where, gain)


def _messages(case: Case) -> list[Traffic]:
    """Messages by channel; slow are those whose quickest, for the run or parts of it, take longer
    than nearly all on the calm channels of their kind, then and in all: those of one way, where
    they are enough, as more may share the links one way than the other."""
    rows, found = case.transfers.rows, []
    took, usual = rows.transfer_ns, rows.transfer_ns.astype(float)
    kinds: dict[tuple[int | bool | None, ...], list[Array]] = {}
    for alike, kind in ({} if case.stuck else message_kinds(case.trace, rows)).items():
        ahead = [bool(rows.source[one[0]] < rows.target[one[0]]) for one in kind]
        apart = SEVERAL <= sum(ahead) <= len(ahead) - SEVERAL
        for way in (True, False) if apart else (None,):
            same = [one for one, to in zip(kind, ahead, strict=True) if way in (None, to)]
            kinds.update({(*alike, way): same} if len(same) >= SEVERAL else {})
    for kind in kinds.values():  # enough to tell an exception
        enough = min(levels.LISTED, min(map(len, kind)) // levels.FEWEST)
        parts = list(zip(*(np.array_split(one, max(enough, 1)) for one in kind), strict=True))
        floors_ns = [[np.quantile(usual[one], levels.LOW) for one in each] for each in parts]
        ever = _calm(took, [one for each in parts for one in each], np.ravel(floors_ns))
        for channels, floors in zip(parts, np.array(floors_ns), strict=True):
            quick, most = np.maximum(_calm(took, channels, floors), ever)
            for at in np.flatnonzero(floors > most):
                usual[channels[at]] = np.minimum(quick, took[channels[at]])
    if (slow := usual < took).any():  # and what else is as slow on such a link, either way
        least = levels.MOST * np.median((took - usual)[slow])
        pair = np.array([case.trace.world, 1]) @ np.sort([rows.source, rows.target], axis=0)
        on_slow = np.isin(pair, pair[slow])
        for sent in map(np.concatenate, kinds.values()):
            mine, beside = sent[on_slow[sent]], sent[~on_slow[sent]]
            most = np.quantile(took[beside], 1 - levels.LOW) if len(beside) else np.inf
            also = mine[took[mine] - most > least]
            usual[also] = np.minimum(usual[also], most)
    lost = took - usual
    channels = [(key, one) for key, kind in kinds.items() for one in kind]
    most = max((lost[one].sum() for _, one in channels), default=0.0)
    shown = {key for key, one in channels if lost[one].sum() > levels.MINOR * most}
    for key, channel in channels if most > 0 else ():
        mine = channel[lost[channel] > 0]
        beyond_ns, floor = float(lost[mine].sum()), np.quantile(took[channel], levels.LOW)
        quick = key in shown or floor > LONGEST_HOP_NS  # else its time may be latency
        told = beyond_ns > levels.MINOR * most if len(mine) else quick
        pair = int(rows.source[channel[0]]), int(rows.target[channel[0]])
        name, of = ("messages between", words.ranks(sorted(pair))), rows.operation[mine]
        crosses = crossed(case.trace, [pair] * int(told))
        found.append(Traffic(crosses, key, beyond_ns, *name, of, usual[mine]))
    return found


def _calm(took_ns: Array, channels: Sequence[Array], floors_ns: Array) -> tuple[float, float]:
    """What the quickest and nearly all messages of the calm channels take, ns. These need not be
    the majority: a link may be slower than its kind, but never faster."""
    quick = np.quantile(floors_ns, levels.UNDISTURBED, method="lower")
    calm = [one for one, floor in zip(channels, floors_ns, strict=True) if floor <= quick]
    return float(quick), float(np.quantile(took_ns[np.concatenate(calm)], 1 - levels.LOW))


def _of_slow_links(case: Case, link: SlowLink, where: Where, gain: Gain) -> list[Finding]:
    """The finding of slow links, in words of the one that costs most."""
    table, worst = case.costs.graph.operations, max(link.flows, key=lambda one: one.lost_ns)
    hit = np.concatenate([one.operations for one in link.flows])
    late = case.grid.spread(np.isin(case.grid.steps, table.step[hit]))
    first = where_of([link])
    named = [*first.nodes, *(words.ranks([rank]) for rank in first.ranks)]
    only = len(named) == 1 and not first.links
    place = words.some(named or first.links) or worst.place
    moves = "messages" if all(one.group < 0 for one in link.flows) else "transfers"
    what = f"{worst.moves} {worst.place}"
    parts = say(f"fabric_contention.{'inside' if link.ends(INSIDE) else 'outside'}")
    return finding_of(
        case, f"fabric_contention.{'place' if only else 'link'}", gain,
        numbers={
            "what": what, "took": float(np.median(table.took_ns[worst.operations])),
            "usual": float(np.median(worst.usual_ns)), "moves": moves if named else what,
            "place": place, "parts": parts,
            "often": "every step" if late.all() else f"{words.percent(late.mean())} of the steps",
        },
        where=where, at=when(late[:, None], case.grid),
        options=["adapter" if only else "path"],
    )  # fmt: skip


# -- incast ----------------------------------------------------------------------------------------


class _Collapse(NamedTuple):
    """Transfers of a shape that took far longer than their bytes."""

    shape: Shape
    mask: Array  # of the transfers
    shorter_ns: Array
    basis: str  # of the time of their bytes


def incast(case: Case) -> list[Finding]:
    """What the collapsed transfers took beyond their bytes; a single host has no switch."""
    return [] if case.trace.one_host else of_slow_shapes(case, _collapse, _findings_of_collapse)


def _collapse(case: Case, shape: Shape) -> _Collapse | None:
    """The transfers of a shape that take more than twice the time of their bytes, if any."""
    if shape.op not in MANY_TO_ONE or shape.members <= SEVERAL or not len(shape.sizes):
        return None
    rows = case.transfers.rows
    quiet, basis = _expected_times(case, shape)
    limit = COLLAPSED * quiet + levels.SIGMAS * np.nan_to_num(case.transfers.of_kind("noise_ns"))
    mask = shape.rows & (rows.transfer_ns > limit)
    ratio = rows.transfer_ns / np.maximum(case.transfers.of_kind("quiet_ns"), 1)
    plain = ~np.isin(rows.op, MANY_TO_ONE)
    others = ratio[plain & np.isin(rows.step, rows.step[mask])]
    if not mask.any() or (len(others) and np.median(others) > levels.CHANGED):
        return None  # they are slow, too
    if plain.any() and (ratio[plain] > COLLAPSED).mean() > levels.MOST * mask[shape.rows].mean():
        return None  # and so are they as often, at other times
    return _Collapse(shape, mask, np.where(mask, rows.transfer_ns - quiet, 0.0), basis)


def _expected_times(case: Case, shape: Shape) -> tuple[Array, str]:
    """Time of each transfer without collapse, and its basis: smaller sizes, or its own quiet level.
    What is above a reference in every call tells slow links alone: packets are lost in some."""
    if (below := _below_the_knee(shape)) is not None:
        return np.asarray(below.time_ns(case.transfers.rows.size_bytes)), "its smaller sizes"
    return case.transfers.of_kind("quiet_ns"), "their own best"


def _below_the_knee(shape: Shape) -> TransferLine | None:
    """The line through the smaller sizes, where larger ones take far longer than their bytes."""
    sizes, times = shape.sizes[shape.sizes > 0], shape.floors_ns[shape.sizes > 0]
    per_byte = times / sizes
    for knee in range(len(sizes) - 1, 1, -1):
        steepest = float(per_byte[knee - 1])  # of all below; latency included, so an upper bound
        if times[knee] > COLLAPSED * max(steepest * sizes[knee], float(times[knee - 1])):
            size, time = sizes[:knee], times[:knee]  # median slope of neighbours (Theil 1950)
            most = max(float(time[-1] / size[-1]), 1e-6)
            slope = float(np.clip(np.median(np.diff(time) / np.diff(size)), 1e-6, most))
            return TransferLine(float(np.median(time - slope * size)), 1 / slope)
    return None


# -- incast: the finding ---------------------------------------------------------------------------


def _findings_of_collapse(case: Case, parts: list[_Collapse], gain: Gain) -> list[Finding]:
    case.claims.moves = np.any([part.mask for part in parts], axis=0)
    first = max(parts, key=lambda part: float(part.shorter_ns.sum()))
    rows, receivers = case.transfers.rows, _roots(case, parts)
    took = float(np.median(rows.transfer_ns[first.mask]))
    usual = took - float(np.median(first.shorter_ns[first.mask]))
    groups = case.groups_named(group for part in parts for group in part.shape.groups)
    late, senders = case.steps_of(first.mask), first.shape.members - 1
    return finding_of(
        case, "incast", gain,
        numbers={
            "name": first.shape.name, "took": took, "usual": usual, "basis": first.basis,
            "senders": senders,
            "whom": f"to {words.ranks(receivers)}" if receivers else "to every rank at once",
        },
        where=replace(case.where(receivers), groups=groups),
        at=when(late[:, None], case.grid), options=["fewer", "lossless"],
        evidence=congestion(case.trace, case.grid, late),
    )  # fmt: skip


def _roots(case: Case, parts: list[_Collapse]) -> list[int]:
    """Roots of the collapsed transfers, the costliest first; an all-to-all has none."""
    rooted = [part.shorter_ns for part in parts if part.shape.op != Op.ALL_TO_ALL]
    shorter = np.sum(rooted, axis=0) if rooted else np.zeros(len(case.transfers.rows))
    roots, place = np.unique(case.transfers.rows.root[shorter > 0], return_inverse=True)
    cost = np.bincount(place, shorter[shorter > 0], len(roots))
    ranks = roots[np.argsort(-cost, kind="stable")].tolist()
    return [rank for rank in ranks if rank in case.trace.ranks]
