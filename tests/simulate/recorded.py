"""Runs of scenarios with their traces."""

from pathlib import Path
from tempfile import TemporaryDirectory

from evenstep.scenario.scenario import Scenario
from evenstep.simulate.result import Result
from evenstep.simulate.simulation import simulate_to
from evenstep.trace.loading import load
from evenstep.trace.trace import Trace


def simulate_trace(scenario: Scenario) -> tuple[Result, Trace]:
    """Run a scenario and read its trace."""
    with TemporaryDirectory() as folder:
        return simulate_to(Path(folder) / "run", scenario), load(Path(folder) / "run")
