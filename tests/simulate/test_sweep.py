import json
import pickle

import pytest

from evenstep.errors import ConfigError, UsageError
from evenstep.simulate.study import sweep
from evenstep.simulate.study.sweep import interval, run_units, summed_up
from evenstep.simulate.study.sweep_folder import SweepFolder

DATA = {
    "cluster": {"nodes": 2},
    "work": {"forward_ms": 10, "gradient_bytes": "10MB"},
    "noise": [{"kind": "normal", "sigma": 0.1}],
    "run": {"steps": 5, "seed": 7},
}


def planned(*axes, repeats=2, **options):
    return sweep.plan(DATA, [sweep.axis(text) for text in axes], repeats=repeats, **options)


@pytest.fixture
def plan():
    return planned("nodes=2,4", "work.buckets=1,2")


@pytest.fixture
def rows(plan):
    return [sweep.outcome(unit) for unit in plan.units]


def test_a_short_name_stands_for_its_field():
    assert sweep.axis("nodes=4, 8") == ("cluster.nodes", ("4", "8"))
    assert sweep.axis("fabric.shape=[2,2],[4,4]").values == ("[2,2]", "[4,4]")


@pytest.mark.parametrize("text", ["nodes", "nodes=", "=4", "nodes=4,,8", "nodes=4,4"])
def test_what_is_no_axis_is_refused(text):
    with pytest.raises(UsageError, match="--vary"):
        sweep.axis(text)


def test_every_combination_has_its_repeats(plan):
    assert len(plan.units) == 2 * 2 * 2
    assert [unit.repeat for unit in plan.units[:2]] == [0, 1]
    assert [unit.scenario["run"]["seed"] for unit in plan.units[:2]] == [7, 8]


def test_a_combination_that_is_none_is_named():
    with pytest.raises(ConfigError, match=r"with cluster.nodes=2, job.ranks=3: job.ranks is 3"):
        planned("nodes=4,2", "ranks=3")


def test_a_field_is_varied_once():
    with pytest.raises(UsageError, match=r"names cluster.nodes twice"):
        planned("nodes=2", "cluster.nodes=4")


def test_a_sweep_has_an_end():
    with pytest.raises(UsageError, match="at most 100,000"):
        planned("nodes=2,4", repeats=60_000)


def test_the_unit_of_work_can_be_sent_elsewhere(plan):
    unit = pickle.loads(pickle.dumps(plan.units[3]))
    assert unit == plan.units[3]
    assert sweep.outcome(unit) == sweep.outcome(plan.units[3])


def test_rows_say_what_was_varied(rows):
    assert [row["cluster.nodes"] for row in rows] == [2] * 4 + [4] * 4
    assert rows[0]["ranks"] == 2
    assert rows[0]["step_mean_ns"] != rows[1]["step_mean_ns"]  # another seed


def test_any_number_of_workers_gives_the_same_bytes(plan, rows, tmp_path):
    pytest.importorskip("duckdb")
    for workers in (1, 2):
        folder = SweepFolder(tmp_path / str(workers))
        folder.begin(plan, force=False)
        folder.write_results(run_units(plan.units, workers))
    one, two = (tmp_path / name / "results.parquet" for name in "12")
    assert one.read_bytes() == two.read_bytes()


def test_a_full_disk_is_one_sentence_and_leaves_no_half_of_a_table(rows, tmp_path):
    pytest.importorskip("duckdb")
    (tmp_path / "results.part").symlink_to("/dev/full")
    with pytest.raises(UsageError, match=r"cannot write .*results\.parquet: .*No space left"):
        SweepFolder(tmp_path).write_results(rows)
    assert list(tmp_path.iterdir()) == []


def test_the_table_can_be_asked(rows, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    table = SweepFolder(tmp_path).write_results(rows)
    found = duckdb.sql(f"SELECT number, \"cluster.nodes\" FROM '{table}'").fetchall()
    assert found == [(row["number"], row["cluster.nodes"]) for row in rows]


def test_what_was_finished_is_not_done_again(plan, rows, tmp_path):
    folder = SweepFolder(tmp_path)
    assert folder.begin(plan, force=False) == []
    folder.add(rows[0])
    folder.add(rows[5])
    with (tmp_path / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps(rows[1])[:40])  # killed while it was writing
    assert folder.begin(plan, force=False) == [rows[0], rows[5]]
    folder.add(rows[1])
    assert folder.begin(plan, force=False) == [rows[0], rows[5], rows[1]]


def test_a_line_of_another_shape_is_no_row(plan, rows, tmp_path):
    folder = SweepFolder(tmp_path)
    folder.begin(plan, force=False)
    wrong = [{"number": {}}, {**rows[0], "step_ms": [1]}, {**rows[0], "more": 1 << 80}, [], "{" * 9]
    text = "".join(json.dumps(row) + "\n" for row in [*wrong, rows[1]])
    (tmp_path / "journal.jsonl").write_text(text)
    assert [row["number"] for row in folder.begin(plan, force=False)] == [rows[1]["number"]]


def test_another_sweep_is_not_mixed_in(plan, rows, tmp_path):
    folder = SweepFolder(tmp_path)
    folder.begin(plan, force=False)
    folder.add(rows[0])
    with pytest.raises(UsageError, match=r"has another sweep.*cluster.nodes=2,4"):
        folder.begin(planned("nodes=2"), force=False)
    assert folder.begin(planned("nodes=2"), force=True) == []


def test_an_interval_is_students():
    """Of 1, 2, 3: 2 ± 4.303 · 1/√3 (two degrees of freedom)."""
    found = interval([1.0, 2.0, 3.0])
    assert (found["value"], found["high"] - 2) == pytest.approx((2.0, 4.30265 / 3**0.5))
    assert interval([1.0]) == {"value": 1.0, "low": None, "high": None}


def test_repeats_are_summed_up(rows):
    found = summed_up(reversed(rows), ["cluster.nodes", "work.buckets"])
    assert [entry["varied"]["work.buckets"] for entry in found] == [1, 2, 1, 2]
    pair = [row["throughput"] for row in rows[:2]]
    assert found[0]["throughput"]["value"] == pytest.approx(sum(pair) / 2)
