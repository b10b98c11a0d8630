"""The engine against the definition of a fluid network: worlds drawn at random."""

import pytest

from evenstep.simulate.wires.world import CompiledWorld
from tests.simulate.random_worlds import Drawn, furthest

SEEDS = range(60)
TOLERANCE = 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_every_operation_is_over_when_the_definition_says(seed):
    drawn = Drawn(seed)
    assert furthest(drawn.told(CompiledWorld), drawn.by_definition()) <= TOLERANCE
