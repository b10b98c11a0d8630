"""Shares, signals and sums of steps worked by hand, and flows converted as the text defines it."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.simulate import simulation
from evenstep.simulate.job.engine import SHARES, StepSums, pacing_signals, step_shares
from evenstep.simulate.job.graph import EXCHANGE, ONWARD, FinishedStep, JobGraph, RankProgram
from evenstep.simulate.simulation import set_up, simulate
from evenstep.simulate.wires.carriage import FlowUse, alone_ns, carriages
from evenstep.trace.spool.layout import Phase
from tests.simulate.worlds import scenario

# -- steps worked by hand --------------------------------------------------------------------------


def flow(operation="all_reduce", members=((0, 1),), **fields):
    """As much of one as a step's sums look at."""
    known = {"apart": operation == "read", "spared": 0, "stages": ("one",), "alone_ns": 7.0}
    return SimpleNamespace(operation=operation, members=np.array(members), **known | fields)


def step(role, flows, enter, end, **fields):
    graph = JobGraph((role,), np.zeros(2, int), flows, ())
    known = {"begin": np.array([0.0, 10.0]), "held": np.zeros(2), "disturbance": None, **fields}
    return FinishedStep(0, graph, enter=np.array(enter), end=np.array(end), **known)


def a_step(**fields):
    """Rank 1 begins 10 later, is late in all exchanges, and both wait for the second of two."""
    role = RankProgram()
    with role.phase(Phase.INPUT):
        role.block(0)  # 0 … 5, 10 … 17
        role.compute(20.0)  # … 25, … 40
    with role.phase(Phase.FORWARD):
        work = role.compute(80.0)  # … 100, … 130
    first, second = role.exchange(1, work), role.exchange(2, work)
    role.wait(first, second)  # … 180, … 185
    role.block(3)  # … 200, … 201
    with role.phase(Phase.OPTIMIZER):
        role.compute(9.0)  # … 210, … 220
    enter = [[0, 10], [5, 17], [25, 40], [100, 130], [120, 160], [180, 185], [180, 185], [200, 201]]
    end = [
        [5, 17],
        [25, 40],
        [100, 130],
        [150, 150],
        [180, 185],
        [180, 185],
        [200, 201],
        [210, 220],
    ]
    flows = [flow("read", ((0,), (1,))), flow(), flow(), flow()]
    return step(role, flows, enter, end, **fields)


def test_the_shares_of_a_step_are_those_its_times_say():
    found = step_shares(a_step(held=np.array([0.0, 4.0])))
    assert tuple(sorted(found)) == tuple(sorted(SHARES))
    assert found["input"].tolist() == [25, 30]
    assert found["blocked"].tolist() == [80 + 20, 55 + 16]
    # Until 160 for the second, whatever the first takes meanwhile, and until 185 for the third.
    assert found["waited"].tolist() == [60 + 5, 30]
    assert found["held"].tolist() == [0, 4]
    assert found["work"].tolist() == [210 - 100, 210 - 71 - 4]


def test_who_comes_to_a_wait_after_all_is_over_has_not_waited():
    role = RankProgram()
    sent = role.exchange(0, role.compute(10.0))
    role.compute(90.0)
    role.wait(sent)
    enter = [[0, 10], [10, 30], [10, 30], [100, 120]]
    end = [[10, 30], [50, 50], [100, 120], [100, 120]]
    found = step_shares(step(role, [flow()], enter, end))
    assert [found[name].tolist() for name in ("blocked", "waited")] == [[0, 0], [0, 0]]
    assert found["work"].tolist() == [100, 110]


def test_nobody_waits_for_a_last_entry_longer_than_the_wait_lasted():
    """A rank that is not waited for enters when the others are through."""
    role = RankProgram()
    role.compute(10.0)
    role.block(0)
    done = step(role, [flow()], [[0, 10], [10, 90]], [[10, 90], [40, 90]])
    assert step_shares(done)["waited"].tolist() == [30, 0]


def test_pacing_sees_the_first_collective_and_the_end_of_the_last():
    role = RankProgram()
    for instance in range(6):
        role.block(instance)
    enter = [[10.0 * row + rank for rank in range(2)] for row in range(6)]
    end = [[10.0 * row + 9 + rank for rank in range(2)] for row in range(6)]
    flows = [
        flow("read"), flow("barrier", stages=()), flow(alone_ns=3.0), flow("send"), flow(),
        flow("send"),
    ]  # fmt: skip
    seen = pacing_signals(step(role, flows, enter, end))
    assert seen is not None
    assert [np.asarray(each).tolist() for each in seen] == [
        [20, 21], [21, 21], [29, 30], 3.0, [49, 50],
    ]  # fmt: skip


def test_pacing_sees_nothing_where_ranks_only_read_and_send():
    role = RankProgram()
    role.block(0)
    role.block(1)
    times = [[0.0, 10.0], [5.0, 15.0]]
    assert pacing_signals(step(role, [flow("read"), flow("send")], times, times)) is None


def test_steps_are_summed_after_the_warm_up():
    sums = StepSums(4, 2, warm_up=1)
    assert (sums.step_ns.tolist(), sums.steps_per_s(together=True)) == ([], 0.0)
    for number in range(3):
        done = a_step().moved(number, 200.0 * number)
        sums.add(done, step_shares(done))
    assert sums.done == 3
    assert sums.begin_ns.tolist() == [10, 210, 410, 0]
    assert sums.end_ns.tolist() == [220, 420, 620, 0]
    assert sums.step_ns.tolist() == [210, 200, 200]
    assert sums.totals["work"].tolist() == [2 * 110, 2 * 139]
    assert sums.steps_per_s(together=True) == pytest.approx(2e9 / 400)
    sums.totals["held"][:] = [20, 0]  # two steps in 440 of the one, in 420 of the other
    assert sums.steps_per_s(together=False) == pytest.approx((2e9 / 440 + 2e9 / 420) / 2)


def test_a_run_within_its_warm_up_has_no_rate():
    sums = StepSums(4, 2, warm_up=2)
    sums.add(a_step(), step_shares(a_step()))
    assert sums.counted == slice(1, 1)
    assert sums.steps_per_s(together=True) == sums.steps_per_s(together=False) == 0.0
    assert sums.totals["work"].tolist() == [0, 0]


# -- flows -----------------------------------------------------------------------------------------

FABRICS = (
    ("fabric.kind=switch",),
    ("fabric.kind=leaf_spine", "fabric.oversubscription=4", "fabric.nodes_per_leaf=4"),
    ("fabric.kind=torus", "fabric.shape=[2, 4]"),
)
ALGORITHMS = ("ring", "tree", "halving_doubling")


def used(fabric, algorithm, *sets, job=0, stream=EXCHANGE):
    """A flow of 4 ranks, the first or the last of 8, as a stream of a job uses it."""
    nodes = f"job.nodes={','.join(str(2 * n + job) for n in range(4))}"
    asked = scenario(
        "cluster.nodes=8", *fabric, "job.placement=given", nodes, "work.gradient_bytes=8MB",
        f"collectives.algorithm={algorithm}", *sets,
    )  # fmt: skip
    return FlowUse(set_up(asked).flows[0], job, stream, 4 * job)


@st.composite
def uses(draw):
    """One to three flows, of two jobs, on streams that may be the same."""
    fabric = draw(st.sampled_from(FABRICS))
    return tuple(
        used(fabric, draw(st.sampled_from(ALGORITHMS)), job=draw(st.integers(0, 1)),
             stream=draw(st.sampled_from([EXCHANGE, ONWARD])))
        for _ in range(draw(st.integers(1, 3)))
    )  # fmt: skip


def messages(use):
    """(sender, round, duration without latency, link) of every message on every of its links."""
    for number, stage in enumerate(use.flow.stages):
        for message, link in zip(stage.routes.message, stage.routes.link, strict=True):
            sender = use.stream, use.first + int(stage.round.source[message])
            if use.flow.joined:  # one group, whose messages all begin at once
                sender, number = (use.stream, use.first, "together"), object()
            yield sender, number, stage.hop_ns[message] - stage.latency_ns[message], int(link)


def shared_by_definition(some):
    """Links on which there are several senders, or in one round messages of different durations."""
    senders, lengths = defaultdict(set), defaultdict(list)
    for number, use in enumerate(some):
        for sender, row, length, link in messages(use):
            senders[link].add(sender)
            lengths[number, row, link].append(length)
    several = {link for link, found in senders.items() if len(found) > 1}
    return several | {
        link for (*_, link), found in lengths.items() if max(found) - min(found) > 1e-9 * max(found)
    }


@settings(max_examples=25, deadline=None)
@given(uses())
def test_a_link_is_shared_where_several_may_be_on_it_at_once(some):
    made, shared = carriages(some, len(some[0].flow.capacity), 8), shared_by_definition(some)
    for use in some:
        found, own = made[use.flow], {link for *_, link in messages(use)}
        if not own & shared and len(some) == 1:
            assert found.closed
        if own & shared:
            assert not found.closed
        assert found.rank.tolist() == sorted(found.rank)
        assert found.group.tolist() == [
            0 if use.first <= rank < use.first + 4 else -1 for rank in range(8)
        ]
        for laid, stage in zip(use.flow.stages, found.stages, strict=True):
            expected = [link in shared for link in laid.routes.link.tolist()]
            assert stage.shared.tolist() == expected
            assert stage.repeats == laid.round.repeats
            sends = found.rank[stage.gate] - use.first
            assert sends.tolist() == laid.round.source.tolist()
            assert (found.rank[stage.other] - use.first).tolist() == laid.round.target.tolist()


def test_no_rank_of_a_job_is_taken_for_one_of_a_job_of_another_size():
    """Two ranks on nodes 0 and 1, and four of which the third is on node 0: its card is shared."""
    some = tuple(
        FlowUse(
            set_up(scenario("cluster.nodes=8", "job.placement=given", f"job.nodes={nodes}",
                            "work.gradient_bytes=8MB", "collectives.algorithm=ring")).flows[0],
            job, EXCHANGE, 2 * job,
        )
        for job, nodes in enumerate(("0,1", "2,3,0,4"))
    )  # fmt: skip
    made, shared = carriages(some, len(some[0].flow.capacity), 6), shared_by_definition(some)
    assert shared
    for use in some:
        (found,), (laid,) = made[use.flow].stages, use.flow.stages
        assert found.shared.tolist() == [link in shared for link in laid.routes.link.tolist()]


@pytest.mark.parametrize(("imbalance", "own"), [(0.0, 4), (0.5, 1)])
def test_all_that_one_sends_shares_its_link_only_where_it_does_not_end_at_once(imbalance, own):
    """Of tokens for four experts: the first sends as much to each of the others."""
    use = used(
        FABRICS[0], "ring", "work.kind=experts", "work.tensor_parallel=4", "work.message_bytes=1MB",
        f"work.expert_imbalance={imbalance}",
    )  # fmt: skip
    ((stage,),) = [made.stages for made in carriages((use,), len(use.flow.capacity), 8).values()]
    shared = set(stage.link[stage.shared].tolist())
    assert shared == shared_by_definition((use,))
    assert len(set(stage.link.tolist()) - shared) == own


@pytest.mark.parametrize(
    ("algorithm", "nics", "expected"),
    [("ring", 1, [8]), ("ring", 2, [0]), ("hierarchical", 1, [2, 4, 2]), ("tree", 1, [0])],
)
def test_rings_are_told_as_such_where_every_participant_sends_once(algorithm, nics, expected):
    """On four nodes of two GPUs. Of two rings side by side every rank is in both."""
    use = used(FABRICS[0], algorithm, "cluster.gpus_per_node=2", f"cluster.nics_per_node={nics}")
    (made,) = carriages((use,), len(use.flow.capacity), 8).values()
    assert sorted({stage.ring for stage in made.stages}) == sorted(set(expected))
    for stage, ring in zip(made.stages, expected, strict=False):
        assert stage.ring == ring
        if ring:
            assert sorted(stage.gate) == list(range(len(made.rank)))
            following = np.roll(stage.gate.reshape(-1, ring), -1, axis=1)
            assert stage.other.tolist() == following.reshape(-1).tolist()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_beside_what_is_followed_only_what_ends_after_all_entries_is_closed(algorithm):
    """Of two jobs on a switch that share no link, and a third flow that shares those of the one."""
    calm = used(FABRICS[0], algorithm)
    busy = [used(FABRICS[0], "tree", job=1, stream=stream) for stream in (EXCHANGE, ONWARD)]
    made = carriages((calm, *busy), len(calm.flow.capacity), 8)
    assert [made[one.flow].closed for one in (calm, *busy)] == [algorithm == "ring", False, False]


@pytest.mark.parametrize(
    ("algorithm", "fabric"), [("ring", 0), ("halving_doubling", 0), ("ring", 1)]
)
def test_alone_all_rounds_take_their_time_one_after_the_other(algorithm, fabric):
    flow = used(FABRICS[fabric], algorithm, "collectives.launch_us=5", job=1).flow
    expected = sum(stage.duration_ns for stage in flow.stages) + 5000.0
    assert alone_ns(flow) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_job_takes_as_long_where_all_links_are_taken_as_shared(monkeypatch, fabric, algorithm):
    asked = scenario(
        "cluster.nodes=8", *fabric, "work.forward_ms=3", "work.backward_ms=9", "work.buckets=3",
        "work.gradient_bytes=30MB", f"collectives.algorithm={algorithm}", "run.steps=4",
        noise=[{"kind": "normal", "sigma": 0.2}],
    )  # fmt: skip
    plain = simulate(asked).step_ns

    def with_all_shared(*args):
        return {
            flow: one._replace(stages=tuple(stage._replace(shared=None) for stage in one.stages))
            for flow, one in carriages(*args).items()
        }

    monkeypatch.setattr(simulation, "carriages", with_all_shared)
    assert simulate(asked).step_ns == pytest.approx(plain, rel=1e-9)
