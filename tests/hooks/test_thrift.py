"""Python's own kernels within a budget: recorded in some windows, counted through the others."""

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from evenstep.hooks.torch import dispatcher
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.install import TorchHooks
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import WINDOW_STEPS, Kind
from tests.hooks.conftest import observed


@pytest.fixture
def hooks(alone, recorder, monkeypatch):
    monkeypatch.setattr(dispatcher, "BUDGET", 1e-9)
    monkeypatch.setattr(dispatcher, "MOST_EVERY", 2)
    made = TorchHooks(torch, observed(recorder), Groups(recorder.spool, dist))
    made.install()
    recorder.cost.add(1000)
    yield made
    made.remove()


def train(hooks, recorder, windows, *, spared=True):
    """Windows of steps with one collective each."""
    for _ in range(windows * WINDOW_STEPS):
        dist.all_reduce(torch.ones(1))
        closed = recorder.clock.end_step(time.monotonic_ns())
        hooks.begins_step(closed.number + 1, spared=spared)


def recorded(recorder):
    found = read_spool(recorder.spool.path).records
    return found[found["kind"] == Kind.COLLECTIVE]


def test_every_second_window_is_recorded_and_identities_go_on_as_if_all_were(hooks, recorder):
    train(hooks, recorder, 6)
    seen = recorded(recorder)
    windows = set((seen["step"] // WINDOW_STEPS).tolist())
    assert windows == {0, 1, 2, 4}
    assert seen["group_seq"].tolist() == seen["step"].tolist()
    assert hooks.describe()["every"] == 2


def test_what_needs_every_collective_gets_it_at_once(hooks, recorder):
    train(hooks, recorder, 3)
    assert hooks._kernels.resting
    hooks.begins_step(3 * WINDOW_STEPS + 1, spared=False)
    dist.all_reduce(torch.ones(1))
    assert not hooks._kernels.resting
    assert recorded(recorder)["group_seq"][-1] == 3 * WINDOW_STEPS


def test_a_backend_that_counts_otherwise_is_recorded_always(hooks, recorder, monkeypatch):
    monkeypatch.setattr(Groups, "_sequence", staticmethod(lambda group: 0))
    train(hooks, recorder, 5)
    assert len(recorded(recorder)) == 5 * WINDOW_STEPS


def test_nothing_is_left_over_the_kernels_when_hooks_are_removed(hooks, recorder):
    train(hooks, recorder, 3)
    hooks.remove()
    assert not hooks._kernels.resting
    dist.all_reduce(torch.ones(1))


def test_what_a_window_costs_is_a_share_of_that_window_alone():
    """1 % of a window, with what changing costs: above .3 % of one, below it of every fourth."""
    clock = SimpleNamespace(start_ns=0)
    costs = SimpleNamespace(of=lambda issued: issued * 100_000)
    kernels = SimpleNamespace(resting=False, rest=lambda: None)
    issued = [0]
    groups = SimpleNamespace(counts=lambda: {"g": (issued[0], issued[0])})
    made = dispatcher.Thrift(kernels, SimpleNamespace(clock=clock, cost=costs), groups, print)
    for window, (lasts_s, calls, every) in enumerate([(1000, 0, 1), (1, 100, 4), (1, 100, 4)], 1):
        clock.start_ns += lasts_s * 10**9
        issued[0] += calls
        made.begins(window * WINDOW_STEPS, spared=True)
        assert made.every == every
