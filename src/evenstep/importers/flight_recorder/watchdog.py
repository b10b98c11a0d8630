"""Read what torch's watchdog writes into a log when a collective times out.

Each rank says which call of which group timed out, and which calls of a group it issued and
completed last (`torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`, torch 1.13 to 2.13): the end of
its flight recorder's ring, without the rest. A rank is `[rank3]:` in front of a line, or else
`[Rank 3]` in it, which is its place in the group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile, lines, usable
from evenstep.importers.draft import LATEST_NS, Draft
from evenstep.importers.flight_recorder.dump import Dump
from evenstep.importers.flight_recorder.entries import entry
from evenstep.importers.flight_recorder.flight_recorder import trace_of
from evenstep.trace.ranks import MOST_RANKS, format_ranks
from evenstep.trace.trace import Trace

NAME = "log of a timeout"
TAIL = 1 << 18  # bytes at a log's end that are searched: a job ends soon after its timeout
_TIMED_OUT = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,15}),"
    r" OpType=(\w{1,40}),.{0,99}?Timeout\(ms\)=(\d{1,12})\) ran for (\d{1,12}) "
)
_STATUS = re.compile(
    r"\[PG (?:ID )?(\d{1,7})(?: PG GUID (\w{1,40}))?(?: ?\((\w{0,40})\))? Rank (\d{1,7})\]"
    r"(?:.{0,200}? at (?:NCCL )?work(?: sequence id)?: (\d{1,15}))?.{0,400}?"
    r"ast enqueued (?:NCCL )?work: (\d{1,15}), last completed (?:NCCL )?work: (\d{1,15})"
)
_RANK = re.compile(r"\[rank(\d{1,7})\]:")
_STAMP = re.compile(r"\[[EWI](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{9})")
_ADVICE = "give its flight recorder's dumps (TORCH_NCCL_TRACE_BUFFER_SIZE=2000, nccl_trace_rank_*)"
_COUNTED = (
    "the log of a timeout has the last calls of each rank and group only, and none of ranks that "
    "wrote nothing; a rank is in a call as soon as its launch has returned"
)


class Call(NamedTuple):
    """A call that timed out."""

    name: str = ""  # of the operation
    timeout_ms: int = 0
    ran_ms: int = 1


class Status(NamedTuple):
    """The last calls of a rank in a group."""

    group: tuple[str, str]  # torch's name of it and the program's
    issued: int
    completed: int


@dataclass(slots=True)
class Timeouts:
    """What the ranks said."""

    calls: dict[int, dict[int, Call]] = field(default_factory=dict)  # by rank and number
    status: dict[int, dict[str, Status]] = field(default_factory=dict)  # by rank and group
    stamp_ns: dict[int, int] = field(default_factory=dict)  # of a rank's first line

    def take_all(self, source: SourceFile) -> None:
        """Take in a log's lines."""
        for line in lines(source.path):
            self.take(line.text)

    def take(self, text: str) -> None:
        """Take in a line."""
        said, told = _TIMED_OUT.search(text), _STATUS.search(text)
        named = _RANK.search(text)
        if said:
            rank, number = int(named[1] if named else said[1]), int(said[2])
            call = Call(said[3].lower(), int(said[4]), int(said[5]))
        elif told and int(told[7]) <= int(told[6]):
            rank, number, call = int(named[1] if named else told[4]), int(told[5] or -1), Call()
            name = told[2] or told[1]
            status = Status((name, told[3] or ""), int(told[6]), int(told[7]))
            self.status.setdefault(rank, {}).setdefault(name, status)
        else:
            return
        self.stamp_ns.setdefault(rank, _stamp_ns(text))
        known = self.calls.setdefault(rank, {}).setdefault(number, call)
        if not known.name:
            self.calls[rank][number] = call

    def place(self) -> None:
        """Find the group of calls without one: that in which others are in a call of that number;
        where no line names a group, the only one. Raises `TraceError` where there may be several.
        """
        groups = {
            each.completed + 1: each.group
            for told in self.status.values()
            for each in told.values()
        }
        if not self.status and max(map(len, self.calls.values()), default=2) > 1:
            raise TraceError(f"it does not say of which groups the calls are: {_ADVICE}")
        for rank in self.calls.keys() - self.status.keys():
            for number in self.calls[rank]:
                group = groups.get(number, ("", "unnamed"))
                told = self.status.setdefault(rank, {})
                told[group[0]] = Status(group, number, number - 1)

    def dumps(self, source: SourceFile) -> Iterator[Dump]:
        """The end of each rank's ring, as its status tells it."""
        config: dict[str, tuple[int, ...]] = {}
        said: dict[tuple[str, int], Call] = {}  # of a group's calls, by the line of any rank
        for rank, told in sorted(self.status.items()):
            for name, each in told.items():
                config[name] = (*config.get(name, ()), rank)
                key = name, each.completed + 1
                own = self.calls[rank].get(key[1], Call())
                said[key] = own if own.name else said.get(key, own)
        for rank, told in self.status.items():
            raw = [row for each in told.values() for row in self._entries(rank, each, said)]
            entries = [entry({"record_id": n, **each}) for n, each in enumerate(raw)]
            reached = {name: each.issued for name, each in told.items()}
            yield Dump(source.path, rank, "", "", config, reached, entries, self.stamp_ns[rank])

    def _entries(
        self, rank: int, status: Status, said: dict[tuple[str, int], Call]
    ) -> Iterator[dict[str, Any]]:
        """The call of a group that a rank completed last, and the one that it is in, if any."""
        number = status.completed + 1
        own = self.calls[rank].get(number, Call())
        call = own if own.name else said[status.group[0], number]
        issued_ns = max(self.stamp_ns[rank] - 1_000_000 * call.ran_ms, 2)
        shared = {"pg_id": status.group[0], "process_group": list(status.group)}
        yield shared | {
            "profiling_name": "nccl:", "collective_seq_id": status.completed, "retired": True,
            "time_created_ns": issued_ns - 1, "time_discovered_completed_ns": issued_ns,
        }  # fmt: skip
        if status.issued >= number:
            yield shared | {
                "profiling_name": f"nccl:{call.name}", "retired": number in self.calls[rank],
                "collective_seq_id": number, "time_created_ns": issued_ns,
                "timeout_ms": call.timeout_ms,
            }  # fmt: skip


def _stamp_ns(text: str) -> int:
    """When a line was written, in ns of a year of even months; half of all time if not told."""
    found = _STAMP.search(text)
    if found is None:
        return LATEST_NS // 2
    month, day, hour, minute, second, rest = map(int, found.groups())
    return (((month * 31 + day) * 24 + hour) * 60 + minute) * 60_000_000_000 + second * 10**9 + rest


def recognises(source: SourceFile) -> bool:
    """Whether the head or the end of a log has a line of a timeout that can be read."""
    parts = [source.head]
    if source.path.is_file():
        with source.path.open("rb") as file:
            file.seek(max(file.seek(0, 2) - TAIL, 0))
            parts.append(file.read(TAIL))
    texts = [each.decode("latin-1") for each in parts]
    return any(_TIMED_OUT.search(each) or _STATUS.search(each) for each in texts)


def read(sources: Sequence[SourceFile]) -> Trace:
    """Read all logs as one trace. Raises `TraceError` where they do not tell the calls' groups."""
    draft, told = Draft(), Timeouts()
    list(usable(sources, draft.limits, told.take_all))
    try:
        told.place()
    except TraceError as error:
        raise TraceError(f"{sources[0].path} is a {NAME}: {error}") from None
    dumps = {each.rank: each for each in told.dumps(sources[0]) if each.rank < MOST_RANKS}
    draft.limits.append(f"{_COUNTED}; {_ADVICE}")
    if silent := sorted(set(range(max(dumps, default=0))) - set(dumps)):
        draft.limits.append(f"nothing in the log is of these ranks: {format_ranks(silent)}")
    return trace_of(draft, dumps, {"source": NAME})
