"""The engine against the definition of a fluid network: worlds drawn at random."""

import resource
import shutil
import weakref
from dataclasses import astuple
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from evenstep.simulate import simulation
from evenstep.simulate.simulation import simulate
from evenstep.simulate.wires.carriage import one_by_one
from evenstep.simulate.wires.interface import (
    COLLECTIVE,
    COMPUTE,
    DROP,
    PAUSED,
    SLOWED,
    STUCK,
    URGENT,
    Carriage,
    MessageVolley,
    StepPlan,
)
from evenstep.simulate.wires.world import CompiledWorld, make_world
from evenstep.simulate.wires.world_python import PythonWorld
from tests.simulate.random_worlds import Drawn, Halved, Spliced, furthest
from tests.simulate.worlds import scenario

SEEDS = range(60)
TOLERANCE = 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_every_operation_is_over_when_the_definition_says(seed):
    drawn = Drawn(seed)
    assert furthest(drawn.told(CompiledWorld), drawn.by_definition()) <= TOLERANCE


@pytest.mark.parametrize("seed", range(60, 90))
def test_without_a_compiler_it_is_the_same(seed):
    drawn = Drawn(seed)
    slow = drawn.told(PythonWorld)
    assert furthest(slow, drawn.told(CompiledWorld)) <= 1e-12


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
def test_a_collective_without_a_rank_of_its_groups_is_refused(make):
    """Whose times would be those of another rank."""
    with pytest.raises(AssertionError):
        make(np.ones(1), (3,)).flow(Carriage(np.arange(2), np.zeros(3, int), ()))


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
def test_a_world_that_is_run_in_pieces_ends_as_in_one(make):
    """Two ranks beside three over one link: two rounds of 2 messages, and four of 3."""
    ends, pauses = [], []
    for most in (1 << 40, 1, 5):
        world, sizes = make(np.ones(1), (2, 3)), (2, 3)
        for job, size in enumerate(sizes):
            place = np.arange(size)
            volley = MessageVolley(
                place, np.roll(place, -1), np.full(size, 9.0 + job), np.zeros(size),
                np.full(size, 9.0 + job), np.arange(size + 1), place * 0, ring=size,
                repeats=2 * (size - 1),
            )  # fmt: skip
            group = np.full(5, -1)
            group[2 * job + place] = 0
            flow = world.flow(Carriage(2 * job + place, group, (volley,)))
            graph = world.graph(one_by_one(size, [COLLECTIVE], [flow]))
            world.job(job, np.zeros(size))
            assert world.take(job) is None
            world.feed(job, graph, np.zeros((1, size)), np.ones(1))
            world.final(job)
        told, done = [0], [0.0]
        while (ended := world.run(most)) != STUCK:
            assert ended == PAUSED
            done.append(world.progress(0))
            told.append(world.followed + world.rated)
        pauses.append(len(told) - 1)
        assert all(after >= before + most for before, after in pairwise(told))
        assert world.followed == 2 * 2 + 4 * 3
        assert done == sorted(done)
        assert world.progress(0) == 1.0
        assert most > 5 or any(0.2 < share < 0.8 for share in done)
        ends.append([world.take(job)[1].tolist() for job in range(2)])
    assert ends[0] == ends[1] == ends[2]
    assert pauses[0] == 0 < pauses[2] <= 5 < pauses[1]


@pytest.mark.parametrize("seed", [*range(12), 207])  # 207: one group shares none
def test_rings_of_which_few_messages_share_links_are_as_if_followed(seed):
    drawn = Spliced(seed)
    assert furthest(drawn.told(CompiledWorld), drawn.by_definition()) <= TOLERANCE


@pytest.mark.parametrize("seed", [2, 3, 4, 5, 6, 7])
def test_long_messages_beside_several_rings_are_as_if_followed(seed):
    drawn = Halved(seed)
    assert furthest(drawn.told(CompiledWorld), drawn.told(PythonWorld)) <= 1e-9


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
def test_a_message_without_bytes_or_without_links_takes_its_latency(make):
    """Nothing of it is on a link, so that the other message has the link to itself."""
    ranks, route = np.arange(3), np.array([0, 1, 1, 2])
    size, latency = np.array([0.0, 50.0, 60.0]), np.array([7.0, 9.0, 11.0])
    hop = latency + np.array([0.0, 0.0, 30.0])
    volley = MessageVolley(ranks, ranks * 0 - 1, size, latency, hop, route, np.array([1, 0]))
    world = make(np.array([2.0, 3.0]), (3,))
    plan = one_by_one(3, [COLLECTIVE], [world.flow(Carriage(ranks, ranks, (volley,)))])
    world.job(0, np.zeros(3))
    world.feed(0, world.graph(plan), np.zeros((1, 3)), np.ones(1))
    world.final(0)
    assert world.run(1 << 40) == STUCK
    assert world.take(0)[1].tolist() == [[7.0, 9.0, 41.0]]
    assert world.peak_gBps.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
@pytest.mark.parametrize("lag", [1, 3])
def test_only_as_many_finished_steps_are_kept_as_others_need(make, lag):
    """A rank computes 10 once what another of its streams did in 35, `lag` steps ago, is over."""
    zero, one = np.zeros(2, int), np.array([0, 1])
    plan = StepPlan(
        role=zero[:1], start=2 * one, kind=zero + COMPUTE, stream=one, instance=zero,
        soft=zero - 1, need_start=np.arange(3), need=1 - one, back=np.array([lag, 0]),
        flow=zero[:0],
    )  # fmt: skip
    world = make(np.ones(1), (1,))
    world.job(0, np.zeros(1), lag=lag)
    graph, kept, first, second = world.graph(plan), [], [0.0], [0.0] * lag
    for _ in range(30):
        assert world.run(1 << 40) == 0
        world.feed(0, graph, np.array([[10.0], [35.0]]), np.ones(0))
        assert world.run(1 << 40) == 0
        _, end = world.take(0)
        first.append(max(first[-1], second[-lag]) + 10)
        second.append(max(first[-1], second[-1]) + 35)
        assert end[:, 0].tolist() == [first[-1], second[-1]]
        kept.append(weakref.ref(end.base))
        del end, _
    alive = {id(rows) for one in kept if (rows := one()) is not None}
    assert len(alive) <= lag + (make is CompiledWorld)  # one of which is written anew


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
@pytest.mark.parametrize(
    ("how", "computed"), [({"slowdown": 0.5}, [30, 24, 70, 28]), ({}, [20, 20, 70, 20])]
)
def test_a_computation_is_slower_as_long_as_its_collective_is_in_flight(make, how, computed):
    """20 of work at two thirds of the pace: all of it, 8 of it until 12, none, 16 until 24. Where
    nothing is said of its pace, at its own."""
    ranks, zero = np.arange(4), np.zeros(4, int)
    size = np.array([100.0, 12.0, 12.0, 24.0])
    volley = MessageVolley(ranks, zero - 1, size, zero * 0.0, size, np.arange(5), ranks)
    world = make(np.ones(4), (4,))
    flow = world.flow(Carriage(ranks, ranks, (volley,)))
    plan = StepPlan(
        role=zero, start=np.array([0, 3]), kind=np.array([COMPUTE, SLOWED, COLLECTIVE]),
        stream=np.array([0, 0, 1]), instance=np.array([-1, -1, 0]), soft=np.array([-1, 2, -1]),
        need_start=np.zeros(4, int), need=zero[:0], back=zero[:0], flow=np.array([flow]),
    )  # fmt: skip
    world.job(0, np.zeros(4), **how)
    value = np.array([[0.0, 0.0, 50.0, 0.0], [20.0] * 4, [0.0] * 4])
    world.feed(0, world.graph(plan), value, np.ones(1))
    world.final(0)
    assert world.run(1 << 40) == STUCK
    enter, end = world.take(0)
    np.testing.assert_allclose(enter, [[0] * 4, [0, 0, 50, 0], [0] * 4], atol=1e-6)
    np.testing.assert_allclose(end, [[0, 0, 50, 0], computed, [100, 12, 12, 24]], atol=1e-6)


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("joined", [True, False])
def test_a_ring_of_some_scale_begins_after_launch_and_takes_latency_as_it_is(make, closed, joined):
    """Bytes, but not latencies, are those of its scale: each hop takes 1 and twice 3."""
    place, begin, prepared = np.arange(3), np.array([4.0, 9.0, 0.0]), np.array([2.0, 0.0, 30.0])
    volley = MessageVolley(
        place, np.roll(place, -1), np.full(3, 3.0), np.ones(3), np.full(3, 4.0), np.arange(4),
        place, ring=3, repeats=2,
    )  # fmt: skip
    world = make(np.ones(3), (3,))
    carriage = Carriage(place, place * 0, (volley,), closed=closed, joined=joined, launch_ns=5.0)
    plan = one_by_one(3, [COLLECTIVE], [world.flow(carriage)])
    world.job(0, begin)
    world.feed(0, world.graph(plan), prepared[None], np.full(1, 2.0))
    world.final(0)
    assert world.run(1 << 40) == STUCK
    enter, end = world.take(0)
    expected = begin + prepared + 5
    if joined:
        expected = np.full(3, expected.max())
    for _ in range(2):
        expected = np.maximum(expected + 7, np.roll(expected + 7, 1))
    np.testing.assert_allclose([enter[0], end[0]], [begin, expected], atol=1e-6)


def test_a_world_that_is_gone_leaves_its_memory():
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    capacity = np.ones(1 << 19)
    CompiledWorld(capacity, (1,))
    before = resident()
    for _ in range(24):
        CompiledWorld(capacity, (1,))
    assert resident() - before < 12 * capacity.nbytes


def _ring_over(first: int, links: tuple[int, ...], size: float, rounds: int) -> Carriage:
    """A ring of 8 ranks of 24, of which the first message takes these links, too."""
    place, own = np.arange(8), 2 + first + np.arange(8)
    route = [*links, *own.tolist()]
    volley = MessageVolley(
        place, np.roll(place, -1), np.full(8, size), np.full(8, 10.0), np.full(8, 10.0 + size),
        np.append(0, np.arange(8) + len(links) + 1), np.array(route), ring=8, repeats=rounds,
        shared=np.array([link < 2 for link in route]),
    )  # fmt: skip
    group = np.full(24, -1)
    group[first + place] = 0
    return Carriage(first + place, group, (volley,))


def _beside_two_rings(make):
    """Ends, and messages followed, of two rings of short messages, each over another link, beside
    one of long messages over both links."""
    world = make(np.ones(26), (8, 8, 8))
    rings = _ring_over(0, (0,), 1.0, 1500), _ring_over(8, (1,), 1.5, 1000)
    for job, ring in enumerate([*rings, _ring_over(16, (0, 1), 1000.0, 7)]):
        graph = world.graph(one_by_one(8, [COLLECTIVE], [world.flow(ring)]))
        world.job(job, np.zeros(8))
        world.feed(job, graph, np.zeros((1, 8)), np.ones(1))
        world.final(job)
    while world.run(1 << 40) != STUCK:
        pass
    return [world.take(job)[1].tolist() for job in range(3)], world.followed


def test_a_message_may_share_links_with_several_rings_of_short_ones():
    """Which are still not followed one by one."""
    found, followed = _beside_two_rings(CompiledWorld)
    expected, messages = _beside_two_rings(PythonWorld)
    found, expected = (np.concatenate([*map(np.ravel, each)]) for each in (found, expected))
    assert found == pytest.approx(expected, rel=1e-10)
    assert followed < messages / 100


@pytest.mark.parametrize("seed", range(40))
def test_a_ring_that_shares_nothing_ends_as_round_by_round(seed):
    """Also where whoever is last has to go all the way around to reach the longest hop."""
    random = np.random.default_rng(seed)
    ranks = int(random.integers(2, 14))
    rounds = int(random.choice([ranks - 1, 2 * (ranks - 1), ranks + 14, 20 * ranks]))
    hop = random.choice([2.0, 3.0, 7.0], ranks)
    entry = random.random(ranks) * random.choice([1, 100])
    entry[random.integers(ranks)] += random.choice([0, 1e5])
    place = np.arange(ranks)
    volley = MessageVolley(
        place, np.roll(place, -1), hop - 1, np.ones(ranks), hop, np.arange(ranks + 1), place,
        ring=ranks, repeats=rounds,
    )  # fmt: skip
    world = CompiledWorld(np.ones(ranks), (ranks,))
    flow = world.flow(Carriage(place, np.zeros(ranks, int), (volley,), closed=True))
    world.job(0, entry)
    plan = one_by_one(ranks, [COLLECTIVE], [flow])
    world.feed(0, world.graph(plan), np.zeros((1, ranks)), np.ones(1))
    world.final(0)
    assert world.run(1 << 40) == STUCK
    expected = entry
    for _ in range(rounds):
        expected = np.maximum(expected + hop, np.roll(expected + hop, 1))
    found = world.take(0)
    assert found is not None
    np.testing.assert_allclose(found[1][0], expected, atol=1e-6)


def test_rings_side_by_side_send_one_message_between_two_ranks(monkeypatch):
    """Four rings of 16 GPUs on four nodes, three of them over each pair of neighbours in a node,
    leave a leaf by two uplinks: in each round 16 messages within nodes and 16 between them."""
    asked = scenario(
        "cluster.nodes=4", "cluster.gpus_per_node=4", "cluster.nics_per_node=4",
        "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=2", "fabric.oversubscription=4",
        "collectives.algorithm=ring", "work.gradient_bytes=20MB", "work.forward_ms=1",
        "run.steps=3", noise=[{"kind": "normal", "sigma": 0.2}],
    )  # fmt: skip
    messages, _ = simulation.estimate_run(simulation.set_up(asked))
    assert 0 < messages <= 3 * (16 + 16) * 30
    compiled = simulate(asked)
    monkeypatch.setattr(simulation, "make_world", PythonWorld)
    assert simulate(asked).step_time.mean_ns == pytest.approx(compiled.step_time.mean_ns, rel=1e-9)


@pytest.mark.parametrize("seed", range(16))
def test_bundles_of_an_all_to_all_are_as_if_followed(seed, monkeypatch):
    """On fabrics that block nobody and others, with busy experts and neighbours: times and the
    highest rate on each link."""
    random = np.random.default_rng(seed)
    busy = {"nodes": "0-3", "compute_ms": 0.05, "message_bytes": 200_000}
    asked = scenario(
        "cluster.nodes=4", "cluster.gpus_per_node=4", "job.ranks=16", "cluster.gpu_link_gBps=50",
        f"cluster.nics_per_node={random.choice([1, 2, 4])}", "cluster.nic_gBps=12.5",
        f"fabric.kind={random.choice(['switch', 'leaf_spine', 'rail', 'torus', 'dragonfly'])}",
        "fabric.nodes_per_leaf=2", f"fabric.oversubscription={random.choice([1, 1.5, 4])}",
        "fabric.nodes_per_router=1", "fabric.routers_per_group=2", "fabric.shape=[2, 2]",
        "work.kind=pipeline", f"work.expert_parallel={random.choice([8, 16])}", "work.layers=2",
        f"work.expert_imbalance={random.choice([0, 1])}", "work.message_bytes=1MB",
        f"work.gradient_bytes={random.choice([0, 2_000_000])}", "work.forward_ms=0.2",
        "work.backward_ms=0.2", "run.steps=1",
        noise=[{"kind": "normal", "sigma": float(random.choice([0, 0.01, 0.2]))}],
        neighbours=[busy] if random.random() < 0.3 else [],
    )  # fmt: skip
    found = []
    for make in (CompiledWorld, PythonWorld):
        worlds = []

        def kept(*given, make=make, worlds=worlds):
            worlds.append(make(*given))
            return worlds[-1]

        monkeypatch.setattr(simulation, "make_world", kept)
        times = simulate(asked).step_time
        found.append([times.mean_ns, times.p99_ns, *worlds[-1].peak_gBps])
    np.testing.assert_allclose(*found, rtol=TOLERANCE, atol=1e-12)


def test_a_rank_of_an_all_to_all_is_an_event_where_only_its_own_links_hold_it_up(
    monkeypatch,
):
    """Each of 64 on 8 nodes sends to 7 of its node and 56 others: two events, and no more rates."""
    ranks, made = 64, []
    asked = scenario(
        "cluster.nodes=8", "cluster.gpus_per_node=8", "cluster.nics_per_node=8",
        "work.kind=collective", "work.operation=all_to_all", "work.gradient_bytes=64MB",
        "work.forward_ms=10", "run.steps=3", noise=[{"kind": "normal"}],
    )  # fmt: skip

    def kept(*given):
        made.append(make_world(*given))
        return made[-1]

    monkeypatch.setattr(simulation, "make_world", kept)
    simulate(asked)
    assert made[-1].followed == 3 * 2 * ranks
    assert made[-1].rated <= 3 * 3 * ranks


@pytest.mark.parametrize("seed", range(40))
def test_messages_of_one_sender_over_links_of_its_own_take_fair_shares(seed):
    """To the same rank and another, over the same links and others, of few bytes or none."""
    random = np.random.default_rng(seed)
    ranks, many = 3, int(random.integers(1, 9))
    gate, other = random.integers(0, 2, many), random.integers(-1, ranks, many)
    routes = [2 * random.permutation(2)[: random.choice([0, 1, 2, 2])] + sender for sender in gate]
    volley = MessageVolley(
        gate, other, random.choice([0.0, 3.0, 9.0, 9.0], many),
        random.choice([1.0, 1.0, 4.0], many), np.zeros(many),
        np.cumsum([0, *map(len, routes)]), np.concatenate(routes).astype(int),
        shared=np.zeros(sum(map(len, routes)), bool),
    )  # fmt: skip
    capacity, value = random.choice([0.5, 1.0, 2.0], 4), np.zeros((2, ranks))
    value[0], found = random.choice([0.0, 2.0], ranks), []
    for make in (CompiledWorld, PythonWorld):
        world = make(capacity, (ranks,))
        flow = world.flow(Carriage(np.arange(ranks), np.zeros(ranks, int), (volley,)))
        graph = world.graph(one_by_one(ranks, [COMPUTE, COLLECTIVE], [flow]))
        world.job(0, np.zeros(ranks))
        world.feed(0, graph, value, np.ones(1))
        world.final(0)
        assert world.run(1 << 40) == STUCK
        found.append(world.take(0)[1])
    np.testing.assert_allclose(*found, rtol=1e-12)


class _Counting(PythonWorld):
    """Counts the rates that change."""

    changed = 0

    def _share(self):
        before = {one: one.rate for one in self._flying}
        super()._share()
        self.changed += sum(abs(one.rate / before[one] - 1) > 1e-12 if before[one] else 1
                            for one in self._flying)  # fmt: skip


def test_only_rates_that_change_are_solved_and_each_once():
    worlds = {CompiledWorld: [], _Counting: []}

    def kept(make, *given):
        worlds[make].append(make(*given))
        return worlds[make][-1]

    for seed in range(40):
        for make in worlds:
            Drawn(seed).told(partial(kept, make))
    solved = sum(world.rated for world in worlds[CompiledWorld])
    assert 0 < solved <= sum(world.changed for world in worlds[_Counting])


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
def test_a_collective_that_spares_a_rank_begins_without_it(make):
    """Three messages of 30 bytes share a link of 1 GB/s from the entry of the second rank on: the
    third, which enters later, finds them sent. In the step after, all enter at once."""
    place = np.arange(3)
    volley = MessageVolley(
        place, np.roll(place, -1), np.full(3, 30.0), np.zeros(3), np.full(3, 90.0), np.arange(4),
        place * 0,
    )  # fmt: skip
    world = make(np.ones(1), (3,))
    flow = world.flow(Carriage(place, place * 0, (volley,), spared=1))
    graph = world.graph(one_by_one(3, [COMPUTE, COLLECTIVE], [flow]))
    world.job(0, np.array([0.0, 10.0, 500.0]))
    for compute in (np.zeros(3), np.array([900.0, 900.0, 900.0])):
        value = np.zeros((2, 3))
        value[0] = compute
        world.feed(0, graph, value, np.ones(1))
    world.final(0)
    assert world.run(1 << 40) == STUCK
    assert world.take(0)[1][1].tolist() == [100.0, 100.0, 100.0]
    assert world.take(0)[1][1].tolist() == [1090.0, 1090.0, 1090.0]


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
def test_durations_that_are_known_late_delay_nobody(make):
    """A byte a ns, two ranks that send 50 bytes each in both steps, each on its own.

    Rank 0 computes 10 and sends until 60; its second compute of 20, worked out then, ends at 80,
    while rank 1 computes until 100. From there both have half: rank 0's other 30 bytes are sent at
    160, rank 1 has sent 30 by then and is over at 180; it computes 20 and sends alone until 250.
    """
    zero, ranks = np.zeros(2, int), np.arange(2)
    volley = MessageVolley(
        ranks, zero - 1, np.full(2, 50.0), zero * 0.0, np.full(2, 50.0), np.arange(3), zero
    )
    world = make(np.ones(1), (2,))
    flow = world.flow(Carriage(ranks, ranks, (volley,)))
    plan = one_by_one(2, [COMPUTE, COLLECTIVE], [flow])
    world.job(0, np.zeros(2))
    graph = world.graph(plan)
    assert world.run(1 << 40) == 0
    world.feed(0, graph, np.array([[10.0, 100.0], [0, 0]]), np.ones(1))
    assert world.run(1 << 40) == 0
    world.feed(0, graph, np.array([[np.nan] * 2, [0, 0]]), np.ones(1))
    world.final(0)
    for rank in ranks:
        assert world.run(1 << 40) == 0
        begun = np.flatnonzero(~np.isnan(world.under_way(0, 0)[1][1]))
        assert begun.tolist() == list(range(rank + 1))
        world.reveal(0, 1, begun[-1:], np.array([[20.0] * 2, [0, 0]]))
    assert world.run(1 << 40) == STUCK
    ends = [found[1][1].tolist() for found in (world.take(0), world.take(0))]
    np.testing.assert_allclose(ends, [[60, 180], [160, 250]], atol=1e-6)


@pytest.mark.parametrize(
    "sets",
    [
        ("strategy.kind=backup_workers", "strategy.backups=1"),
        ("strategy.kind=stale_synchronous", "strategy.bound=2"),
        ("strategy.kind=priority", "work.buckets=4"),
        ("work.kind=pipeline", "work.pipeline_parallel=2", "work.layers=2"),
        (
            "work.backward_ms=30",
            "work.buckets=3",
            "work.overlap_slowdown=0.2",
            "work.gradient_bytes=400MB",
        ),
        ("fabric.changes=[{links='node1.nic0.send', factor=0.5}]",),
        ("collectives.algorithm=nccl", "cluster.gpus_per_node=2", "collectives.launch_us=50"),
        ("collectives.algorithm=hierarchical", "cluster.gpus_per_node=2", "work.buckets=2"),
        ("collectives.algorithm=server", "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=2"),
    ],
)
def test_whole_jobs_are_the_same_without_a_compiler(sets, monkeypatch):
    job = ("cluster.nodes=4", "work.forward_ms=10", "work.gradient_bytes=20MB", "run.steps=6")
    asked = scenario(*job, *sets, noise=[{"kind": "normal", "sigma": 0.2, "phase": "forward"}])
    compiled = simulate(asked)
    monkeypatch.setattr(simulation, "make_world", PythonWorld)
    slow = simulate(asked)
    assert slow.step_time.mean_ns == pytest.approx(compiled.step_time.mean_ns)
    assert slow.step_time.cv == pytest.approx(compiled.step_time.cv)


@pytest.mark.parametrize(
    "sets", [(), ("work.kind=fsdp",), ("strategy.kind=local_sgd",), ("work.overlap_slowdown=0.3",)]
)
def test_rings_of_few_points_in_sequence_are_as_if_followed(sets, monkeypatch):
    """Of 16 messages two cross the spine, beside a neighbour's; ranks that leave one of four rings
    enter the next together, where none of them computes meanwhile."""
    asked = scenario(
        "cluster.nodes=18", "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=9",
        "fabric.oversubscription=9", "collectives.algorithm=ring", "work.forward_ms=1",
        "work.backward_ms=2", "work.gradient_bytes=20MB", "work.buckets=4", "run.steps=2", *sets,
        noise=[{"kind": "normal", "sigma": 0.2}],
        neighbours=[{"nodes": "8,17", "compute_ms": 1, "message_bytes": 10_000_000}],
    )  # fmt: skip
    setup = simulation.set_up(asked)
    assert simulation.estimate_run(setup)[0] < 100 * 2 * len(setup.graph.flows)
    compiled = simulate(asked)
    monkeypatch.setattr(simulation, "make_world", PythonWorld)
    slow = simulate(asked)
    np.testing.assert_allclose(compiled.step_ns, slow.step_ns, rtol=1e-9)
    assert astuple(compiled.shares) == pytest.approx(astuple(slow.shares), rel=1e-9)


def ends_of(make, carriages, entries, capacity):
    """When each rank of each job is through its one collective, by its entry."""
    sizes = tuple(map(len, entries))
    world = make(np.array(capacity), sizes)
    for job, (carriage, entry) in enumerate(zip(carriages, entries, strict=True)):
        graph = world.graph(one_by_one(sizes[job], [COLLECTIVE], [world.flow(carriage)]))
        world.job(job, np.array(entry, float))
        world.feed(job, graph, np.zeros((1, sizes[job])), np.ones(1))
        world.final(job)
    while world.run(1 << 40) != STUCK:
        pass
    return [world.take(job)[1][0].tolist() for job in range(len(sizes))], world.peak_gBps.tolist()


def one_message(rank, world, *, size, steady=0.0, weight=1.0):
    """A message of a rank over the first link, which nobody waits for but itself."""
    volley = MessageVolley(
        np.array([0]), np.array([-1]), np.array([size]), np.zeros(1), np.array([size]),
        np.array([0, 1]), np.array([0]),
    )  # fmt: skip
    group = np.full(world, -1)
    group[rank] = 0
    return Carriage(np.array([rank]), group, (volley,), steady=steady, weight=weight)


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
@pytest.mark.parametrize(
    ("steady", "weight", "ends"),
    [
        (0.0, 1.0, [20.0, 20.0]),  # each half of the link
        (0.25, 1.0, [40.0, 40 / 3]),  # three quarters of it are left
        (1.5, 1.0, [20 / 3, 10.0]),  # of a link of 2 a quarter, until the steady one is over
        (0.0, 3.0, [40 / 3, 20.0]),
    ],
)
def test_a_steady_message_takes_its_rate_and_the_others_share_what_is_left(
    make, steady, weight, ends
):
    """Messages of 10 bytes over a link of 1 byte a ns, or of 2."""
    capacity = 2.0 if steady > 1 else 1.0
    pair = [one_message(0, 2, size=10.0, steady=steady, weight=weight),
            one_message(1, 2, size=10.0)]  # fmt: skip
    found, peak = ends_of(make, pair, [[0.0], [0.0]], [capacity])
    assert np.concatenate(found) == pytest.approx(ends)
    assert peak == pytest.approx([capacity])


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("posted", "ends"), [(True, [60, 60, 70]), (False, [50, 10, 70])])
@pytest.mark.parametrize("turned", [False, True])
def test_a_posted_message_leaves_when_both_ends_are_there(make, closed, posted, ends, turned):
    """One of 10 ns from the second rank, which enters at once, to the first, at 50; the third, at
    60, sends to nobody. Or with the first two in each other's place."""
    ranks = np.arange(3)
    first, second = (1, 0) if turned else (0, 1)
    volley = MessageVolley(
        np.array([second, 2]), np.array([first, -1]), np.full(2, 10.0), np.zeros(2),
        np.full(2, 10.0), np.arange(3), np.array([0, 1]), posted=posted,
    )  # fmt: skip
    carriage = Carriage(ranks, ranks * 0, (volley,), closed=closed)
    entry = np.array([0.0, 0.0, 60.0])
    entry[first] = 50.0
    ((found,), _) = ends_of(make, [carriage], [entry.tolist()], [1.0, 1.0])
    assert [found[first], found[second], found[2]] == pytest.approx(ends)


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
@pytest.mark.parametrize("closed", [True, False])
def test_of_urgent_collectives_one_at_a_time_is_sent_and_the_last_first(make, closed):
    """Ready 3 of launch after every 5 of compute, on the second rank 2 later: the first is sent at
    10 for 30, the third 3 after its end, and then the second. Nobody waits for them."""
    ranks, three = np.arange(2), np.arange(3)
    volley = MessageVolley(
        ranks, ranks[::-1], np.full(2, 30.0), np.zeros(2), np.full(2, 30.0), three, ranks
    )  # fmt: skip
    world = make(np.ones(2), (2,))
    carriage = Carriage(ranks, ranks * 0, (volley,), closed=closed, launch_ns=3.0)
    plan = StepPlan(
        role=ranks * 0, start=np.array([0, 6]), kind=np.array([COMPUTE, URGENT] * 3),
        stream=np.array([0, 1] * 3), instance=np.array([-1, 0, -1, 1, -1, 2]),
        soft=np.full(6, -1), need_start=np.array([0, 0, 1, 1, 2, 2, 3]), need=2 * three,
        back=three * 0, flow=np.array([world.flow(carriage) for _ in three]),
    )  # fmt: skip
    world.job(0, np.array([0.0, 2.0]))
    world.feed(0, world.graph(plan), np.array([[5.0] * 2, [0.0] * 2] * 3), np.ones(3))
    world.final(0)
    assert world.run(1 << 40) == STUCK
    _, end = world.take(0)
    np.testing.assert_allclose(end[::2], [[5, 7], [10, 12], [15, 17]])
    np.testing.assert_allclose(end[1::2], [[40] * 2, [106] * 2, [73] * 2], atol=1e-6)


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
def test_work_since_what_was_awaited_is_discarded_but_none_of_the_step_before(make):
    """50 of compute beside 20 of another stream, from which 7 more follow; in the next step what
    is awaited was over at 22, before it began at 27; in the third at 52, long after 1 of compute.
    """
    four, nothing = np.arange(4), np.zeros(0, int)
    plan = StepPlan(
        role=four[:1], start=np.array([0, 4]), kind=np.array([COMPUTE, COMPUTE, DROP, COMPUTE]),
        stream=np.array([0, 1, 0, 0]), instance=four * 0 - 1, soft=four * 0 - 1,
        need_start=np.array([0, 0, 0, 1, 1]), need=four[1:2], back=four[:1], flow=nothing,
    )  # fmt: skip
    world, found = make(np.ones(1), (1,)), []
    world.job(0, np.zeros(1))
    graph = world.graph(plan)
    for first, second in ((50.0, 20.0), (50.0, 2.0), (1.0, 30.0)):
        assert world.run(1 << 40) == 0
        world.feed(0, graph, np.array([[first], [second], [0.0], [7.0]]), np.ones(0))
        assert world.run(1 << 40) == 0
        found.append(world.take(0)[1][:, 0].tolist())
    assert found == [[50, 20, 20, 27], [77, 22, 27, 34], [35, 52, 52, 59]]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_with_a_compiler_worlds_are_compiled():
    assert isinstance(make_world(np.ones(1), (1,)), CompiledWorld)


@pytest.mark.parametrize(("closed", "rounds"), [(False, 4), (False, 1), (True, 4)])
def test_as_many_messages_are_followed_as_a_step_was_said_to_have(closed, rounds):
    """Of a ring of three ranks, by rounds; a closed one is over without any."""
    place = np.arange(3)
    volley = MessageVolley(
        place, np.roll(place, -1), np.full(3, 9.0), np.zeros(3), np.full(3, 9.0), np.arange(4),
        place * 0, ring=3, repeats=rounds,
    )  # fmt: skip
    world = PythonWorld(np.ones(1), (3,))
    flow = world.flow(Carriage(place, place * 0, (volley,), closed=closed))
    graph = world.graph(one_by_one(3, [COLLECTIVE, COLLECTIVE], [flow, flow]))
    world.job(0, np.zeros(3))
    world.feed(0, graph, np.zeros((2, 3)), np.ones(2))
    world.final(0)
    assert world.run(1 << 40) == STUCK
    expected = 0 if closed else 2 * 3 * rounds
    assert (world.messages(graph, shared=False), world.followed) == (expected, expected)


@pytest.mark.parametrize("make", [CompiledWorld, PythonWorld])
def test_a_world_is_over_with_the_last_step_of_the_jobs_that_end(make):
    """A job that computes for 10 ns and ends, beside one whose message takes 1000 and that would
    go on."""
    world = make(np.ones(1), (1, 1))
    flow = world.flow(one_message(1, 2, size=1000.0))
    graphs = (
        world.graph(one_by_one(1, [COMPUTE], [])),
        world.graph(one_by_one(1, [COLLECTIVE], [flow])),
    )
    for job, graph in enumerate(graphs):
        world.job(job, np.zeros(1))
        world.feed(job, graph, np.array([[10.0]]) * (job == 0), np.ones(job))
    world.final(0)
    assert world.run(1 << 40) == STUCK
    assert world.take(0)[1].tolist() == [[10.0]]
    assert world.take(1) is None


def test_rates_are_solved_when_a_message_comes_or_goes_and_not_otherwise():
    """Three messages of 100 ns one after the other, while another rank computes thirty times."""
    world = PythonWorld(np.ones(1), (1, 1))
    flow = world.flow(one_message(0, 2, size=100.0))
    sent = world.graph(one_by_one(1, [COLLECTIVE] * 3, [flow] * 3))
    computed = world.graph(one_by_one(1, [COMPUTE] * 30, []))
    for job, (graph, count, calls) in enumerate(((sent, 3, 3), (computed, 30, 0))):
        world.job(job, np.zeros(1))
        world.feed(job, graph, np.full((count, 1), 10.0 * job), np.ones(calls))
        world.final(job)
    while world.run(1 << 40) != STUCK:
        pass
    assert [world.take(job)[1][-1].tolist() for job in (0, 1)] == [[300.0], [300.0]]
    assert world.rated == 3
