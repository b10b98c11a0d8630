"""One file per node: what was recorded on a node, collected where everybody can read it."""

import os
import time
import zipfile

import numpy as np
import pytest

from evenstep.cli import progress
from evenstep.cli.main import main
from evenstep.cli.traces import list_runs
from evenstep.errors import SpoolError
from evenstep.export.prometheus import running
from evenstep.trace.loading import load
from evenstep.trace.pack import collectable, extents, write_pack
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import boot_id, hostname
from evenstep.trace.spool.layout import HEADER, HEARTBEAT_OFFSET, PAGE_BYTES, RECORD_BYTES, Kind
from evenstep.trace.spool.spool import Spool, add_last_fact
from evenstep.trace.spooled import EVENT_COLUMNS
from tests.trace.small_run import WORLD, identity, write_run


@pytest.fixture
def run(tmp_path):
    """Three ranks on the hosts h0 and h1."""
    return write_run(tmp_path / "local")


def unclosed(folder, rank, **known):
    """The spool of a rank that never closed it."""
    path = RunFolder(folder).spool_path(0, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    Spool.create(path, identity(rank, **known), ring_bytes=1, summary_bytes=1).shut()
    return path


@pytest.fixture
def collected(run, tmp_path):
    assert main(["collect", str(run), "--into", str(tmp_path / "shared")]) == 0
    return tmp_path / "shared"


def test_a_collected_run_reads_the_same(run, collected):
    one, other = load(run), load(collected)
    assert other.ranks == one.ranks
    assert other.limits == one.limits
    assert all(np.array_equal(other.events[name], one.events[name]) for name in EVENT_COLUMNS)


def test_a_collected_run_is_counted_and_listed_with_its_ranks(run, collected):
    counted, there = running(collected), running(run)
    assert {name: one.samples for name, one in counted.items()} == {
        name: one.samples for name, one in there.items()
    }
    assert f"{WORLD} ranks" in next(list_runs(collected.parent))


def test_there_is_one_file_for_each_node(collected):
    files = sorted(path.name for path in (collected / "attempt-000").iterdir())
    assert files == ["node-h0.pack", "node-h1.pack"]


def test_a_pack_is_a_zip_file_with_the_spools_bytes(run, collected):
    with zipfile.ZipFile(collected / "attempt-000" / "node-h0.pack") as archive:
        assert archive.testzip() is None
        spool = run / "attempt-000" / "rank-00001.spool"
        assert archive.read("rank-00001.spool") == spool.read_bytes()


def test_spools_begin_at_whole_pages(collected):
    found = extents(collected / "attempt-000" / "node-h0.pack")
    assert [extent.name for extent in found] == ["rank-00000.spool", "rank-00001.spool"]
    assert all(extent.offset % PAGE_BYTES == 0 for extent in found)


def test_what_was_never_written_to_takes_no_disk(tmp_path):
    path = tmp_path / "rank-00000.spool"
    Spool.create(path, identity(0), ring_bytes=1 << 24, summary_bytes=1 << 20).shut()
    size = write_pack([path], tmp_path / "node-h0.pack")
    assert (tmp_path / "node-h0.pack").stat().st_size > 1 << 24
    assert size == (tmp_path / "node-h0.pack").stat().st_blocks * 512 < 1 << 20


def test_collecting_again_writes_only_what_is_not_complete(run, collected, capsys):
    stale = collected / "attempt-000" / "node-h1.pack"
    os.utime(stale, ns=(0, 0))
    capsys.readouterr()
    assert main(["collect", str(run), "--into", str(collected)]) == 0
    said = capsys.readouterr().err
    assert "node-h0.pack is complete" in said
    assert f"Wrote {stale}" in said


def test_a_rank_that_lives_is_collected_as_far_as_it_is(tmp_path):
    path = RunFolder(tmp_path).spool_path(0, 0)
    path.parent.mkdir(parents=True)
    spool = Spool.create(path, identity(0), ring_bytes=9 * RECORD_BYTES, summary_bytes=1)
    spool.put(5, 0, Kind.COLLECTIVE, 1, 0, 0, 0, 0)
    assert not collectable(path).closed
    write_pack([path], tmp_path / "node-h0.pack")
    spool.shut()
    [extent] = extents(tmp_path / "node-h0.pack")
    contents = read_spool(extent)
    assert (contents.closed, contents.records["enter_ns"].tolist()) == (False, [5])


def test_a_record_that_is_written_to_while_it_is_copied_is_not_in_the_copy(tmp_path, monkeypatch):
    """Of five records the third becomes another one between the two times that it is read."""
    path = RunFolder(tmp_path).spool_path(0, 0)
    path.parent.mkdir(parents=True)
    spool = Spool.create(path, identity(0), ring_bytes=64 * RECORD_BYTES, summary_bytes=1)
    for number in range(5):
        spool.put(10 + number, 20, Kind.COLLECTIVE)
    ring, read, times = spool.regions.ring_offset, os.pread, []

    def changing(file, length, start):
        data = bytearray(read(file, length, start))
        if start == ring:
            times.append(start)
            if len(times) == 2:
                data[2 * RECORD_BYTES] += 64
                data[4 * RECORD_BYTES + 50] += 1  # of this one only a field
        return bytes(data)

    monkeypatch.setattr(os, "pread", changing)
    write_pack([path], tmp_path / "node-h0.pack")
    monkeypatch.undo()
    spool.shut()
    [extent] = extents(tmp_path / "node-h0.pack")
    assert read_spool(extent).records["enter_ns"].tolist() == [10, 11, 13, 14]
    assert len(times) == 2


def test_what_is_no_record_is_copied_as_it_was_read_first(tmp_path, monkeypatch):
    """The heartbeat changes at each look at the header; nothing of that becomes zero."""
    path = RunFolder(tmp_path).spool_path(0, 0)
    path.parent.mkdir(parents=True)
    spool = Spool.create(path, identity(0), ring_bytes=64 * RECORD_BYTES, summary_bytes=1)
    read, beats = os.pread, []

    def beating(file, length, start):
        data = bytearray(read(file, length, start))
        if start == 0:
            beats.append(0xFF - len(beats))
            data[HEARTBEAT_OFFSET : HEARTBEAT_OFFSET + 8] = bytes([beats[-1]]) * 8
        return bytes(data)

    monkeypatch.setattr(os, "pread", beating)
    write_pack([path], tmp_path / "node-h0.pack")
    monkeypatch.undo()
    spool.shut()
    [extent] = extents(tmp_path / "node-h0.pack")
    with extent.file.open("rb") as file:
        file.seek(extent.offset)
        copied = file.read(extent.size)
    whole = bytearray(path.read_bytes())
    whole[HEARTBEAT_OFFSET : HEARTBEAT_OFFSET + 8] = bytes([beats[1]]) * 8  # the first is of sizes
    assert copied[: spool.regions.ring_offset] == whole[: spool.regions.ring_offset]
    assert len(beats) == 2


def test_collecting_until_the_job_ends_outlives_no_rank_that_was_killed(run, tmp_path, monkeypatch):
    add_last_fact(unclosed(run, 3), "ended", {"signal": "SIGKILL"})
    naps = iter([None])  # the job may start again within the grace, and this one has ended
    monkeypatch.setattr("time.sleep", lambda _: next(naps))
    monkeypatch.setattr(progress, "DEATH_GRACE_S", -1.0)
    assert main(["collect", str(run), "--into", str(tmp_path / "shared"), "--every", "1"]) == 0


@pytest.mark.parametrize(
    ("process", "over"),
    [
        ({"pid": os.getpid()}, False),
        ({"pid": os.getpid(), "started_ticks": 1}, True),  # another had the number before
        ({"pid": 1 << 30}, True),
    ],
)
def test_a_rank_whose_process_is_gone_is_over(tmp_path, process, over):
    here = {"boot_id": boot_id(), "hostname": hostname(), **process}
    assert collectable(unclosed(tmp_path, 0, **here)).over is over
    assert not collectable(unclosed(tmp_path, 1, **{**here, "hostname": "another"})).over


def test_a_rank_in_another_container_is_not_over_while_its_heart_beats(tmp_path):
    here = {"boot_id": boot_id(), "hostname": hostname(), "pid": 1 << 30}
    path = unclosed(tmp_path, 0, **here)
    with path.open("r+b") as file:
        file.seek(HEARTBEAT_OFFSET)
        file.write(time.monotonic_ns().to_bytes(8, "little"))
    assert not collectable(path).over


def test_a_damaged_pack_is_left_out_and_named(collected):
    broken = collected / "attempt-000" / "node-h1.pack"
    broken.write_bytes(broken.read_bytes()[:-40])
    trace = load(collected)
    assert sorted(trace.ranks) == list(range(WORLD))[:2]
    assert any("node-h1.pack is not a pack" in limit for limit in trace.limits)


@pytest.mark.parametrize("at", [6, 8, 24])  # version, flags, size of a member (APPNOTE 4.3.12)
def test_a_pack_with_a_damaged_entry_is_refused_or_read(collected, at):
    broken = collected / "attempt-000" / "node-h1.pack"
    data = bytearray(broken.read_bytes())
    place = data.rfind(b"PK\1\2") + at
    data[place : place + 2] = b"\xff\xff"
    broken.write_bytes(data)
    assert 0 in load(collected).ranks


@pytest.mark.parametrize("slots", [1 << 40, 1 << 63])
def test_a_spool_whose_header_is_damaged_is_packed_as_it_is(run, tmp_path, slots):
    spool = next(run.rglob("*.spool"))
    fields = list(HEADER.unpack_from(spool.read_bytes()))
    fields[6] = slots  # records, of a ring that ends with the file
    with spool.open("r+b") as file:
        file.write(HEADER.pack(*fields))
    write_pack([spool], tmp_path / "node-h0.pack")
    (extent,) = extents(tmp_path / "node-h0.pack")
    assert extent.size == spool.stat().st_size


def test_a_compressed_pack_is_refused_with_the_mend(tmp_path):
    pack = tmp_path / "node-h0.pack"
    with zipfile.ZipFile(pack, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank-00000.spool", b"0" * 9999)
    with pytest.raises(SpoolError, match="compressed; unpack it"):
        extents(pack)


def test_a_pack_that_cannot_be_written_leaves_nothing(run, tmp_path):
    target = tmp_path / "file"
    target.write_text("")
    with pytest.raises(SpoolError, match="cannot collect into"):
        write_pack([], target / "node-h0.pack")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    "wrong", [["--into", "here"], ["--into", "file"], ["--into", "there", "--every", "0"]]
)
def test_what_cannot_be_collected_is_refused(tmp_path, monkeypatch, wrong):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    try:
        code = main(["collect", "here", *wrong])
    except SystemExit as error:
        code = error.code
    assert code == 2


def test_what_a_killed_collector_has_left_goes_and_what_a_living_one_writes_stays(run, tmp_path):
    target = tmp_path / "into" / "node-0.pack"
    target.parent.mkdir()
    left = target.with_name(f".{target.name}.{2**22 + 1}-x")  # no process has such a number
    living = target.with_name(f".{target.name}.{os.getpid()}-x")
    for scratch in (left, living):
        scratch.touch()
    write_pack(sorted(run.rglob("*.spool")), target)
    assert sorted(path.name for path in target.parent.iterdir()) == [living.name, target.name]
