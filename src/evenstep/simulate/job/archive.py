"""The sink of a recording: a run folder that every command reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from evenstep.scenario import schema
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.collectives import holders_of
from evenstep.simulate.fabric.machines import Machines
from evenstep.simulate.fabric.placement import Placement
from evenstep.simulate.job.recording import START_NS, extra_records
from evenstep.simulate.job.strategies import Extra
from evenstep.trace.columns import Array
from evenstep.trace.ranks import format_ranks, group_uid
from evenstep.trace.reader import RECORD
from evenstep.trace.spool import layout
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import Identity
from evenstep.trace.spool.summary import FANOUT, LEVELS, level_slots

_PAGE = layout.PAGE_BYTES


@dataclass(frozen=True)
class RunInfo:
    """The run, its ranks and the groups of their collectives."""

    scenario: Scenario
    placement: Placement
    machines: Machines
    partitions: tuple[tuple[str, Array], ...]
    names: tuple[str, ...] = ()  # of pacing's reasons; number i + 1 in the tables

    @property
    def ranks(self) -> int:
        return len(self.placement.gpu)

    @cached_property
    def run_id(self) -> str:
        """An id derived from the scenario."""
        text = json.dumps(schema.plain(self.scenario), sort_keys=True)
        return f"simulated-{blake2b(text.encode(), digest_size=6).hexdigest()}"

    def facts(self) -> dict[str, Any]:
        """Contents of `run.json`."""
        nodes = np.unique(self.placement.node)
        return {
            "run_id": self.run_id,
            "command": ["evenstep", "simulate"],
            "world": self.ranks,
            "nodes": len(nodes),
            "scenario": schema.plain(self.scenario),
        }

    def identity(self, rank: int) -> dict[str, Any]:
        """The writer's identity in a spool's header."""
        node = int(self.placement.node[rank])
        local = int(self.placement.gpu[rank]) % self.scenario.cluster.gpus_per_node
        nodes = len(np.unique(self.placement.node))
        own = Identity(self.run_id, 0, rank, local, self.ranks, node, "simulation", nodes)
        host = {"hostname": f"node{node:04d}", "boot_id": self.run_id, "pid": 0, "versions": {}}
        anchor = {"anchor_monotonic_ns": START_NS, "anchor_realtime_ns": START_NS}
        return {**own._asdict(), **host, **anchor}

    def closing(self, rank: int) -> bytes:
        """Facts at the end of a rank's spool: locality and the reason of closing."""
        locality = self.machines.locality(int(self.placement.gpu[rank]))
        facts = {"closed": "simulated", "locality": locality}.items()
        texts = [_text({"key": key, "value": value}) for key, value in facts]
        return b"".join(layout.pack_entry(layout.TABLE_FACT, 0, text) for text in texts)

    def groups(self) -> list[list[bytes]]:
        """What a spool says of the groups of each partition, in the order of its rows."""
        return [
            [
                _text({"uid": group_uid(row, label), "name": label, "ranks": format_ranks(row),
                       "base": 0, "backend": self._backend(row)})
                for index, row in enumerate(members)
                for label in [name if len(members) == 1 else f"{name}{index}"]
            ]
            for name, members in self.partitions
        ]  # fmt: skip

    def _backend(self, members: Array) -> str:
        """What moves a group's data, and the parameter servers among its ranks."""
        how = self.scenario.collectives
        if how.algorithm != "server":
            return "simulated"
        return f"simulated, servers {format_ranks(members[holders_of(how.servers, len(members))])}"


class FolderArchive:
    """A run folder with a spool for each rank, written block by block.

    An interrupted simulation can be read: files have their full length, and slots that were not
    written are empty.
    """

    def __init__(self, info: RunInfo, folder: RunFolder, *, most: int, steps: int) -> None:
        self._info, self._folder = info, folder
        self._capacity = most  # records, until it is known how many there are
        groups = info.groups()
        self._first_summary = _PAGE + _tables_room(info, groups)
        # so many slots that level 0 holds every step
        capacity = max(2 * steps, LEVELS * FANOUT)
        while level_slots(capacity)[0][1] < steps:
            capacity += FANOUT
        self._summaries = capacity
        self._first_record = self._first_summary + self._summaries * layout.SUMMARY_BYTES
        self._records = np.zeros(info.ranks, np.int64)
        self._steps = np.zeros(info.ranks, np.int64)
        folder.write(info.facts())
        place = np.zeros((len(groups), info.ranks), np.int64)  # a rank's group in each partition
        for row, (_, members) in zip(place, info.partitions, strict=True):
            row[members] = np.arange(len(members))[:, None]
        self._ends = [  # of each rank's tables
            self._create(rank, [of[at] for of, at in zip(groups, mine, strict=True)])
            for rank, mine in enumerate(place.T)
        ]

    def _create(self, rank: int, groups: list[bytes]) -> int:
        """Write header and tables, and return where these end."""
        info, path = self._info, self._folder.spool_path(0, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        identity = _text(info.identity(rank))
        entries = [(layout.TABLE_GROUP, n, one) for n, one in enumerate(groups, 1)]
        entries += [(layout.TABLE_NAME, n, one.encode()) for n, one in enumerate(info.names, 1)]
        tables = [layout.pack_entry(*entry) for entry in entries]
        head = layout.HEADER.pack(
            layout.MAGIC, layout.VERSION, _PAGE, layout.RECORD_BYTES, layout.SUMMARY_BYTES,
            self._first_record, self._capacity, self._first_summary, self._summaries, _PAGE,
            self._first_summary - _PAGE, len(identity),
        )  # fmt: skip
        data = head.ljust(layout.HEADER_TEXT_OFFSET, b"\0") + identity
        data = data.ljust(_PAGE, b"\0") + b"".join(tables)
        with path.open("wb") as file:
            file.write(data)
            file.truncate(self._first_record + self._capacity * layout.RECORD_BYTES)
        return len(data)

    def keep(self, ranks: Array, records: Array, summaries: Array) -> None:
        """Write a block of records and summaries into every spool."""
        for place, rank in enumerate(ranks.tolist()):
            with self._folder.spool_path(0, rank).open("r+b", buffering=0) as file:
                file.seek(self._first_record + int(self._records[rank]) * layout.RECORD_BYTES)
                file.write(records[place].data)
                file.seek(self._first_summary + int(self._steps[rank]) * layout.SUMMARY_BYTES)
                file.write(np.ascontiguousarray(summaries[place]).view(np.uint8).data)
        self._records[ranks] += records.shape[1]
        self._steps[ranks] += summaries.shape[1]

    def close(self, alone: list[Extra]) -> None:
        """Write records of single ranks and the facts that end a spool; cut files to their length.

        The ring of a spool is then exactly as long as its records.
        """
        extras = extra_records(alone, self._records)
        for rank, records in enumerate(self._records.tolist()):
            mine, path = extras.get(rank, np.zeros(0, RECORD)), self._folder.spool_path(0, rank)
            with path.open("r+b") as file:
                head = list(layout.HEADER.unpack(file.read(layout.HEADER.size)))
                head[6] = records + len(mine)  # of the ring
                file.seek(0)
                file.write(layout.HEADER.pack(*head))
                file.seek(self._ends[rank])
                file.write(self._info.closing(rank))
                file.seek(self._first_record + records * layout.RECORD_BYTES)
                file.write(mine.tobytes())
                file.truncate()


def _tables_room(info: RunInfo, groups: list[list[bytes]]) -> int:
    longest = sum(max(map(len, those)) + 32 for those in groups)
    names = sum(len(name) + 16 for name in info.names)
    return -(-(longest + names + len(info.closing(0)) + 4096) // _PAGE) * _PAGE


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
