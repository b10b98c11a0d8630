"""Wrapped functions: told of while they are watched, and never after."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from evenstep.hooks.torch.phases import batch_length
from evenstep.hooks.wrapping import Wrapped, undo


def having(start):
    """A module with this function."""
    module = ModuleType("launcher")
    module.start = start
    return module


def test_a_wrapper_that_a_script_has_kept_tells_nothing_once_it_is_restored():
    module, told, wrapped = having(lambda: "started"), [], Wrapped()
    original = module.start
    wrapped.around(module, "start", after=lambda: told.append(1))
    kept = module.start
    assert (kept(), told) == ("started", [1])
    wrapped.restore()
    assert (kept(), told, module.start is original) == ("started", [1], True)


def test_a_wrapper_looks_like_what_it_wraps():
    def start(ranks: int, *, port: int = 1) -> str:
        """Start the ranks."""

    module = having(start)
    Wrapped().around(module, "start", after=list)
    assert inspect.signature(module.start) == inspect.signature(start)
    assert (module.start.__name__, module.start.__doc__) == ("start", "Start the ranks.")


def test_it_tells_again_when_the_function_is_watched_again():
    module, told, wrapped = having(lambda: None), [], Wrapped()
    for _ in range(2):
        wrapped.around(module, "start", after=lambda: told.append(1))
        kept = module.start
        wrapped.restore()
    wrapped.around(module, "start", after=lambda: told.append(1))
    kept()
    assert told == [1]


def test_what_cannot_be_restored_keeps_nothing_else_from_it(caplog):
    undone = []
    undo([lambda: undone.append("first"), lambda: 1 / 0, lambda: undone.append("last")])
    assert undone == ["last", "first"]
    assert "division by zero" in caplog.text


def test_what_a_call_happens_in_is_ended_also_where_the_call_fails():
    def start(ranks):
        return 1 / ranks

    module, told = having(start), []

    @contextmanager
    def within(keywords):
        told.append(keywords)
        try:
            yield
        finally:
            told.append("over")

    Wrapped().around(module, "start", after=lambda: told.append("after"), within=within)
    with pytest.raises(ZeroDivisionError):
        module.start(ranks=0)
    assert module.start(1) == 1
    assert told == [{"ranks": 0}, "over", {"ranks": 1}, "after", "over"]


def test_a_batch_of_a_strange_class_has_no_length():
    assert batch_length([SimpleNamespace(shape=7)]) == 0
    assert batch_length({"x": SimpleNamespace(shape=(3, 2))}) == 3
