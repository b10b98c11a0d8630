"""The front door: what a user brings, sorted by its content."""

import gzip
import json
import pickle
import shutil
import subprocess
import sys
import tarfile
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenstep
from evenstep.errors import ConfigError, EvenstepError, TraceError, UsageError
from evenstep.importers import opening
from evenstep.importers.opening import open_bundle, open_trace, sort_out
from evenstep.trace.reports import report_file, reporting
from tests.importers.profiles import two_steps
from tests.trace.small_run import write_rank


@pytest.fixture
def ranks(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    return [two_steps(rank).write(folder / f"{rank}.json") for rank in range(2)]


@pytest.fixture
def log(tmp_path):
    """A log of nccl-tests, as far as its head goes."""
    path = tmp_path / "all_reduce.log"
    path.write_text("a fabric\n")
    return path


@pytest.fixture
def companion(monkeypatch):
    """A format that knows the log, and says something of the fabric."""
    known = {
        "NAME": "test log", "recognises": lambda source: source.head == b"a fabric\n",
        "read": lambda sources: {"versions": {"fabric": len(sources)}, "floors": [1]},
    }  # fmt: skip
    for name, value in known.items():
        monkeypatch.setattr(f"evenstep.importers.nccl.tests.{name}", value)


def test_files_a_folder_and_a_folder_of_folders_are_the_same_trace(ranks, tmp_path):
    nested = tmp_path / "nested"
    for rank, path in enumerate(ranks):
        (nested / f"rank{rank}").mkdir(parents=True)
        shutil.copy(path, nested / f"rank{rank}")
    traces = [open_trace(paths) for paths in (ranks, [ranks[0].parent], [nested])]
    assert [list(trace.ranks) for trace in traces] == [[0, 1]] * 3


def test_files_of_one_name_in_the_folders_of_their_ranks_are_one_trace(tmp_path):
    files = []
    for rank in range(3):
        (tmp_path / f"rank{rank}").mkdir()
        files.append(two_steps(rank, world=3).write(tmp_path / f"rank{rank}" / "trace.json"))
    assert list(open_trace(files).ranks) == [0, 1, 2]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace", "trace.txt"])
def test_the_content_counts_and_not_the_name(tmp_path, name):
    assert list(open_trace([two_steps().write(tmp_path / name)]).ranks) == [0]


def test_zstandard_is_read_where_its_module_is(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "trace.json.zst"
    path.write_bytes(zstandard.compress(json.dumps(two_steps().document()).encode()))
    assert list(open_trace([path]).ranks) == [0]


def test_zstandard_without_its_module_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "trace.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")
    with pytest.raises(EvenstepError, match="pip install"):
        open_trace([tmp_path / "trace.zst"])


def test_our_own_runs_come_through_the_same_door(tmp_path):
    for rank in range(2):
        write_rank(tmp_path / f"run/attempt-000/rank-0000{rank}.spool", rank)
    for path in (tmp_path / "run", str(tmp_path / "run/attempt-000")):
        assert list(open_trace([path]).ranks) == list(evenstep.load(path).ranks) == [0, 1]


def test_load_reads_what_others_wrote(ranks):
    assert list(evenstep.load(ranks[0]).ranks) == [0]


def test_a_run_is_recognised_without_any_other_format(tmp_path):
    (tmp_path / "attempt-000").mkdir()
    (tmp_path / "attempt-000/rank-00000.spool").touch()
    code = (
        "import sys; from pathlib import Path; from evenstep.importers.opening import sort_out\n"
        f"sort_out([Path({str(tmp_path)!r})])\n"
        "print([name for name in sys.modules if name.startswith('evenstep.importers.')])\n"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['evenstep.importers.opening']\nFalse\n"


def test_the_same_name_in_two_folders_is_two_traces(ranks, tmp_path):
    after = tmp_path / "after"
    shutil.copytree(ranks[0].parent, after)
    given = sort_out([*ranks, *sorted(after.iterdir())])
    assert [len(bundle.sources) for bundle in given.bundles] == [2, 2]
    with pytest.raises(UsageError, match="these are 2 traces"):
        open_trace([ranks[0].parent, after])


def test_a_broken_file_leaves_the_other_ranks(ranks):
    ranks[1].write_text(ranks[1].read_text()[:-100])
    trace = open_trace(ranks)
    assert list(trace.ranks) == [0]
    assert "1.json is not JSON at byte" in trace.limits[0]


def test_what_is_compressed_is_read_and_what_is_cut_short_up_to_there(tmp_path):
    log = "".join(f"[rank{step % 2}]:iter {step}: loss 3, time 90ms\n" for step in range(10_000))
    packed = gzip.compress(log.encode())
    for name, data, fewest in (
        ("a.gz", packed, 10_000),
        ("b", packed[:-900], 5_000),
    ):
        (tmp_path / name).write_bytes(data)
        trace = open_trace([tmp_path / name])
        assert list(trace.ranks) == [0, 1]
        assert fewest <= len(trace.events) <= 10_000
        assert any("cut short" in line for line in trace.limits) == (name == "b")


def test_in_a_folder_what_is_empty_or_damaged_is_named_and_notes_are_not(ranks):
    folder = ranks[0].parent
    (folder / "2.json").touch()
    (folder / "3.json.gz").write_bytes(b"\x1f\x8b\x08 and nothing that gzip knows")
    (folder / "notes.txt").write_text("lunch at noon")
    said = [line for line in open_trace([folder]).limits if line.startswith("left out")]
    assert f"left out: {folder / '2.json'} is empty" in said
    assert any("3.json.gz: the compressed data is damaged" in line for line in said)
    assert len(said) == 2


def test_what_nobody_knows_is_named_and_left_out(ranks, tmp_path):
    (tmp_path / "notes.txt").write_text("lunch at noon")
    (tmp_path / "empty.json").touch()
    trace = open_trace([*ranks, tmp_path / "notes.txt", tmp_path / "empty.json"])
    assert trace.limits[-2:] == [
        f"left out: {tmp_path / 'notes.txt'} is in no format that evenstep reads",
        f"left out: {tmp_path / 'empty.json'} is empty",
    ]


def test_nothing_but_what_nobody_knows_says_where_formats_are_listed(tmp_path):
    (tmp_path / "notes.txt").write_text("lunch at noon")
    with pytest.raises(
        TraceError, match=r"notes.txt is in no format .* `evenstep diagnose --help` lists"
    ):
        open_trace([tmp_path / "notes.txt"])


def test_beside_profiles_a_log_of_steps_is_no_other_run(ranks):
    log = "".join(f"completed step: {step}, seconds: 1.5\n" for step in range(9))
    (ranks[0].parent / "train.log").write_text(log)
    (ranks[0].parent / "steps.csv").write_text("rank,step,seconds\n0,1,2\n0,2,2\n")
    alone = open_trace(ranks)
    trace = open_trace([ranks[0].parent])
    assert (trace.world, len(trace.events)) == (alone.world, len(alone.events))
    said = [limit for limit in trace.limits if "beside what tells more: give it alone" in limit]
    assert [("train.log" in each, "steps.csv" in each) for each in said] == [
        (True, False), (False, True)
    ]  # fmt: skip
    for path in ranks:
        path.unlink()
    assert open_trace([ranks[0].parent]).run["source"] == "step table"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("t.csv", "rank,step,seconds\n0,1,2\n".encode("utf-16"), "text in UTF-16: write it as"),
        ("t.csv", "rank,step,seconds\n0,1,200000\n".encode("utf-16-le"), "text in UTF-16"),
        ("a.nsys-rep", b"x\0", "a report of Nsight Systems: export the report with nsys export"),
        ("gpu.csv", b"Start (ns),Duration (ns),CorrId,Ctx,Strm,Name\n", "of nsys stats: export"),
        ("out", b"Comm. Op   Message Size   Count   tput_avg (Gbps)   busbw_avg (Gbps)\n",
         "a log of DeepSpeed's communication, without ranks and steps"),
        ("trainer_state.json", b'{"log_history": [{"step": 1, "loss": 2.0}]}', "the Hugging Face"),
        ("m.csv", b"rank,step,busy\n0,1,2\n", r"a table \(rank, step, busy\) without a column"),
        ("m.csv", b"rank,forward_ms\n0,2\n", "of steps or times: name it, for example, step;"),
        ("a.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
        ("a.log.gz", gzip.compress(gzip.compress(b"step 1", mtime=0), mtime=0),
         "or twice: unpack it"),
        ("rank0.log", b"Created GlooComm of rank 0\n", "log these, or give a table with columns"),
        ("log.txt", b"Step 1 | loss:1.2 tokens_per_second_per_gpu:90\n", "no two steps with times"),
    ],
)  # fmt: skip
def test_what_is_known_but_not_read_says_what_to_give(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(TraceError, match=said):
            open_trace([path])


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_path_without_anything_is_named(tmp_path, make):
    make(tmp_path / "here")
    with pytest.raises(TraceError, match="here"):
        open_trace([tmp_path / "here"])


def test_a_log_beside_a_trace_is_merged_into_its_run(ranks, log, companion):
    trace = open_trace([*ranks, log])
    assert (trace.run["floors"], trace.run["versions"]) == ([1], {"fabric": 1})


def test_a_log_alone_gets_a_sentence(log, companion):
    with pytest.raises(TraceError, match="is a test log: it describes the fabric, not a run"):
        open_trace([log])


def test_progress_counts_up_to_the_size_of_each_file(ranks):
    told = []
    given = sort_out(ranks)
    with reporting(lambda *call: told.append(call)):
        open_bundle(given.bundles[0], given)
    assert {name: (done, size) for name, done, size in told} == {
        str(path): (path.stat().st_size,) * 2 for path in ranks
    }


def test_progress_leaves_it_to_readers_that_a_file_cannot_be_reached(tmp_path):
    told = []
    gone, unreachable = tmp_path / "gone", tmp_path / ("x" * 5000)
    with reporting(lambda *call: told.append(call)):
        report_file(gone, read=False)
        report_file(unreachable, read=True)
        report_file(gone, "member of a pack", 7, read=True)
    assert told == [
        (str(gone), 0, 0), (str(unreachable), 0, 0), (str(gone / "member of a pack"), 0, 0)
    ]  # fmt: skip


def test_every_format_of_the_table_has_a_module_that_offers_it():
    for name in opening.FORMATS:
        module = __import__(f"evenstep.importers.{name}", fromlist=["NAME"])
        assert module.NAME
        assert callable(module.recognises)
        assert callable(module.read)


def test_a_missing_package_is_named_where_only_its_format_may_know_the_file(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "msgspec", None)
    for name in ("kineto.kineto", "kineto.calls", "kineto.file", "trace_events"):
        monkeypatch.delitem(sys.modules, f"evenstep.importers.{name}", raising=False)
    (tmp_path / "notes.txt").write_text("lunch at noon")
    with pytest.raises(EvenstepError, match=r'needs msgspec.*pip install "evenstep\[analyze\]"'):
        open_trace([tmp_path / "notes.txt"])


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_a_sentence(tmp_path_factory, data, compressed):
    path = tmp_path_factory.getbasetemp() / "anything"
    path.write_bytes(gzip.compress(data) if compressed else data)
    with pytest.raises(EvenstepError):
        open_trace([path])


def test_a_pickle_of_something_else_beside_profiles_is_no_trace(ranks):
    other = pickle.dumps({"segments": [], "device_traces": []})
    (ranks[0].parent / "rank0_memory_snapshot.pickle").write_bytes(other)
    assert list(open_trace([ranks[0].parent]).ranks) == [0, 1]


@pytest.mark.parametrize("kind", ["gztar", "zip"])
def test_an_archive_is_what_it_holds(tmp_path, kind):
    path = tmp_path / "traces"
    is_zip = kind == "zip"
    with ZipFile(path, "w", ZIP_DEFLATED) if is_zip else tarfile.open(path, "w:gz") as archive:
        for rank in (0, 1):
            profile = two_steps(rank).write(tmp_path / f"rank-{rank}.json")
            add = archive.write if is_zip else archive.add
            add(profile, f"job/../../{profile.name}")
            profile.unlink()
    assert sorted(open_trace([path]).ranks) == [0, 1]
    assert sorted(open_trace([tmp_path]).ranks) == [0, 1]  # the folder that holds nothing else
    assert not (tmp_path.parent / "rank-0.json").exists()


@pytest.mark.parametrize("head", [b"a".ljust(257, b"\0") + b"ustar", b"PK\3\4"])
def test_a_damaged_archive_is_a_sentence(tmp_path, head):
    path = tmp_path / "traces"
    path.write_bytes(head + b"\xff" * 900)
    with pytest.raises(EvenstepError, match="not a whole archive"):
        open_trace([path])


def test_an_archive_may_not_hold_more_than_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("EVENSTEP_IMPORT_LIMIT_GB", "1e-6")
    with ZipFile(tmp_path / "traces", "w", ZIP_DEFLATED) as archive:
        for name in "ab":
            archive.writestr(name, bytes(501))
    with pytest.raises(TraceError, match="more than 1e-06 GB"):
        open_trace([tmp_path / "traces"])


@pytest.mark.parametrize("text", ["many", "0", "-1", "1e10", "nan"])
def test_a_limit_that_is_no_number_of_gigabytes_is_refused_by_name(text, tmp_path, monkeypatch):
    monkeypatch.setenv("EVENSTEP_IMPORT_LIMIT_GB", text)
    (tmp_path / "file.json").write_text("{}")
    with pytest.raises(ConfigError, match="EVENSTEP_IMPORT_LIMIT_GB must be a number of gigabytes"):
        opening.load(tmp_path / "file.json")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_name_that_would_fill_memory_is_not_read(tmp_path, kind):
    header = tarfile.TarInfo("a")
    header.type, header.size = kind, 1 << 30
    (tmp_path / "traces.tar").write_bytes(header.tobuf() + bytes(1 << 12))
    with pytest.raises(EvenstepError, match=r"not a whole archive .*take 1073741824 bytes"):
        open_trace([tmp_path / "traces.tar"])


def test_of_an_archive_with_a_folder_for_each_rank_all_are_read(tmp_path):
    path = tmp_path / "traces.tar"
    with tarfile.open(path, "w") as archive:
        for rank in range(2):
            profile = two_steps(rank).write(tmp_path / f"{rank}.json")
            archive.add(profile, f"rank{rank}/trace.json")
    assert sorted(open_trace([path]).ranks) == [0, 1]
