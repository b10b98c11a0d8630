import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.scenario.parts import Part
from evenstep.simulate import formulas
from evenstep.simulate.formulas import DAY_NS, HOUR_NS


def test_a_counted_rate_gives_the_count_back():
    parts = formulas.observed_parts(
        {"GPU": 148, "network": 35}, nodes=2048, days=54, per_node={"GPU": 8}
    )
    assert formulas.failures_per_day(parts, 2048) * 54 == pytest.approx(148 + 35)


def test_a_rate_is_that_of_one_part():
    (gpu,) = formulas.observed_parts({"GPU": 8}, nodes=10, days=100, per_node={"GPU": 8})
    # 8 failures in 80 parts × 2,400 h
    assert gpu.failures_per_million_hours == pytest.approx(8 / (80 * 2400) * 1e6)


@given(st.integers(1, 10**5), st.integers(2, 10))
def test_a_job_of_more_nodes_fails_so_much_more_often(nodes, factor):
    parts = (Part(name="GPU", failures_per_million_hours=4.0, per_node=8),)
    longer = formulas.mtbf_ns(parts, nodes)
    assert formulas.mtbf_ns(parts, nodes * factor) == pytest.approx(longer / factor)


def test_what_never_fails_runs_for_ever():
    assert formulas.mtbf_ns((), 100) == math.inf


def test_a_partly_used_node_counts_as_a_node():
    assert formulas.mttf_ns(1000.0, gpus=9) == DAY_NS / 2  # two nodes, one failure a day each


def test_the_published_projections_come_out_of_the_published_rate():
    # Kokolis et al. 2025: 6.50 per 1,000 node-days, 8 GPUs a node, 1.8 h at 16,384 GPUs
    assert formulas.mttf_ns(6.50, gpus=16384) / HOUR_NS == pytest.approx(1.8, rel=0.01)


def test_causes_are_ordered_and_add_up():
    parts = formulas.observed_parts({"a": 1, "b": 3}, nodes=4, days=2, software=("a",))
    assert formulas.by_cause(parts) == pytest.approx({"b": 0.75, "a": 0.25})
