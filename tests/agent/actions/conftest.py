"""Actions begin thousands of times here, and each time they would collect all that pytest keeps."""

import gc

import pytest


@pytest.fixture(autouse=True)
def nothing_is_collected(monkeypatch):
    """`gc.collect` does nothing; `monkeypatch.undo()` gives it back."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
