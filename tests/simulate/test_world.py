"""The engine against the definition of a fluid network: worlds drawn at random."""

import pytest

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
