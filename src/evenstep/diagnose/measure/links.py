"""Which link is slow: the one that slow transfers cross and no quick one does.

A transfer takes as long as the slowest link that it crosses. So one that is as quick as those alike
clears all its links, unless all alike cross them and may be slow together; and the slow ones are
explained by the fewest links: the one that most of the lost time crosses, then that of the rest.
Links that the same slow transfers cross cannot be told apart. A group's transfers cross the hops of
its ring, or all pairs in an all-to-all; where any leaves a node, only these count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Where
from evenstep.diagnose.levels import MINOR, MOST
from evenstep.diagnose.measure.hosts import node_of
from evenstep.diagnose.measure.transfers import Shape, Transfers
from evenstep.trace.columns import Array, Columns
from evenstep.trace.spool.layout import Op
from evenstep.trace.trace import Trace

#: Kinds of links: a node's adapters, what is within it, a rank's own, paths of nodes and of ranks.
NODE, INSIDE, RANK, PATH, PAIR = range(5)
#: A link's kind, its ends, and its way: -1 to them, or between two the other way; 0 both.
Link = tuple[int, tuple[int | str, ...], int]


class Traffic(NamedTuple):
    """Transfers over the same links: of a group, or all messages from one rank to another."""

    crosses: frozenset[Link]
    alike: Hashable  # the key of flows that should be equally quick
    lost_ns: float  # beyond what those alike take, in all; 0: as quick as they are
    moves: str = ""  # "messages between"
    place: str = ""  # the ranks
    operations: Array | tuple[()] = ()  # its slow transfers
    usual_ns: Array | tuple[()] = ()  # what they would take
    group: int = -1  # of collectives


class SlowLink(NamedTuple):
    """Links one of which is slow, and the flows that show it."""

    links: list[Link]
    flows: list[Traffic]

    def ends(self, kind: int) -> list[tuple[int | str, ...]]:
        """The ends of its links of a kind, each once."""
        return list(dict.fromkeys(ends for of, ends, _ in self.links if of == kind))


def crossed(trace: Trace, pairs: Iterable[tuple[int, int]]) -> frozenset[Link]:
    """The links on the way from the first rank of each pair to the second; none of nodes of unknown
    names."""
    pairs = list(pairs)
    at = {rank: node_of(trace, rank) for pair in pairs for rank in pair}
    away = [pair for pair in pairs if at[pair[0]] != at[pair[1]]]
    ways: Collection[tuple[Any, Any]] = away or pairs
    paths: Collection[tuple[Any, Any]] = {(at[one], at[other]) for one, other in ways}
    found: set[Link] = set()
    for end, between, hops in ((RANK, PAIR, ways), (NODE if away else INSIDE, PATH, paths)):
        sent, received = ({hop[side] for hop in hops} - {""} for side in (0, 1))
        found |= {(end, (one,), way) for one in sent for way in (0, 1)}
        found |= {(end, (one,), way) for one in received for way in (0, -1)}
        for one, other in hops if away or between == PAIR else ():
            ahead = 1 if one < other else -1
            ends = (one, other)[::ahead]
            found |= {(between, ends, way) for way in (0, ahead) if "" not in ends}
    return frozenset(found)


def crossed_by_group(trace: Trace, group: int, op: int) -> frozenset[Link]:
    """The links that a group's collectives of an operation cross."""
    ranks = [rank for rank in trace.groups[group].ranks if rank in trace.ranks]
    ring = zip(ranks, [*ranks[1:], *ranks[:1]], strict=True)
    return crossed(trace, permutations(ranks, 2) if op == Op.ALL_TO_ALL else ring)


def crossed_by(trace: Trace, rows: Columns, at: int) -> frozenset[Link]:
    """The links that one of these transfers crosses."""
    if rows.source[at] >= 0:
        return crossed(trace, [(int(rows.source[at]), int(rows.target[at]))])
    return crossed_by_group(trace, int(rows.group[at]), int(rows.op[at]))


def flows_of_groups(trace: Trace, measured: Transfers, shapes: Sequence[Shape]) -> list[Traffic]:
    """Collectives by group and operation, where any are slow: those of shapes slower than another
    that lies alike. Quick are those beside slow ones, or of several groups alike whose time surely
    is that of bytes."""
    rows, found = measured.rows, []
    for shape in shapes if len({one.lies for one in shapes}) < len(shapes) else ():
        alike = [one for one in shapes if one.lies == shape.lies]
        best = max(alike, key=lambda one: one.busbw_gBps)
        latency = shape.longest_latency_ns >= MOST * max(shape.floors_ns, default=0.0)
        if (len(alike) == 1 and (latency or len(shape.groups) == 1)) or not len(shape.sizes):
            continue
        slow = np.flatnonzero(shape.rows) if best is not shape else np.zeros(0, int)
        took, size = rows.transfer_ns[slow], rows.size_bytes[slow]
        floors = [np.interp(size, one.sizes, one.floors_ns) for one in (best, shape)]
        usual = took * np.minimum(floors[0] / np.maximum(floors[1], 1.0), 1.0)
        for group in shape.groups:
            crosses = crossed_by_group(trace, group, shape.op)
            name = f"{Op(shape.op).name.lower()}s of", words.ranks(trace.groups[group].ranks)
            hit = rows.group[slow] == group
            lost, its = float((took - usual)[hit].sum()), rows.operation[slow[hit]]
            found.append(Traffic(crosses, shape.lies, lost, *name, its, usual[hit], group))
    return found


def slow_links(flows: Sequence[Traffic]) -> list[SlowLink]:
    """The fewest slow links that explain what was lost, the costliest first; none where quick flows
    cross all links of the slow ones."""
    cleared: set[Link] = set()
    for key in {flow.alike for flow in flows}:
        same = [flow for flow in flows if flow.alike == key and flow.crosses]
        quick = [flow.crosses for flow in same if not flow.lost_ns]
        everywhere = frozenset.intersection(*quick) if 0 < len(quick) == len(same) else frozenset()
        cleared |= frozenset[Link]().union(*quick) - everywhere
    found, rest = [], [number for number, flow in enumerate(flows) if flow.lost_ns]
    lost = [flow.lost_ns for flow in flows]
    while sum(lost[number] for number in rest) > MINOR * sum(lost):
        by_link: dict[Link, list[int]] = defaultdict(list)
        for number in rest:
            for link in flows[number].crosses - cleared:
                by_link[link].append(number)
        if not by_link:
            break
        costs = {link: sum(lost[number] for number in mine) for link, mine in by_link.items()}
        most = by_link[min(costs, key=lambda link: (-costs[link], link))]
        links = sorted(link for link, mine in by_link.items() if mine == most)
        found.append(SlowLink(links, [flows[number] for number in most]))
        rest = [number for number in rest if number not in most]
    return found


def where_of(found: Sequence[SlowLink], groups: Sequence[str] = ()) -> Where:
    """Slow links as culprits: a node or rank, or a path, each of which alone explains its flows;
    or all nodes of which one may be slow. `groups` are those of the slow transfers."""
    ranks: list[int] = []
    nodes: list[str] = []
    paths: list[str] = []
    for one in found:
        path = one.ends(PATH)
        at = [str(node) for (node,) in one.ends(NODE) or one.ends(INSIDE)]
        if at and (len(at) > 1 or not path):
            nodes += at
        elif not (path or at or one.ends(PAIR)):
            ranks += [int(rank) for (rank,) in one.ends(RANK)]
        if len(path) == 1 or not at:
            paths += ["-".join(map(str, ends)) for ends in path]
    nodes, paths = list(dict.fromkeys(nodes)), list(dict.fromkeys(paths))
    return Where(list(dict.fromkeys(ranks)), nodes, paths, groups)
