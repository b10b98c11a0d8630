"""Transfers: how long the data of each collective moved, and how long it should have.

A transfer begins when the last member has entered and the group's previous collective is over; it
ends when the first waiting member leaves, since every exit seen is an upper bound, but on devices,
where members receive unequal amounts, when the last one does, which has most. Bandwidths are
those of nccl-tests (doc/PERFORMANCE.md): size over time, times the operation's bus factor.

A reference comes from nccl-tests or a probe on these nodes, from the speed of the network adapters,
or from the run's own best, in this order.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from evenstep import allreduce
from evenstep.diagnose.graph.entries import collectives
from evenstep.diagnose.graph.peers import message_ends
from evenstep.diagnose.graph.structure import quantiles
from evenstep.diagnose.levels import FEWEST, LOW, SMALLEST_SHARE
from evenstep.diagnose.measure.grid import StepGrid
from evenstep.diagnose.measure.hosts import busiest, node_of, rack_of
from evenstep.statistics.interval import z
from evenstep.trace.clocks.clocks import Clocks
from evenstep.trace.columns import Array, Columns, key_numbers, positions_by_key, rows_by_key
from evenstep.trace.ranks import parse_ranks
from evenstep.trace.spool.layout import FROM_ROOT, SYNCHRONIZING_OPS, TO_ROOT, Kind, Op
from evenstep.trace.trace import Trace

ENOUGH = 20  # collectives of a kind, from which its quiet level and its noise are known
POWERS = np.linspace(0, 1, 21)  # of a size, by which times grow: 0 if all is latency, 1 if bytes
LOWER = 0.02  # quantile that with `LOW` gives the spread of undisturbed collectives


class Transfers(NamedTuple):
    """What moved data in a grid's steps: collectives, and messages whose ends are both known.

    `rows`: operation (of the graph), step (index), queue (number of a group, or of messages from
    one rank to another), group, op, size_bytes, members, root, dtype, source and target (ranks, of
    a message, else -1), begin_ns and end_ns on the graph's time, transfer_ns, kind, grown (how many
    times as long as one of the kind's size it should take). `kinds`: group, op, size_bytes,
    members, count, floor_ns (low quantile), quiet_ns (median of the undisturbed ones), noise_ns
    (their standard deviation; nan where too few). Uneven exchanges of a group, hardly two of which
    are of one size, are one kind, of the middle size of all alike.
    """

    rows: Columns
    kinds: Columns

    def of_kind(self, column: str) -> Array:
        """A column of times of the kinds, per row."""
        return np.asarray(self.kinds[column][self.rows.kind] * self.rows.grown)

    @property
    def of_collectives(self) -> Columns:
        """The kinds that are no messages."""
        return self.kinds.select(np.isin(self.kinds.op, _OPS))


_FROM_GRAPH = ("group", "op", "size_bytes", "members", "root", "dtype")
_OPS = SYNCHRONIZING_OPS + FROM_ROOT + TO_ROOT


def transfers(grid: StepGrid) -> Transfers:
    """Every collective and message of the grid's steps that all traced members took part in."""
    table, ends = grid.graph.operations, message_ends(grid.graph)[:, :-1]
    sent, step = (ends >= 0).all(axis=0), np.searchsorted(grid.steps, table.step)
    known = table.whole & (table.members > 1) & (np.isin(table.op, _OPS) | sent)
    moved = np.flatnonzero(known & (np.append(grid.steps, -1)[step] == table.step))
    moved = moved[np.lexsort([table.sequence[moved], table.queue[moved]])]
    rows, (source, target) = table.select(moved), np.where(sent, grid.graph.ranks[ends], -1)
    queue, over = key_numbers(rows.queue), rows.over_ns + rows.apart_ns
    took = np.rint(rows.took_ns).astype(np.int64) + rows.apart_ns
    size, grown = _alike(rows, queue, took)
    kind = key_numbers(queue, rows.op, size)
    named = {name: rows[name] for name in _FROM_GRAPH}
    heads = np.unique(kind, return_index=True)[1]
    kinds = {of: (named | {"size_bytes": size})[of][heads] for of in _FROM_GRAPH[:4]}
    kinds |= _usual(took / grown, kind, rows.group + 1)
    named |= {"operation": moved, "step": step[moved], "queue": queue, "kind": kind, "grown": grown}
    named |= {"source": source[moved], "target": target[moved], "transfer_ns": took}
    return Transfers(Columns(named | {"begin_ns": over - took, "end_ns": over}), Columns(kinds))


def _alike(rows: Columns, queue: Array, took: Array) -> tuple[Array, Array]:
    """The size of each transfer's kind, and how many times as long the transfer should take: where
    amounts are unequal, by the power of the size that leaves least between those of a queue."""
    size, grown = rows.size_bytes.copy(), np.ones(len(rows))
    uneven = rows.uneven & (size > 0) & (took > 0)
    for members in np.unique(rows.members[uneven]):
        mine = uneven & (rows.members == members)
        usual, of = int(np.median(size[mine])), key_numbers(queue[mine])
        more, lasted = np.log(size[mine] / usual), np.log(took[mine])
        left = (lasted - power * more for power in POWERS)
        apart = [np.abs(one - quantiles(one, of, 0.5, of.max() + 1)[of]).mean() for one in left]
        power = POWERS[int(np.argmin(apart))]
        grown[mine], size[mine] = (size[mine] / usual) ** power, usual
    return size, grown


def _usual(took: Array, number: Array, group: Array | None = None) -> dict[str, Array]:
    """Count and undisturbed durations of the transfers of each number; where these are few, but
    `FEWEST`, with as large a noise in their time as all such of their `group` have."""
    count = np.bincount(number)
    floor, lower, middle = (
        quantiles(took, number, share, len(count)).astype(float) for share in (LOW, LOWER, 0.5)
    )
    noise = np.where(count >= ENOUGH, (floor - lower) / (z(LOW) - z(LOWER)), np.nan)
    if group is not None:
        some = (count >= FEWEST)[number]
        part = _usual((took / np.maximum(middle, 1)[number])[some], group[some])["noise_ns"]
        few = np.flatnonzero(some & np.isnan(noise)[number])
        noise[number[few]] = middle[number[few]] * part[group[few]]
    quiet = floor - z(LOW) * np.nan_to_num(noise)
    return {"count": count, "floor_ns": floor, "quiet_ns": quiet, "noise_ns": noise}


def usual_of_same(rows: Columns) -> dict[str, Array]:
    """What is usual of the same transfer in all steps, for each transfer: the n-th of its kind, as
    a step's first and last buckets may be quicker than those between, being alone on the links."""
    same = key_numbers(rows.kind, positions_by_key(rows.step, rows.kind))
    usual = _usual(rows.transfer_ns / rows.grown, same)
    return {name: rows.grown * each[same] for name, each in usual.items()}


def quiet_level(measured: Transfers) -> tuple[Array, Array]:
    """Quiet level and noise of each transfer: those of the same one in all steps or, where these
    are too few, of its kind and at least the low quantile of the same."""
    same = usual_of_same(measured.rows)
    known = np.isfinite(same["noise_ns"])
    least = np.maximum(measured.of_kind("quiet_ns"), same["floor_ns"])
    noise = np.where(known, same["noise_ns"], measured.of_kind("noise_ns"))
    return np.where(known, same["quiet_ns"], least), noise


def message_kinds(trace: Trace, rows: Columns) -> dict[tuple[int, bool], list[Array]]:
    """The messages among these transfers, by channel, in lists of channels of one size, all within
    nodes or all between them: the keys."""
    found: dict[tuple[int, bool], list[Array]] = defaultdict(list)
    sent = np.flatnonzero(rows.source >= 0)
    for channel in (sent[one] for one in rows_by_key(rows.kind[sent])):
        ends = (trace.ranks[int(rows[end][channel[0]])].node for end in ("source", "target"))
        found[int(rows.size_bytes[channel[0]]), len(set(ends)) == 1].append(channel)
    return found


# -- all-to-alls -----------------------------------------------------------------------------------


def tokens(trace: Trace, grid: StepGrid) -> dict[str, Any] | None:
    """Imbalance of what ranks receive in all-to-alls: tokens, where experts are on the ranks.

    Of the calls with different amounts (what experts return has equal ones) `imbalance` is the mean
    of the largest over the members' mean; `fullest` are the ranks that received it, with their
    share of these calls. None where sizes are not recorded or equal.
    """
    if int(Op.ALL_TO_ALL) not in grid.graph.operations.op:
        return None
    rows = trace.of_kind(Kind.COLLECTIVE)
    rows = rows.select((rows.op == int(Op.ALL_TO_ALL)) & (rows.group >= 0))
    call = np.stack([rows.group.astype(np.int64), rows.group_seq.astype(np.int64)])
    calls, place, members = np.unique(call, axis=1, return_inverse=True, return_counts=True)
    place, received = place.reshape(-1), rows.bytes_out.astype(float)
    most = np.zeros(calls.shape[1])
    np.maximum.at(most, place, received)
    whole = np.maximum(np.bincount(place, received), 1)  # a member of a call may receive nothing
    ratio = most * members / whole
    uneven = (members > 1) & (ratio >= 1 + SMALLEST_SHARE)
    if not uneven.any():
        return None
    full = (received == most[place]) & uneven[place]
    ranks, counts = np.unique(rows["rank"][full], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:4]
    share, imbalance = np.round(counts / counts.sum(), 4), round(float(ratio[uneven].mean()), 4)
    fullest = [{"rank": int(ranks[at]), "share": float(share[at])} for at in order]
    return {"calls": int(uneven.sum()), "imbalance": imbalance, "fullest": fullest}


def arrivals(trace: Trace, clocks: Clocks) -> Columns:
    """A row for each rank in each collective that all traced members of its group took part in.

    rank, seq (of the record), step, group, operation (a number), here_ns (entry on the time of the
    rank's steps), took_ns, wait_ns (until the last deciding member has entered), awaited (the rank
    is that member) and relative (entry times do not compare, only times in flight).
    """
    ranks = np.array(sorted(trace.ranks), np.int64)
    rows, operations = collectives(trace, clocks, ranks)
    rows = rows.select((operations.whole & (operations.members > 1))[rows.operation])
    number, took = rows.operation, np.maximum(rows.leave_ns - rows.enter_ns, 0)
    apart = np.isin(ranks, list(clocks.unplaced))[rows.lane] | rows.on_device
    relative = (np.bincount(number, apart, len(operations)) > 0)[number]
    entered = np.where(relative, -took, rows.enter_ns)
    last = np.full(len(operations), np.iinfo(np.int64).min)
    np.maximum.at(last, number[rows.decides], entered[rows.decides])
    wait = np.where(rows.waits, np.clip(last[number] - entered, 0, took), 0)
    return Columns(
        {
            "rank": ranks[rows.lane], "seq": rows.seq, "step": rows.step,
            "group": operations.group[number], "operation": number,
            "here_ns": _here(rows, clocks, ranks, trace.host_clock_ranks),
            "took_ns": took, "wait_ns": wait,
            "awaited": rows.decides & (entered == last[number]), "relative": relative,
        }
    )  # fmt: skip


def _here(rows: Columns, clocks: Clocks, ranks: Array, one_clock: list[int]) -> Array:
    """Entries on the host's time. Those of a device on a clock of its own are moved step by step,
    as both clocks drift, by the least with which nothing runs before it is issued."""
    if not rows.on_device.any():
        return np.asarray(rows.enter_ns)
    step = key_numbers(rows.lane, rows.step)
    shift = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(shift, step, np.where(rows.on_device, rows.issued_ns - rows.enter_ns, shift[0]))
    rank = ranks[rows.lane]
    issued = rows.enter_ns + shift[step]
    on_hosts = clocks.common(rank, rows.enter_ns)
    there = np.where(np.isin(rank, one_clock), on_hosts, issued)
    return np.where(rows.on_device, there, rows.enter_ns)


# -- what to expect --------------------------------------------------------------------------------

SPREAD = 4.0  # largest over smallest size, at least, for a slope
ROUNDS = 8  # of the reweighted fit


class TransferLine(NamedTuple):
    """t = alpha_ns + size / gBps (Hockney 1994), 10^9 bytes/s being bytes per nanosecond."""

    alpha_ns: float
    gBps: float  # noqa: N815

    def time_ns(self, size_bytes: Any) -> Any:
        return self.alpha_ns + np.asarray(size_bytes) / self.gBps


def line_through(
    size_bytes: Array, time_ns: Array, weight: Array | None = None
) -> TransferLine | None:
    """The line of least absolute relative deviations, with neither latency nor time per byte
    negative; None where sizes are too much alike."""
    sizes, times = np.asarray(size_bytes, float), np.asarray(time_ns, float)
    usable = (times > 0) & (sizes > 0)
    sizes, times = sizes[usable], times[usable]
    if len(np.unique(sizes)) < 2 or sizes.max() < SPREAD * sizes.min():
        return None
    from scipy.optimize import nnls  # when first asked: .1 s

    given = np.ones(len(sizes)) if weight is None else np.asarray(weight, float)[usable]
    scale = np.sqrt(given) / times
    for _ in range(ROUNDS):  # least absolute deviations by reweighting
        alpha, per_byte = nnls(np.stack([scale, scale * sizes], axis=1), scale * times)[0]
        off = np.abs(alpha + per_byte * sizes - times) / times
        scale = np.sqrt(given / np.maximum(off, 1e-3)) / times
    return TransferLine(float(alpha), float(1 / per_byte)) if per_byte > 0 else None


RINGS = (int(Op.ALL_REDUCE), int(Op.ALL_GATHER), int(Op.REDUCE_SCATTER))
SLOWEST_GBPS = 0.125  # 1 Gb/s in 10^9 bytes/s: no fabric in use is slower per rank
USUAL_GBPS = 1.25  # 10 Gb/s, where unknown and of little effect
LONGEST_HOP_NS = 30_000.0  # of TCP: no fabric in use needs longer for an empty message
USUAL_HOP_NS = 10_000.0  # between RDMA's 2 µs and the 30 µs of TCP
GOOD = 0.8  # of the reference: a tuned fabric reaches it


class Shape(NamedTuple):
    """Collectives of one operation over groups that lie on the nodes in the same way."""

    op: int
    members: int
    nodes: int  # places its ring visits: racks where known, else hosts; 1 is inside one
    leaving: int  # hops of a ring in rank order that leave the busiest place
    groups: tuple[int, ...]
    rows: Array  # mask of the transfers
    sizes: Array  # bytes, ascending, of the kinds with enough collectives
    floors_ns: Array  # of these sizes
    line: TransferLine | None  # through the floors; None where sizes are too much alike
    trees: bool = False  # its library, NCCL, reduces along trees where a ring takes longer
    passes: float = 1.0  # of the bus bandwidth's bytes, over the link of the busiest node
    sharing: int = 1  # groups that lie alike, fast or slow, on the node that has most

    @property
    def lies(self) -> tuple[int, ...]:
        """The key of shapes that should be equally fast."""
        return self.op, self.members, self.nodes, self.leaving

    @property
    def name(self) -> str:
        """ "all_reduce of 8 ranks"."""
        return f"{Op(self.op).name.lower()} of {self.members} ranks"

    @property
    def factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        return allreduce.bus_factor(Op(self.op).name.lower(), self.members)

    @property
    def busbw_gBps(self) -> float:  # noqa: N802
        """Best bus bandwidth at any size, or the line's if larger; 0 if no transfer took time."""
        took = self.floors_ns > 0
        best = self.factor * float(np.max(self.sizes[took] / self.floors_ns[took], initial=0))
        return max(best, self.factor * self.line.gBps) if self.line is not None else best

    @property
    def longest_latency_ns(self) -> float:
        """The most of a transfer that can be latency, for any algorithm."""
        return self.factor * self.members * LONGEST_HOP_NS

    @property
    def usual_latency_ns(self) -> float:
        """The latency of a transfer where unknown: that of a ring, or up and down a tree."""
        hops, levels = self.factor * self.members, allreduce.depth(self.members)
        return USUAL_HOP_NS * (min(hops, 2 * levels) if self.trees else hops)


class Reference(NamedTuple):
    """Bus bandwidth to expect of a shape, and its source."""

    gBps: float  # noqa: N815
    source: str
    firm: bool  # measured or by construction, not only reached by other operations of the run


def places_of(trace: Trace, group: int) -> list[str]:
    """Where the members of a group are, in the group's order: racks where all are known."""
    ranks = [rank for rank in trace.groups[group].ranks if rank in trace.ranks]
    racks = [rack_of(trace, rank) for rank in ranks]
    if all(racks) and len(set(racks)) > 1:
        return racks
    return [node_of(trace, rank) for rank in ranks]


def shapes(trace: Trace, measured: Transfers) -> list[Shape]:
    """The shapes of a run, the largest total transfer time first."""
    keys: dict[tuple[int, int, int, int], list[int]] = {}
    kinds = measured.of_collectives  # a message has two ends, not a shape
    pairs = np.stack([kinds.group.astype(int), kinds.op.astype(int)])
    for group, op in np.unique(pairs, axis=1).T.tolist():
        where = places_of(trace, group)
        key = (op, len(where), len(set(where)), busiest(where))
        keys.setdefault(key, []).append(group)
    found = [
        _shape(trace, measured, alike, *key)._replace(sharing=_most_on_a_node(trace, groups))
        for key, groups in keys.items()
        for alike in _by_speed(measured, key[0], groups)
    ]
    moved = measured.rows.transfer_ns
    return sorted(found, key=lambda shape: -float(moved[shape.rows].sum()))


def _most_on_a_node(trace: Trace, groups: list[int]) -> int:
    traced = ([one for one in trace.groups[group].ranks if one in trace.ranks] for group in groups)
    on = Counter(node for ranks in traced for node in {node_of(trace, one) for one in ranks})
    return max(on.values())


def _by_speed(measured: Transfers, op: int, groups: list[int]) -> list[list[int]]:
    """Groups that should be equally fast, those much slower than the faster half apart from the
    others: links are slower than they could be, never faster."""
    kinds = measured.kinds
    mine = (kinds.op == op) & np.isin(kinds.group, groups) & (kinds["count"] >= FEWEST)
    if len(groups) < 2 or not mine.any():
        return [groups]
    group, size, floor = kinds.group[mine], kinds.size_bytes[mine], kinds.floor_ns[mine]
    sizes, at = np.unique(size, return_inverse=True)
    usual = [np.quantile(floor[size == one], 0.5, method="lower") for one in sizes]
    ratio = floor / np.maximum(np.array(usual)[at], 1.0)
    known = np.unique(group).tolist()
    slow = [one for one in known if np.median(ratio[group == one]) > 1 / GOOD]
    if not slow or len(slow) > len(groups) / 2:
        return [groups]
    return [[one for one in groups if one not in slow], slow]


def _shape(trace: Trace, measured: Transfers, groups: list[int], *key: int) -> Shape:
    op, members, nodes, leaving = key
    trees = op == Op.ALL_REDUCE and "nccl" in trace.groups[groups[0]].backend.lower()
    mask = (measured.rows.op == op) & np.isin(measured.rows.group, groups)
    kinds = measured.kinds
    mine = (kinds.op == op) & np.isin(kinds.group, groups) & (kinds["count"] >= FEWEST)
    sizes, at = np.unique(kinds.size_bytes[mine], return_inverse=True)
    weight = kinds["count"][mine].astype(float)
    whole = np.maximum(np.bincount(at, weight), 1)
    floors = np.bincount(at, weight * kinds.floor_ns[mine]) / whole
    line = line_through(sizes, floors, np.sqrt(whole)) if len(sizes) else None
    shape = Shape(op, members, nodes, leaving, tuple(groups), mask, sizes, floors, line, trees)
    holders = _holders(trace, op, groups[0])
    if nodes < 2 or not holders:
        return shape
    on, held = (
        Counter(node_of(trace, one) for one in ranks if one in trace.ranks)
        for ranks in (trace.groups[groups[0]].ranks, holders)
    )
    # each of the h holders of a node has a part from all n - m elsewhere, where a ring goes once
    away = max(held[node] * (members - on[node]) for node in on) / (members - 1)
    return shape._replace(passes=away * members / len(holders))


def _holders(trace: Trace, op: int, group: int) -> tuple[int, ...]:
    """The ranks to which all others send: everybody in an all-to-all, parameter servers in their
    all-reduces (unless their names are damaged), and nobody in a ring."""
    found = trace.groups[group]
    if op == Op.ALL_REDUCE:
        with suppress(ValueError):
            servers = parse_ranks(found.backend.partition(", servers ")[2])
            return tuple(set(servers).intersection(found.ranks))
    return found.ranks if op == Op.ALL_TO_ALL else ()


# -- references ------------------------------------------------------------------------------------


def reference(trace: Trace, shape: Shape, others: list[Shape]) -> Reference | None:
    """The bus bandwidth that a shape should reach; None where unknown or reached."""
    wanted = Op(shape.op).name.lower().replace("_", "")
    floors = [
        (float(floor["busbw_gBps"]), str(floor.get("by") or "nccl-tests"))
        for floor in trace.run.get("floors") or []  # of nccl-tests, given with the trace
        if re.sub("_|perf", "", str(floor.get("op", "")).lower()) == wanted
        and floor.get("busbw_gBps") and floor.get("ranks") in (None, shape.members)
    ]  # fmt: skip
    if floors:
        best, by = max(floors)
        return Reference(best, f"{by} on these nodes", True)
    if (adapters := adapter_gBps(trace, shape)) is not None:
        return Reference(adapters / shape.passes, "the speed of the network adapters", True)
    rings = [one for one in others if one is not shape and one.op in RINGS]
    alike = [
        one.busbw_gBps / shape.passes
        for one in rings
        if one.nodes == shape.nodes and one.leaving <= shape.leaving
    ]
    best = max(alike, default=0.0)
    return Reference(best, "the run's own best", False) if best > shape.busbw_gBps else None


def adapter_gBps(trace: Trace, shape: Shape) -> float | None:  # noqa: N802
    """Bandwidth at which a ring can leave a node of this shape; None where unknown.

    NCCL and the simulator spread rings over all adapters of a node; others use one. Groups on a
    node share these: whether also one without a PCI address is unknown, so that it is the least.
    """
    if shape.nodes < 2:
        return None
    group = trace.groups[shape.groups[0]]
    ranks = [rank for rank in group.ranks if rank in trace.ranks]
    spread = any(one in group.backend.lower() for one in ("nccl", "simulated"))
    return min(_node_gbps(trace, one, spread=spread) for one in ranks) / 8 / shape.sharing or None


def _node_gbps(trace: Trace, rank: int, *, spread: bool) -> float:
    """Speed of a node's fastest kind of adapter, or of all of that kind; 0 where unknown."""
    facts = trace.ranks[rank].facts.get("locality") or {}
    speeds = [port.get("rate_gbps") or 0.0 for port in facts.get("ib_ports") or []]
    if not any(speeds):
        # virtual adapters, which have neither PCI address nor driver, state any speed
        nics = facts.get("nics") or []
        real = [nic for nic in nics if nic.get("pci", True) or nic.get("driver")]
        speeds = [nic.get("speed_gbps") or 0.0 for nic in real]
    best = float(max(speeds, default=0.0))
    return best * speeds.count(best) if spread else best
