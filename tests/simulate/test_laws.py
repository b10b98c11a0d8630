"""What holds for every scenario, whatever it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.simulate import simulation
from evenstep.simulate.job.account import Account
from evenstep.simulate.simulation import set_up, simulate
from evenstep.simulate.wires import rehearsal
from evenstep.simulate.wires.wire import FastWire
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
@given(jobs())
def test_message_by_message_too(sets):
    assert simulate(scenario(*sets), exact=True).step_time.cv == 0


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
@given(jobs(), st.lists(st.floats(0, 1e8), min_size=8, max_size=8))
def test_a_collective_ends_no_earlier_than_its_last_entry_and_one_hop(sets, entries):
    setup = set_up(scenario(*sets))
    flow, ready = setup.program.flows[0], np.array([entries])
    carried = FastWire(setup.network, 8, None).carry([flow], ready)
    floor = min(stage.hop_ns.min() for stage in flow.stages)
    assert (carried.end_ns >= ready.max() + floor).all()
    assert (carried.end_ns <= ready.max() + flow.duration_ns + 1e-6).all()


@FEW
@given(jobs(("ring",)))
def test_each_link_carries_what_the_steps_put_on_it(sets):
    asked = scenario(*sets)
    flow = set_up(asked).program.flows[0]
    result = simulate(asked)
    carried = {use.link: use.bytes for use in result.links}
    names = set_up(asked).network.names
    expected = dict(zip(names, flow.link_bytes * asked.work.buckets * 3, strict=True))
    assert all(carried[name] == pytest.approx(expected[name]) for name in carried)


def both(asked):
    return [simulate(asked, exact=exact).step_time.mean_ns for exact in (False, True)]


@FEW
@given(jobs(("ring",)), st.floats(0, 0.1))
def test_the_fast_engine_is_exact_where_rings_share_no_link(sets, sigma):
    fast, exact = both(scenario(*sets, "fabric.kind=switch", noise=noise(sigma)))
    assert fast == pytest.approx(exact, rel=1e-6)


@FEW
@given(
    jobs(("ring", "tree", "halving_doubling", "direct", "server", "hierarchical")),
    st.floats(0, 0.05),
    st.sampled_from([1, 1.2]),
)
def test_and_whatever_a_small_run_is_like(sets, sigma, slow):
    asked = scenario(*sets, noise=[*noise(sigma), {"kind": "slow", "ranks": "3", "factor": slow}])
    fast, exact = both(asked)
    assert fast == pytest.approx(exact, rel=0.01)


@FEW
@given(jobs(("ring",)), st.integers(2 * 10**7, 2 * 10**8), st.floats(0, 0.01))
def test_and_close_where_they_do(sets, size_bytes, sigma):
    """In coflows, of rings in which latency hardly counts and ranks are nearly in step."""
    asked = scenario(
        *sets, f"work.gradient_bytes={size_bytes}", "work.buckets=1", noise=noise(sigma)
    )
    exact = simulate(asked, exact=True).step_time.mean_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "MOST_OF_RUN", 0)
        patch.setattr(rehearsal, "MOST_LEARNED_FROM", 0)
        fast = simulate(asked).step_time.mean_ns
    assert fast == pytest.approx(exact, rel=0.01)


OUT_OF_STEP = (
    "cluster.nodes=8", "fabric.kind=leaf_spine", "fabric.oversubscription=4",
    "fabric.nodes_per_leaf=4", "work.forward_ms=20", "work.backward_ms=30", "work.buckets=4",
    "work.gradient_bytes=100MB",
)  # fmt: skip


@pytest.mark.parametrize("algorithm", ["halving_doubling", "server", "direct"])
def test_coflows_of_a_long_run_learn_from_its_first_steps(monkeypatch, algorithm):
    asked = scenario(
        *OUT_OF_STEP, f"collectives.algorithm={algorithm}", "run.steps=80", noise=noise(0.05)
    )
    exact = simulate(asked, exact=True).step_time.mean_ns
    monkeypatch.setattr(rehearsal, "MOST_OF_RUN", 0)
    monkeypatch.setattr(simulation, "MOST_LEARNED_FROM", 4000)
    assert simulate(asked).step_time.mean_ns == pytest.approx(exact, rel=0.01)


def test_what_was_learned_without_noise_is_what_happens_again(monkeypatch):
    monkeypatch.setattr(rehearsal, "MOST_OF_RUN", 0)
    monkeypatch.setattr(simulation, "MOST_LEARNED_FROM", 4000)
    asked = scenario(*OUT_OF_STEP, "collectives.algorithm=halving_doubling", "run.steps=40")
    assert simulate(asked).step_time.cv == 0


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


def test_steps_add_up_to_the_time_the_run_takes():
    account = Account(3, 2, warm_up=1)
    account.begin_ns[:], account.end_ns[:], account.done = [0, 9, 21], [10, 22, 30], 3
    assert account.step_ns.tolist() == [10, 12, 8]
    assert account.step_ns[account.counted].sum() == 20


@FEW
@given(jobs(("ring",)), st.sampled_from([2, 4]), st.floats(0, 0.1), st.integers(0, 15))
def test_and_close_where_hops_differ_within_and_between_nodes(sets, gpus, sigma, slow):
    """Ranks leave such a ring at different times, and begin the next step so."""
    asked = scenario(
        *sets, "fabric.kind=switch", f"cluster.gpus_per_node={gpus}",
        noise=[*noise(sigma), {"kind": "slow", "ranks": str(slow), "factor": 1.2}],
    )  # fmt: skip
    fast, exact = both(asked)
    assert fast == pytest.approx(exact, rel=0.01)
