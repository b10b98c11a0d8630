import pytest

from evenstep.reproduce import evaluation
from evenstep.simulate.study import sweep


@pytest.fixture(scope="module")
def table():
    units = evaluation.plan_matrix(
        nodes=[8], oversubscription=[1, 4], placements=["packed", "scattered"],
        controllers=["paper"], repeats=2, steps=16,
    )  # fmt: skip
    return evaluation.table(sweep.outcome(unit) for unit in units)


def cell(table, **fields):
    return next(row for row in table if all(row[name] == v for name, v in fields.items()))


def test_the_matrix_has_every_combination_once(table):
    cells = [(r["oversubscription"], r["placement"], r["coordination"]) for r in table]
    assert len(cells) == len(set(cells)) == 2 * 2 * 2
    assert {row["repeats"] for row in table} == {2}


def test_gains_are_of_pairs_with_the_same_random_numbers(table):
    """Sixteen steps are too few to pace anything, so nothing changes, to the last bit."""
    for row in table:
        if row["coordination"] == evaluation.BASELINE:
            assert row["gain"] is None
        else:
            assert row["gain"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_oversubscription_costs_a_scattered_job_and_spares_a_packed_one(table):
    def throughput(placement, ratio):
        found = cell(
            table, placement=placement, oversubscription=ratio, coordination=evaluation.BASELINE
        )
        return found["throughput"]["value"]

    assert throughput("scattered", 4.0) < throughput("scattered", 1.0)
    assert throughput("packed", 4.0) >= throughput("scattered", 4.0)


def test_intervals_hold_their_means(table):
    for row in table:
        found = row["throughput"]
        assert found["low"] <= found["value"] <= found["high"]
