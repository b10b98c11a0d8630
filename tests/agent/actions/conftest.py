"""Actions begin thousands of times here, and each time they would collect all that pytest keeps."""

import gc
from itertools import count

import pytest

from evenstep.agent.actions import garbage


@pytest.fixture(autouse=True, scope="module")
def nothing_is_frozen():
    """An action that finds the heap frozen leaves it so: here it is to find it as programs have it.

    Back at the end, as `tests/conftest.py` has it.
    """
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_collected(monkeypatch):
    """`gc.collect` does nothing, and Python has collected whenever an action asks whether it has;
    `monkeypatch.undo()` gives both back."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
    monkeypatch.setattr(garbage, "full_collections", count().__next__)
