"""A run as Parquet files: what comes back is what was stored, in pieces or at once."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure import grid
from evenstep.errors import LayoutError, TraceError, UsageError
from evenstep.trace.columns import Columns
from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spooled import EVENT_COLUMNS, OnDisk
from evenstep.trace.store import layout as store_database
from evenstep.trace.store import reading as store_reading
from evenstep.trace.store import writing as store_writing
from evenstep.trace.store.layout import MANIFEST, StoredPart, read_manifest
from evenstep.trace.store.query import open_tables
from evenstep.trace.store.reading import StoredEvents
from evenstep.trace.store.writing import write_store
from tests.diagnose.synthetic import MS, Phase, World
from tests.trace.small_run import write_run

duckdb = pytest.importorskip("duckdb", reason="a store is written by DuckDB")

STEPS, RANKS = 30, 6
KINDS = (Kind.COLLECTIVE, Kind.STEP, Kind.PHASE)


@pytest.fixture(scope="module")
def trace():
    """Six ranks on three nodes, of which rank 1 is slow."""
    world = World(steps=STEPS, ranks=RANKS, ranks_per_node=2)
    found = world.slow(1, Phase.BACKWARD, 30 * MS).trace()
    numbers = np.concatenate([np.arange(n) + 1 for n in np.bincount(found.events["rank"])])
    found.events = found.events.with_column("seq", numbers.astype("u8"))
    return found


@pytest.fixture(scope="module")
def folder(trace, tmp_path_factory):
    """Their store, in stretches of a few steps and files of a few ranks."""
    place = tmp_path_factory.mktemp("store") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_writing, "STRETCH_RECORDS", len(trace.events) // 7)
        patch.setattr(store_writing, "FILE_RECORDS", len(trace.events) // 14)
        write_store(trace, place)
    return place


@pytest.fixture
def stored(folder, monkeypatch):
    """The store, left on disk however small it is."""
    monkeypatch.setattr(store_reading, "LARGE_RECORDS", 0)
    return load(folder)


def same(one, other, names=EVENT_COLUMNS):
    one = one.in_memory() if isinstance(one, OnDisk) else one
    return len(one) == len(other) and all(np.array_equal(one[n], other[n]) for n in names)


def test_it_is_cut_by_steps_and_by_nodes(folder):
    parts = read_manifest(folder).parts
    assert len({part.first_step for part in parts}) > 5
    assert len({part.block for part in parts}) > 1
    assert all((folder / part.file).is_file() for part in parts)


@pytest.mark.parametrize(("records", "files"), [(10, 1), (3, 1), (2, 2), (1, 3), (0.1, 3)])
def test_a_range_of_steps_has_as_many_files_as_its_records_fill_and_nodes_allow(
    trace, tmp_path, monkeypatch, records, files
):
    """`records`: of a file, in thirds of the run, which is one range of steps on three nodes."""
    monkeypatch.setattr(store_writing, "FILE_RECORDS", int(len(trace.events) / 3 * records) + 1)
    write_store(trace, tmp_path / "store")
    parts = read_manifest(tmp_path / "store").parts
    ranges = {(part.first_step, part.last_step) for part in parts}
    assert len({part.file for part in parts}) == len(ranges) * files
    assert len({part.block for part in parts}) == files


def test_a_small_store_is_read_into_memory(folder, trace):
    found = load(folder)
    assert type(found.events) is Columns
    assert same(found.events, trace.events)


def test_a_large_one_stays_on_disk_and_reads_the_same(stored, trace):
    assert isinstance(stored.events, StoredEvents)
    assert list(stored.events) == list(EVENT_COLUMNS)
    assert same(stored.events, trace.events)


def test_a_column_is_read_from_disk_once(stored, trace, monkeypatch):
    first = stored.events["enter_ns"]
    monkeypatch.setattr(StoredEvents, "_whole", None)
    assert np.array_equal(stored.events["enter_ns"], trace.events.enter_ns)
    assert stored.events["enter_ns"] is first


def test_a_column_asked_for_is_read_alone(stored, trace):
    for name in ("rank", "enter_ns", "group"):
        assert np.array_equal(stored.events[name], trace.events[name])


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_reads_the_same(stored, trace, kind):
    assert same(stored.of_kind(kind), trace.of_kind(kind))


def test_what_is_known_of_run_ranks_and_groups_comes_back(stored, trace):
    for name in ("run", "world", "attempt", "ranks", "groups", "names", "limits"):
        assert getattr(stored, name) == getattr(trace, name), name
    assert stored.table.oldest_steps() == trace.table.oldest_steps()
    assert stored.table.step_numbers().tolist() == trace.table.step_numbers().tolist()


@pytest.mark.parametrize("large", [False, True])
def test_what_a_profile_says_of_hosts_comes_back(trace, tmp_path, monkeypatch, large):
    issued = trace.events.enter_ns - 7 * (trace.events.kind == int(Kind.COLLECTIVE))
    told = trace.events.with_columns(issued_ns=issued, freed_ns=np.zeros_like(issued))
    write_store(replace(trace, events=told), tmp_path / "store")
    monkeypatch.setattr(store_reading, "LARGE_RECORDS", 0 if large else 10**9)
    found = load(tmp_path / "store").of_kind(Kind.COLLECTIVE, Kind.STEP)
    assert same(found, told.select(np.isin(told.kind, [Kind.COLLECTIVE, Kind.STEP])), ["issued_ns"])
    assert "freed_ns" not in found  # of nobody


def test_summaries_come_back(tmp_path):
    run = load(write_run(tmp_path / "run"))
    write_store(run, tmp_path / "store")
    found = load(tmp_path / "store")
    assert np.array_equal(found.summaries, run.summaries)
    assert np.array_equal(found.summary_rank, run.summary_rank)


@pytest.mark.parametrize("steps", [(0, 1), (7, 19), (STEPS - 1, STEPS + 9)])
def test_a_window_has_the_records_of_its_steps(stored, trace, steps):
    wanted = {Kind.COLLECTIVE: ("step", "enter_ns", "group"), Kind.STEP: ("step", "exit_ns")}
    for kind, names in wanted.items():
        one = stored.window(*steps, wanted).of_kind(kind)
        assert same(one, trace.window(*steps, wanted).of_kind(kind), ("rank", *names))


def test_a_window_leaves_out_its_last_step_wherever_files_are_cut(folder, stored):
    for part in read_manifest(folder).parts:
        found = stored.window(part.first_step, part.last_step, {Kind.STEP: ("step",)})
        steps = found.of_kind(Kind.STEP).step
        assert sorted(set(steps.tolist())) == list(range(part.first_step, part.last_step))


@pytest.mark.parametrize("few", [0, 1 << 30])
def test_any_rows_can_be_picked_in_any_order(stored, trace, monkeypatch, few):
    monkeypatch.setattr("evenstep.trace.store.reading.FEW", few)
    rows = np.random.default_rng(1).integers(0, len(trace.events), 50)
    rows[7] = rows[3]  # one of them twice
    assert same(stored.events.select(rows), trace.events.select(rows))
    late = trace.events.step > 20
    one, other = (table.select(late).select(slice(3, 9)) for table in (stored.events, trace.events))
    assert same(one, other)


def test_ranks_that_lie_across_the_nodes_come_in_order(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(store_reading, "LARGE_RECORDS", 0)
    monkeypatch.setattr(store_writing, "FILE_RECORDS", 10)
    for rank, info in trace.ranks.items():
        monkeypatch.setitem(info.identity, "hostname", f"h{rank % 3}")
    write_store(trace, tmp_path / "store")
    found = load(tmp_path / "store").of_kind(Kind.COLLECTIVE)
    assert same(found, trace.of_kind(Kind.COLLECTIVE))


def test_records_without_numbers_of_their_own_are_given_some(trace, tmp_path):
    bare = replace(trace, events=trace.events.with_column("seq", np.zeros(len(trace.events), "u8")))
    write_store(bare, tmp_path / "store")
    assert same(load(tmp_path / "store").events, trace.events)


def test_a_store_that_is_there_is_replaced_only_with_force(trace, tmp_path):
    write_store(trace, tmp_path / "store")
    with pytest.raises(UsageError, match=r"exists; .*--force"):
        write_store(trace, tmp_path / "store")
    assert write_store(trace, tmp_path / "store", force=True).rows == len(trace.events)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_nothing_but_a_store_is_ever_replaced(trace, tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UsageError, match="is not a store"):
        write_store(trace, tmp_path, force=True)
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_store_of_which_a_file_is_gone_says_which(trace, tmp_path):
    write_store(trace, tmp_path / "store")
    part = read_manifest(tmp_path / "store").parts[0]
    (tmp_path / "store" / part.file).unlink()
    with pytest.raises(TraceError, match=f"lacks {part.file}"):
        load(tmp_path / "store")


def test_another_version_and_another_attempt_are_refused(trace, tmp_path):
    write_store(trace, tmp_path / "store")
    with pytest.raises(TraceError, match="no attempt 3; it holds attempt 0"):
        load(tmp_path / "store", attempt=3)
    manifest = tmp_path / "store" / MANIFEST
    manifest.write_text(
        json.dumps({**json.loads(manifest.read_text()), "schema": "evenstep.store/9"})
    )
    with pytest.raises(LayoutError, match=r"evenstep\.store/9"):
        load(tmp_path / "store")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "evenstep.store/1"}'])
def test_a_damaged_manifest_is_said_to_be_damaged(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(TraceError, match=r"store\.json is damaged; store the run again"):
        load(tmp_path)


def test_a_diagnosis_in_pieces_from_disk_is_that_from_memory(stored, trace, monkeypatch):
    monkeypatch.setattr(grid, "WINDOW_RECORDS", len(trace.events) // 2)
    monkeypatch.setattr(grid, "_SAMPLE_RECORDS", len(trace.events) // 2)
    found = diagnose(stored).to_json()
    assert found["findings"][0]["where"]["ranks"] == [1]
    assert found == diagnose(trace).to_json()


@pytest.mark.parametrize("ranks", ["\x1b[31m", "3-1", ",".join(["0-1000000"] * 9)])
def test_a_group_of_what_are_no_ranks_is_damage(folder, tmp_path, ranks):
    copied = tmp_path / "store"
    shutil.copytree(folder, copied)
    document = json.loads((copied / MANIFEST).read_text())
    document["groups"][0]["ranks"] = ranks
    (copied / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(TraceError, match="is damaged; store the run again"):
        load(copied)


@pytest.mark.parametrize("cores", [1, 2])
def test_writing_says_how_many_ranges_of_steps_are_done(trace, tmp_path, monkeypatch, cores):
    monkeypatch.setattr("evenstep.trace.store.writing.STRETCH_RECORDS", len(trace.events) / 3)
    monkeypatch.setattr("evenstep.trace.cores.available", lambda: cores)
    told = []
    write_store(trace, tmp_path / "store", progress=lambda *counts: told.append(counts))
    total = told[-1][1]
    assert total > 1
    assert told == [(done, total) for done in range(1, total + 1)]


@pytest.mark.parametrize("place", [{"cpu": "0-3"}, {"nics": [1]}, {"gpus": {"pci": "0"}}, "node 3"])
def test_a_place_of_another_shape_is_damage(trace, tmp_path, place):
    """Not an error of whatever shows or judges places later."""
    moved = replace(trace, ranks=copy.deepcopy(trace.ranks))
    moved.ranks[0].facts["locality"] = place
    write_store(moved, tmp_path / "store")
    with pytest.raises(TraceError, match="is damaged; store the run again"):
        load(tmp_path / "store")


@pytest.mark.parametrize(("key", "value"), [("file", "x" * 5_000), ("counts", {"1": 1 << 80})])
def test_a_part_with_a_name_or_a_count_that_none_has_is_damage(folder, tmp_path, key, value):
    copied = tmp_path / "store"
    shutil.copytree(folder, copied)
    document = json.loads((copied / MANIFEST).read_text())
    document["parts"][0][key] = value
    (copied / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(TraceError, match="is damaged; store the run again"):
        load(copied)


@pytest.mark.parametrize("name", ["ranks.parquet", "nodes-*"])
def test_a_damaged_table_is_a_sentence(folder, tmp_path, name):
    copied = tmp_path / "store"
    shutil.copytree(folder, copied)
    table = next(copied.rglob(name))
    data = table.read_bytes()
    for noise in (b"\xee" * 400, b"\0" * 400):  # over the end, where the columns are described
        table.write_bytes(data[:-420] + noise + data[-20:])
        with pytest.raises(TraceError, match=r"cannot be read: \w[^\n]+$"):
            load(copied).of_kind(Kind.STEP)


def test_what_a_query_has_no_memory_for_lies_in_a_folder_that_is_gone_afterwards(folder):
    with open_tables(folder) as connection:
        asked = "select current_setting('temp_directory'), current_setting('memory_limit')"
        place, memory = connection.execute(asked).fetchone()
        assert Path(place).is_dir()
        assert memory == "1.8 GiB"  # 2 GB
    assert not Path(place).exists()


@pytest.mark.parametrize("name", ["ranks.parquet", "summaries.parquet"])
def test_a_query_over_a_damaged_table_is_a_sentence(folder, tmp_path, name):
    copied = tmp_path / "store"
    shutil.copytree(folder, copied)
    next(copied.rglob(name)).write_bytes(b"PAR1")
    with pytest.raises(TraceError, match=r"cannot be read: \w[^\n]+$"), open_tables(copied):
        pass


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        *(("ranks", "rank", "'x'"), ("ranks", "rank", "-5::int"), ("ranks", "oldest_step", "null")),
        *(("ranks", "facts", "'{\"ended\": 5}'"), ("ranks", "identity", "'[]'")),
        *(("nodes-*", "rank", "'x'"), ("nodes-*", "seq", "null"), ("nodes-*", "step", "-1")),
        *(("summaries", "count", "1.5"), ("summaries", "rank", "null::int")),
    ],
)
def test_a_table_with_other_values_is_damaged(tmp_path, name, column, value):
    folder = write_store(load(write_run(tmp_path / "run")), tmp_path / "store").path
    path = next(folder.rglob(f"{name}.parquet"))
    changed = f"select * replace ({value} as {column}) from read_parquet('{path}')"
    duckdb.execute(f"copy ({changed}) to '{tmp_path}/changed' (format parquet)")
    (tmp_path / "changed").rename(path)
    with pytest.raises(TraceError, match="is damaged"):
        load(folder)


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "full").mkdir()
    said = pytest.raises(TraceError, match=r"cannot be written: .*full")
    with store_database.connect() as connection, said:
        store_database.write(connection, {"a": np.zeros(3)}, tmp_path / "full")


@pytest.mark.parametrize("place", ["{other}", "../{name}", "link.parquet"])
def test_a_manifest_that_names_a_file_elsewhere_is_not_followed(folder, tmp_path, place):
    copied = tmp_path / "store"
    shutil.copytree(folder, copied)
    other = tmp_path / "other.parquet"
    shutil.copy(copied / read_manifest(copied).parts[0].file, other)
    (copied / "link.parquet").symlink_to(other)
    document = json.loads((copied / MANIFEST).read_text())
    document["parts"][0]["file"] = place.format(other=other, name=other.name)
    (copied / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(TraceError, match="lies outside the store"):
        load(copied)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": 3},
        {"groups": [{}]},
        {"world": "x"},
        {"run": []},
        {"names": [1]},
        {"limits": None},
        {"world": 10**15},
    ],
    ids=str,
)
def test_a_manifest_of_other_types_is_damaged(folder, tmp_path, change):
    copied = tmp_path / "store"
    shutil.copytree(folder, copied)
    document = json.loads((copied / MANIFEST).read_text()) | change
    (copied / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(TraceError, match="damaged"):
        load(copied)


def test_a_file_may_hold_what_lies_between_its_first_and_its_last_step():
    part = StoredPart("a", 10, 19, 0, 0, 0, {}, {})
    assert [part.overlaps(*steps) for steps in ((0, 10), (0, 11), (19, 30), (20, 30))] == [
        False, True, True, False,
    ]  # fmt: skip


def test_a_store_may_be_written_into_folders_that_are_not_there_yet(trace, tmp_path):
    place = tmp_path / "runs" / "of" / "today"
    assert write_store(trace, place).path == place
    assert len(read_manifest(place).parts)
