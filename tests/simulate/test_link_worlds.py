"""The fluid link against closed forms, and pacers on it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.reproduce import link_worlds
from evenstep.reproduce.link_pacing import drivers, paced
from evenstep.reproduce.link_worlds import (
    PROGRESS,
    Free,
    LinkJob,
    LinkWorld,
    run,
    unpaced,
)
from evenstep.simulate.wires.world_python import PythonWorld


def world(*jobs: LinkJob, **fields) -> LinkWorld:
    return LinkWorld(jobs=jobs, **fields)


def two(apart: float = 0.02, exchange: float = 0.6, ranks: int = 1, **fields) -> LinkWorld:
    shape = {"exchange": exchange, "jitter": 0.01, "ranks": ranks}
    jobs = [LinkJob(compute=1 + apart * i, **shape) for i in range(2)]
    return world(*jobs, **fields)


class Delayed(Free):
    """Holds the one rank alike before every step."""

    def __init__(self, delay: float) -> None:
        super().__init__(1)
        self._none = [0.0]
        self._delay = [delay]

    def before(self, step: int):
        return self._delay


def test_a_job_alone_takes_compute_and_exchange() -> None:
    found = unpaced(world(LinkJob(compute=1.0, exchange=0.4)), 50)
    assert found.times[0] == pytest.approx(1.4)


def test_two_equal_jobs_in_step_take_twice_the_exchange() -> None:
    job = LinkJob(compute=1.0, exchange=0.4)
    assert unpaced(world(job, job), 50).times[0] == pytest.approx(1.8)


def test_goodput_lost_to_a_contender_lengthens_the_exchange() -> None:
    # each gets η / 2 of the link
    job = LinkJob(compute=1.0, exchange=0.4)
    found = unpaced(world(job, job, goodput=0.8), 50)
    assert found.times[0] == pytest.approx(1 + 0.8 / 0.8)


def test_a_flow_that_never_ends_halves_the_link() -> None:
    busy = world(LinkJob(compute=1.0, exchange=0.4), flows=1, on=1e9, off=1e-9)
    assert unpaced(busy, 50).times[0][1:] == pytest.approx(1.8)


def test_two_jobs_that_drift_lose_what_the_closed_form_says() -> None:
    # pacing study: E[T] = c + m + m²/T, Var = (2m/T)(m²/3) - (m²/T)²
    m, found = 0.3, unpaced(two(apart=0.011, exchange=0.3), 4000)
    mean = found.mean(0)
    assert mean == pytest.approx(1 + m + m**2 / mean, rel=0.01)
    variance = 2 * m / mean * m**2 / 3 - (m**2 / mean) ** 2
    assert found.cv(0) == pytest.approx(variance**0.5 / mean, rel=0.15)


def test_a_lone_job_that_is_held_loses_exactly_that() -> None:
    alone = world(LinkJob(compute=1.0, exchange=0.4))
    assert run(alone, [Delayed(0.1)], 50).times[0] == pytest.approx(1.5)


def test_a_step_waits_for_its_slowest_rank() -> None:
    # E[max of 4 normals] = 1.029 σ (Teichroew 1956)
    found = unpaced(world(LinkJob(compute=1.0, exchange=0.1, jitter=0.05, ranks=4)), 4000)
    assert found.mean(0) == pytest.approx(1.1 + 1.029 * 0.05, abs=0.003)


@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.floats(0.1, 2), st.floats(0.01, 1)), min_size=1, max_size=4),
    st.floats(0.7, 1.0),
    st.sampled_from(["fair", PROGRESS]),
)
@settings(max_examples=25, deadline=None)
def test_no_step_is_shorter_than_alone_nor_the_link_overbooked(seed, shapes, goodput, weights):
    jobs = [LinkJob(compute=c, exchange=m) for c, m in shapes]
    found = unpaced(world(*jobs, goodput=goodput, weights=weights, seed=seed), 20)
    for job, times in zip(jobs, found.times, strict=True):
        assert (times >= job.compute + job.exchange - 1e-9).all()
    span = max(times.sum() for times in found.times)
    asked = sum(job.exchange * 20 for job in jobs)
    assert span >= asked - 1e-9


def by_definition(shapes, goodput: float, steps: int) -> list[list[float]]:
    """Jobs that compute and send on one link that all share, from event to event."""
    now, begun, left = 0.0, [0.0] * len(shapes), [0.0] * len(shapes)
    until, times, on = [compute for compute, _ in shapes], [[] for _ in shapes], set()
    while min(map(len, times)) < steps:
        rate = goodput ** max(len(on) - 1, 0) / max(len(on), 1)
        ends = [now + left[i] / rate if i in on else until[i] for i in range(len(shapes))]
        first = min(range(len(shapes)), key=ends.__getitem__)
        for i in on:
            left[i] -= rate * (ends[first] - now)
        now = ends[first]
        if first not in on:
            on.add(first)
            left[first] = shapes[first][1]
            continue
        on.remove(first)
        times[first].append(now - begun[first])
        begun[first], until[first] = now, now + shapes[first][0]
    return [found[:steps] for found in times]


SHAPES = st.lists(st.tuples(st.floats(0.1, 2), st.floats(0.01, 1)), min_size=1, max_size=4)


@given(SHAPES, st.floats(0.7, 1.0))
@settings(max_examples=25, deadline=None)
def test_the_link_is_shared_as_its_definition_says(shapes, goodput: float) -> None:
    jobs = [LinkJob(compute=c, exchange=m) for c, m in shapes]
    found = unpaced(world(*jobs, goodput=goodput), 8)
    for times, expected in zip(found.times, by_definition(shapes, goodput, 8), strict=True):
        assert times == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("weights", ["fair", PROGRESS])
def test_the_engine_without_a_compiler_gives_the_same(monkeypatch, weights: str) -> None:
    asked = two(ranks=3, goodput=0.8, flows=1.5, weights=weights, seed=3)
    found = unpaced(asked, 12)
    monkeypatch.setattr(link_worlds, "make_world", PythonWorld)
    for times, expected in zip(unpaced(asked, 12).times, found.times, strict=True):
        assert times == pytest.approx(expected, abs=1e-8)


class InTurn(Free):
    """Asked before each step, and again before each exchange."""

    ahead = 0


def test_steps_fed_at_once_are_those_fed_in_turn() -> None:
    asked = two(ranks=2, goodput=0.8, flows=1.5, seed=4)
    found = run(asked, [InTurn(2), InTurn(2)], 40)
    for times, expected in zip(unpaced(asked, 40).times, found.times, strict=True):
        assert (times == expected).all()


def test_a_flow_of_twice_the_weight_takes_twice_the_share() -> None:
    # b = 2 beside one job: a third of the link is left
    busy = world(LinkJob(compute=1.0, exchange=0.4), flows=2, on=1e9, off=1e-9)
    assert unpaced(busy, 5).times[0][1:] == pytest.approx(2.2)


def test_the_same_seed_gives_the_same_times() -> None:
    noisy = two(flows=1.0, seed=5)
    assert (unpaced(noisy, 200).times[0] == unpaced(noisy, 200).times[0]).all()


@pytest.mark.parametrize("ranks", [1, 3])
def test_two_jobs_that_collide_come_apart(ranks: int) -> None:
    # pacing study: two jobs m = .6, periods 2 % apart gain 11 to 12 %; half of it at least
    shared = two(ranks=ranks, seed=7)
    before, after = unpaced(shared, 3000), paced(shared, 3000)
    assert all(before.mean(i) / after.mean(i) > 1.055 for i in range(2))
    learned = [times[1500:] for times in after.times]  # up to then half the blocks are without
    assert all(t.std() / t.mean() < before.cv(i) / 2 for i, t in enumerate(learned))


def test_a_job_that_meets_nobody_never_waits() -> None:
    alone = world(LinkJob(compute=1.0, exchange=0.4, jitter=0.02, noise=0.05, ranks=3))
    bursts = world(*alone.jobs, flows=1.0, on=0.5, off=5.0)
    for case in (alone, bursts):
        assert (paced(case, 1500).times[0] == unpaced(case, 1500).times[0]).all()


def test_no_exchange_waits_longer_than_its_bound() -> None:
    shared = world(*[LinkJob(compute=0.2, exchange=0.8) for _ in range(4)])
    held = drivers(shared, guarded=False)
    waits: list[float] = []
    for each in held:
        ask = each.token.leave
        each.token.leave = lambda now, ask=ask, own=each.token: (
            waits.append(own.waited_ns / own.post.step_ns if own.post.step_ns else 0.0), ask(now)
        )  # fmt: skip
    run(shared, held, 300)
    assert 0 < max(waits) <= 0.2501  # a quarter of a step


@pytest.mark.parametrize("rule", ["slack", "paper"])
def test_the_pacers_of_ranks_run_on_a_link_too(rule: str) -> None:
    found = paced(two(ranks=3), 300, controller=rule, guarded=False)
    assert all(len(times) == 300 for times in found.times)
