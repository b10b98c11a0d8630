"""Archives of OTF2 as its library hands them over, by hand: who is which rank, and what belongs to
whom. Archives that were really recorded are in `test_recorded_sources`."""

import io
import json
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile
from evenstep.importers.draft import FIRST_NS
from evenstep.importers.otf2 import archive, otf2
from evenstep.importers.otf2.archive import COLUMNS, RECEIVE, SEND, Archive
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Op

BROADCAST, ALL_REDUCE, ALLOCATE = 1, 11, 17  # OTF2's numbers (OTF2_CollectiveOp)
WORLD, PAIR, FOREIGN, EMPTY = 1, 2, 3, 4
ROWS = [  # location, kind, enter, exit, communicator, peer, tag, sent, received; microseconds
    (20, ALL_REDUCE, 100, 110, WORLD, -1, 0, 8, 8),
    (10, ALL_REDUCE, 102, 110, WORLD, -1, 0, 8, 8),
    (30, ALL_REDUCE, 104, 111, WORLD, -1, 0, 8, 8),
    (10, SEND, 120, 125, PAIR, 1, 7, 64, 0),
    (30, RECEIVE, 121, 126, PAIR, 0, 7, 0, 64),
    (20, BROADCAST, 130, 130, WORLD, 2, 0, 16, 0),
    (20, ALL_REDUCE, 140, 139, WORLD, -1, 0, 8, 8),  # ends before it begins
    (20, ALLOCATE, 150, 151, WORLD, -1, 0, 8, 8),
    (99, ALL_REDUCE, 160, 161, FOREIGN, -1, 0, 8, 8),  # of no process that is known
    (20, ALL_REDUCE, 170, 171, WORLD, -1, 0, 8, 8),
]


@pytest.fixture
def opened(monkeypatch):
    """The trace of these operations; rank n of MPI's world is the n-th of its locations."""

    def of(rows, ticks_per_s=1_000_000):
        operations = Columns(dict(zip(COLUMNS, np.array(rows).reshape(-1, 9).T, strict=True)))
        places = {10: ("Master", 0), 20: ("Master", 1), 30: ("thread", 7)}
        communicators = {
            WORLD: ("WORLD", [20, 10, 30]), PAIR: ("PAIR", [10, 30]), FOREIGN: ("?", [99]),
            EMPTY: ("none", []),
        }  # fmt: skip
        archive = Archive(ticks_per_s, places, {0: "n0", 1: "n1"}, communicators, operations)
        monkeypatch.setattr(otf2, "read_archive", lambda _: archive)
        return otf2.read([SourceFile(Path("traces.otf2"), b"OTF2")])

    return of


def test_every_operation_is_of_its_rank_and_communicator(opened):
    trace = opened(ROWS)
    rows = trace.of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT).sorted_by("enter_ns")
    assert rows["rank"].tolist() == [0, 1, 2, 1, 2, 0, 0]
    named = [Op.ALL_REDUCE] * 3 + [Op.SEND, Op.RECV, Op.BROADCAST, Op.ALL_REDUCE]
    assert rows.op.tolist() == [int(op) for op in named]
    members = [trace.groups[group].ranks for group in rows.group]
    assert members == [(0, 1, 2)] * 3 + [(1, 2)] * 2 + [(0, 1, 2)] * 2
    assert rows.peer_or_root[3:6].tolist() == [2, 1, 2]  # as ranks of all
    assert rows.payload[3:5].tolist() == [7, 7]
    assert rows.bytes_in.tolist() == [8, 8, 8, 64, 0, 16, 8]
    assert rows.bytes_out.tolist() == [8, 8, 8, 0, 64, 0, 8]
    assert rows.group_seq[[0, 1, 2, 5, 6]].tolist() == [0, 0, 0, 1, 2]
    assert rows.group_seq[3] == rows.group_seq[4]


@pytest.mark.parametrize(("ticks_per_s", "ns"), [(1_000_000, 1000), (2_000_000_000, 0.5)])
def test_times_are_ticks_since_the_first_operation(opened, ticks_per_s, ns):
    rows = opened(ROWS, ticks_per_s).of_kind(Kind.COLLECTIVE, Kind.POINT_TO_POINT)
    rows = rows.sorted_by("enter_ns", "rank")
    begun, ended = [0, 2, 4, 20, 21, 30, 70], [10, 10, 11, 25, 26, 30, 71]
    assert (rows.enter_ns - FIRST_NS).tolist() == [int(ns * at) for at in begun]
    assert (rows.exit_ns - FIRST_NS).tolist() == [int(ns * at) + 1 for at in ended]


def test_a_rank_is_where_its_process_runs_and_has_a_clock_of_its_own(opened):
    ranks = opened(ROWS).ranks
    assert [ranks[rank].identity["place"] for rank in range(3)] == ["n1", "n0", "thread"]
    assert len({info.clock for info in ranks.values()}) == 3


@pytest.mark.parametrize(("rows", "ticks"), [([], 10**6), (ROWS, 0), (ROWS[6:9], 10**6)])
def test_an_archive_without_communication_is_a_sentence(opened, rows, ticks):
    with pytest.raises(TraceError, match=r"no communication|no known process"):
        opened(rows, ticks)


def test_what_lasts_beyond_all_runs_is_left_out(opened):
    longest = int(otf2.LONGEST_S) * 10**6
    late = [(20, ALL_REDUCE, 200, 100 + longest + over, WORLD, -1, 0, 8, 8) for over in (-1, 0)]
    rows = opened([*ROWS, *late]).of_kind(Kind.COLLECTIVE)
    assert len(rows) == 5 + 1


def kind(number):
    return SimpleNamespace(value=number)


def test_definitions_are_told_by_their_names_and_the_last_of_a_number_counts():
    said = archive._Definitions()
    said.clock(None, 7, 0, 0)
    said.clock(None, 1_000_000, 0, 0)
    for number, text in enumerate(["", "node", "Master", "WORLD", "PAIR", "x" * 500]):
        said.string(None, number, text)
    said.process(None, 50, 1, 0, 0)
    said.location(None, 100, 2, None, 9, 50)
    said.location(None, 200, 5, None, 9, 50)
    said.location(None, 300, 99, None, 9, 51)
    said.group(None, 0, 0, kind(4), 0, 0, [200, 100])  # all that communicate, in their order
    said.group(None, 1, 0, kind(5), 0, 0, [0, 1, 2])  # of which there is no third
    said.group(None, 2, 0, kind(5), 0, 0, (1,))
    said.group(None, 2, 0, kind(6), 0, 0, [7])  # of another type
    said.communicator(None, 10, 3, 1, 0)
    said.communicator(None, 11, 4, 2, 0)
    said.communicator(None, 12, 98, 97, 0)
    assert said.said() == {
        "ticks_per_s": 1_000_000,
        "locations": {100: ("Master", 50), 200: ("x" * 400, 50), 300: ("", 51)},
        "processes": {50: "node"},
        "communicators": {10: ("WORLD", [200, 100]), 11: ("PAIR", [100]), 12: ("", [])},
    }  # fmt: skip


def test_without_a_group_of_all_that_communicate_these_are_all_locations():
    said = archive._Definitions()
    for location in (30, 10):
        said.location(None, location, 0, None, 0, 0)
    said.group(None, 1, 0, kind(5), 0, 0, [1, 0])
    said.communicator(None, 10, 3, 1, 0)
    assert said.said()["communicators"] == {10: ("", [10, 30])}


def test_operations_have_the_times_of_their_calls():
    """Location 1 sends inside a call, which lies in another; 2 receives; both reduce, of which one
    had begun before the recording did; and a message comes outside of any call."""
    seen = archive._Operations()
    seen.enter(1, 10, None)
    seen.enter(1, 20, None)
    seen.send(1, 21, None, None, 1, 5, 7, 64, 0)
    seen.enter(2, 22, None)
    seen.leave(1, 30, None)
    seen.receive_completed(2, 31, None, None, 0, 5, 7, 64, 0)
    seen.leave(2, 35, None)
    seen.leave(1, 40, None)
    seen.begin(1, 50, None)
    seen.end(1, 60, None, None, kind(11), 6, (1 << 32) - 1, 8, 16)  # it has no root
    seen.end(2, 61, None, None, kind(1), 6, 3, 8, 0)
    seen.send_issued(2, 70, None, None, 0, 5, 9, 4, 0)
    seen.leave(2, 75, None)
    assert seen.rows == [
        (1, archive.SEND, 20, 30, 5, 1, 7, 64, 0),
        (2, archive.RECEIVE, 22, 35, 5, 0, 7, 0, 64),
        (1, 11, 50, 60, 6, -1, 0, 8, 16),
        (2, 1, 61, 61, 6, 3, 0, 8, 0),
        (2, archive.SEND, 75, 75, 5, 0, 9, 4, 0),
    ]


class Library:
    """OTF2's library, of an archive with two locations; it hands over events to what is set."""

    def __init__(self):
        self.set, self.calls = {}, []
        self.own = {
            "Reader_GetDefReader": lambda _, location: None if location == 20 else "own",
            "Reader_ReadAllGlobalDefinitions": self.define,
            "Reader_ReadAllGlobalEvents": self.tell,
        }

    def __getattr__(self, name):
        if name.endswith("Callback"):
            _, _, what = name.partition("_Set")
            return lambda calls, taken: self.set.update({what.removesuffix("Callback"): taken})

        def call(*arguments):
            self.calls.append((name, *arguments))
            return self.own.get(name, lambda *_: name)(*arguments)

        return call

    def define(self, *_):
        self.set["ClockProperties"](None, 1000, 0, 0)
        self.set["String"](None, 1, "Master")
        for location in (10, 20):
            self.set["Location"](None, location, 1, None, 0, 3)
        self.set["LocationGroup"](None, 3, 1, 0, 0)
        self.set["Group"](None, 0, 0, kind(5), 0, 0, [0, 1])
        self.set["Comm"](None, 4, 1, 0, 0)

    def tell(self, *_):
        self.set["Enter"](10, 1, None)
        self.set["MpiSend"](10, 1, None, None, 1, 4, 0, 5, 0)
        self.set["MpiIsend"](10, 1, None, None, 1, 4, 1, 6, 0)
        self.set["MpiRecv"](10, 1, None, None, 1, 4, 2, 7, 0)
        self.set["MpiIrecv"](10, 1, None, None, 1, 4, 3, 1 << 64, 0)
        self.set["Leave"](10, 2, None)
        self.set["MpiCollectiveBegin"](20, 3, None)
        self.set["MpiCollectiveEnd"](20, 9, None, None, kind(11), 4, 1 << 31, 8, 8)


def test_an_archive_is_read_location_by_location_within_bounds(monkeypatch, tmp_path):
    library, limits, out = Library(), {}, io.BytesIO()
    (tmp_path / "events").write_bytes(b"x" * 3_000_000)
    monkeypatch.setitem(sys.modules, "_otf2", library)
    monkeypatch.setattr(archive.resource, "setrlimit", limits.__setitem__)
    stdout = io.TextIOWrapper(out)
    monkeypatch.setattr(sys, "stdout", stdout)
    archive._main(str(tmp_path / "traces.otf2"))
    monkeypatch.undo()
    assert limits == {
        resource.RLIMIT_AS: (8 << 30, 8 << 30), resource.RLIMIT_CPU: (20 + 3 * 20, 20 + 3 * 20)
    }  # fmt: skip
    head, _, table = out.getvalue().partition(b"\n")
    assert json.loads(head) == {
        "ticks_per_s": 1000, "locations": {"10": ["Master", 3], "20": ["Master", 3]},
        "processes": {"3": "Master"}, "communicators": {"4": ["Master", [10, 20]]},
    }  # fmt: skip
    assert np.load(io.BytesIO(table)).tolist() == [
        [10, archive.SEND, 1, 2, 4, 1, 0, 5, 0],
        [10, archive.SEND, 1, 2, 4, 1, 1, 6, 0],
        [10, archive.RECEIVE, 1, 2, 4, 1, 2, 0, 7],
        [10, archive.RECEIVE, 1, 2, 4, 1, 3, 0, (1 << 63) - 1],
        [20, 11, 3, 9, 4, -1, 0, 8, 8],
    ]
    names = [name for name, *_ in library.calls]
    reader = "Reader_Open"
    assert library.calls[0] == (reader, str(tmp_path / "traces.otf2"))
    assert names.count("Reader_SetSerialCollectiveCallbacks") == 1
    chosen = [call for call in library.calls if call[0] == "Reader_SelectLocation"]
    assert chosen == [("Reader_SelectLocation", reader, location) for location in (10, 20)]
    order = ["Reader_OpenDefFiles", "Reader_OpenEvtFiles", "Reader_GetDefReader",
             "Reader_ReadAllLocalDefinitions", "Reader_CloseDefReader", "Reader_GetEvtReader",
             "Reader_GetDefReader", "Reader_GetEvtReader"]  # fmt: skip
    assert [name for name in names if name in order] == order
    registered = [name for name in names if "_Register" in name]
    assert registered == ["Reader_RegisterGlobalDefCallbacks", "Reader_RegisterGlobalEvtCallbacks"]
