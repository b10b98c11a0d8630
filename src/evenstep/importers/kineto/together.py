"""Groups of collectives where no file states any: members of a collective leave it together.

A communicator has a stream of its own on each rank, a lane. Lanes whose calls end at the same
times, but for a constant difference of the clocks, are one communicator; its calls are numbered by
their ends, so that missing events do no harm. Kernels that only send and receive may meet another
rank each time: where lanes have no such partners, calls are matched in pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.importers.kineto.calls import GroupKey
from evenstep.importers.kineto.records import Profile
from evenstep.importers.kineto.table import UNKNOWN_NS
from evenstep.trace.columns import Columns, key_numbers
from evenstep.trace.ranks import format_ranks
from evenstep.trace.spool.layout import Op

Array = npt.NDArray[Any]

#: Members of a collective leave it within so much: 1 to 27 µs in profiles of A100 and H100.
TOGETHER_NS = 30_000
_MOST = 0.95  # share of lanes' calls that end together: profilers drop events
ONE_HOST_NS = 1_000_000  # stamps of one host in two files may differ by so much
_APART = 4  # times as far apart may single calls of a communicator end
_FEWEST = 3  # calls: fewer coincide by chance, where the difference of two clocks is free
_SAMPLE = 24  # calls of a lane that are compared with all calls of another
_SOME = 0.3  # share of the calls of two stages of a pipeline that are between them
_RARE = 0.1  # share of a lane's pairs below which they are chance
_AROUND = 16  # calls that end next to another one, among which its partner is


class _Lane(NamedTuple):
    """The calls of one stream of a profile, in order of their ends."""

    profile: int
    calls: Columns  # profile, lane, row (of the profile's calls), end, op, kind (of kernel)


class _Clocks:
    """What each profile's clock shows more than others', as common collectives have shown."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.hosts = [each.place.host or str(each.file.path) for each in profiles]
        self._more = [(each, 0) for each in range(len(profiles))]  # than a clock, by so much

    def between(self, one: int, other: int) -> int | None:
        """What the other clock shows more than the one; None if unknown."""
        (root, more), (other_root, other_more) = self._more[one], self._more[other]
        return other_more - more if root == other_root else None

    def learn(self, one: int, other: int, more: int) -> None:
        """Connect two clocks, and those connected with either."""
        if self.between(one, other) is None:
            root, shift = self._more[one][0], self._more[one][1] + more - self._more[other][1]
            left = self._more[other][0]
            self._more = [
                (root, its + shift) if old == left else (old, its) for old, its in self._more
            ]


def grouped(profiles: Sequence[Profile]) -> tuple[list[Profile], list[str]]:
    """The profiles with a group and number of every call for which they can be told, and limits.

    Calls are left as they are where any states its group. Calls without a device, and those of a
    single profile, are taken to be of all ranks.
    """
    if any(call.group for each in profiles for call in each.said):
        return list(profiles), []
    found = [each._replace(said=list(each.said)) for each in profiles]
    matched = _match(found) if len(found) > 1 else 0
    everybody = GroupKey("default_pg", range(max((each.place.world for each in found), default=0)))
    rest = unknown = 0
    for index, each in enumerate(found):
        left = np.array([call.group is None for call in each.said], bool)
        assumed = left & ((len(found) == 1) | (each.calls.device_exit_ns == UNKNOWN_NS))
        for row in np.flatnonzero(assumed):
            each.said[row] = each.said[row]._replace(group=everybody)
        rest, unknown = rest + int(assumed.sum()), unknown + int((left & ~assumed).sum())
        everyone = ~left & (each.calls.op == int(Op.OTHER))
        op = np.where(everyone, int(Op.ALL_TO_ALL), each.calls.op)
        found[index] = each._replace(calls=each.calls.with_column("op", op))
    silent = "the files do not say which group a collective belongs to"
    limits = {
        f"{silent}: ranks that left it together, within {TOGETHER_NS // 1000} µs, are taken to be "
        "its members": matched,
        f"{silent}: those of the same order are taken to be of all ranks": rest * (len(found) - 1),
        f"{silent}, and {unknown} of {matched + rest + unknown} were left by no ranks together: "
        "who waits for whom in them cannot be told": unknown,
    }
    return found, [text for text, count in limits.items() if count]


def _match(profiles: list[Profile]) -> int:
    """Set the groups of the calls that ranks left together; return the number of calls."""
    clocks, names, matched = _Clocks(profiles), Counter[GroupKey](), 0
    left = sorted(_lanes(profiles), key=lambda lane: -len(lane.calls))
    alone = []
    while left:
        first, *left = left
        others = [lane for lane in left if lane.profile != first.profile]
        partners = _partners(first, others, clocks)
        calls = _on_one_clock([first, *partners], clocks)
        meeting = _meetings(calls)
        whole = np.bincount(meeting)[meeting] == 1 + len(partners)
        if partners and whole.mean() >= _MOST:
            left = [lane for lane in left if all(lane is not each for each in partners)]
            matched += _enter(profiles, calls, meeting, names)
        else:
            alone.append(first)
    alone = [lane for lane in alone if (lane.calls.op == int(Op.OTHER)).all()]
    for calls, meeting in _pairs(alone, clocks):
        matched += _enter(profiles, calls, meeting, names)
    return matched


def _lanes(profiles: Sequence[Profile]) -> list[_Lane]:
    kinds: dict[str, int] = {}
    found: list[_Lane] = []
    for index, (file, _, _, calls, _) in enumerate(profiles):
        names = [kinds.setdefault(name.partition("(")[0], len(kinds)) for name in file.names]
        ended = np.flatnonzero(calls.device_exit_ns != UNKNOWN_NS)
        ended = ended[np.argsort(calls.device_exit_ns[ended], kind="stable")]
        lane = key_numbers(calls.device[ended], calls.stream[ended])
        for number in range(int(lane.max(initial=-1)) + 1):
            row = ended[lane == number]
            columns = {
                "profile": np.full(len(row), index), "lane": np.full(len(row), len(found)),
                "row": row, "end": calls.device_exit_ns[row],
                "op": calls.op[row], "kind": np.array(names)[calls.name[row]],
            }  # fmt: skip
            found.append(_Lane(index, Columns(columns)))
    return found


def _partners(first: _Lane, others: Iterable[_Lane], clocks: _Clocks) -> list[_Lane]:
    """The lanes of other profiles whose calls end with those of the first, the best of each."""
    found = []
    for lane in others:
        known = clocks.between(first.profile, lane.profile)
        share, count, more = _coincidence(first, lane, clocks)
        if share >= _MOST and (count >= _FEWEST or known is not None):
            found.append((share, more, lane))
    found.sort(key=lambda each: each[0])
    best = {lane.profile: (more, lane) for _, more, lane in found}
    for profile, (more, _) in best.items():
        clocks.learn(first.profile, profile, more)
    return [lane for _, lane in best.values()]


def _coincidence(one: _Lane, other: _Lane, clocks: _Clocks) -> tuple[float, int, int]:
    """Share and number of the calls in common time that end together by the difference of the
    clocks, and this difference: the known one, or that by which most calls end together."""
    known = clocks.between(one.profile, other.profile)
    most = ONE_HOST_NS if clocks.hosts[one.profile] == clocks.hosts[other.profile] else np.inf
    more = _difference(one.calls, other.calls, most) if known is None else known
    ends, end = one.calls.end, other.calls.end - more
    after = np.minimum(np.searchsorted(ends, end), len(ends) - 1)
    before = np.maximum(after - 1, 0)
    place = np.where(end - ends[before] < ends[after] - end, before, after)
    apart = end - ends[place]
    near = (np.abs(apart) <= TOGETHER_NS) & (one.calls.kind[place] == other.calls.kind)
    low, high = max(ends[0], end[0]) - TOGETHER_NS, min(ends[-1], end[-1]) + TOGETHER_NS
    common = max(int(((times >= low) & (times <= high)).sum()) for times in (ends, end))
    shown = int(np.median(apart[near])) if near.any() else 0
    return int(near.sum()) / max(common, 1), int(near.sum()), more + shown


def _difference(one: Columns, other: Columns, most: float) -> int:
    """The difference of two clocks, up to `most`, by which most calls end together."""
    sample = one.select(np.unique(np.linspace(0, len(one) - 1, _SAMPLE).astype(np.int64)))
    apart = (other.end - sample.end[:, None])[sample.kind[:, None] == other.kind]
    apart = np.sort(apart[np.abs(apart) <= most])
    count = np.searchsorted(apart, apart + TOGETHER_NS, side="right") - np.arange(len(apart))
    best = int(np.argmax(count)) if len(count) else 0
    return int(np.median(apart[best : best + int(count[best])])) if len(count) else 0


def _on_one_clock(lanes: Sequence[_Lane], clocks: _Clocks) -> Columns:
    """The calls of lanes with connected clocks, by their ends on the first one's."""
    more = [clocks.between(lanes[0].profile, lane.profile) or 0 for lane in lanes]
    parts = [
        lane.calls.with_column("end", lane.calls.end - ahead)
        for lane, ahead in zip(lanes, more, strict=True)
    ]
    return Columns.concatenate(parts).sorted_by("end")


def _meetings(calls: Columns) -> Array:
    """Number the calls, in order of their ends, by the collective that they are of."""
    found, number, began, kind = np.zeros(len(calls), np.int64), -1, 0, -1
    there: set[int] = set()
    columns = (calls[name].tolist() for name in ("profile", "end", "kind"))
    for at, (profile, end, its_kind) in enumerate(zip(*columns, strict=True)):
        if end - began > _APART * TOGETHER_NS or profile in there or its_kind != kind:
            number, began, kind, there = number + 1, end, its_kind, set()
        there.add(profile)
        found[at] = number
    return found


def _pairs(lanes: Sequence[_Lane], clocks: _Clocks) -> Iterator[tuple[Columns, Array]]:
    """Yield the calls of each two lanes that ended in pairs, with their numbers."""
    for one, other in combinations(lanes, 2):
        if clocks.between(one.profile, other.profile) is None:
            share, count, more = _coincidence(one, other, clocks)
            if count >= _FEWEST and share >= _SOME:
                clocks.learn(one.profile, other.profile, more)
    connected = [
        [lane for lane in lanes if clocks.between(one.profile, lane.profile) is not None]
        for one in lanes
    ]
    if not connected:
        return
    calls = _on_one_clock(max(connected, key=len), clocks)
    everyone = np.ones((int(calls.lane.max()) + 1,) * 2, bool)
    partner = _nearest(calls, everyone)
    met = np.zeros_like(everyone, np.int64)
    np.add.at(met, (calls.lane[partner >= 0], calls.lane[partner[partner >= 0]]), 1)
    partner = _nearest(calls, met >= _RARE * met.sum(axis=1, keepdims=True).clip(1))
    paired = np.bincount(calls.lane, weights=partner >= 0) / np.bincount(calls.lane).clip(1)
    good = (partner >= 0) & (paired[calls.lane] >= _MOST) & (paired[calls.lane[partner]] >= _MOST)
    low, high = np.sort([np.arange(len(calls)), partner], axis=0)
    pair = key_numbers(calls.lane[low], calls.lane[high])
    for number in np.unique(pair[good]):
        mine = np.flatnonzero(good & (pair == number))
        yield calls.select(mine), key_numbers(low[mine])


def _nearest(calls: Columns, may: Array) -> Array:
    """The call of another rank that ends nearest to each, if each is the nearest of the other and
    their lanes may meet; else -1."""
    best, apart = np.full(len(calls), -1), np.full(len(calls), TOGETHER_NS + 1)
    for shift in range(1, min(_AROUND, len(calls))):
        one, other = np.arange(len(calls) - shift), np.arange(shift, len(calls))
        gap = calls.end[other] - calls.end[one]
        fits = (calls.profile[one] != calls.profile[other]) & (calls.kind[one] == calls.kind[other])
        fits &= may[calls.lane[one], calls.lane[other]]
        for mine, its in ((one, other), (other, one)):
            nearer = fits & (gap < apart[mine])
            best[mine[nearer]], apart[mine[nearer]] = its[nearer], gap[nearer]
    mutual = (best >= 0) & (best[best] == np.arange(len(calls)))
    return np.where(mutual, best, -1)


def _enter(
    profiles: Sequence[Profile], calls: Columns, number: Array, names: Counter[GroupKey]
) -> int:
    """Set group and number of the calls of a communicator."""
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
