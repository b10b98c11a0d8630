"""Small seeded worlds (reference model: worlds.py) in which the right answer is known."""

import math
import random
from functools import cache

import pytest

from tests.pacing.worlds import MS, Outcome, World, fair_share, jitter, job, lone, run, shared_start

RANKS = 8
STEPS = 1500


def gain(world: World, **settings: object) -> float:
    """Change of throughput against the same world unpaced."""
    return run(world, job(RANKS, mode="off"), STEPS).mean_ns / paced(world, **settings).mean_ns - 1


def paced(world: World, **settings: object) -> Outcome:
    return run(world, job(RANKS, **settings), STEPS, share=bool(settings.get("sharing")))


def storage() -> World:
    """Half of the ranks compute 20 % longer, and all read 4 ms worth each from one storage."""
    wobble = jitter(1, 0.01)
    slow_half = lambda step, rank: int((120 if rank % 2 else 100) * MS * wobble(step, rank))  # noqa: E731
    return shared_start(slow_half, 4 * MS)


@cache
def lognormal(step: int, rank: int) -> int:
    return int(100 * MS * math.exp(random.Random(f"{step}/{rank}").gauss(0, 0.1)))


@cache
def pareto(step: int, rank: int) -> int:
    return int(80 * MS * min(10, random.Random(f"{step}/{rank}").paretovariate(3)))


@cache
def rare(step: int, rank: int) -> int:
    return (200 if random.Random(f"{step}/{rank}").random() < 0.01 else 100) * MS


@cache
def chronic(step: int, rank: int) -> int:
    return int((150 if rank == 3 else 100) * MS * jitter(3, 0.02)(step, rank))


@cache
def rotating(step: int, rank: int) -> int:
    return int((130 if rank == step // 50 % RANKS else 100) * MS * jitter(4, 0.01)(step, rank))


LONE = [lognormal, pareto, rare, chronic, rotating]
WAYS = [{}, {"sharing": True}, {"controller": "paper"}]


def test_a_fair_link_serves_two_at_half_speed() -> None:
    # closed form: both share until the early one is done
    assert fair_share([0, 0], 10) == [20, 20]
    assert fair_share([0, 10], 10) == [10, 20]
    assert fair_share([0, 5], 10) == [15, 20]


@pytest.mark.parametrize("settings", WAYS[:2])
def test_at_a_shared_start_holding_the_early_half_pays(settings: dict) -> None:
    # Seven eighths of the slow half's 32 ms of reading could be saved at most: 16 ms of 157.
    assert 0.05 < gain(storage(), **settings) < 0.13


@pytest.mark.parametrize("settings", WAYS)
@pytest.mark.parametrize("work", LONE)
def test_a_lone_job_loses_no_more_than_the_ledger_allows(work, settings: dict) -> None:
    found = paced(lone(work), **settings)
    assert found.most_over_ns <= 0


@pytest.mark.parametrize("settings", WAYS[:2])
@pytest.mark.parametrize("work", LONE)
def test_the_slack_rule_costs_a_lone_job_next_to_nothing(work, settings: dict) -> None:
    assert gain(lone(work), **settings) > -0.002


def test_unguarded_the_papers_rule_loses_what_its_critics_say() -> None:
    # pacing.md: "read literally loses 0 to 7 %" in a lone job
    assert -0.07 < gain(lone(lognormal), controller="paper", guarded=False) < -0.02


@pytest.mark.parametrize("settings", WAYS)
def test_equal_ranks_are_never_held(settings: dict) -> None:
    assert paced(lone(lambda step, rank: 100 * MS), **settings).held_ns == 0


@pytest.mark.parametrize("settings", WAYS)
def test_observing_never_holds(settings: dict) -> None:
    assert paced(storage(), mode="observe", **settings).held_ns == 0


def test_when_a_straggler_recovers_pacing_ends() -> None:
    recovering = lambda step, rank: (150 if rank == 3 and step < 800 else 100) * MS  # noqa: E731
    pacers = job(RANKS, guarded=False)
    assert run(lone(recovering), pacers, 800).steps_held > 400
    later = run(lone(lambda step, rank: recovering(step + 800, rank)), pacers, 50)
    assert later.steps_held <= 1
