"""Archives of OTF2 as its library hands them over, by hand: who is which rank, and what belongs to
whom. Archives that were really recorded are in `test_recorded_sources`."""

from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile
from evenstep.importers.draft import FIRST_NS
from evenstep.importers.otf2 import otf2
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
