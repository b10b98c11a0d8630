"""How much of a source is read: as much as is allowed, and no more; small numbers stand for it."""

import json
import os
import struct
import tarfile
import zlib
from io import BytesIO
from zipfile import ZipFile

import pytest

from evenstep.errors import EvenstepError, TraceError
from evenstep.importers import compression, content, opening, tables
from evenstep.importers.flight_recorder import dump, restricted_pickle
from evenstep.importers.nccl import inspector
from evenstep.importers.opening import open_trace
from evenstep.importers.steps import tensorboard, training_logs
from evenstep.trace.spool.layout import Kind
from tests.importers.test_nccl_inspector import record


@pytest.mark.parametrize(("most", "whole"), [(10, True), (9, False)])
def test_a_file_of_a_kind_has_so_many_bytes(tmp_path, most, whole):
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    if whole:
        assert content.content(path, most) == bytes(10)
    else:
        with pytest.raises(TraceError, match="holds more than 0 MB, which no file of its kind"):
            content.content(path, most)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("limit", "whole"), [(10, True), (9, False)])
def test_a_stream_gives_so_many_bytes_compressed_or_not(tmp_path, packed, limit, whole):
    path = tmp_path / "file"
    path.write_bytes(zlib.compress(bytes(10), wbits=31) if packed else bytes(10))
    with compression.Stream(path, limit_bytes=limit) as stream:
        if whole:
            assert b"".join(stream.pieces()) == bytes(10)
            assert stream.read_bytes == 10
        else:
            with pytest.raises(TraceError, match="holds more than 9e-09 GB"):
                list(stream.pieces())


def test_json_has_so_many_lists_and_objects(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "MOST_CONTAINERS", 3)
    assert content.parsed_json(b"[{}, []]", tmp_path) == [{}, []]
    with pytest.raises(TraceError, match="more lists and objects"):
        content.parsed_json(b"[{}, [], 1, {}]", tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [(b'{"a": ', "not whole JSON: Expecting value at byte 6"), (b"\xff", "JSON that no tool"),
     (b"[" * 100_000, "JSON that no tool")],
)  # fmt: skip
def test_what_is_no_json_is_a_sentence(tmp_path, text, said):
    with pytest.raises(TraceError, match=said):
        content.parsed_json(text, tmp_path)


def test_a_folder_has_so_many_files_and_the_first_level_with_any_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "MOST_FILES", 2)
    for name in ("a/b/2", "a/b/1", "a/.hidden/x", "c/d/e/3"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / ".seen").touch()
    assert opening._inside(tmp_path) == [tmp_path / "a/b/1", tmp_path / "a/b/2"]
    (tmp_path / "a/b/3").touch()
    with pytest.raises(TraceError, match="holds 3 files"):
        opening._inside(tmp_path)


@pytest.mark.parametrize(("depth", "found"), [(opening.DEEPEST - 1, 1), (opening.DEEPEST, 0)])
def test_a_folder_is_searched_so_deep(tmp_path, depth, found):
    folder = tmp_path.joinpath(*"x" * depth)
    folder.mkdir(parents=True)
    (folder / "file").touch()
    assert len(opening._inside(tmp_path)) == found


def archive_of(path, kind, sizes):
    with ZipFile(path, "w") if kind == "zip" else tarfile.open(path, "w") as made:
        for number, size in enumerate(sizes):
            if kind == "zip":
                made.writestr(f"{number}", bytes(size))
            else:
                info = tarfile.TarInfo(f"{number}")
                info.size = size
                made.addfile(info, BytesIO(bytes(size)))
    return path


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_has_so_many_files(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(compression, "MOST_FILES", 2)
    with compression.unpack(archive_of(tmp_path / "a", kind, [1, 2])) as folder:
        assert sorted(path.stat().st_size for path in (tmp_path / folder).iterdir()) == [1, 2]
    with pytest.raises(TraceError, match="holds more than 2 files"):
        compression.unpack(archive_of(tmp_path / "b", kind, [1, 2, 3]))


@pytest.mark.parametrize(("sizes", "whole"), [([400, 600], True), ([400, 601], False)])
def test_an_archive_has_so_many_bytes_in_all(tmp_path, monkeypatch, sizes, whole):
    monkeypatch.setenv("EVENSTEP_IMPORT_LIMIT_GB", "1e-6")
    path = archive_of(tmp_path / "a", "zip", sizes)
    if whole:
        compression.unpack(path).cleanup()
    else:
        with pytest.raises(TraceError, match="holds more than 1e-06 GB"):
            compression.unpack(path)


@pytest.mark.parametrize(("size", "read"), [(16, True), (17, False)])
def test_a_name_in_an_archive_has_so_many_bytes(tmp_path, monkeypatch, size, read):
    monkeypatch.setattr(compression, "MOST_NAME_BYTES", 16)
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    member = tarfile.TarInfo("short")
    data = header.tobuf() + b"n" * size + bytes(512 - size) + member.tobuf() + bytes(1024)
    (tmp_path / "a.tar").write_bytes(data)
    if read:
        compression.unpack(tmp_path / "a.tar").cleanup()
    else:
        with pytest.raises(TraceError, match="take 17 bytes"):
            compression.unpack(tmp_path / "a.tar")


def test_logs_of_the_inspector_have_so_many_records(tmp_path, monkeypatch):
    paths = []
    for rank in (0, 1):
        rows = [record(rank, number) for number in range(3)]
        paths.append(tmp_path / f"{rank}.log")
        paths[-1].write_text("\n".join(map(json.dumps, rows)))
    for most, said in ((6, False), (5, True)):
        monkeypatch.setattr(inspector, "MOST_RECORDS", most)
        assert (f"only the first {most} records were read" in open_trace(paths).limits) is said


def test_a_log_has_so_many_steps(tmp_path, monkeypatch):
    path = tmp_path / "a.log"
    path.write_text("".join(f"iter {n}: loss 2.0, time 12.5ms\n" for n in range(6)))
    monkeypatch.setattr(training_logs, "MOST_STEPS", 6)
    assert open_trace([path]).limits == []
    monkeypatch.setattr(training_logs, "MOST_STEPS", 5)
    assert any("only the first 5 steps were read" in one for one in open_trace([path]).limits)


def test_a_table_has_so_many_rows(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    rows = "".join(f"0,{step},{100 + step}\n" for step in range(4))
    path.write_text("rank,step,step_time_ms\n" + rows)
    for most, steps in ((5, 4), (4, 4), (3, 3)):
        monkeypatch.setattr(tables, "MOST_ROWS", most)
        trace = open_trace([path])
        assert len(trace.of_kind(Kind.STEP)) == steps
        said = f"{path}: only the first {most} rows were read" in trace.limits
        assert said is (most <= 4)


def test_a_dump_has_so_many_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(dump, "MOST_ENTRIES", 2)
    path = tmp_path / "rank0.json"
    for count, said in ((2, "no entry that makes sense"), (3, "more than any ring")):
        path.write_text(json.dumps({"version": "2.4", "entries": [{}] * count, "rank": 0}))
        with pytest.raises(TraceError, match=said):
            dump.read_dump(path, {}, {})


def test_a_pickle_has_so_many_instructions_lists_and_marks(monkeypatch):
    flat = b"\x80\x02]q\x00(K\x01K\x02e."  # [1, 2]
    count = 8  # PROTO, EMPTY_LIST, BINPUT, MARK, BININT1 twice, APPENDS, STOP
    for most, whole in ((count - 1, True), (count - 2, False)):
        monkeypatch.setattr(restricted_pickle, "MOST_INSTRUCTIONS", most)
        if whole:
            assert restricted_pickle.loads(flat, "a dump") == [1, 2]
        else:
            with pytest.raises(TraceError, match="more than a flight recorder's ring ever does"):
                restricted_pickle.loads(flat, "a dump")


def test_metrics_of_a_run_are_so_many(tmp_path, monkeypatch):
    folder = tmp_path / "run" / "metrics"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "meta.yaml").write_text("run_id: 1\n")
    for name in "ab":
        (folder / name).write_text("".join(f"{1000 * n} {n} {n}\n" for n in range(3)))
    monkeypatch.setattr(tensorboard, "MOST_VALUES", 2)
    found = tensorboard.scalars_of_run(tmp_path / "run" / "meta.yaml", [])
    assert found == {name: [(0, 0.0, 0.0), (1, 1.0, 1.0)] for name in "ab"}
    monkeypatch.setattr(tensorboard, "MOST_METRICS", 1)
    assert list(tensorboard.scalars_of_run(tmp_path / "run" / "meta.yaml", [])) == ["a"]


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EvenstepError, match="it is a pipe; save it as a file first"):
        compression.Stream(tmp_path / "pipe")


def field(number, data):
    """A length-delimited field of a message of fewer than 2**14 bytes."""
    length = bytes([len(data) & 127 | 128, len(data) >> 7])
    return bytes([number << 3 | 2]) + length + data


def event(step, tag, value):
    """A framed record as TensorBoard's `event.proto` has it."""
    row = field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    record = b"\x09" + struct.pack("<d", step) + bytes([2 << 3, step]) + field(5, field(1, row))
    return struct.pack("<QI", len(record), 0) + record + bytes(4)


def test_metrics_that_tensorboard_holds_are_so_many(tmp_path, monkeypatch):
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(b"".join(event(step, "t" * 500, 0.5) for step in range(3)))
    for most, limits in ((3, 0), (2, 1)):
        monkeypatch.setattr(tensorboard, "MOST_VALUES", most)
        said: list[str] = []
        assert [len(rows) for rows in tensorboard.scalars(path, said).values()] == [3]
        assert len(said) == limits
    assert list(tensorboard.scalars(path, [])) == ["t" * 400]
