"""The scenarios that come with the tcp and mpi tiers fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import scenario
from lab.tcp.plan import plan

EXAMPLES = Path(__file__).parents[3] / "examples" / "lab"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("tcp-*.toml")), ids=lambda path: path.stem)
def test_a_tcp_example_has_a_network(path):
    asked = scenario.load(path)
    assert asked.fabric == "tcp"
    assert len(plan(asked).hosts) == asked.ranks


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("mpi-*.toml")), ids=lambda path: path.stem)
def test_an_mpi_example_is_for_that_tier(path):
    assert scenario.load(path).fabric == "mpi"
