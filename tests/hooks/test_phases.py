"""Steps where optimizers call each other, and where one raises."""

from __future__ import annotations

import contextlib

import pytest
import torch

from evenstep.hooks.torch.phases import PhaseHooks


class Careful(torch.optim.SGD):
    """A subclass as scripts write them: it looks at something, then does what SGD does."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.fixture
def steps(recorder):
    """Times at which a step was taken to end."""
    ended = []
    hooks = PhaseHooks(torch, recorder, ended.append, pytest.fail)
    hooks.install()
    yield ended
    hooks.remove()


def optimizer(kind):
    weight = torch.nn.Parameter(torch.ones(2))
    torch.optim.SGD([weight], lr=0.1)  # from here on torch calls the hooks for SGD's own step, too
    return kind([weight], lr=0.1)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Careful])
def test_an_optimizer_ends_one_step_though_its_step_calls_the_one_it_replaces(steps, kind):
    made = optimizer(kind)
    for _ in range(3):
        made.step()
    assert len(steps) == 3


def test_a_step_that_raised_does_not_hide_the_ones_after_it(steps):
    made = optimizer(Careful)

    def broken():
        raise ArithmeticError

    with contextlib.suppress(ArithmeticError):
        made.step(broken)
    made.step()
    made.step()
    assert len(steps) == 2


def test_another_optimizer_inside_a_step_ends_none(steps):
    outer, inner = optimizer(torch.optim.SGD), optimizer(torch.optim.SGD)
    outer.step(lambda: inner.step())
    assert len(steps) == 1
