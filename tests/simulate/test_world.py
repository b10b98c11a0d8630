"""The engine against the definition of a fluid network: worlds drawn at random."""

import numpy as np
import pytest

from evenstep.simulate.wires.carriage import one_by_one
from evenstep.simulate.wires.interface import COLLECTIVE, STUCK, Carriage, MessageVolley
from evenstep.simulate.wires.world import CompiledWorld
from evenstep.simulate.wires.world_python import PythonWorld
from tests.simulate.random_worlds import Drawn, Spliced, furthest

SEEDS = range(60)
TOLERANCE = 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_every_operation_is_over_when_the_definition_says(seed):
    drawn = Drawn(seed)
    assert furthest(drawn.told(CompiledWorld), drawn.by_definition()) <= TOLERANCE


@pytest.mark.parametrize("seed", range(60, 90))
def test_without_a_compiler_it_is_the_same(seed):
    drawn = Drawn(seed)
    slow = drawn.told(lambda capacity, ranks, _: PythonWorld(capacity, ranks))
    assert furthest(slow, drawn.told(CompiledWorld)) <= 1e-12


@pytest.mark.parametrize("seed", range(12))
def test_rings_of_which_few_messages_share_links_are_as_if_followed(seed):
    drawn = Spliced(seed)
    assert furthest(drawn.told(CompiledWorld), drawn.by_definition()) <= TOLERANCE


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
    world = CompiledWorld(np.ones(ranks), (ranks,), 1)
    flow = world.flow(Carriage(place, np.zeros(ranks, int), (volley,), closed=True))
    world.job(0, entry, eager=False)
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
