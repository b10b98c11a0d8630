"""Groups of collectives where no file states any: members of a collective leave it together.

Calls are put on one clock and sorted by their ends; those of one kind that end next to each other
are a meeting. A communicator has a stream of its own on each rank, a lane: lanes in the same
meetings are its members, whatever events a profiler dropped. Kernels that only send and receive may
meet another rank each time: lanes without such partners are matched call by call, in pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np

from evenstep.importers.kineto.calls import GroupKey
from evenstep.importers.kineto.records import Profile
from evenstep.importers.kineto.table import UNKNOWN_NS
from evenstep.trace.columns import Array, Columns, key_numbers, positions_by_key, rows_by_key
from evenstep.trace.ranks import format_ranks
from evenstep.trace.spool.layout import Op

#: Members of a collective leave it within so much: 1 to 27 µs in profiles of A100 and H100.
TOGETHER_NS = 30_000
ONE_HOST_NS = 1_000_000  # stamps of one host in two files may differ by so much
_MOST = 0.95  # share of lanes' calls that end together: profilers drop events
_SOME = 0.3  # share of the calls of a stage of a pipeline that are with one of its neighbours
_SAMPLE = 24  # calls of a lane that are compared with all calls of another profile


def group_calls(profiles: Sequence[Profile]) -> tuple[list[Profile], list[str]]:
    """The profiles with a group and number of every call for which they can be told, and limits.

    Calls that state their group are left as they are; where none does, calls without a device, and
    those of a single profile, are taken to be of all ranks.
    """
    stated = any(call.group for each in profiles for call in each.said)
    found = [each._replace(said=list(each.said)) for each in profiles]
    silent = [np.array([call.group is None for call in each.said], bool) for each in profiles]
    matched = _match(found, silent) if len(found) > 1 else 0
    everybody = GroupKey("default_pg", range(max((each.place.world for each in found), default=0)))
    rest = unknown = 0
    for index, each in enumerate(found):
        left = np.array([call.group is None for call in each.said], bool)
        assumed = left & ((len(found) == 1) | (each.calls.device_exit_ns == UNKNOWN_NS))
        assumed &= not stated
        for row in np.flatnonzero(assumed):
            each.said[row] = each.said[row]._replace(group=everybody)
        rest, unknown = rest + int(assumed.sum()), unknown + int((left & ~assumed).sum())
        everyone = silent[index] & ~left & (each.calls.op == int(Op.OTHER))
        op = np.where(everyone, int(Op.ALL_TO_ALL), each.calls.op)
        found[index] = each._replace(calls=each.calls.with_column("op", op))
    unsaid = "the files do not say which group a collective belongs to"
    limits = {
        f"{unsaid}: ranks that left it together, within {TOGETHER_NS // 1000} µs, are taken to be "
        "its members": matched,
        f"{unsaid}: those of the same order are taken to be of all ranks": rest * (len(found) - 1),
        f"{unsaid}, and {unknown} of {matched + rest + unknown} were left by no ranks together: "
        "who waits for whom in them cannot be told": unknown,
    }
    return found, [text for text, count in limits.items() if count]


def _match(profiles: list[Profile], silent: Sequence[Array]) -> int:
    """Set the groups of the `silent` calls that ranks left together; return the number of calls."""
    from scipy.sparse import coo_array

    hosts = [each.place.host or str(each.file.path) for each in profiles]
    calls = _calls(profiles, silent)
    if not calls.silent.any():
        return 0
    calls = _on_one_clock(calls, hosts).sorted_by("clock", "kind", "end")
    calls = calls.select(calls.silent)
    calls = calls.with_column("lane", key_numbers(calls.lane))
    near = (np.diff(calls.end) <= TOGETHER_NS) & (np.diff(calls.clock) == 0)
    near &= np.diff(calls.kind) == 0
    opens = np.append(True, ~near)
    turn = np.argsort(np.argsort(calls.end[opens], kind="stable"))  # of each meeting, by time
    calls = calls.with_column("meeting", turn[np.cumsum(opens) - 1])
    names, matched = Counter[GroupKey](), 0
    lanes, size = _lanes(calls), np.bincount(calls.lane)
    met = coo_array((np.ones(len(calls)), (calls.lane, calls.meeting))).tocsr()
    alone = np.ones(len(size), bool)
    for first in np.argsort(-size, kind="stable").tolist():
        beside = (met[[first]] @ met.T).indices
        members = _members(first, beside[alone[beside]].tolist(), lanes) if alone[first] else []
        if len(members) > 1:
            alone[members] = False
            mine = Columns.concatenate([lanes[lane] for lane in members])
            turn = positions_by_key(mine.lane, mine.meeting)
            matched += _enter(profiles, mine, key_numbers(mine.meeting, turn), names)
    other = [lane for lane in lanes if alone[lane.lane[0]] and (lane.op == int(Op.OTHER)).all()]
    for mine in _pairs(Columns.concatenate(other)) if other else ():
        matched += _enter(profiles, mine, key_numbers(mine.meeting), names)
    return matched


def _calls(profiles: Sequence[Profile], silent: Sequence[Array]) -> Columns:
    """All calls that a device ended: profile, lane, row (of the profile's calls), end, op, kind (of
    kernel and stated group), silent."""
    kinds: dict[tuple[Any, ...], int] = {}
    parts = []
    for index, each in enumerate(profiles):
        file, calls = each.file, each.calls
        names = [*(name.partition("(")[0] for name in file.names), ""]
        row = np.flatnonzero(calls.device_exit_ns != UNKNOWN_NS)
        said = ((call.group.name, call.group.ranks[:1]) if call.group else () for call in each.said)
        kind = [*zip(map(names.__getitem__, calls.name), said, strict=True)]
        lane = key_numbers(calls.device[row], calls.stream[row])
        columns = {
            "profile": np.full(len(row), index), "lane": lane, "row": row,
            "end": calls.device_exit_ns[row], "op": calls.op[row],
            "kind": np.array([kinds.setdefault(each, len(kinds)) for each in kind], np.int64)[row],
            "silent": silent[index][row],
        }  # fmt: skip
        parts.append(Columns(columns))
    found = Columns.concatenate(parts)
    return found.with_column("lane", key_numbers(found.profile, found.lane))


def _on_one_clock(calls: Columns, hosts: Sequence[str]) -> Columns:
    """The calls with `clock`, and with ends on it: that of the first of the profiles that are
    connected by calls that ended together; by nearly all calls of a lane, if they can be."""
    calls = calls.sorted_by("profile", "end")
    edges = np.searchsorted(calls.profile, np.arange(len(hosts) + 1))
    parts = [calls.select(slice(low, high)) for low, high in pairwise(edges.tolist())]

    @cache
    def shown(at: int, other: int) -> tuple[float, int]:
        most = ONE_HOST_NS if hosts[at] == hosts[other] else np.inf
        return _difference(parts[at], parts[other], most)

    clock, ahead = np.arange(len(parts)), np.zeros(len(parts), np.int64)
    for least, at in product((_MOST, _SOME), range(len(parts))):
        for other in range(at - 1, -1, -1):
            if clock[at] != clock[other]:
                share, more = shown(at, other)
                joined = (clock == clock[at]) & (share > least)
                ahead[joined] += more + ahead[other] - ahead[at]
                clock[joined] = clock[other]
    return calls.with_columns(end=calls.end + ahead[calls.profile], clock=clock[calls.profile])


def _difference(one: Columns, other: Columns, most: float) -> tuple[float, int]:
    """The largest share of the calls of a lane of each that end together by one difference between
    their clocks, at most `most`, and what the other clock shows more by that; 0 where none do."""
    best, shown = 0.0, 0
    for pair in product(*(_lanes(calls) for calls in (one, other))):
        few, many = sorted(pair, key=len)
        sample = few.select(np.unique(np.linspace(0, len(few) - 1, _SAMPLE).astype(np.int64)))
        apart = (many.end - sample.end[:, None])[sample.kind[:, None] == many.kind]
        apart = np.sort(apart[np.abs(apart) <= most])
        count = np.searchsorted(apart, apart + TOGETHER_NS, side="right") - np.arange(len(apart))
        share = count.max(initial=0) / len(sample) * len(few) / len(many)
        if share > best and count.max() > 2:  # fewer coincide by chance
            low = int(np.argmax(count))
            best, shown = share, int(apart[low] + apart[low + int(count[low]) - 1]) // 2
            shown = -shown if few is pair[1] else shown
    return best, shown


def _lanes(calls: Columns) -> list[Columns]:
    return [calls.select(rows) for rows in rows_by_key(calls.lane)]


def _members(first: int, beside: list[int], lanes: list[Columns]) -> list[int]:
    """A lane, and of each other profile the lane beside it that ends most of its calls with it, if
    nearly all while both were recorded: in a large meeting, others may end between the two."""
    mine = lanes[first]
    best = {int(mine.profile[0]): (2.0, first)}
    for lane in beside:
        its = lanes[lane]
        low, high = max(mine.end.min(), its.end.min()), min(mine.end.max(), its.end.max())
        common = max(
            int(((end >= low - TOGETHER_NS) & (end <= high + TOGETHER_NS)).sum())
            for end in (mine.end, its.end)
        )
        until = np.searchsorted(np.sort(its.end), mine.end + TOGETHER_NS, side="right")
        close = until > np.searchsorted(np.sort(its.end), mine.end - TOGETHER_NS)
        share = float(close.sum()) / max(common, 1)
        best[int(its.profile[0])] = max(best.get(int(its.profile[0]), (_MOST, -1)), (share, lane))
    return [lane for _, lane in best.values() if lane >= 0]


def _pairs(calls: Columns) -> Iterator[Columns]:
    """Yield the calls of each two lanes that met in pairs, with their meetings numbered.

    Two calls alone in a meeting are a pair; in larger ones, calls with a single possible partner
    are, of lanes that were ever alone together.
    """
    calls = calls.sorted_by("meeting")
    lane, of = calls.lane.tolist(), dict(zip(calls.lane, calls.profile, strict=True))
    edges = np.flatnonzero(np.diff(calls.meeting, prepend=-1, append=-1)).tolist()
    meetings = [range(*edge) for edge in pairwise(edges)]
    twos = [(lane[each[0]], lane[each[1]]) for each in meetings if len(each) == 2]
    may = {frozenset(ends) for ends in twos if of[ends[0]] != of[ends[1]]}
    mate = [-1] * len(calls)
    for each in meetings:
        left, before = list(each), 0
        while len(left) != before:
            before = len(left)
            for row in left:
                able = [one for one in left if {lane[row], lane[one]} in may and mate[one] < 0]
                if len(able) == 1 and mate[row] < 0:
                    mate[row], mate[able[0]] = able[0], row
            left = [row for row in left if mate[row] < 0]
    partner = np.array(mate, np.int64)
    size = np.bincount(calls.lane)
    paired = np.bincount(calls.lane, partner >= 0) >= _MOST * size
    good = (partner >= 0) & paired[calls.lane] & paired[calls.lane[partner]]
    low, high = np.sort([np.arange(len(calls)), partner], axis=0)
    pair = key_numbers(calls.lane[low], calls.lane[high])
    calls = calls.with_column("meeting", low)
    for number in np.unique(pair[good]):
        yield calls.select(good & (pair == number))


def _enter(
    profiles: Sequence[Profile], calls: Columns, number: Array, names: Counter[GroupKey]
) -> int:
    """Set group and number, in order of time, of the calls of a communicator."""
    ranks = sorted({profiles[index].place.rank for index in np.unique(calls.profile).tolist()})
    key = GroupKey(f"ranks {format_ranks(ranks)}", tuple(ranks))
    names[key] += 1
    if names[key] > 1:
        key = key._replace(name=f"{key.name} ({names[key]})")
    places = np.stack([calls.profile, calls.row, number], axis=1)
    for index, row, place in places.tolist():
        said = profiles[index].said
        said[row] = said[row]._replace(group=key, sequence=place)
    return len(calls)
