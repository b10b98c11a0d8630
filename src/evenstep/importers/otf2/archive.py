"""Read an OTF2 archive with its own library, in a separate process.

The library is C and trusts its input, so the process has limited memory and time, and returns only
numbers and names: `read` starts it as `python -m evenstep.importers.otf2.archive ANCHOR`. Some
recorders write contradictory definitions: the last definition of a number counts.
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.errors import MissingExtra, TraceError
from evenstep.importers.draft import LONGEST_TEXT
from evenstep.trace.columns import Columns

MEMORY_BYTES = 8 << 30
CPU_S, CPU_S_PER_MB = 20, 20
#: Of an operation. Times in ticks; `peer` is a rank within the communicator, of a message its other
#: end and of a collective its root; `kind`: OTF2's number of a collective, or SEND or RECEIVE.
COLUMNS = ("location", "kind", "enter", "exit", "communicator", "peer", "tag", "sent", "received")
SEND, RECEIVE = -1, -2
LARGEST = (1 << 63) - 1
_LOCATIONS, _MEMBERS = 4, 5  # OTF2's types of groups: all communicating locations, indices of these


class Archive(NamedTuple):
    """The contents of an archive that are used."""

    ticks_per_s: int
    locations: dict[int, tuple[str, int]]  # name and process
    processes: dict[int, str]
    communicators: dict[int, tuple[str, list[int]]]  # name, and locations by rank
    operations: Columns


def read(anchor: Path) -> Archive:
    """Read the archive of an anchor file. Raises `TraceError` where the library cannot read it."""
    if find_spec("otf2") is None:
        raise MissingExtra("otf2", extra="otf2", purpose=f"reading {anchor}")
    command = [sys.executable, "-m", __name__, str(anchor)]
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        reason = last if done.returncode == 1 else f"its library ended with {done.returncode}"
        raise TraceError(f"{anchor} cannot be read: {reason[:200]}; copy the whole archive again")
    head, _, table = done.stdout.partition(b"\n")
    said = json.loads(head)
    numbers = np.load(io.BytesIO(table), allow_pickle=False)
    return Archive(
        said["ticks_per_s"],
        {int(key): (name, process) for key, (name, process) in said["locations"].items()},
        {int(key): name for key, name in said["processes"].items()},
        {int(key): (name, members) for key, (name, members) in said["communicators"].items()},
        Columns({name: numbers[:, at] for at, name in enumerate(COLUMNS)}),
    )


# -- in the separate process -----------------------------------------------------------------------


class _Definitions:
    """The definitions of the archive, by number."""

    def __init__(self) -> None:
        self.ticks_per_s = 0
        self.text: dict[int, str] = {}
        self.locations: dict[int, tuple[int, int]] = {}
        self.processes: dict[int, int] = {}
        self.groups: dict[tuple[int, int], list[int]] = {}  # by type and number
        self.communicators: dict[int, tuple[int, int]] = {}

    def clock(self, _: Any, ticks_per_s: int, *__: int) -> None:
        self.ticks_per_s = ticks_per_s

    def string(self, _: Any, number: int, text: str) -> None:
        self.text[number] = text[:LONGEST_TEXT]

    def process(self, _: Any, number: int, name: int, *__: Any) -> None:
        self.processes[number] = name

    def location(self, _: Any, number: int, name: int, __: Any, ___: int, process: int) -> None:
        self.locations[number] = name, process

    def group(self, _: Any, number: int, __: int, kind: Any, *rest: Any) -> None:
        self.groups[kind.value, number] = list(rest[-1])

    def communicator(self, _: Any, number: int, name: int, group: int, *__: Any) -> None:
        self.communicators[number] = name, group

    def said(self) -> dict[str, Any]:
        """The definitions with texts in place of their numbers."""
        everybody = next((those for (kind, _), those in self.groups.items() if kind == _LOCATIONS),
                         list(self.locations))  # fmt: skip
        named = self.text.get
        members = {
            number: [everybody[at] for at in those if at < len(everybody)]
            for (kind, number), those in self.groups.items()
            if kind == _MEMBERS
        }
        return {
            "ticks_per_s": self.ticks_per_s,
            "locations": {n: (named(name, ""), of) for n, (name, of) in self.locations.items()},
            "processes": {n: named(name, "") for n, name in self.processes.items()},
            "communicators": {
                number: (named(name, ""), members.get(group, []))
                for number, (name, group) in self.communicators.items()
            },
        }


class _Operations:
    """Operations in order of their end: a collective has two events of its own, a message the times
    of its call."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.under_way: dict[int, list[int]] = defaultdict(list)  # when calls began, by location
        self.begun: dict[int, int] = {}  # when the open collective of a location began
        self.held: dict[int, list[tuple[int, ...]]] = defaultdict(list)  # messages of open calls

    def enter(self, location: int, time: int, *_: Any) -> None:
        self.under_way[location].append(time)

    def leave(self, location: int, time: int, *_: Any) -> None:
        calls = self.under_way[location]
        began = calls.pop() if calls else time
        for kind, *rest in self.held.pop(location, ()):
            self.rows.append((location, kind, began, time, *rest))

    def send(self, location: int, _: int, __: Any, ___: Any, peer: int, communicator: int,
             tag: int, size: int, *____: int) -> None:  # fmt: skip
        self.held[location].append((SEND, communicator, peer, tag, size, 0))

    def receive(self, location: int, _: int, __: Any, ___: Any, peer: int, communicator: int,
                tag: int, size: int, *____: int) -> None:  # fmt: skip
        self.held[location].append((RECEIVE, communicator, peer, tag, 0, size))

    def send_issued(self, *said: Any) -> None:  # the library keeps one callback of a name alive
        self.send(*said)

    def receive_completed(self, *said: Any) -> None:
        self.receive(*said)

    def begin(self, location: int, time: int, *_: Any) -> None:
        self.begun[location] = time

    def end(self, location: int, time: int, _: Any, __: Any, op: Any, communicator: int,
            root: int, sent: int, received: int) -> None:  # fmt: skip
        began = self.begun.pop(location, time)
        peer = root if root < 1 << 31 else -1
        self.rows.append((location, op.value, began, time, communicator, peer, 0, sent, received))


def _main(anchor: str) -> None:
    import _otf2 as library

    size_mb = sum(path.stat().st_size for path in Path(anchor).parent.rglob("*")) / 1e6
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    limit_s = CPU_S + int(CPU_S_PER_MB * size_mb)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    reader = library.Reader_Open(anchor)
    library.Reader_SetSerialCollectiveCallbacks(reader)
    definitions, operations = _Definitions(), _Operations()
    _read_definitions(library, reader, definitions)
    _read_events(library, reader, list(definitions.locations), operations)
    print(json.dumps(definitions.said()), flush=True)
    rows = [[min(value, LARGEST) for value in row] for row in operations.rows]
    np.save(sys.stdout.buffer, np.array(rows, np.int64).reshape(-1, len(COLUMNS)))


def _read_definitions(library: Any, reader: Any, into: _Definitions) -> None:
    source = library.Reader_GetGlobalDefReader(reader)
    calls = library.GlobalDefReaderCallbacks_New()
    for name, taken in (
        ("ClockProperties", into.clock), ("String", into.string), ("Location", into.location),
        ("LocationGroup", into.process), ("Group", into.group), ("Comm", into.communicator),
    ):  # fmt: skip
        getattr(library, f"GlobalDefReaderCallbacks_Set{name}Callback")(calls, taken)
    library.Reader_RegisterGlobalDefCallbacks(reader, source, calls, None)
    library.Reader_ReadAllGlobalDefinitions(reader, source)


def _read_events(library: Any, reader: Any, locations: list[int], into: _Operations) -> None:
    for location in locations:
        library.Reader_SelectLocation(reader, location)
    library.Reader_OpenDefFiles(reader)
    library.Reader_OpenEvtFiles(reader)
    for location in locations:  # their clocks' offsets and numbers of their own
        own = library.Reader_GetDefReader(reader, location)
        if own:
            library.Reader_ReadAllLocalDefinitions(reader, own)
            library.Reader_CloseDefReader(reader, own)
        library.Reader_GetEvtReader(reader, location)
    source = library.Reader_GetGlobalEvtReader(reader)
    calls = library.GlobalEvtReaderCallbacks_New()
    for name, taken in (
        ("Enter", into.enter), ("Leave", into.leave), ("MpiSend", into.send),
        ("MpiIsend", into.send_issued), ("MpiRecv", into.receive),
        ("MpiIrecv", into.receive_completed),
        ("MpiCollectiveBegin", into.begin), ("MpiCollectiveEnd", into.end),
    ):  # fmt: skip
        getattr(library, f"GlobalEvtReaderCallbacks_Set{name}Callback")(calls, taken)
    library.Reader_RegisterGlobalEvtCallbacks(reader, source, calls, None)
    library.Reader_ReadAllGlobalEvents(reader, source)


if __name__ == "__main__":
    _main(sys.argv[1])
