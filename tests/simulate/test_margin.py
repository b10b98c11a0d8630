import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.simulate.fabric.noise import are_alike
from evenstep.simulate.simulation import set_up, simulate, simulate_set_up, step_times
from evenstep.simulate.study.margin import (
    AXES,
    TOO_LONG,
    Edges,
    GrowthAxis,
    LimitCheck,
    Margin,
    margins,
    search,
)
from evenstep.simulate.wires.carriage import carriages
from tests.simulate.worlds import MS, scenario

JOB = (
    "cluster.nodes=12", "work.forward_ms=100", "work.gradient_bytes=100MB",
    "collectives.algorithm=ring", "run.steps=20",
)  # fmt: skip


def axis(now=0.0, most=1.0, unit=0.0):
    return GrowthAxis(now, most, lambda value: {}, unit)


def judged(excess):
    return LimitCheck("cv" if excess > 0 else None, (excess,))


@pytest.mark.parametrize("power", [0, 0.3, 1, 4], ids="{}".format)
@given(edge=st.floats(0.01, 0.99))
def test_the_search_finds_where_a_limit_is_crossed(power, edge):
    """In few trials, also where what is limited jumps, levels off or rises late."""
    tried = []

    def judge(value):
        tried.append(value)
        return judged(value**power - edge**power if power else (1 if value >= edge else -1))

    found = search(axis(), judge)
    assert found.crosses == "cv"
    assert edge <= found.value <= edge / 0.94 + 1e-9
    assert len(tried) <= 14
    assert len(set(tried)) == len(tried)


def test_what_grows_evenly_takes_few_trials():
    """From 0 to 1/16 and 3/16, then on both sides of where it crosses."""
    tried = []
    search(axis(), lambda value: tried.append(value) or judged(value - 0.1))
    assert len(tried) == 5


@pytest.mark.parametrize(("value", "trials"), [(0.1, 3), (0.104, 2), (0.2, 4), (0.05, 4)])
def test_near_the_margin_of_a_job_like_it_few_trials_are_needed(value, trials):
    """A limit at .1: both sides of a good guess, and an interpolation from a bad one."""
    tried, like = [], Margin(0.0, value, "cv", value)
    found = search(axis(), lambda at: tried.append(at) or judged(at - 0.1), like)
    assert 0.1 <= found.value <= 0.1 / 0.94
    assert len(tried) <= trials + 1  # and one for where the axis begins


def test_where_a_job_like_it_crosses_nothing_one_trial_is_enough():
    tried, like = [], Margin(0.0, None, None, 1.0)
    assert search(axis(), lambda at: tried.append(at) or judged(-1), like).tried == 1
    assert tried == [0.0, 1.0]


def test_a_run_that_has_enough_steps_ends_with_those_of_the_whole_run():
    asked = scenario(*JOB, "noise=[{kind='normal'}]", "run.warm_up=2")
    found = step_times(set_up(asked), lambda step, _: len(step) == 5)
    assert found.tolist() == simulate(asked).step_ns[2:7].tolist()


def test_trial_runs_that_differ_in_noise_convert_their_flows_once():
    carriages.cache_clear()
    for sigma in (0.1, 0.2):
        noisy = scenario(*JOB, f"noise=[{{kind='normal', sigma={sigma}}}]")
        step_times(set_up(noisy), lambda *_: True)
    found = carriages.cache_info()
    assert (found.misses, found.hits) == (1, 1)


def test_a_run_whose_first_step_has_too_many_messages_ends_in_it():
    """A direct exchange of 12 ranks: each sends its part to all others at once, twice."""
    asked = scenario(*JOB, "collectives.algorithm=direct", "noise=[{kind='normal'}]", "run.steps=2")
    messages = 2 * 12
    assert not len(step_times(set_up(asked), lambda *_: False, messages - 1))
    whole = step_times(set_up(asked), lambda *_: False, messages)
    assert whole.tolist() == simulate(asked).step_ns.tolist()


@pytest.mark.parametrize(
    ("sets", "alike"),
    [
        (("noise=[{kind='normal'}, {kind='slow'}]",), True),
        (("noise=[{kind='hits'}]",), False),  # rare
        (("noise=[{kind='pareto'}]",), False),  # heavy
        (("noise=[{kind='drift'}]",), False),  # not independent
        (("noise=[{kind='slow', first_step=5}]",), False),
        (("strategy.kind=local_sgd", "strategy.every=4"), False),
    ],
)
def test_few_steps_tell_the_others_only_where_all_are_alike(sets, alike):
    assert are_alike(scenario(*JOB, *sets)) == alike


def test_what_is_never_crossed_says_how_far_was_looked():
    found = search(axis(most=8), lambda value: judged(-1))
    assert (found.value, found.crosses, found.tried) == (None, None, 8)


def test_an_axis_ends_where_a_look_would_be_too_long():
    found = search(axis(now=1, most=64), lambda value: TOO_LONG if value > 8 else judged(-1))
    assert (found.value, found.crosses, found.tried) == (None, None, 8)


@pytest.mark.parametrize("kind", ["switch", "leaf_spine"])
def test_a_load_is_as_a_neighbour_that_never_pauses_and_never_yields(kind):
    asked = [*JOB, f"fabric.kind={kind}", "fabric.nodes_per_leaf=4", "fabric.oversubscription=2",
             "cluster.gpus_per_node=2", "cluster.nics_per_node=2", "job.placement=given",
             "job.nodes=0-11"]  # fmt: skip
    beside = (
        "neighbours=[{nodes='0-11', compute_ms=0, jitter=0, responsive=false, rate_gBps=3, "
        "message_bytes=1000000000000000}]"
    )
    loaded = simulate_set_up(set_up(scenario(*asked), load_gBps=3)).step_time.mean_ns
    shared = simulate(scenario(*asked, beside)).step_time.mean_ns
    assert loaded == pytest.approx(shared, rel=1e-6)
    assert loaded > 1.001 * simulate(scenario(*asked)).step_time.mean_ns


def test_what_is_crossed_already_says_so():
    assert search(axis(now=3), lambda value: LimitCheck("efficiency", (-1, 0.1))).value == 3


@given(st.integers(4, 60))
def test_only_what_can_be_is_tried(edge):
    tried = []
    search(axis(now=4, most=64, unit=4), lambda v: tried.append(v) or judged(v - edge))
    assert all(value % 4 == 0 for value in tried)
    assert len(set(tried)) == len(tried)


def test_the_efficiency_that_a_load_leaves_is_the_limit():
    """Traffic that does not yield leaves 1 - x: c/(c + m/(1-x)) = e, so x = 1 - m e/(c (1-e))."""
    asked = scenario(*JOB)
    m = simulate(asked).collectives[0].alone_ns / MS
    found = margins(asked, simulate(asked), Edges(cv=1.0, efficiency=0.8), ("load",))["load"]
    expected = 1 - m * 0.8 / (100 * 0.2)
    assert found.crosses == "efficiency"
    assert found.value == pytest.approx(expected, rel=0.06)


def test_jitter_ends_at_the_cv_that_is_allowed():
    """One rank: CV of a normal step is its sigma."""
    asked = scenario("work.forward_ms=100", "run.steps=50")
    found = margins(asked, simulate(asked), Edges(cv=0.2, efficiency=0.0), ("jitter",))["jitter"]
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
    asked = scenario(*JOB, *sets)
    found = margins(asked, simulate(asked), Edges(), (axis_name,))[axis_name]
    assert (found.value, found.note) == (None, note)


def test_sizes_that_are_tried_have_whole_replicas():
    """Four nodes of 8 GPUs: 2 of tensor, 4 of stages, 4 of context."""
    asked = scenario(
        "cluster.nodes=4", "cluster.gpus_per_node=8", "work.kind=pipeline", "work.forward_ms=1",
        "work.tensor_parallel=2", "work.pipeline_parallel=4", "work.context_parallel=4",
    )  # fmt: skip
    found = AXES["ranks"](asked)
    assert (found.unit, found.place(70)) == (32, 64)
