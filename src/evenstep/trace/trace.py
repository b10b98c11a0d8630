"""The trace of a run: every rank's records as columns, whatever wrote them.

A live job, a simulation and an importer all end here; diagnosis and reports begin here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from evenstep.trace.columns import Array, Columns, key_numbers
from evenstep.trace.reader import SUMMARY
from evenstep.trace.spool.layout import Flag, Kind, Op


@dataclass(slots=True, frozen=True)
class Group:
    """A process group: the ranks that take part in its collectives."""

    uid: str  # hash of the sorted global ranks and the name
    name: str
    ranks: tuple[int, ...]
    backend: str = ""


@dataclass(slots=True)
class RankInfo:
    """Everything known about one rank besides its records."""

    rank: int
    identity: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    closed: bool = True  # the rank ended its trace itself; False: still alive, or killed
    dropped: int = 0  # records its ring has overwritten

    @property
    def node(self) -> str:
        """Name of the host."""
        return str(self.identity.get("hostname", ""))

    @property
    def clock(self) -> str:
        """Name of the monotonic clock: ranks with the same value share one."""
        return str(self.identity.get("boot_id") or f"rank {self.rank}")


#: Value of a run's `between_calls` where time between calls was not recorded, and of its `waits`
#: where waiting cannot be told from work.
UNKNOWN = "unknown"

COMPUTE, COPY = "compute", "copy"  # names of the spans in which a device computed or copied


class EventTable(Columns):
    """A table of events in memory; `evenstep.trace.spooled` has those on disk."""

    __slots__ = ()

    @staticmethod
    def of(columns: Columns) -> EventTable:
        """The same columns as an event table."""
        return EventTable(columns._arrays)

    def of_kind(self, *kinds: Kind) -> Columns:
        wanted = np.zeros(256, bool)
        wanted[[int(kind) for kind in kinds]] = True
        return self.select(wanted[self.kind])

    def window(self, first: int, last: int, wanted: Mapping[Kind, Sequence[str]]) -> ByKind:
        """Records of steps [first, last), of each wanted kind with at least its columns."""
        inside = self.select((self.step >= first) & (self.step < last))
        return ByKind({kind: inside.select(inside.kind == int(kind)) for kind in wanted})

    def step_numbers(self) -> Array:
        """Every step with a record, ascending."""
        return np.unique(self.step).astype(np.int64)

    def oldest_steps(self) -> dict[int, int]:
        """Step of each rank's oldest remaining record."""
        ranks, first = np.unique(self["rank"], return_index=True)
        return dict(zip(ranks.tolist(), self.step[first].tolist(), strict=True))

    def per_step(self) -> float:
        """Approximate number of records of a step, all ranks together."""
        return len(self) / max(len(np.unique(self.step)), 1)

    def flagged(self, kind: Kind, flag: Flag) -> bool:
        """Whether any record of a kind has a flag."""
        return bool(((self.of_kind(kind).flags & int(flag)) != 0).any())


class ByKind(EventTable):
    """Events in one table per kind, each with its own columns: only `of_kind` yields columns."""

    __slots__ = ("_tables",)

    def __init__(self, tables: Mapping[Kind, Columns]) -> None:
        super().__init__({})
        self._tables = dict(tables)
        self._length = sum(len(table) for table in tables.values())

    def of_kind(self, *kinds: Kind) -> Columns:
        tables = [self._tables[kind] for kind in kinds]
        return tables[0] if len(tables) == 1 else Columns.concatenate(tables)


@dataclass(slots=True)
class Trace:
    """All ranks of one attempt of a run.

    `events` holds one row per record, in order of rank and sequence; its columns `group` and `name`
    index `groups` and `names` (not the rank's own tables), with -1 and 0 for none. Times are on the
    rank's own monotonic clock in ns: see `evenstep.trace.clocks.clocks` before comparing hosts.
    `summaries` has one row per step or per merged steps of a rank (dtype `SUMMARY`), with
    `summary_rank` beside it. `limits` says in words what is missing or damaged. The events of a
    large run stay on disk: select only the kinds and rows that are needed.
    """

    run: dict[str, Any]
    world: int
    attempt: int
    ranks: dict[int, RankInfo]
    events: Columns
    groups: tuple[Group, ...] = ()
    names: tuple[str, ...] = ("",)
    summaries: Array = field(default_factory=lambda: np.empty(0, SUMMARY))
    summary_rank: Array = field(default_factory=lambda: np.empty(0, np.int32))
    limits: list[str] = field(default_factory=list)
    operations: Columns | None = None  # of an operation table: see `evenstep.trace.operations`

    def of_kind(self, *kinds: Kind) -> Columns:
        return self.table.of_kind(*kinds)

    def window(self, first: int, last: int, wanted: Mapping[Kind, Sequence[str]]) -> Trace:
        """The trace of steps [first, last), with the kinds in `wanted` and at least their columns.

        Other kinds of records are not available.
        """
        return replace(self, events=self.table.window(first, last, wanted))

    @property
    def elapsed_known(self) -> bool:
        """Whether the length of a step was measured: False where only calls were timed."""
        return self.run.get("between_calls") != UNKNOWN

    @property
    def hiding_known(self) -> bool:
        """Whether compute that hides waits was recorded or is inferred: False where only calls were
        placed."""
        return self.run.get("beside_calls") != UNKNOWN

    @property
    def waits_apart(self) -> bool:
        """Whether waiting for other ranks can be told from the rank's own work."""
        return self.run.get("waits") != UNKNOWN

    @property
    def table(self) -> EventTable:
        """The events, wherever they are, with what a trace asks of them."""
        return self.events if isinstance(self.events, EventTable) else EventTable.of(self.events)

    @property
    def host_clock_ranks(self) -> list[int]:
        """Ranks whose device stamps are on the clock of their host."""
        return [r for r, info in self.ranks.items() if info.facts.get("device_clock") == "host"]

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the world that left no usable trace."""
        return tuple(rank for rank in range(self.world) if rank not in self.ranks)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Hosts in order of their lowest rank."""
        return tuple(dict.fromkeys(self.ranks[rank].node for rank in sorted(self.ranks)))

    @property
    def one_host(self) -> bool:
        """Whether all ranks are known to share a host, by its name or else by its clock."""
        clocks = {info.clock for info in self.ranks.values()}
        return len(self.nodes) == 1 and (self.nodes != ("",) or len(clocks) == 1)


# -- messages --------------------------------------------------------------------------------------


class Messages(NamedTuple):
    """Indices of matched sends and receives: `send[i]` and `receive[i]` are one message."""

    send: Array
    receive: Array


def match_messages(rows: Columns) -> Messages:
    """Match sends with receives; unmatched and duplicate records are left out."""
    ends = np.flatnonzero(np.isin(rows.op, [int(Op.SEND), int(Op.RECV)]) & (rows.peer_or_root >= 0))
    sending = rows.op[ends] == int(Op.SEND)
    own, peer = rows["rank"][ends], rows.peer_or_root[ends]
    source, destination = np.where(sending, own, peer), np.where(sending, peer, own)
    place = (rows.group[ends], source, destination, rows.payload[ends], rows.group_seq[ends])
    number = key_numbers(*place)
    count = int(number.max(initial=-1)) + 1
    found, single = np.zeros((2, count), np.int64), np.ones(count, bool)
    for side, mask in enumerate((sending, ~sending)):
        found[side, number[mask]] = ends[mask]
        single &= np.bincount(number[mask], minlength=count) == 1
    return Messages(*found[:, single])
