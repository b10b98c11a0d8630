"""How hard the property tests look (the same cases every time, or with EVENSTEP_FUZZ many new), and
that nothing is forked, nor searched for garbage, without need."""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.environment import SPOOLS

os.environ.update(SPOOLS, OMP_NUM_THREADS="1")  # more threads only wait for the other worker's
settings.register_profile("same", deadline=None, derandomize=True, max_examples=40)
settings.register_profile(
    "fuzz", deadline=None, max_examples=1000, suppress_health_check=list(HealthCheck)
)
settings.load_profile("fuzz" if os.environ.get("EVENSTEP_FUZZ") else "same")


def pytest_collectstart():
    """What is imported stays."""
    gc.disable()


def pytest_collection_finish():
    """Modules and tests stay: each collection of the whole heap would search them once more."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def one_reader(monkeypatch):
    """Large runs are read by this process: forking one that has imported everything takes long."""
    monkeypatch.setattr("evenstep.trace.cores.available", lambda: 1)
