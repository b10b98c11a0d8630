import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.simulate.simulation import simulate
from evenstep.simulate.study.margin import AXES, Edges, GrowthAxis, margins, search
from tests.simulate.worlds import MS, scenario

JOB = (
    "cluster.nodes=12", "work.forward_ms=100", "work.gradient_bytes=100MB",
    "collectives.algorithm=ring", "run.steps=20",
)  # fmt: skip


def axis(now=0.0, most=1.0, unit=0.0):
    return GrowthAxis(now, most, lambda value: {}, unit)


@given(st.floats(0.01, 1.0))
def test_bisection_finds_where_a_limit_is_crossed(edge):
    found = search(axis(), lambda value: "cv" if value >= edge else None)
    assert found.crosses == "cv"
    assert edge <= found.value <= edge / 0.94 + 1e-9


def test_what_is_never_crossed_says_how_far_was_looked():
    found = search(axis(most=8), lambda value: None)
    assert (found.value, found.crosses, found.tried) == (None, None, 8)


def test_what_is_crossed_already_says_so():
    assert search(axis(now=3), lambda value: "efficiency").value == 3


@given(st.integers(4, 60))
def test_only_what_can_be_is_tried(edge):
    tried = []
    search(axis(now=4, most=64, unit=4), lambda v: tried.append(v) or ("cv" if v >= edge else None))
    assert all(value % 4 == 0 for value in tried)


def test_the_efficiency_that_a_load_leaves_is_the_limit():
    """Traffic that does not yield leaves 1 - x: c/(c + m/(1-x)) = e, so x = 1 - m e/(c (1-e))."""
    asked = scenario(*JOB)
    m = simulate(asked).collectives[0].alone_ns / MS
    found = margins(asked, Edges(cv=1.0, efficiency=0.8), ("load",))["load"]
    expected = 1 - m * 0.8 / (100 * 0.2)
    assert found.crosses == "efficiency"
    assert found.value == pytest.approx(expected, rel=0.06)


def test_jitter_ends_at_the_cv_that_is_allowed():
    """One rank: CV of a normal step is its sigma."""
    asked = scenario("work.forward_ms=100", "run.steps=50")
    found = margins(asked, Edges(cv=0.2, efficiency=0.0), ("jitter",))["jitter"]
    assert found.value == pytest.approx(0.2, rel=0.25)


@pytest.mark.parametrize(
    ("axis_name", "sets", "note"),
    [
        ("oversubscription", (), "a switch has none"),
        ("ranks", ("job.placement=given", "job.nodes=0-3"), "the job's nodes are given"),
        ("load", ("job.ranks=1",), "the job is on one node"),
    ],
)
def test_an_axis_that_makes_no_sense_says_why(axis_name, sets, note):
    found = margins(scenario(*JOB, *sets), Edges(), (axis_name,))[axis_name]
    assert (found.value, found.note) == (None, note)


def test_sizes_that_are_tried_have_whole_replicas():
    """Four nodes of 8 GPUs: 2 of tensor, 4 of stages, 4 of context."""
    asked = scenario(
        "cluster.nodes=4", "cluster.gpus_per_node=8", "work.kind=pipeline", "work.forward_ms=1",
        "work.tensor_parallel=2", "work.pipeline_parallel=4", "work.context_parallel=4",
    )  # fmt: skip
    found = AXES["ranks"](asked)
    assert (found.unit, found.place(70)) == (32, 64)
