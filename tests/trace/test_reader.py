"""One spool, whole, damaged, or being written."""

import os
import random
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenstep
from evenstep.errors import LayoutError, SpoolError, TraceError
from evenstep.trace import reader
from evenstep.trace.facts import check
from evenstep.trace.pack import Extent
from evenstep.trace.reader import RECORD, SUMMARY, coarsen, open_spool, read_spool, whole_slots
from evenstep.trace.spool import layout
from evenstep.trace.spool.spool import Regions, Spool
from tests.trace.small_run import STEPS, identity, write_rank

REGIONS = Regions(ring_bytes=1, summary_bytes=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a good spool."""
    return write_rank(tmp_path_factory.mktemp("whole") / "s", 1).read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "rank-00001.spool"


def read(place, data):
    place.write_bytes(data)
    return read_spool(place)


def attempt(place, data):
    """What a reader finds and, where it refuses, why; it must never end in another way."""
    try:
        return read(place, data), ""
    except TraceError as error:
        return None, str(error)


def test_a_good_spool_reads_without_damage(place, whole):
    contents = read(place, whole)
    assert (len(contents.records), len(contents.summaries)) == (STEPS, STEPS)
    assert contents.closed
    assert contents.damage == ""


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_at_any_byte_is_read_as_far_as_it_goes_or_refused_in_words(place, whole, data):
    cut = data.draw(st.integers(0, len(whole) - 1))
    contents, refusal = attempt(place, whole[:cut])
    assert (contents is None) == (cut < layout.PAGE_BYTES) == (str(place) in refusal)
    if contents is not None:
        ring = REGIONS.ring_offset
        assert len(contents.records) == max(0, min(STEPS, (cut - ring) // layout.RECORD_BYTES))
        assert (str(place) in contents.damage) == (cut < ring + 64 * layout.RECORD_BYTES)


def mutilated(whole, damage):
    """The bytes with some of them replaced: [(where, value)…]."""
    data = bytearray(whole)
    for where, value in damage:
        data[where] = value
    return bytes(data)


HEAD = layout.PAGE_BYTES + 512  # header, identity and the first tables: where damage hurts


@settings(max_examples=150, deadline=None)
@given(damage=st.lists(st.tuples(st.integers(8, HEAD), st.integers(0, 255)), min_size=1))
def test_damaged_bytes_end_in_a_refusal_in_words_or_in_records(place, whole, damage):
    contents, refusal = attempt(place, mutilated(whole, damage))
    assert str(place) in refusal if contents is None else contents.records["seq"].all()


@settings(max_examples=50, deadline=None)
@given(field=st.integers(0, 8), value=st.integers(0, 2**64 - 1))
def test_a_header_that_points_anywhere_is_survived(place, whole, field, value):
    offset = (20, 24, 32, 40, 48, 56, 64, 72, 80)[field]  # HEADER's fields after the sizes
    size = 4 if offset in (20, 80) else 8
    raw = struct.pack("<Q", value)[:size]
    contents, refusal = attempt(place, whole[:offset] + raw + whole[offset + size :])
    assert str(place) in refusal if contents is None else contents.identity["rank"] == 1


@pytest.mark.parametrize("wrong", [{"rank": "one"}, {"rank": -1}, {"rank": None}, {"world": 2**40}])
def test_an_identity_that_cannot_be_is_damage(tmp_path, wrong):
    path = write_rank(tmp_path / "s", 0)
    damaged = Spool.create(tmp_path / "d", identity(0) | wrong, ring_bytes=1, summary_bytes=1)
    damaged.shut()
    assert read_spool(path)
    with pytest.raises(SpoolError, match="identity at byte 96 is damaged"):
        read_spool(tmp_path / "d")


@pytest.mark.parametrize(
    "group", ['{"ranks": "0-1"}', "[]", '{"uid": "u", "ranks": "0-9999999999"}']
)
def test_a_group_that_makes_no_sense_is_left_out_and_said(tmp_path, group):
    spool = Spool.create(tmp_path / "s", identity(0), ring_bytes=1, summary_bytes=1)
    spool._append(layout.TABLE_GROUP, 1, group.encode())
    spool.name_id("still read")
    contents = read_spool(tmp_path / "s")
    spool.shut()
    assert contents.groups == {}
    assert contents.names == {1: "still read"}
    assert "table entry" in contents.damage


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("hooks", "kernels"), ("hooks", {"every": "x"}), ("hooks", {"every": 0})),
        *(("raised", {"frames": [{"a": 1}]}), ("ended", {"monotonic_ns": "x"})),
        *(("heartbeat_ns", "soon"), ("dump", "written")),
    ],
)
def test_a_fact_of_another_shape_is_damage_and_is_told_to_nobody(tmp_path, key, value):
    spool = Spool.create(tmp_path / "d", identity(0), ring_bytes=1, summary_bytes=1)
    spool.add_fact("note", "any")
    spool.add_fact(key, value)
    spool.shut()
    contents = read_spool(tmp_path / "d")
    assert "table entry" in contents.damage
    assert (contents.facts["note"], key in contents.facts) == ("any", False)


@pytest.mark.parametrize("name", ["enter_ns", "exit_ns"])
def test_a_record_whose_times_are_of_no_run_is_left_out_and_said(tmp_path, name):
    path = write_rank(tmp_path / "s", 1)
    data = bytearray(path.read_bytes())
    sound = read_spool(path)
    ring = layout.HEADER.unpack_from(data)[5]
    at = ring + 3 * layout.RECORD_BYTES + RECORD.fields[name][1]
    data[at : at + 8] = struct.pack("<q", 2**62)
    damaged = read(tmp_path / "d", data)
    assert damaged.records["seq"].tolist() == np.delete(sound.records["seq"], 3).tolist()
    assert damaged.damage.endswith("times of 1 records are not of this run")


def test_a_foreign_file_is_named_as_such(place):
    with pytest.raises(SpoolError, match=r"rank-00001.spool is not a spool: it does not begin"):
        read(place, b"PK\x03\x04" * 4096)


def test_a_short_file_of_another_kind_is_named_as_such(place):
    with pytest.raises(SpoolError, match=r"is not a spool: it does not begin"):
        read(place, b"PK\x03\x04")


@pytest.mark.parametrize("size", [0, 5, 4095])
def test_a_spool_that_is_cut_within_its_header_is_called_so_with_what_is_lost(whole, place, size):
    with pytest.raises(SpoolError, match=r"cut short within its header: all that it recorded is l"):
        read(place, whole[:size])


def test_a_missing_file_is_named_as_such(tmp_path):
    with pytest.raises(SpoolError, match=r"cannot read .*nowhere: No such file"):
        read_spool(tmp_path / "nowhere")


def test_another_layout_version_names_both_and_the_mend(place, whole):
    newer = whole[:8] + struct.pack("<I", 2) + whole[12:]
    with pytest.raises(LayoutError, match="layout 2, this evenstep reads layout 1; read it with"):
        read(place, newer)


def test_a_record_in_a_slot_that_is_not_its_own_is_not_accepted(place, whole):
    second = REGIONS.ring_offset + layout.RECORD_BYTES
    moved = whole[:second] + struct.pack("<Q", 4) + whole[second + 8 :]
    assert read(place, moved).records["seq"].tolist() == [1, 3, 4]


# -- while it is being written ---------------------------------------------------------------------


class Overtaken:
    """Slots 1, 2, 3 … of which the writer takes the second while they are being copied."""

    def __init__(self, number):
        self.slots = np.zeros(number, RECORD)
        self.slots["seq"] = np.arange(1, number + 1)

    def __array__(self, dtype=None, copy=None):
        taken = self.slots.copy()
        self.slots["seq"][1] += len(self.slots)
        return taken

    def __getitem__(self, name):
        return self.slots[name]


def test_a_slot_that_is_taken_during_the_copy_is_not_accepted():
    assert whole_slots(Overtaken(4), 4)["seq"].tolist() == [1, 3, 4]


WRITER = """
    import sys
    from pathlib import Path
    from evenstep.trace.spool.spool import Spool
    from evenstep.trace.spool.summary import StepSummary, SummaryLog
    spool = Spool.create(Path(sys.argv[1]), {"rank": 0}, ring_bytes=1, summary_bytes=65536)
    log = SummaryLog(spool.summary_view(), spool.regions.summary_capacity)
    print("writing", flush=True)
    n = 0
    while True:
        for _ in range(64):
            n += 1
            spool.put(n, n + 1, 1, step=n & 0xFFFFFFFF, group_seq=n, bytes_in=n, bytes_out=n)
        step = n // 64 - 1
        log.append(StepSummary(step, step, step * 10, step * 10 + 10, step, [step] * 8))
"""


@pytest.fixture(scope="module")
def writing(tmp_path_factory):
    """A spool of 64 slots that another process overwrites without pause."""
    path = tmp_path_factory.mktemp("live") / "s"
    environ = os.environ | {"PYTHONPATH": str(Path(evenstep.__file__).parents[1])}
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(path)],
        env=environ, stdout=subprocess.PIPE,
    )  # fmt: skip
    child.stdout.readline()
    yield path
    child.kill()
    child.communicate()


def moments(number):
    """Pauses of random length, so that readers meet the writer anywhere."""
    chance = random.Random(1)
    for _ in range(number):
        time.sleep(chance.random() * 3e-4)
        yield


def test_a_reader_beside_a_writer_never_accepts_a_torn_record(writing):
    accepted = 0
    for _ in moments(400):
        records = read_spool(writing).records
        accepted += len(records)
        assert (records["exit_ns"] == records["enter_ns"] + 1).all()
        for field in ("enter_ns", "group_seq", "bytes_in", "bytes_out"):
            assert (records[field] == records["seq"]).all()
    assert accepted > 400


def test_a_reader_beside_a_writer_never_accepts_a_torn_summary(writing):
    for _ in moments(400):
        found = read_spool(writing).summaries
        assert (found["end_ns"] - found["start_ns"] == 10 * found["count"]).all()
        assert (found["first_step"][1:] > found["last_step"][:-1]).all()
        single = found[found["count"] == 1]
        assert (single["phase_ns"] == single["first_step"][:, np.newaxis]).all()


def test_a_spool_within_a_file_is_read_as_far_as_the_file_goes(tmp_path, whole):
    file = tmp_path / "several"
    file.write_bytes(bytes(layout.PAGE_BYTES) + whole)
    alone = tmp_path / "alone"
    alone.write_bytes(whole)
    for size in (None, len(whole), len(whole) + layout.PAGE_BYTES):
        found = read_spool(Extent(file, layout.PAGE_BYTES, size))
        assert (found.records == read_spool(alone).records).all()


def test_why_a_simulated_spool_ended_is_a_word_and_no_damage():
    check("closed", "simulated")
    with pytest.raises(ValueError, match="closed"):
        check("closed", ["simulated"])


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_summaries_merged_by_neighbours_say_of_each_stretch_what_its_parts_said(most):
    chance = np.random.default_rng(most)
    rows = np.zeros(7, SUMMARY)
    for name in SUMMARY.names:
        rows[name] = chance.integers(1, 1000, rows[name].shape)
    merged, each = coarsen(rows, most), -(-len(rows) // most)
    for part, one in zip(range(0, len(rows), each), merged, strict=True):
        parts = rows[part : part + each]
        assert all(one[name] == parts[0][name] for name in ("first_step", "start_ns"))
        assert all(one[name] == parts[-1][name] for name in ("last_step", "end_ns"))
        assert one["step_min_ns"] == parts["step_min_ns"].min()
        assert one["step_max_ns"] == parts["step_max_ns"].max()
        assert one["level"] == parts["level"].max() + (each > 1)
        for name in ("count", "step_sum_ns", "phase_ns", "sketch", "wait_ns", "cpu_ns"):
            assert (one[name] == parts[name].sum(axis=0)).all()


def test_a_record_that_is_overwritten_while_it_is_copied_is_left_out(tmp_path, whole, monkeypatch):
    (tmp_path / "s").write_bytes(whole)
    _, ring = open_spool(tmp_path / "s")
    plain = reader._read_at

    def overwritten(file, offset, first, last):
        found = plain(file, offset, first, last)
        with ring.path.open("r+b") as spool:  # the second record goes once they are read
            spool.seek(offset + layout.RECORD_BYTES)
            spool.write((2 + ring.slots).to_bytes(8, "little"))
        return found

    monkeypatch.setattr(reader, "_read_at", overwritten)
    living = ring._replace(settled=False)
    assert living.between(1, STEPS + 1)["seq"].tolist() == [1, 3, 4]


@pytest.mark.parametrize("key", ["closed", "cost", "ended", "hooks", "pacing_account", "raised"])
def test_a_fact_may_say_as_little_as_its_writer_knew(key):
    check(key, {})


@pytest.mark.parametrize("over", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_only_what_somebody_may_still_write_is_read_twice(
    tmp_path, monkeypatch, whole, over, packed
):
    """A rank that has ended, or its spool within a pack, has no writer."""
    spool = Spool.create(tmp_path / "s", {"rank": 0}, ring_bytes=1, summary_bytes=1)
    spool.put(1, 2, layout.Kind.MARKER)
    if over:
        spool.add_fact("closed", {})
    spool.shut()
    _, ring = open_spool(Extent(spool.path, name="rank-00000.spool" if packed else ""))
    times = []
    monkeypatch.setattr(
        reader, "_read_at", lambda *span, read=reader._read_at: times.append(1) or read(*span)
    )
    assert ring.between(1, 2)["seq"].tolist() == [1]
    assert len(times) == (1 if over or packed else 2)


@pytest.mark.parametrize("written", [0, 3, "capacity", "wrapped"])
def test_a_ring_has_its_latest_records_in_any_range_and_by_slots(tmp_path, written):
    spool = Spool.create(tmp_path / "s", {"rank": 0}, ring_bytes=1, summary_bytes=1)
    capacity = spool.regions.ring_capacity
    newest = {"capacity": capacity, "wrapped": 2 * capacity + 5}.get(written, written)
    for number in range(newest):
        spool.put(1 + number, 2 + number, layout.Kind.MARKER)
    spool.shut()
    _, ring = open_spool(spool.path)
    oldest = max(newest - capacity, 0) + 1
    for first, last in ((1, newest + 1), (oldest, oldest + 4), (newest - 2, newest + 9), (5, 5)):
        if first < 1:
            continue
        kept = [seq for seq in range(first, last) if oldest <= seq <= newest]
        found = ring.between(first, last)["seq"].tolist()
        assert found == kept or (last - first > capacity and set(found) <= set(kept))
    for records in (1, 7, capacity):
        chunks = [chunk["seq"].tolist() for chunk in ring.chunks(records)]
        assert all(1 <= len(chunk) <= records for chunk in chunks)
        every = [seq for chunk in chunks for seq in chunk]
        assert sorted(every) == list(range(oldest, newest + 1))
        slots = [(seq - 1) % capacity for seq in every]
        assert slots == sorted(slots)


@pytest.mark.parametrize(
    ("used", "filled"),
    [
        ([], 0),
        ([0], 64),
        ([63], 64),
        ([0, 64], 128),
        ([0, 128], 64),
        ([64], 0),
        ([0, 64, 129], 130),
    ],
)
def test_slots_behind_a_stretch_that_was_never_used_are_not_read(used, filled):
    """Of 130 slots, in stretches of 64: they are filled in order."""
    numbers = np.zeros(130, np.uint64)
    numbers[used] = 5
    assert reader._count_filled(numbers) == filled
