"""Large runs: what is read from disk piece by piece is what would have been read at once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import TraceError
from evenstep.trace import loading as trace_module
from evenstep.trace import spools
from evenstep.trace.loading import load
from evenstep.trace.reader import RECORD, SUMMARY, coarsen
from evenstep.trace.spool import layout
from evenstep.trace.spool.layout import RECORD_BYTES, Flag, Kind, Op
from evenstep.trace.spool.spool import Spool
from evenstep.trace.spooled import EVENT_COLUMNS, RankRows, Spooled
from evenstep.trace.spools import step_index
from tests.trace.small_run import identity

STEPS = 40
RINGS = (1000, 100, 1000)  # records: the second rank's ring is too short for its run


def write(path, rank):
    """Collectives, a phase and the step itself, of every step; rank 2 attached two steps late."""
    spool = Spool.create(
        path, identity(rank), ring_bytes=RINGS[rank] * RECORD_BYTES, summary_bytes=1
    )
    group = spool.add_group({"uid": "world", "name": "mesh_dp", "ranks": "0-2"})
    late = 2 * (rank == 2)
    for step in range(STEPS - late):
        enter = 1000 * (step + late) + rank
        for place in range(3):
            sequence = 3 * (step + late) + place
            spool.put(enter, enter + 9, Kind.COLLECTIVE, Op.ALL_REDUCE, step, 0, group, sequence)
        spool.put(enter, enter + 500, Kind.PHASE, 2, step, 0, 0, 500)
        spool.put(enter, enter + 900, Kind.STEP, 0, step, 0, 0, 0)
    spool.add_fact("closed", {"reason": "exit"})
    spool.shut()


@pytest.fixture
def both(tmp_path, monkeypatch):
    """The same run, left on disk and in memory."""
    for rank in range(3):
        write(tmp_path / f"rank-{rank:05d}.spool", rank)
    return loaded(tmp_path, monkeypatch)


def loaded(place, monkeypatch):
    monkeypatch.setattr(spools, "COMPARED", 1)
    with monkeypatch.context() as patch:
        for module in (spools, trace_module):
            patch.setattr(module, "LARGE_RECORDS", 0)
        large = load(place)
    return large, load(place)


def test_records_that_a_live_rank_overwrites_while_they_are_read_are_a_sentence(
    tmp_path, monkeypatch
):
    live = Spool.create(
        tmp_path / "rank-00000.spool", identity(0), ring_bytes=RECORD_BYTES * 100, summary_bytes=1
    )
    for step in range(90):
        live.put(1000 * step, 1000 * step + 9, Kind.PHASE, 2, step)
    for module in (spools, trace_module):
        monkeypatch.setattr(module, "LARGE_RECORDS", 0)
    trace = load(tmp_path)
    assert len(trace.events.op) == 90
    for step in range(90, 120):
        live.put(1000 * step, 1000 * step + 9, Kind.PHASE, 2, step)
    with pytest.raises(TraceError, match="written to while it was read; give a copy"):
        trace.events["enter_ns"]
    live.shut()


def same(one, other, names=EVENT_COLUMNS):
    return all(np.array_equal(one[name], other[name]) for name in names)


def test_a_large_run_stays_on_disk_and_reads_the_same(both):
    large, small = both
    assert isinstance(large.events, Spooled)
    assert len(large.events) == len(small.events)
    assert list(large.events) == list(EVENT_COLUMNS)
    assert same(large.events, small.events)


@pytest.mark.parametrize("kind", [Kind.COLLECTIVE, Kind.STEP, Kind.PHASE])
def test_each_kind_reads_the_same(both, kind):
    large, small = both
    assert same(large.of_kind(kind), small.of_kind(kind))


def test_any_rows_can_be_picked_in_any_order(both):
    large, small = both
    rows = np.random.default_rng(1).permutation(len(small.events))[:50]
    assert same(large.events.select(rows), small.events.select(rows))
    late = small.events.step > 30
    assert same(large.events.select(late), small.events.select(late))


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 2)])
def test_only_files_of_ranks_with_picked_rows_are_read(both, monkeypatch, ranks):
    large, small = both
    rows = np.flatnonzero(np.isin(small.events["rank"], ranks))[::7]
    read = []
    chunks = RankRows.chunks
    monkeypatch.setattr(
        RankRows, "chunks", lambda part, kinds: read.append(part) or chunks(part, kinds)
    )
    assert same(large.events.select(rows), small.events.select(rows))
    assert len(read) == len(ranks)


def test_a_window_has_the_records_of_its_steps(both):
    large, small = both
    wanted = {Kind.COLLECTIVE: ("step", "enter_ns", "group"), Kind.STEP: ("step",)}
    for kind, names in wanted.items():
        one = large.window(7, 19, wanted).of_kind(kind)
        other = small.window(7, 19, wanted).of_kind(kind)
        assert set(other.step) <= set(range(7, 19))
        assert same(one, other, ("rank", *names))


def test_ranks_are_numbered_alike_and_what_a_ring_lost_is_counted(both):
    for trace in both:
        assert any("rank 2 began to count 2 steps after" in limit for limit in trace.limits)
        assert trace.ranks[1].dropped == 5 * STEPS - RINGS[1]
        assert [group.name for group in trace.groups] == ["dp"]


def test_records_whose_times_are_of_no_run_are_left_out_of_a_large_run_too(tmp_path, monkeypatch):
    path = tmp_path / "rank-00000.spool"
    write(path, 0)
    data = bytearray(path.read_bytes())
    ring = layout.HEADER.unpack_from(data)[5]
    for slot in (0, 3, 4):  # a collective, a phase and a step
        at = ring + (50 + slot) * RECORD_BYTES + RECORD.fields["exit_ns"][1]
        data[at : at + 8] = (2**62).to_bytes(8, "little")
    path.write_bytes(data)
    large, small = loaded(tmp_path, monkeypatch)
    assert len(large.events) == len(small.events) == 5 * STEPS - 3
    assert same(large.events, small.events)
    assert large.limits == small.limits
    assert "times of 3 records are not of this run" in large.limits[-1]


def test_the_oldest_step_of_each_rank_is_known(both):
    large, small = both
    assert large.table.oldest_steps() == small.table.oldest_steps()


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_a_span_holds_every_record_of_its_steps(steps):
    step = np.array(steps, np.uint32)
    seq = np.arange(1, len(steps) + 1)
    index = step_index(seq, step)
    for first in range(7):
        begin, end = index.span(first, first + 2)
        wanted = seq[(step >= first) & (step < first + 2)]
        assert ((wanted >= begin) & (wanted < end)).all()


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30).map(sorted))
def test_where_steps_ascend_a_span_holds_nothing_else(steps):
    step = np.array(steps, np.uint32)
    seq = np.arange(11, 11 + len(steps))
    index = step_index(seq, step)
    for first in range(7):
        begin, end = index.span(first, first + 2)
        assert list(range(begin, end)) == seq[(step >= first) & (step < first + 2)].tolist()


def test_a_window_has_the_records_of_its_steps_of_each_kind_and_of_several(both):
    kinds = dict.fromkeys((Kind.COLLECTIVE, Kind.PHASE, Kind.STEP), ("step", "kind", "enter_ns"))
    for trace in both:
        windowed = trace.window(30, 32, kinds)
        for some in ((Kind.STEP,), (Kind.PHASE, Kind.STEP), tuple(kinds)):
            whole = trace.of_kind(*some)
            inside = whole.select((whole.step >= 30) & (whole.step < 32))
            found = windowed.of_kind(*some)
            for one in (inside, found):
                assert set(one.kind.tolist()) == {int(kind) for kind in some}
            rows = [sorted(zip(*(t[c].tolist() for c in ("rank", "kind", "enter_ns")),
                               strict=True)) for t in (inside, found)]  # fmt: skip
            assert rows[0] == rows[1]
            assert len(windowed.events) == 2 * 5 * 3


@given(st.integers(1, 50), st.integers(1, 12))
def test_coarser_summaries_lose_nothing_they_count(number, most):
    fine = np.zeros(number, SUMMARY)
    fine["first_step"] = fine["last_step"] = np.arange(number)
    fine["count"], fine["step_sum_ns"] = 1, np.arange(number)
    fine["sketch"][:, 3] = 1
    coarse = coarsen(fine, most)
    assert len(coarse) <= most
    assert coarse["count"].sum() == coarse["sketch"].sum() == number
    assert coarse["step_sum_ns"].sum() == fine["step_sum_ns"].sum()
    assert (coarse["first_step"][0], coarse["last_step"][-1]) == (0, number - 1)


def test_rows_are_counted_from_either_end_and_a_column_may_be_put_beside_them(both):
    large, small = both
    rows = np.array([0, -1, 3])
    assert same(large.events.select(rows), small.events.select(rows))
    assert same(large.events.select(slice(5, 2, -1)), small.events.select(slice(5, 2, -1)))
    wide = large.events.with_column("step", 7 + 0 * small.events.step)
    assert set(wide.step) == {7}
    assert same(wide, small.events, ("rank", "seq", "enter_ns", "exit_ns"))


def test_a_flag_of_one_record_of_a_kind_is_a_flag_of_the_kind(both):
    assert not any(trace.table.flagged(Kind.COLLECTIVE, Flag.FAILED) for trace in both)
    _, small = both
    flags = small.events.flags.copy()
    flags[np.flatnonzero(small.events.kind == int(Kind.COLLECTIVE))[7]] |= int(Flag.FAILED)
    marked = replace(small, events=small.events.with_column("flags", flags))
    assert marked.table.flagged(Kind.COLLECTIVE, Flag.FAILED)
    assert not marked.table.flagged(Kind.STEP, Flag.FAILED)
    assert not marked.table.flagged(Kind.COLLECTIVE, Flag.COALESCED)


def test_a_record_of_no_group_and_no_name_is_of_none(both):
    for trace in both:
        assert set(trace.of_kind(Kind.STEP).group.tolist()) == {-1}
        assert set(trace.of_kind(Kind.COLLECTIVE).group.tolist()) == {0}
        assert {trace.names[name] for name in trace.of_kind(Kind.STEP).name} == {""}


@pytest.mark.parametrize("flag", [Flag.ON_DEVICE, Flag.ASYNC])
def test_it_is_known_whether_collectives_ran_on_a_device(tmp_path, monkeypatch, flag):
    spool = Spool.create(tmp_path / "rank-00000.spool", identity(0), ring_bytes=1, summary_bytes=1)
    spool.put(10, 20, Kind.COLLECTIVE, Op.ALL_REDUCE, flags=int(flag))
    spool.put(10, 20, Kind.PHASE, 2, flags=int(Flag.ON_DEVICE))
    spool.shut()
    for module in (spools, trace_module):
        monkeypatch.setattr(module, "LARGE_RECORDS", 0)
    assert load(tmp_path).events.on_device is (flag is Flag.ON_DEVICE)


def test_a_run_that_was_attached_to_late_has_the_steps_it_has(tmp_path, monkeypatch):
    path = tmp_path / "rank-00000.spool"
    spool = Spool.create(path, identity(0), ring_bytes=9 * RECORD_BYTES, summary_bytes=1)
    for step in range(10, 15):
        spool.put(1000 * step, 1000 * step + 900, Kind.STEP, 0, step, 0, 0, 0)
    spool.shut()
    for trace in loaded(tmp_path, monkeypatch):
        assert trace.table.step_numbers().tolist() == list(range(10, 15))
