import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import SpoolError
from evenstep.trace.reader import read_spool
from evenstep.trace.spool import layout, writing
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.spool.spool import TABLES_BYTES, BufferedSpool, Spool, add_last_fact

IDENTITY = {"run_id": "r", "rank": 3, "world": 4, "boot_id": "b", "hostname": "h"}


@pytest.fixture
def spool(tmp_path):
    opened = Spool.create(tmp_path / "s", IDENTITY, ring_bytes=112 * 64, summary_bytes=1)
    yield opened
    opened.shut()


def test_a_record_is_112_bytes_and_the_documented_fields_fill_it_to_106():
    packed = np.dtype(list(layout.RECORD_FIELDS))
    assert layout.RECORD_BODY.size + 8 == packed.itemsize == 106
    assert layout.RECORD_BYTES == 112


def test_every_field_comes_back_where_it_was_put(spool):
    spool.put(
        10, 20, Kind.COLLECTIVE, Op.ALL_REDUCE, held_ns=3, group_seq=4, bytes_in=5, bytes_out=6,
        step=7, group=8, parent=9, payload=11, thread=12, stream=13, name=14, flags=15, peer=-2,
        device=-3, dtype=16, reduce_op=17,
    )  # fmt: skip
    row = read_spool(spool.path).records[0]
    assert row.tolist() == (
        1, 10, 20, 0, 0, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, -2, -3, 1, 1, 16, 17
    )  # fmt: skip


def test_the_body_of_a_begun_collective_lays_its_fields_where_every_record_has_them():
    begun = layout.BEGUN_BODY.pack(10, 4, 5, 6, 7, 8, 9, 12, 15, -2, -3, 1, 2, 16)
    assert begun == layout.RECORD_BODY.pack(
        10, 0, 0, 0, 0, 4, 5, 6, 7, 8, 9, 0, 12, 0, 0, 15, -2, -3, 1, 2, 16, 0
    )


def test_flags_are_added_to_the_record_that_is_meant_and_to_nothing_else(spool):
    for number in range(3):
        spool.put(10 + number, 20, Kind.COLLECTIVE, name=5, flags=1, peer=7)
    before = read_spool(spool.path).records
    spool.add_flags(2, 4)
    spool.add_flags(2 + 64, 8)  # would lie in the same slot, and is not there
    after = read_spool(spool.path).records
    assert after["flags"].tolist() == [1, 5, 1]
    after["flags"] = before["flags"]
    assert (after == before).all()


def test_an_open_record_shows_no_exit_and_the_first_exit_stays(spool):
    seq = spool.put(10, 0, Kind.COLLECTIVE)
    assert read_spool(spool.path).records["exit_ns"][0] == 0
    spool.close(seq, 30)
    spool.close(seq, 40)
    assert read_spool(spool.path).records["exit_ns"][0] == 30


def test_a_late_exit_does_not_touch_the_record_that_took_the_slot(spool):
    old = spool.put(1, 0, Kind.COLLECTIVE)
    for enter in range(2, 66):
        spool.put(enter, 0, Kind.COLLECTIVE)
    spool.close(old, 99)
    spool.add_flags(old, 1)
    records = read_spool(spool.path).records
    assert not records["exit_ns"].any()
    assert not records["flags"].any()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300))
def test_the_ring_keeps_the_latest_records_in_order(tmp_path_factory, number):
    path = tmp_path_factory.mktemp("ring") / "s"
    spool = Spool.create(path, IDENTITY, ring_bytes=112 * 64, summary_bytes=1)
    for enter in range(1, number + 1):
        spool.put(enter, 0, Kind.SPAN)
    contents = read_spool(path)
    spool.shut()
    kept = min(number, 64)
    assert contents.records["enter_ns"].tolist() == list(range(number - kept + 1, number + 1))
    assert contents.dropped == number - kept


def test_threads_never_share_a_slot(tmp_path):
    spool = Spool.create(tmp_path / "s", IDENTITY, ring_bytes=112 * 8192, summary_bytes=1)
    threads = [
        threading.Thread(
            target=lambda t=t: [spool.put(i, 0, Kind.SPAN, thread=t) for i in range(1000)]
        )
        for t in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = read_spool(spool.path).records
    spool.shut()
    assert records["seq"].tolist() == list(range(1, 4001))
    for number in range(4):
        assert records["enter_ns"][records["thread"] == number].tolist() == list(range(1000))


def test_names_groups_and_facts_come_back(spool):
    assert [spool.name_id(name) for name in ("", "a", "bé", "a")] == [0, 1, 2, 1]
    number = spool.add_group({"uid": "u", "name": "dp", "ranks": "0-3"})
    spool.add_fact("locality", {"gpus": []})
    spool.add_fact("locality", {"gpus": [{"name": "a"}]})
    contents = read_spool(spool.path)
    assert contents.names == {1: "a", 2: "bé"}
    assert contents.groups[number]["name"] == "dp"
    assert contents.facts == {"locality": {"gpus": [{"name": "a"}]}}


@pytest.mark.parametrize("filler", ["name_id", "add_group"])
def test_names_and_groups_leave_room_for_what_is_said_at_the_end(spool, filler):
    for number in range(3000):
        text = f"{number}" * 200
        getattr(spool, filler)(text if filler == "name_id" else {"uid": text})
    assert spool.add_fact("closed", {"reason": "exit" * 1000})
    assert read_spool(spool.path).facts["closed"]["reason"].startswith("exit")


def test_a_full_name_table_costs_the_name_and_nothing_else(spool):
    ids = [spool.name_id(f"{i}-" + "x" * 60_000) for i in range(20)]
    assert ids[0] == 1
    assert ids[-1] == 0
    assert spool.put(1, 2, Kind.SPAN, name=ids[-1]) == 1


def test_what_comes_after_the_last_index_has_none(spool, monkeypatch):
    monkeypatch.setattr("evenstep.trace.spool.spool.INDEX_LIMIT", 3)
    assert [spool.name_id(name) for name in "abcdae"] == [1, 2, 3, 0, 1, 0]
    assert [spool.add_group({"uid": uid}) for uid in "abcde"] == [1, 2, 3, 0, 0]
    told = read_spool(spool.path)
    assert told.names == {1: "a", 2: "b", 3: "c"}
    assert sorted(told.groups) == [1, 2, 3]


def test_a_handler_that_interrupts_an_entry_gets_no_name_and_leaves_the_table_whole(
    spool, monkeypatch
):
    inner = []
    pack = layout.pack_entry

    def interrupted(*entry):
        if not inner:
            inner.append(None)
            inner[0] = (spool.name_id("inner"), spool.add_group({}), spool.add_fact("key", 1))
        return pack(*entry)

    monkeypatch.setattr(layout, "pack_entry", interrupted)
    outer = spool.name_id("outer")
    assert inner == [(0, 0, False)]
    assert spool.name_id("inner") == outer + 1
    names = read_spool(spool.path).names
    assert (names[outer], names[outer + 1]) == ("outer", "inner")


def test_a_second_claimant_is_refused(spool):
    with pytest.raises(SpoolError, match="another process records this rank"):
        Spool.create(spool.path, IDENTITY, ring_bytes=1, summary_bytes=1)


def test_kill_9_leaves_every_record_written_before(tmp_path):
    script = f"""
        import os, signal, sys
        from pathlib import Path
        from evenstep.trace.spool.spool import Spool
        spool = Spool.create(Path({str(tmp_path / "s")!r}), {IDENTITY!r}, ring_bytes=11200,
                             summary_bytes=1)
        for enter in range(1, 51):
            spool.put(enter, enter + 1, 2)
        spool.put(51, 0, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert ended.returncode == -signal.SIGKILL
    contents = read_spool(tmp_path / "s")
    assert contents.records["enter_ns"].tolist() == list(range(1, 52))
    assert contents.records["exit_ns"][-1] == 0
    assert not contents.closed


def test_a_buffered_spool_reads_the_same_after_a_flush(tmp_path):
    spool = Spool.create(
        tmp_path / "s", IDENTITY, ring_bytes=112 * 64, summary_bytes=1, mode="buffered"
    )
    assert isinstance(spool, BufferedSpool)
    assert "buffered" in spool.note
    assert spool.buffered  # which whoever looks into mapped memory has to know
    first = spool.put(1, 0, Kind.COLLECTIVE)
    spool.flush()
    spool.close(first, 5)
    for enter in range(2, 100):
        spool.put(enter, 0, Kind.COLLECTIVE)
        if enter % 30 == 0:
            spool.flush()
    spool.name_id("late")
    spool.flush()
    contents = read_spool(tmp_path / "s")
    spool.shut()
    assert contents.records["enter_ns"].tolist() == list(range(36, 100))
    assert contents.names == {1: "late"}


def test_a_flush_that_begins_within_the_ring_and_goes_round_writes_where_records_are(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(BufferedSpool, "PATCH_WINDOW", 4)
    spool = Spool.create(
        tmp_path / "s", IDENTITY, ring_bytes=112 * 64, summary_bytes=1, mode="buffered"
    )
    for first, last in ((1, 40), (41, 50), (51, 90), (91, 92)):
        for enter in range(first, last + 1):
            spool.put(enter, 0, Kind.COLLECTIVE)
        spool.flush()
        kept = list(range(max(1, last - 63), last + 1))
        assert read_spool(tmp_path / "s").records["enter_ns"].tolist() == kept
    spool.shut()


def test_an_exit_patched_between_flushes_reaches_the_file(tmp_path):
    spool = Spool.create(
        tmp_path / "s", IDENTITY, ring_bytes=112 * 64, summary_bytes=1, mode="buffered"
    )
    seq = spool.put(1, 0, Kind.COLLECTIVE)
    spool.flush()
    spool.close(seq, 5)
    spool.shut()
    assert read_spool(tmp_path / "s").records["exit_ns"].tolist() == [5]


def test_a_read_only_folder_is_one_clear_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match=r"cannot create .*choose a writable folder"):
        Spool.create(tmp_path / "file" / "s", IDENTITY, ring_bytes=1, summary_bytes=1)


@pytest.fixture
def small_disk(tmp_path):
    where = tmp_path / "small"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(where)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root and mount(8)")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=False)


def test_a_nearly_full_disk_gets_a_smaller_spool_and_says_so(small_disk):
    spool = Spool.create(
        small_disk / "s", IDENTITY, ring_bytes=16_000_000, summary_bytes=16_000_000
    )
    spool.put(1, 2, Kind.SPAN)
    assert "1/16" in spool.note
    assert len(read_spool(spool.path).records) == 1
    spool.shut()


def test_a_full_disk_is_an_error_at_the_start_and_leaves_nothing_behind(small_disk):
    (small_disk / "filler").write_bytes(b"x" * 5_500_000)
    with pytest.raises(SpoolError, match="no room for a spool"):
        Spool.create(small_disk / "s", IDENTITY, ring_bytes=16_000_000, summary_bytes=16_000_000)
    assert not (small_disk / "s").exists()


def test_a_disk_that_fills_up_later_cannot_touch_an_open_spool(small_disk):
    spool = Spool.create(small_disk / "s", IDENTITY, ring_bytes=1_000_000, summary_bytes=500_000)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filler").write_bytes(b"x" * 8_000_000)
    for enter in range(1, 20_000):
        spool.put(enter, 0, Kind.SPAN)
    assert len(read_spool(spool.path).records) == 1_000_000 // 112
    spool.shut()


def test_a_spool_is_allocated_to_the_end_of_its_ring_and_no_further(tmp_path):
    spool = Spool.create(tmp_path / "s", IDENTITY, ring_bytes=1_000_000, summary_bytes=500_000)
    offset, capacity = layout.HEADER.unpack_from(spool.path.read_bytes())[5:7]
    found, page = spool.path.stat(), os.sysconf("SC_PAGE_SIZE")
    assert found.st_size == -(-(offset + 112 * capacity) // page) * page
    assert 512 * found.st_blocks >= found.st_size
    spool.shut()


def test_where_stores_may_overtake_each_other_the_number_goes_behind_a_fence():
    fence = writing._store_fence()
    threads = [threading.Thread(target=lambda: [fence() for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fence()  # however threads met in it, it lets everybody through


def test_a_ring_that_somebody_may_still_write_into_stays_when_the_spool_is_shut(tmp_path):
    spool = Spool.create(tmp_path / "a.spool", {}, ring_bytes=100_000, summary_bytes=10_000)
    address = spool.count_by(lambda: 1, lambda: 0)
    spool.keep_mapped()
    spool.shut()
    ctypes.c_uint64.from_address(address).value = 7  # would be a segmentation fault
    assert ctypes.c_uint64.from_address(address).value == 7


def test_a_fence_leaves_its_lock_held_whoever_passes_it():
    fence = writing._store_fence()
    (lock,) = (cell.cell_contents for cell in fence.__closure__)
    for held in (True, True, False, True):
        if not held:  # as where another thread is between the two
            lock.release()
        fence()
        assert lock.locked()


def test_what_is_not_said_of_a_record_is_nothing_of_nobody_on_the_host(spool):
    spool.put(10, 20, Kind.COLLECTIVE)
    row = read_spool(spool.path).records[0]
    told = {"seq": 1, "enter_ns": 10, "exit_ns": 20, "kind": int(Kind.COLLECTIVE)}
    told |= {"peer_or_root": layout.NO_PEER, "device": layout.HOST_DEVICE}
    assert {name: int(row[name]) for name in row.dtype.names} == {
        **dict.fromkeys(row.dtype.names, 0), **told,
    }  # fmt: skip


def test_times_and_words_are_those_of_the_record_as_long_as_the_ring_has_it(spool):
    for number in range(65):  # the ring has 64
        spool.put(10 + number, 20 + number, Kind.COLLECTIVE)
    assert [spool.times(seq) for seq in (1, 2, 65)] == [None, (11, 21), (74, 84)]
    assert [spool.holds(seq) for seq in (1, 2, 65)] == [False, True, True]
    spool.patch(2, layout.WORD_EXIT, 99)
    spool.patch(1, layout.WORD_EXIT, 7)
    assert [spool.times(seq) for seq in (2, 65)] == [(11, 99), (74, 84)]
    assert spool.last_number() == 65


def tables_of(path):
    data = path.read_bytes()
    fields = layout.HEADER.unpack_from(data)
    return data[fields[9] : fields[9] + fields[10]]


def test_a_fact_is_written_behind_those_of_a_process_that_has_ended(spool):
    spool.add_fact("pace", {"a": 1})
    spool.shut()
    assert add_last_fact(spool.path, "ended", {"exit_code": 3})
    assert read_spool(spool.path).facts == {"pace": {"a": 1}, "ended": {"exit_code": 3}}
    kinds = [(kind, number) for _, kind, number, _ in layout.unpack_entries(tables_of(spool.path))]
    assert kinds[-2:] == [(layout.TABLE_FACT, 0)] * 2
    assert not add_last_fact(spool.path, "locality", {"a": "x" * TABLES_BYTES})
    spool.path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a spool"):
        add_last_fact(spool.path, "ended", {})
