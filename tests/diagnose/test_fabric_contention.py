"""Fabrics that slow down by a known factor at known times."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.modes import fabric
from evenstep.trace.spool.layout import Kind, Op, Phase
from tests.diagnose.programs import staged
from tests.diagnose.synthetic import MS, World

MB = 1_000_000
QUIET_NS = 8 * MS


def quiet(world: World) -> World:
    return replace(world, fabric=lambda move: QUIET_NS)


def neighbour(period_s: float, *, duty: float = 0.4, factor: float = 3, seed: int = 0):
    """Another job that takes the links for a part of its period."""
    random = np.random.default_rng(seed)

    def moves(move):
        busy = move.at_ns / 1e9 / period_s % 1 < duty
        return QUIET_NS * (factor if busy else 1) * (1 + 0.02 * random.standard_normal())

    return moves


def contention_of(world: World):
    found = [f for f in diagnose(world.trace()).findings if f.mode == "fabric_contention"]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("style", ["overlapped", "blocking", "gathered"])
@pytest.mark.parametrize("period_s", [0.33, 2.1])
def test_a_neighbour_is_known_by_its_period(style, period_s, evidence):
    world = World(steps=200, noise=0.01, style=style, fabric=neighbour(period_s))
    finding = contention_of(world)
    assert evidence(finding)["contention_period"] == pytest.approx(period_s, rel=0.03)
    assert finding.when.pattern == "oscillating"
    assert finding.severity == pytest.approx(world.lost_against(quiet(world)), rel=0.1)
    assert finding.where.ranks == ()


def test_an_episode_has_its_steps_and_its_cost():
    world = World(
        steps=150,
        noise=0.01,
        fabric=lambda move: QUIET_NS * (2.5 if 60 <= move.step < 100 else 1),
    )
    finding = contention_of(world)
    assert (finding.when.steps, finding.when.pattern) == ([(60, 99)], "bursty")
    assert finding.severity == pytest.approx(world.lost_against(quiet(world)), rel=0.1)


@pytest.mark.parametrize("style", ["overlapped", "blocking"])
def test_transfers_slow_one_after_the_other_are_others_traffic_and_no_stalls(style):
    """Four stretches of two or three steps, up to three times as slow."""
    busy = np.isin(np.arange(80), [10, 11, 30, 31, 32, 55, 56, 70, 71, 72])
    random = np.random.default_rng(2)
    factors = 1 + 2 * random.random(10**4), 1 + 0.04 * random.standard_normal(10**4)

    def moves(slow):
        number = iter(range(10**4))

        def took(move):
            more, noise = (each[next(number)] for each in factors)
            return QUIET_NS * noise * (more if slow and busy[move.step] else 1)

        return took

    world = World(steps=80, noise=0.02, style=style, fabric=moves(True))
    finding = contention_of(world)
    calm, lost = (replace(world, fabric=moves(slow)).length_ns() for slow in (False, True))
    assert finding.severity == pytest.approx(1 - calm / lost, rel=0.1)
    assert "Others' traffic" in finding.title


@pytest.mark.parametrize("hit", ["stretches", "one by one"])
def test_traffic_that_only_one_group_meets_is_no_stall_though_others_are_calm_in_between(hit):
    random = np.random.default_rng(3)
    share = iter(random.random(10**5))
    noise = iter(1 + 0.02 * random.standard_normal(10**5))
    stretches = np.isin(np.arange(80) // 2, [5, 15, 28, 35])

    def moves(move):
        alone = next(share) < 0.1
        slow = stretches[move.step] if hit == "stretches" else alone
        return QUIET_NS * next(noise) * (2.5 if slow and move.members == (0, 2, 4, 6) else 1)

    finding = contention_of(
        World(ranks=8, steps=80, tensor_parallel=2, noise=0.02, style="grid", fabric=moves)
    )
    assert finding.where.groups == ["dp0"]
    assert ("Others' traffic" in finding.title) == (hit == "stretches")


def test_what_a_group_lost_counts_once_however_many_sizes_it_moves(monkeypatch):
    seen = []
    monkeypatch.setattr(fabric, "slow_links", lambda flows: seen.append(flows) or [])
    sizes = tuple(5 * MB * number for number in range(1, 5))
    world = World(
        ranks=8, tensor_parallel=2, style="grid", steps=120, bucket_bytes=sizes, fabric=only_odd
    )
    assert contention_of(world).where.groups == ["dp1"]
    assert [one.lost_ns for one in seen[-1] if one.lost_ns] == [
        pytest.approx(4 * 60 * 1.5 * QUIET_NS, rel=0.05)
    ]


def test_steps_hit_by_chance_are_contention_too():
    hit = np.random.default_rng(1).random(120) < 0.3
    world = World(
        steps=120,
        buckets=1,
        style="blocking",
        fabric=lambda move: QUIET_NS * (3 if hit[move.step] else 1),
    )
    finding = contention_of(world)
    assert finding.when.pattern == "transient"
    assert finding.severity == pytest.approx(world.lost_against(quiet(world)), rel=0.1)


@pytest.mark.parametrize("style", ["overlapped", "blocking"])
def test_rare_stalls_are_found_among_transfers_that_merely_vary(style):
    random = np.random.default_rng(3)
    vary = 1 + 0.02 * abs(random.standard_normal(10**5))
    moves = np.where(random.random(10**5) < 0.03, vary * QUIET_NS + 250 * MS, vary * QUIET_NS)
    number = iter(range(10**5))
    world = World(steps=120, style=style, fabric=lambda move: moves[next(number)])
    found = [f for f in diagnose(world.trace()).findings if f.mode == "fabric_contention"]
    number = iter(range(10**5))
    assert [finding.title for finding in found] == ["Transfers that stall on node0-node1"]
    assert found[0].severity == pytest.approx(world.lost_against(quiet(world)), rel=0.15)
    assert found[0].when.pattern == "transient"
    assert "error counters" in found[0].options[0].action


def only_odd(move):
    """The data-parallel group of ranks 1, 3, 5, 7 shares its links with somebody."""
    slow = 40 <= move.step < 100 and len(move.members) == 4 and move.members[0] == 1
    return QUIET_NS * (2.5 if slow else 1)


def test_the_group_that_is_slow_is_named_and_its_cost_to_all_counted():
    world = World(
        ranks=8,
        tensor_parallel=2,
        style="grid",
        steps=120,
        noise=0.01,
        nodes=(0, 1, 0, 1, 2, 3, 2, 3),
        fabric=only_odd,
    )
    finding = contention_of(world)
    assert finding.where.groups == ["dp1"]
    assert finding.where.links == ["node1-node3"]
    assert finding.severity == pytest.approx(world.lost_against(quiet(world)), rel=0.1)


def test_a_late_rank_is_not_taken_for_contention():
    table = World(steps=100).everywhere()
    table[30:60, 1] = 30 * MS
    world = World(steps=100, noise=0.01, fabric=lambda move: QUIET_NS)
    found = diagnose(world.delayed(Phase.BACKWARD, table).trace()).findings
    assert [finding.mode for finding in found if finding.severity > 0.05] == ["straggler"]


def test_a_bucket_that_is_always_slow_is_the_programs_matter():
    calls = iter(range(10**6))
    world = World(
        steps=100, style="blocking", fabric=lambda move: MS * (6 if next(calls) % 4 else 2)
    )
    modes = [finding.mode for finding in diagnose(world.trace()).findings]
    assert "fabric_contention" not in modes


@pytest.mark.parametrize("seed", range(10))
def test_transfers_that_vary_by_chance_are_no_contention(seed):
    random = np.random.default_rng(seed)
    world = World(
        steps=60,
        noise=0.01,
        style="blocking",
        fabric=lambda move: 2 * MS * (1 + random.exponential(0.3)),
    )
    assert "fabric_contention" not in [f.mode for f in diagnose(world.trace()).findings]


@pytest.mark.parametrize("style", ["overlapped", "blocking"])
def test_a_tail_of_transfers_is_named_where_it_surely_costs_enough(style):
    random = np.random.default_rng(0)
    tail = 1 + (random.random(10**5) < 0.15) * random.pareto(0.9, 10**5).clip(0, 60)
    moves = QUIET_NS * tail * (1 + 0.02 * random.standard_normal(10**5))
    number = iter(range(10**5))
    world = World(steps=60, noise=0.01, style=style, fabric=lambda move: moves[next(number)])
    finding = contention_of(world)
    number = iter(range(10**5))
    assert finding.severity == pytest.approx(world.lost_against(quiet(world)), rel=0.05)
    assert "stall" in finding.title


def always(slow_ns):
    """Messages between the second and the third stage take that long, the others .5 ms."""
    return staged(lambda ends, step: slow_ns if min(ends) == 1 else MS / 2)


@pytest.mark.parametrize("device", [False, True])
def test_messages_that_are_slow_for_some_steps_are_others_traffic(device):
    """On all links at once, so that none is slower than another."""

    def took(factor):
        return lambda ends, step: 2 * MS * (factor if 12 <= step < 20 else 1)

    (slow, lasted), (well, usual) = (staged(took(of), device=device) for of in (4, 1))
    first = diagnose(slow).findings[0]
    assert (first.mode, list(first.where.links)) == ("fabric_contention", [])
    assert (list(first.when.steps), first.when.pattern) == ([(12, 19)], "bursty")
    assert first.severity == pytest.approx(1 - usual / lasted, rel=0.1)
    assert "fabric_contention" not in [finding.mode for finding in diagnose(well).findings]


def test_a_link_that_is_slow_for_some_steps_is_one_finding_with_all_it_costs():
    """However its steps lie in the parts of the run that are looked at: some begin at 10 and 15."""

    def took(more):
        return lambda ends, step: 2 * MS + more * (min(ends) == 1 and 12 <= step < 23)

    (slow, lasted), (_, usual) = (staged(took(more)) for more in (12 * MS, 0))
    (told,) = [one for one in diagnose(slow).findings if one.mode == "fabric_contention"]
    assert (list(told.where.links), told.title[:13]) == (["node1-node2"], "Slow messages")
    assert (list(told.when.steps), told.when.pattern) == ([(12, 22)], "bursty")
    assert told.severity == pytest.approx(1 - usual / lasted, rel=0.1)


def test_messages_of_one_link_that_stall_now_and_then_are_told_with_the_link():
    def took(more):
        draw = np.random.default_rng(5)
        stalls = draw.random(10**4) < 0.05
        number = iter(range(10**4))
        return lambda ends, step: MS + more * (min(ends) == 2 and stalls[next(number)])

    (slow, lasted), (_, usual) = (staged(took(more)) for more in (60 * MS, 0))
    first = diagnose(slow).findings[0]
    assert (first.mode, list(first.where.links)) == ("fabric_contention", ["node2-node3"])
    assert first.title == "Transfers that stall on node2-node3"
    assert first.severity == pytest.approx(1 - usual / lasted, rel=0.1)


def test_a_link_whose_messages_are_always_slow_is_named_and_costed():
    (slow, took), (well, usual) = always(12 * MS), always(MS / 2)
    first = diagnose(slow).findings[0]
    assert (first.mode, list(first.where.links)) == ("fabric_contention", ["node1-node2"])
    assert first.severity == pytest.approx(1 - usual / took, rel=0.05)
    assert "ranks 1 and 2" in first.title
    assert "fabric_contention" not in [finding.mode for finding in diagnose(well).findings]


def test_messages_of_which_one_end_is_lost_are_of_no_link():
    trace, _ = always(12 * MS)
    events = trace.events
    sent = (events.kind == int(Kind.POINT_TO_POINT)) & (events.op == int(Op.SEND))
    lost = sent & (events["rank"] == 0) & (events.step % 2 == 1)
    events = events.with_column("peer_or_root", np.where(events.step == 4, -1, events.peer_or_root))
    found = diagnose(replace(trace, events=events.select(~lost))).findings
    assert all(link == "node1-node2" for finding in found for link in finding.where.links)


@pytest.mark.parametrize("hit", [[], [2, 3, 7]])
@pytest.mark.parametrize("seed", range(4))
def test_few_steps_tell_of_contention_where_their_transfers_are_many(hit, seed):
    """Ten steps of four buckets of their own sizes: ten transfers of a size, but forty in all."""

    def moves(slow):
        draw = np.random.default_rng(seed)
        return lambda move: (
            QUIET_NS * move.size_bytes / 25e6 * (1 + 0.03 * draw.standard_normal())
            * (2.5 if slow and move.step in hit else 1)
        )  # fmt: skip

    sizes = (25_000_000, 20_000_000, 15_000_000, 10_000_000)
    world = World(steps=10, noise=0.02, seed=seed, style="blocking", bucket_bytes=sizes)
    trace = replace(world, fabric=moves(True)).trace()
    found = [f for f in diagnose(trace).findings if f.mode == "fabric_contention"]
    calm, lost = (replace(world, fabric=moves(slow)).length_ns() for slow in (False, True))
    assert [f.severity for f in found] == pytest.approx([1 - calm / lost] * bool(hit), rel=0.1)
