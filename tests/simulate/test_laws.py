"""What holds for every scenario, whatever it is."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.simulate import simulation
from evenstep.simulate.job.engine import StepSums
from evenstep.simulate.job.graph import FinishedStep
from evenstep.simulate.simulation import set_up, simulate
from tests.simulate.worlds import scenario

FEW = settings(max_examples=10, deadline=None)

FABRICS = st.sampled_from(
    [
        ("fabric.kind=switch",),
        ("fabric.kind=leaf_spine", "fabric.oversubscription=4", "fabric.nodes_per_leaf=4"),
        ("fabric.kind=fat_tree", "fabric.nodes_per_leaf=2", "fabric.leaves_per_pod=2"),
        ("fabric.kind=torus", "fabric.shape=[2, 4]"),
        ("fabric.kind=dragonfly", "fabric.nodes_per_router=2", "fabric.routers_per_group=2"),
    ]
)
PLACEMENTS = st.sampled_from(["packed", "scattered", "random"])


@st.composite
def jobs(draw, algorithms=("ring", "tree", "halving_doubling"), buckets=2):
    """Settings of a small DDP job on 8 nodes."""
    return (
        "cluster.nodes=8",
        *draw(FABRICS),
        f"job.placement={draw(PLACEMENTS)}",
        f"collectives.algorithm={draw(st.sampled_from(algorithms))}",
        f"work.forward_ms={draw(st.floats(1, 30))}",
        f"work.backward_ms={draw(st.floats(1, 60))}",
        f"work.buckets={draw(st.integers(1, buckets))}",
        f"work.gradient_bytes={draw(st.integers(10**6, 2 * 10**8))}",
        f"run.seed={draw(st.integers(0, 99))}",
        "run.steps=3",
    )


def noise(draw_sigma):
    return [{"kind": "normal", "sigma": draw_sigma}]


@FEW
@given(jobs(), st.floats(1.01, 8))
def test_more_bandwidth_is_never_slower(sets, factor):
    slow = simulate(scenario(*sets, noise=noise(0.02)))
    fast = simulate(scenario(*sets, f"cluster.nic_gBps={12.5 * factor}", noise=noise(0.02)))
    assert fast.step_time.mean_ns <= slow.step_time.mean_ns * (1 + 1e-9)


@FEW
@given(jobs())
def test_without_noise_every_step_is_like_the_other(sets):
    assert simulate(scenario(*sets)).step_time.cv == 0


@FEW
@given(jobs(("ring",)), st.permutations(range(8)))
def test_on_a_switch_it_does_not_matter_which_rank_is_slow(sets, order):
    sets = [*sets, "fabric.kind=switch"]
    times = [
        simulate(scenario(*sets, noise=[{"kind": "slow", "ranks": str(rank), "factor": 1.3}]))
        for rank in order[:2]
    ]
    assert times[0].step_time.mean_ns == pytest.approx(times[1].step_time.mean_ns, rel=1e-12)


@FEW
@given(jobs(("ring",)))
def test_each_link_carries_what_the_steps_put_on_it(sets):
    asked = scenario(*sets)
    flow = set_up(asked).flows[0]
    result = simulate(asked)
    carried = {use.link: use.bytes for use in result.links}
    names = set_up(asked).network.names
    expected = dict(zip(names, flow.link_bytes * asked.work.buckets * 3, strict=True))
    assert all(carried[name] == pytest.approx(expected[name]) for name in carried)


@FEW
@given(jobs(("ring", "tree")))
def test_shares_add_up_and_nothing_is_negative(sets):
    shares = simulate(scenario(*sets, noise=noise(0.05))).shares
    parts = [shares.compute, shares.exposed_communication, shares.wait, shares.input, shares.held]
    assert min(parts) >= -1e-12
    assert sum(parts) == pytest.approx(1)


@FEW
@given(jobs(), st.integers(0, 2**31))
def test_the_same_seed_gives_the_same_steps_and_another_one_others(sets, seed):
    asked = scenario(*sets, f"run.seed={seed}", noise=noise(0.05))
    other = scenario(*sets, f"run.seed={seed + 1}", noise=noise(0.05))
    assert (simulate(asked).step_ns == simulate(asked).step_ns).all()
    assert (simulate(asked).step_ns != simulate(other).step_ns).any()


def test_threads_that_set_up_scenarios_share_the_libraries_that_are_kept(monkeypatch):
    """Only two are kept here, so that each thread takes away what others look at."""
    monkeypatch.setattr(simulation, "MOST_HOPS", 0)
    asked = [scenario(f"cluster.nodes={2 + number % 8}") for number in range(64)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(set_up, asked))
    assert [len(one.placement.gpu) for one in found] == [one.ranks for one in asked]


def test_steps_add_up_to_the_time_the_run_takes():
    account = StepSums(3, 2, warm_up=1)
    account.begin_ns[:], account.end_ns[:], account.done = [0, 9, 21], [10, 22, 30], 3
    assert account.step_ns.tolist() == [10, 12, 8]
    assert account.step_ns[account.counted].sum() == 20


@pytest.mark.parametrize(
    ("members", "last"),
    [
        ([[0, 1, 2, 3]], [7, 7, 7, 7]),
        ([[0, 1], [2, 3]], [7, 7, 5, 5]),
        ([[3, 1]], [np.nan, 7, np.nan, 7]),
    ],
)
def test_a_rank_waits_for_the_last_of_its_own_group(members, last):
    flow = SimpleNamespace(apart=False, spared=0, members=np.array(members))
    graph = SimpleNamespace(
        place=[np.array([0])], flows=[flow], role=np.zeros(4, int), follows=[-1]
    )
    enter = np.array([[1.0, 7.0, 5.0, 3.0]])
    step = FinishedStep(0, graph, np.zeros(4), enter, enter + 1, np.zeros(4), None)
    np.testing.assert_array_equal(step.last_entries(0), last)
