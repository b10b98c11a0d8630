from collections.abc import Callable
from typing import Any

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import Finding
from tests.diagnose.synthetic import World


@pytest.fixture
def worst() -> Callable[[World], Finding]:
    """The first finding about a world."""

    def of(world: World) -> Finding:
        return diagnose(world.trace()).findings[0]

    return of


@pytest.fixture
def evidence() -> Callable[[Finding], dict[str, Any]]:
    """Measured values of a finding's evidence by their name."""

    def of(finding: Finding) -> dict[str, Any]:
        return {item.metric: item.measured for item in finding.evidence}

    return of
