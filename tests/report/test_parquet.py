"""Parquet files, read back by DuckDB."""

import json

import numpy as np
import pytest

from evenstep.errors import UsageError
from evenstep.export import parquet
from evenstep.export.parquet import write
from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spooled import Spooled
from tests.report.small_run import LATE_NS, LATE_RANK, RANKS, STEPS
from tests.trace.small_run import write_run

duckdb = pytest.importorskip("duckdb")


@pytest.fixture
def folder(tmp_path, trace, diagnosis):
    write(trace, diagnosis, tmp_path / "it's here")
    return tmp_path / "it's here"


def ask(query, path):
    return duckdb.execute(query, [str(path)]).fetchall()


def test_events_read_back_as_they_were(folder, trace):
    found = duckdb.execute(
        "select * from read_parquet(?)", [str(folder / "events.parquet")]
    ).fetchnumpy()
    assert len(found["rank"]) == len(trace.events)
    for name in ("enter_ns", "exit_ns", "step", "bytes_in"):
        assert np.array_equal(np.sort(found[name]), np.sort(trace.events[name]))


def test_numbers_have_become_words(folder):
    rows = ask('select distinct op, "group" from read_parquet(?) where kind = \'collective\'',
               folder / "events.parquet")  # fmt: skip
    assert rows == [("all_reduce", "default_pg")]
    nodes = "select distinct rank, node from read_parquet(?) order by rank"
    assert ask(nodes, folder / "events.parquet")[LATE_RANK] == (LATE_RANK, "gpu012")


def test_kinds_are_counted_as_in_the_trace(folder, trace):
    query = "select count(*) from read_parquet(?) where kind = 'step'"
    assert ask(query, folder / "events.parquet") == [(len(trace.of_kind(Kind.STEP)),)]


def test_a_large_run_is_written_without_reading_all_of_it(tmp_path, diagnosis, monkeypatch):
    run = write_run(tmp_path / "run")
    write(load(run), diagnosis, tmp_path / "small")
    for module in ("loading", "spools"):
        monkeypatch.setattr(f"evenstep.trace.{module}.LARGE_RECORDS", 0)
    monkeypatch.setattr(Spooled, "only", lambda *_: 1 / 0)
    write(load(run), diagnosis, tmp_path / "large")
    query = "select * from read_parquet(?) order by rank, seq"
    small, large = (ask(query, tmp_path / name / "events.parquet") for name in ("small", "large"))
    assert len(small) == 12
    assert small == large
    assert sorted(path.name for path in (tmp_path / "large").iterdir()) == sorted(
        f"{name}.parquet" for name in ("events", "steps", "findings")
    )


def test_steps_hold_lateness_per_rank(folder):
    query = (
        "select rank, count(*), max(lateness_ns) from read_parquet(?) group by rank order by rank"
    )
    rows = ask(query, folder / "steps.parquet")
    assert [rank for rank, _, late in rows if late >= LATE_NS] == [LATE_RANK]
    assert len(rows) == RANKS
    assert {count for _, count, _ in rows} <= {STEPS, STEPS - 3}  # a grid leaves the warm-up out


def test_findings_keep_what_is_nested_as_json(folder, finding):
    [(mode, severity, where)] = ask(
        'select mode, severity, "where" from read_parquet(?)', folder / "findings.parquet"
    )
    assert (mode, severity) == (finding.mode, finding.severity)
    assert json.loads(where)["ranks"] == [LATE_RANK]


def test_rows_and_bytes_are_those_of_the_files(tmp_path, trace, diagnosis):
    for written in write(trace, diagnosis, tmp_path):
        assert written.size_bytes == written.path.stat().st_size
        assert ask("select count(*) from read_parquet(?)", written.path) == [(written.rows,)]


def test_nothing_is_overwritten_without_force(folder, trace, diagnosis):
    with pytest.raises(UsageError, match=r"events.parquet exists; .*--force"):
        write(trace, diagnosis, folder)
    write(trace, diagnosis, folder, force=True)


def test_a_run_without_findings_has_an_empty_table(tmp_path, trace, diagnosis):
    diagnosis.findings.clear()
    assert [each.rows for each in write(trace, diagnosis, tmp_path)][2] == 0


def test_a_full_disk_leaves_no_file_behind(tmp_path, trace, diagnosis, monkeypatch):
    def full(connection, name, path):
        path.write_bytes(b"part")
        if name == "findings":
            inner = r"Could not write file \"steps\": No space left on device"
            raise duckdb.IOException(f'IO Error: {{"exception_message":"{inner}","errno":"28"}}')
        return 1

    monkeypatch.setattr(parquet, "_copy", full)
    with pytest.raises(UsageError, match=r'pq: Could not write file "steps": No space left on dev'):
        write(trace, diagnosis, tmp_path / "pq")
    assert list((tmp_path / "pq").iterdir()) == []
