"""What can be asked of a run in SQL: its tables, their columns, and what each means.

A table is a view of the records with words for numbers. The records are a store's files, of which
a question reads no more than it needs, or a trace in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, IntFlag
from typing import NamedTuple

from evenstep.trace.spool.layout import Actuator, DType, Flag, Kind, Op, Phase, ReduceOp


class Column(NamedTuple):
    """A column of a table."""

    name: str
    meaning: str
    sql: str = ""  # of a record's own columns; "" where it bears the same name


class StoreTable(NamedTuple):
    """A table that can be asked."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    kind: Kind | None = None  # its rows are the records of this kind; None: see `evenstep sql`


#: Words that stand for numbers, as lists whose first entry is that of 0.
WORDS: Mapping[str, type[IntEnum]] = {
    "kinds": Kind,
    "ops": Op,
    "phases": Phase,
    "dtypes": DType,
    "reductions": ReduceOp,
    "actuators": Actuator,
}


def words(members: type[IntEnum]) -> list[str]:
    """Names of an enumeration at the places of their numbers."""
    found = [""] * (max(int(member) for member in members) + 1)
    for member in members:
        found[int(member)] = member.name.lower()
    return found


def _word(table: str, number: str) -> str:
    return f"(select {table} from lookup)[{number}::int + 1]"


def _flag(flag: IntFlag) -> str:
    return f"(flags & {int(flag)}) <> 0"


_OP = (
    f"case when kind in ({int(Kind.COLLECTIVE)}, {int(Kind.POINT_TO_POINT)}) then "
    f"{_word('ops', 'op')} when kind = {int(Kind.PHASE)} then {_word('phases', 'op')} end"
)
_TOOK = "case when exit_ns > 0 then exit_ns - enter_ns end"
#: A float64 from its bits (IEEE 754): the layout keeps measurements so.
_VALUE = (
    "case when (bytes_in >> 52) & 2047 = 2047 then null else "
    "(case when bytes_in >> 63 = 1 then -1.0 else 1.0 end) * "
    "pow(2.0, greatest((bytes_in >> 52) & 2047, 1)::int - 1075) * "
    "((bytes_in & 4503599627370495) + "
    "case when (bytes_in >> 52) & 2047 > 0 then 4503599627370496 else 0 end)::double end"
)

_RANK = Column("rank", "global rank")
_NODE = Column("node", "name of its host", _word("nodes", "rank"))
_STEP = Column("step", "training step, from 0")
_WHO = (_RANK, _NODE, _STEP)
_GROUP = Column("group", "name of the process group", _word("groups", '"group"'))
_NAME = Column("name", "where it was called from, or what it is called", _word("names", "name"))
_ENTER = Column("enter_ns", "its start, on the clock of its host: compare within a node only")
_EXIT = Column("exit_ns", "its end; 0 where it never ended")
_TIMES = (_ENTER, _EXIT)
_THREAD = Column("thread", "0 is the training thread")
_HELD = Column("held_ns", "delay added by pacing")

EVENTS = StoreTable(
    "events",
    "every record of every rank",
    (
        *_WHO,
        Column("seq", "1, 2, 3 … of each rank, in order of entry"),
        Column(
            "kind", "what the record is of: " + ", ".join(words(Kind)[1:]), _word("kinds", "kind")
        ),
        Column("op", "its operation, or its phase", _OP),
        _NAME,
        _GROUP,
        Column("group_seq", "position in the group's order"),
        *_TIMES,
        Column("device_enter_ns", "start on the device, on the device's clock; 0 unknown"),
        Column("device_exit_ns", "end on the device"),
        _HELD,
        Column("bytes_in", "bytes this rank put in"),
        Column("bytes_out", "bytes it got out"),
        Column("parent", "sequence number of the record it lies in; 0 none"),
        Column("payload", "by kind: a message's tag, a step's samples …"),
        _THREAD,
        Column("stream", "of the device"),
        Column("flags", "bits: " + ", ".join(f"{int(f)} {str(f.name).lower()}" for f in Flag)),
        Column("peer_or_root", "global rank; -1 none"),
        Column("device", "-1 is the host"),
        Column("dtype", "element type", _word("dtypes", "dtype")),
        Column("reduce_op", "reduction", _word("reductions", "reduce_op")),
    ),
)

OF_KINDS = (
    StoreTable(
        "collectives",
        "collective operations",
        (
            *_WHO,
            Column("op", "all_reduce, all_gather …", _word("ops", "op")),
            _GROUP,
            Column("group_seq", "with the group, the same on all ranks of a collective"),
            Column("bytes_in", "bytes this rank put in"),
            Column("bytes_out", "bytes it got out"),
            Column("dtype", "element type", _word("dtypes", "dtype")),
            *_TIMES,
            Column("in_flight_ns", "from its start to its end; null where it never ended", _TOOK),
            Column("root", "global rank; null without one", "nullif(peer_or_root, -1)"),
            _THREAD,
            Column("blocking", "whether its caller was blocked", f"not {_flag(Flag.ASYNC)}"),
            Column(
                "upper_bound",
                "whether it may have ended before exit_ns",
                _flag(Flag.EXIT_UPPER_BOUND),
            ),
            Column("on_device", "whether a device ran it", _flag(Flag.ON_DEVICE)),
            Column("failed", "whether it ended with an error", _flag(Flag.FAILED)),
            _NAME,
        ),
        Kind.COLLECTIVE,
    ),
    StoreTable(
        "messages",
        "sends and receives",
        (
            *_WHO,
            Column("op", "send or recv", _word("ops", "op")),
            Column("peer", "global rank of the other end", "nullif(peer_or_root, -1)"),
            _GROUP,
            Column("number", "among those of this group, peer, direction and tag", "group_seq"),
            Column("tag", "its tag", "payload"),
            Column("bytes", "its size", "greatest(bytes_in, bytes_out)"),
            *_TIMES,
            Column("in_flight_ns", "from its start to its end; null where it never ended", _TOOK),
        ),
        Kind.POINT_TO_POINT,
    ),
    StoreTable(
        "phases",
        "parts of a step",
        (
            *_WHO,
            Column("phase", ", ".join(words(Phase)), _word("phases", "op")),
            *_TIMES,
            Column("own_ns", "its length without the phases nested in it", "group_seq"),
        ),
        Kind.PHASE,
    ),
    StoreTable(
        "steps",
        "steps, one row per rank",
        (
            *_WHO,
            *_TIMES,
            Column("step_ns", "its length; null where it never ended", _TOOK),
            Column("cpu_ns", "processor time of the process", "group_seq"),
            Column(
                "ready_ns", "the training thread was ready but had no core", "parent::bigint * 1000"
            ),
            _HELD,
            Column("samples", "of this rank; null unknown", "nullif(payload, 0)"),
            Column("switches", "involuntary context switches", "peer_or_root"),
            Column("minor_faults", "page faults", "bytes_in"),
            Column("major_faults", "page faults that read from a disk", "bytes_out"),
        ),
        Kind.STEP,
    ),
    StoreTable(
        "pauses",
        "garbage collection",
        (
            *_WHO,
            Column("generation", "that was collected", "op"),
            Column("objects", "collected", "payload"),
            *_TIMES,
            Column("pause_ns", "its length", _TOOK),
        ),
        Kind.PAUSE,
    ),
    StoreTable(
        "spans",
        "what a script or a profile has named",
        (
            *_WHO,
            Column("name", "its name", _word("names", "name")),
            *_TIMES,
            Column("took_ns", "from its start to its end", _TOOK),
            _THREAD,
            Column("device", "-1 is the host"),
        ),
        Kind.SPAN,
    ),
    StoreTable(
        "samples",
        "measurements of the host and its devices",
        (
            *_WHO,
            Column("metric", "what was measured", _word("names", "name")),
            Column("device", "number of the device; -1 is the host"),
            Column("at_ns", "when, on the clock of its host", "enter_ns"),
            Column("value", "what it was", _VALUE),
        ),
        Kind.SAMPLE,
    ),
    StoreTable(
        "markers",
        "what the script has logged",
        (
            *_WHO,
            Column("name", "its name", _word("names", "name")),
            Column("at_ns", "when, on the clock of its host", "enter_ns"),
            Column("value", "what it was", _VALUE),
        ),
        Kind.MARKER,
    ),
    StoreTable(
        "decisions",
        "what pacing has decided",
        (
            *_WHO,
            Column("delay_ns", "the delay", "held_ns"),
            Column(
                "actuator",
                "where it is applied: " + ", ".join(words(Actuator)),
                _word("actuators", "op"),
            ),
            Column("applied", "whether it was spent", _flag(Flag.APPLIED)),
            Column("reason", "why", _word("names", "name")),
        ),
        Kind.PACING,
    ),
)

OF_RANKS = (
    StoreTable(
        "ranks",
        "who recorded",
        (
            _RANK,
            Column("node", "name of its host"),
            Column("closed", "whether it ended its trace itself"),
            Column("dropped", "records its ring has overwritten"),
            Column("oldest_step", "step of the first record there is; -1 without one"),
            Column("identity", "JSON: process, versions, clocks"),
            Column("facts", "JSON: locality, hooks, cost …"),
        ),
    ),
    StoreTable(
        "groups",
        "process groups",
        (
            Column("name", "its name"),
            Column("uid", "hash of its ranks and its name"),
            Column("backend", "gloo, nccl …"),
            Column("ranks", "list of its global ranks"),
        ),
    ),
    StoreTable(
        "summaries",
        "what is kept of old steps too: sums over one step or some neighbours",
        (
            _RANK,
            Column("first_step", "of those that are summed up"),
            Column("last_step", "of them"),
            Column("count", "how many"),
            Column("step_sum_ns", "their lengths together; also step_min_ns, step_max_ns"),
            Column("wait_ns", "waiting for others, in wait_known of the steps"),
            Column("collectives", "how many; also bytes, in_flight_ns"),
            Column("pause_ns", "garbage collection, in so many pauses"),
            Column("held_ns", "pacing delay"),
            Column("cpu_ns", "processor time; also faults and switches"),
            Column("agent_ns", "evenstep's own cost"),
            Column(
                "phase_ns_0",
                "to phase_ns_7, by the numbers of the phases: " + ", ".join(words(Phase)),
            ),
        ),
    ),
)

FINDINGS = StoreTable(
    "findings",
    "what `evenstep diagnose` finds, worst first; worked out where a question names it",
    (
        Column("title", "the cause in a few words"),
        Column("mode", "failure mode"),
        Column("layer", "model, framework, runtime, node, fabric or coupling"),
        Column("severity", "share of step time that its best remedy gives back, 0 to 1"),
        Column("confidence", "0 to 1"),
        Column("ranks", "culprits, a list"),
        Column("nodes", "their nodes, a list"),
        Column("cause", "the cause as a sentence"),
        Column("action", "the first remedy"),
    ),
)

TABLES = (EVENTS, *OF_KINDS, *OF_RANKS, FINDINGS)


def view(table: StoreTable) -> str:
    """The statement that makes a table of records."""
    columns = ", ".join(
        f'{column.sql or _quoted(column.name)} as "{column.name}"' for column in table.columns
    )
    where = "" if table.kind is None else f" where kind = {int(table.kind)}"
    return f"create view {table.name} as select {columns} from records{where}"


def _quoted(name: str) -> str:
    return f'"{name}"'
