"""Assemble a trace from the files that an importer reads one by one.

Rows are collected as columns. Names and groups are numbered here, alike for all ranks; at the end
each rank's rows are sorted by entry and numbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from evenstep.errors import TraceError, nothing_read
from evenstep.trace.columns import Array, Columns, positions_by_key
from evenstep.trace.ranks import MOST_MEMBERS, group_uid
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.spooled import EVENT_TYPES, NONE_VALUES
from evenstep.trace.trace import Group, RankInfo, Trace

#: Time of a clock's first event. Hosts' clocks may be an hour apart, and no time may become less
#: than 1 on the reference clock: an end at 0 means unknown.
FIRST_NS = 7_200_000_000_000
ORIGIN_NS = 1_000_000_000  # of one clock that begins with the trace
LATEST_NS = 1 << 62  # a time beyond it is damage: 146 years
MOST_BYTES = 1 << 62
LONGEST_TEXT = 400  # characters of a name or a message that a file holds


class Draft:
    """The ranks, groups, names, rows and limits found so far."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankInfo] = {}
        self.limits: list[str] = []
        self._groups: dict[str, int] = {}
        self._group_table: list[Group] = []
        self._members = 0  # of all groups
        self._names: dict[str, int] = {"": 0}
        self._tables: list[Columns] = []

    def name(self, text: str) -> int:
        """Number of a name, entered if new."""
        return self._names.setdefault(text, len(self._names))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def group(self, name: str, ranks: Iterable[int], backend: str = "") -> int:
        """Number of the group with this name and these members, entered if new."""
        members = ranks if isinstance(ranks, range) and ranks.step > 0 else sorted(set(ranks))
        uid = group_uid(members, name)
        if uid not in self._groups:
            self._members += len(members)
            if self._members > MOST_MEMBERS:
                raise TraceError(f"its groups have more than {MOST_MEMBERS} members in all: damage")
            self._groups[uid] = len(self._group_table)
            self._group_table.append(Group(uid, name, tuple(members), backend))
        return self._groups[uid]

    def members(self, group: int) -> tuple[int, ...]:
        """Global ranks of a group, ascending."""
        return self._group_table[group].ranks

    @property
    def length(self) -> int:
        """Rows entered so far."""
        return sum(len(table) for table in self._tables)

    def rank(
        self, rank: int, facts: Mapping[str, Any] = MappingProxyType({}), *, closed: bool = True,
        dropped: int = 0, **identity: Any,
    ) -> None:  # fmt: skip
        """Enter a rank with its identity. Raises `TraceError` if it was entered before."""
        if rank in self.ranks:
            raise TraceError(f"a second trace of rank {rank}")
        known = {"rank": rank, **identity}
        self.ranks[rank] = RankInfo(rank, known, dict(facts), closed, dropped)

    def rows(self, rank: int | Array, /, **columns: Any) -> None:
        """Add rows of one rank, or of a rank per row. A column is an array or one value for all
        rows; missing columns get the value for none."""
        length = max((np.size(values) for values in columns.values() if np.ndim(values)), default=1)
        given = {**NONE_VALUES, **columns, "rank": rank}
        self._tables.append(Columns.filled(given, EVENT_TYPES, length))

    def calls(self, rank: int | Array, /, **columns: Any) -> None:
        """Add collectives and messages, by their `op`. If `device` is given, device times equal the
        host's times unless given, too."""
        message = np.isin(columns["op"], (int(Op.SEND), int(Op.RECV)))
        kind = np.where(message, int(Kind.POINT_TO_POINT), int(Kind.COLLECTIVE))
        given = {"kind": kind, "bytes_out": columns.get("bytes_in", 0)}
        if "device" in columns:
            given |= {f"device_{name}": columns[name] for name in ("enter_ns", "exit_ns")}
            columns["flags"] = int(Flag.ON_DEVICE | Flag.ASYNC) | columns.get("flags", 0)
        self.rows(rank, **given | columns)

    def device_spans(
        self, rank: int, name: str, device: Any, start: Array, end: Array, step: Array
    ) -> None:
        """Enter spans in which a device computed or copied, in times of the host's clock."""
        if not len(start):
            return
        self.rows(
            rank, kind=int(Kind.SPAN), name=self.name(name), flags=int(Flag.ON_DEVICE),
            device=device, step=step, enter_ns=start, exit_ns=end, device_enter_ns=start,
            device_exit_ns=end,
        )  # fmt: skip

    def trace(self, run: Mapping[str, Any], *, world: int | None = None) -> Trace:
        """The assembled trace. Raises `TraceError` where no rank was entered."""
        if not self.ranks:
            raise nothing_read(self.limits, "there is no rank in it")
        size = max(self.ranks) + 1
        size = max(size, world or 0, *(max(g.ranks, default=-1) + 1 for g in self._group_table), 0)
        events = _number(Columns.concatenate([Columns.filled({}, EVENT_TYPES, 0), *self._tables]))
        return Trace(
            run=dict(run), world=size, attempt=0,
            ranks={rank: self.ranks[rank] for rank in sorted(self.ranks)}, events=events,
            groups=tuple(self._group_table), names=self.names, limits=self.limits,
        )  # fmt: skip


def _number(events: Columns) -> Columns:
    """Sort rows by rank and entry and number each rank's from 1; outer rows come first, and device
    rows with the same entry keep their order."""
    ends = np.where(events.exit_ns > 0, events.exit_ns, np.iinfo(np.int64).max)
    ends = np.where((events.flags & int(Flag.ON_DEVICE)) != 0, 0, ends)
    order = np.lexsort([-ends, events.enter_ns, events["rank"]])
    events = events.select(order)
    return events.with_column("seq", (positions_by_key(events["rank"]) + 1).astype(np.uint64))
