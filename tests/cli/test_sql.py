"""Questions in SQL about runs and stores; the numbers are those of a closed-form world."""

import csv
import io
import json
import struct

import pytest

from evenstep.cli.main import main
from evenstep.diagnose.engine import diagnose
from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spool.spool import Spool
from evenstep.trace.store.query import TABLES
from tests.cli.simulated import simulate
from tests.trace.small_run import identity

pytest.importorskip("duckdb", reason="SQL is DuckDB's")

RANKS, STEPS, BUCKETS = 4, 60, 2  # of `simulated.SCENARIO`


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return simulate(tmp_path_factory.mktemp("sql") / "run", slow=True)


@pytest.fixture(scope="module")
def store(run):
    folder = run.with_name("store")
    assert main(["export", str(run), "--store", str(folder)]) == 0
    return folder


@pytest.fixture
def ask(capsys):
    """The rows of an answer, as JSON."""

    def call(query, source):
        capsys.readouterr()
        assert main(["sql", query, str(source), "--json"]) == 0
        return json.loads(capsys.readouterr().out)["rows"]

    return call


@pytest.mark.parametrize("source", ["run", "store"])
def test_a_run_and_its_store_answer_alike(ask, request, source):
    query = "select kind, count(*) as n from events group by kind order by kind"
    counts = {row["kind"]: row["n"] for row in ask(query, request.getfixturevalue(source))}
    assert counts["collective"] == RANKS * STEPS * BUCKETS
    assert counts["step"] == RANKS * STEPS


def test_the_slow_rank_is_found_by_its_phases(ask, store):
    query = """select rank from phases where phase = 'backward'
               group by rank order by avg(own_ns) desc limit 1"""
    assert ask(query, store) == [{"rank": 3}]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_table_has_its_columns(ask, store, table):
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    assert isinstance(ask(f"select {names} from {table.name} limit 1", store), list)


def test_times_are_those_of_the_trace(ask, run):
    steps = load(run).of_kind(Kind.STEP)
    [row] = ask("select sum(step_ns)::bigint as total from steps", run)
    assert row["total"] == int((steps.exit_ns - steps.enter_ns).sum())


@pytest.mark.parametrize("value", [0.0, -2.5, 1e-310, 3.141592653589793, 1.7e308])
def test_a_measurement_is_read_from_its_bits(ask, tmp_path, value):
    path = tmp_path / "rank-00000.spool"
    spool = Spool.create(path, identity(0, world=1), ring_bytes=999, summary_bytes=1)
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    spool.put(1, 1, Kind.SAMPLE, 0, 0, name=spool.name_id("gpu.watts"), bytes_in=bits)
    spool.shut()
    assert ask("select metric, value from samples", path) == [
        {"metric": "gpu.watts", "value": value}
    ]


def test_groups_and_ranks_are_tables(ask, store):
    [group] = ask("select name, ranks from groups", store)
    assert group["ranks"] == list(range(RANKS))
    assert [row["rank"] for row in ask("select rank from ranks order by rank", store)] == [
        0,
        1,
        2,
        3,
    ]


def test_groups_of_one_name_are_told_apart_by_their_ranks(ask, tmp_path):
    path = tmp_path / "rank-00000.spool"
    spool = Spool.create(path, identity(0, world=4), ring_bytes=999, summary_bytes=1)
    for ranks in ("0-1", "2-3"):  # as those of a mesh's dimension
        spool.add_group({"uid": ranks, "name": "tp", "ranks": ranks})
    spool.shut()
    found = ask("select name from groups order by name", path)
    assert [row["name"] for row in found] == ["tp 0-1", "tp 2-3"]


def test_csv_has_a_head_and_a_line_a_row(run, capsys):
    assert main(["sql", "select rank, step from steps order by all", str(run), "--csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["rank", "step"]
    assert len(rows) == 1 + RANKS * STEPS


def test_a_table_shows_the_first_rows_and_says_so(run, capsys):
    assert main(["sql", "select rank, step from steps order by all", str(run)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:2] == ["rank  step", "   0     0"]
    assert "the first 200 rows" in shown.err


def test_columns_of_one_name_are_told_apart(ask, run):
    assert ask("select 1 as a, 2 as a", run) == [{"a": 1, "a_2": 2}]


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_a_time_with_a_zone_needs_a_module_and_is_refused_at_once(run, capsys, monkeypatch, form):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["sql", "select now() as t", str(run), form]) == 2
    found = capsys.readouterr()
    assert (found.out, "::varchar" in found.err) == ("", True)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selec 1", "syntax error"),
        ("select nothing from steps", "nothing"),
        ("select * from nowhere", "nowhere"),
        ("select 1; select 2", "found 2 statements"),
        ("", "found 0 statements"),
        ("drop view steps", "only SELECT"),
        ("copy steps to 'out.csv'", "only SELECT"),
        ("attach 'x.db'", "only SELECT"),
        ("install httpfs", "only SELECT"),
        ("explain analyze copy (select 1) to 'out.csv'", "only SELECT"),
        ("set memory_limit = '9GB'", "only SELECT"),
        ("select * from read_text('/etc/hostname')", "disabled by configuration"),
        ("select * from read_csv('/etc/passwd')", "disabled by configuration"),
        ("select * from glob('/etc/*')", "disabled by configuration"),
        ("select * from '/etc/passwd'", "does not exist"),
        ("select * from read_parquet('https://example.org/x')", "disabled by configuration"),
        ("select * from sys", "does not exist"),
        ("select cast('x' as integer) from steps", "Could not convert"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(run, capsys, query, said):
    assert main(["sql", query, str(run)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("source", ["run", "store"])
def test_a_question_writes_and_reads_no_file(request, source, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = request.getfixturevalue(source)
    stored = sorted(place.rglob("*")) if source == "store" else []
    for query in (
        f"explain analyze copy (select 1) to '{tmp_path / 'out.csv'}'",
        *(f"explain analyze copy (select 1) to '{file}' (use_tmp_file false)" for file in stored),
        f"select * from read_text('{__file__}')",
        "select * from query_table('/etc/passwd')",
    ):
        before = [file.stat().st_mtime_ns for file in stored]
        assert main(["sql", query, str(place)]) == 2
        assert [file.stat().st_mtime_ns for file in stored] == before
    assert not list(tmp_path.iterdir())


def test_csv_prints_no_escapes_of_a_terminal(run, capsys):
    assert (
        main(["sql", "select 'a' || chr(27) || '[31mb' as \"x\u001b[2J\"", str(run), "--csv"]) == 0
    )
    assert "\x1b" not in capsys.readouterr().out


def test_query_and_run_in_the_wrong_order_are_recognised(run, capsys):
    assert main(["sql", str(run), "select 1 from steps"]) == 2
    assert "QUERY comes first" in capsys.readouterr().err


def test_tables_are_documented(capsys):
    assert main(["sql", "--tables"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{table.name}: {table.meaning}" in text for table in TABLES)
    assert main(["sql", "--tables", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["tables"]) == {table.name for table in TABLES}


def test_a_store_is_diagnosed_like_its_run(run, store, capsys):
    found = []
    for source in (run, store):
        main(["diagnose", str(source), "--json"])
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["findings"][0]["where"]["ranks"] == [3]


def test_a_large_run_is_stored_for_its_question(run, capsys, monkeypatch):
    for module in ("spools", "loading"):
        monkeypatch.setattr(f"evenstep.trace.{module}.LARGE_RECORDS", 0)
    assert main(["sql", "select count(*) as n from steps", str(run), "--csv"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"n\n{RANKS * STEPS}\n"
    assert "--store DIR" in shown.err


@pytest.mark.parametrize("source", ["run", "store"])
def test_findings_are_a_table_as_diagnosed(ask, request, source):
    query = "select title, severity, ranks from findings order by severity desc limit 1"
    (row,) = ask(query, request.getfixturevalue(source))
    worst = diagnose(load(request.getfixturevalue("run"))).findings[0]
    assert (row["title"], row["ranks"]) == (worst.title, [3])
    assert row["severity"] == pytest.approx(worst.severity)


def test_an_answer_without_rows_says_so(run, capsys):
    assert main(["sql", "select rank, step from steps where rank > 99", str(run)]) == 0
    assert capsys.readouterr().out == "rank  step\n0 rows\n"
