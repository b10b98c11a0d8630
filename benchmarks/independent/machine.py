"""Virtual ranks in max-plus arithmetic: everything has a time at which it is free.

A rank has a host thread and, where it has a device, a compute stream; a communicator has a queue
for each of its groups. Whatever is done starts when all it needs is free and ends its duration
later: `start = max(…)`, `end = start + seconds`. Nothing else happens here. All times are seconds
of one true clock, all arrays run over ranks or over the groups of a communicator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray

# The numbers of the record layout, copied by hand from docs/layout.md.
COLLECTIVE, MESSAGE, PHASE, PAUSE, STEP, SAMPLE, MARKER = 1, 2, 3, 5, 6, 8, 9
ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, GATHER = 1, 2, 4, 5, 6
ALL_TO_ALL, BARRIER, SEND, RECV = 8, 9, 10, 11
OTHER, INPUT, FORWARD, BACKWARD, SYNC, OPTIMIZER, CHECKPOINT = 0, 1, 2, 3, 4, 5, 6
UPPER_BOUND, ASYNC, COALESCED, OVERLAPPED, HOST_BLOCKED, ON_DEVICE = 1, 2, 4, 8, 64, 128

ISSUE_S = 12e-6  # what the host needs to hand one operation to a device


class Communicator:
    """Groups of one size that issue the same collectives in the same order; each has a queue."""

    def __init__(self, number: int, name: str, members: Array, *, link: str) -> None:
        self.number = number
        self.name = name
        self.members = np.asarray(members)  # (groups, size), global ranks ascending in each row
        self.link = link  # "node" where no group leaves its node, else "net"
        self.free = np.zeros(len(self.members))
        self.sequence = 0

    @property
    def size(self) -> int:
        """Ranks of a group."""
        return int(self.members.shape[1])

    @property
    def ranks(self) -> Array:
        """Every rank that is in some group, ascending."""
        return np.sort(self.members.ravel())


@dataclass
class Pending:
    """A collective under way: when it ends for each rank of its groups."""

    ranks: Array
    entered: Array
    ends: Array
    row: dict | None


@dataclass
class _Open:
    ranks: Array
    row: dict | None
    began: Array
    nested: Array


@dataclass
class Machine:
    """All ranks of a job. `tape` collects the records, or is None where only the end is wanted."""

    ranks: int
    on_device: bool
    tape: list[dict] | None = None
    kernels: bool = False  # devices are stamped as kernels begin, not as compute comes to them
    step: int = 0
    host: Array = field(init=False)
    device: Array = field(init=False)
    blocked: Array = field(init=False)  # since the step began: seconds without need of a core
    #: ranks, from, until, seconds of kernels in between; nan where one kernel takes all of it
    executed: list[tuple[Array, Array, Array, Array]] = field(default_factory=list)
    _open: list[_Open] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.everyone = np.arange(self.ranks)
        self.host, self.device, self.blocked = (np.zeros(self.ranks) for _ in range(3))

    @property
    def now(self) -> Array:
        """When each rank has done all it was given."""
        return np.maximum(self.host, self.device)

    # -- records ---------------------------------------------------------------------------------

    def note(self, ranks: Array, kind: int, **columns: object) -> dict | None:
        """Put one record of each of these ranks on the tape."""
        if self.tape is None:
            return None
        inside = next((o.row for o in reversed(self._open) if o.row is not None), None)
        row = {"ranks": ranks, "kind": kind, "step": self.step, "id": len(self.tape), **columns}
        row["inside"] = -1 if inside is None else inside["id"]
        self.tape.append(row)
        return row

    @contextmanager
    def phase(self, phase: int, ranks: Array | None = None) -> Iterator[None]:
        """A phase of these ranks' host threads, whatever is done meanwhile."""
        who = self.everyone if ranks is None else ranks
        row = self.note(who, PHASE, op=phase, enter=self.host[who].copy())
        opened = _Open(who, row, self.host[who].copy(), np.zeros(self.ranks))
        self._open.append(opened)
        yield
        self._open.pop()
        took = self.host[who] - opened.began
        if row is not None:
            row["exit"] = self.host[who].copy()
            row["group_seq"] = _ns(np.maximum(took - opened.nested[who], 0.0))
        for outer in self._open[-1:]:
            outer.nested[who] += took

    def waited(self, ranks: Array, since: Array, until: Array, *, record: bool) -> None:
        """The host threads were blocked in between: a SYNC phase, with or without its record."""
        took = np.maximum(until - since, 0.0)
        self.blocked[ranks] += took
        if record:
            self.note(ranks, PHASE, op=SYNC, enter=since, exit=until, group_seq=_ns(took))
        for outer in self._open[-1:]:
            outer.nested[ranks] += took

    # -- work ------------------------------------------------------------------------------------

    def work(self, ranks: Array, host: Array, device: Array | None) -> None:
        """Work on the host, or handed to the device bit by bit for `host` seconds."""
        begun = self.host[ranks]
        self.host[ranks] = begun + host
        if device is not None:
            fed = np.maximum(self.device[ranks], begun + np.minimum(host, ISSUE_S))
            self.device[ranks] = np.maximum(fed + device, begun + host + ISSUE_S)
            self._executed(ranks, fed, self.device[ranks], device)

    def _executed(self, ranks: Array, since: Array, until: Array, seconds: Array | float) -> None:
        """Kernels ran on these ranks' devices; `seconds` nan: one for all of that time."""
        if self.tape is not None:
            took = np.broadcast_to(seconds, len(ranks))
            self.executed.append((ranks, since.copy(), until.copy(), took))

    def synchronize(self, ranks: Array | None = None) -> None:
        """The host waits until its device has done everything."""
        who = self.everyone if ranks is None else ranks
        until = np.maximum(self.host[who], self.device[who])
        self.blocked[who] += until - self.host[who]
        self.host[who] = until

    # -- collectives -----------------------------------------------------------------------------

    def collective(
        self,
        comm: Communicator,
        op: int,
        nbytes: int,
        seconds: Array,
        late: Array,
        *,
        blocking: bool,
        bytes_out: int | None = None,
    ) -> Pending:
        """Issue one collective in every group. `late` (ranks): how long after the end each leaves.

        Nobody leaves before the last has entered, and a group's collectives follow each other.
        """
        members = comm.members
        ranks = comm.ranks
        issued = self.host[ranks].copy()
        if self.on_device:
            self._issued(ranks)
        clock = self.device if self.on_device else self.host
        start = np.maximum(clock[members].max(axis=1), comm.free)
        freed = np.zeros(self.ranks)
        freed[members] = comm.free[:, None]
        comm.free = start + seconds
        ends = np.zeros(self.ranks)
        ends[members] = comm.free[:, None]
        leaves = ends[ranks] + late[ranks]
        comm.sequence += 1
        row = self.note(
            ranks, COLLECTIVE, op=op, comm=comm.number, group_seq=comm.sequence,
            bytes_in=nbytes, bytes_out=nbytes if bytes_out is None else bytes_out,
            enter=issued, dtype=1, reduce_op=1 if op in (1, 5) else 0,
        )  # fmt: skip
        entered = clock[ranks].copy()
        if row is not None and self.on_device:
            row.update(
                device_enter=np.maximum(entered, freed[ranks]) if self.kernels else entered,
                device_exit=leaves,
                flags=ON_DEVICE | ASYNC, device=0, exit=leaves, polled=True,
            )  # fmt: skip
        if self.on_device:
            self._executed(ranks, entered, leaves, np.nan)
        if self.on_device and blocking:
            self.device[ranks] = np.maximum(self.device[ranks], leaves)
        elif blocking:
            self.host[ranks] = leaves
            self.waited(ranks, entered, leaves, record=False)
        if row is not None and not self.on_device:
            row["flags"] = HOST_BLOCKED if blocking else ASYNC | UPPER_BOUND
            row["exit"] = leaves if blocking else None
        return Pending(ranks, entered, leaves, row)

    def _issued(self, ranks: Array) -> None:
        """The hosts hand something to their devices, which cannot begin it earlier."""
        self.host[ranks] += ISSUE_S
        self.device[ranks] = np.maximum(self.device[ranks], self.host[ranks])

    def wait(self, pending: list[Pending], seen: Array, *, ddp: bool = False) -> None:
        """Go on when these have ended; `seen` (ranks): how late a callback sees an end.

        The host blocks (`ddp`: since its last entry, as a reducer's backward), a device's stream
        waits without the host knowing.
        """
        if not pending:
            return
        ranks = pending[-1].ranks
        last = np.max([one.ends for one in pending], axis=0)
        if self.on_device:
            self.device[ranks] = np.maximum(self.device[ranks], last)
            return
        since = pending[-1].entered if ddp else self.host[ranks].copy()
        until = np.maximum(self.host[ranks], last)
        self.host[ranks] = until
        self.waited(ranks, since, until, record=True)
        for one in pending:
            if one.row is not None:
                one.row["exit"] = np.minimum(one.ends + seen[one.ranks], until)

    # -- messages --------------------------------------------------------------------------------

    def send(
        self, ranks: Array, peers: Array, comm: int, tag: int, order: int, nbytes: int
    ) -> Pending:
        """Hand a message to each peer without waiting; its end is filled in by `receive`."""
        entered = (self.device if self.on_device else self.host)[ranks].copy()
        row = self.note(
            ranks, MESSAGE, op=SEND, comm=comm, group_seq=order, payload=tag, peer=peers,
            bytes_in=nbytes, bytes_out=nbytes, enter=self.host[ranks].copy(), dtype=1,
            flags=ASYNC | UPPER_BOUND,
        )  # fmt: skip
        if self.on_device:
            self.host[ranks] += ISSUE_S
            entered = np.maximum(entered, self.host[ranks] - ISSUE_S)
            if row is not None:
                row.update(device=0, flags=ASYNC | UPPER_BOUND | ON_DEVICE, polled=True)
                row["device_enter"] = entered
        return Pending(ranks, entered, entered, row)

    def receive(
        self, ranks: Array, sent: Pending, comm: int, tag: int, order: int, nbytes: int,
        seconds: Array,
    ) -> None:  # fmt: skip
        """Block until the message is here: it travels once it is sent and asked for."""
        clock = self.device if self.on_device else self.host
        posted = clock[ranks].copy()
        row = self.note(
            ranks, MESSAGE, op=RECV, comm=comm, group_seq=order, payload=tag,
            peer=sent.ranks, bytes_in=nbytes, bytes_out=nbytes, enter=self.host[ranks].copy(),
            dtype=1, flags=ASYNC | UPPER_BOUND,
        )  # fmt: skip
        if self.on_device:
            self.host[ranks] += ISSUE_S
            posted = np.maximum(posted, self.host[ranks])
        here = np.maximum(posted, sent.entered) + seconds
        sent.ends = here
        if self.on_device:
            self.device[ranks] = here
            self._executed(ranks, posted, here, np.nan)
            self._executed(sent.ranks, sent.entered, here, np.nan)
            if row is not None:
                row.update(device=0, flags=ASYNC | UPPER_BOUND | ON_DEVICE, polled=True)
                row.update(device_enter=posted, device_exit=here, exit=here)
                sent.row.update(device_exit=here, exit=here)
            return
        self.host[ranks] = here
        self.waited(ranks, posted, here, record=True)
        if row is not None:
            row["exit"] = here

    def finish_sends(self, sent: list[Pending]) -> None:
        """Wait for what was sent: where a host's send is seen to end, and not before."""
        for one in [] if self.on_device else sent:
            until = np.maximum(self.host[one.ranks], one.ends)
            self.host[one.ranks] = until
            if one.row is not None:
                one.row["exit"] = until


def _ns(seconds: Array) -> Array:
    return np.round(seconds * 1e9).astype(np.int64)
