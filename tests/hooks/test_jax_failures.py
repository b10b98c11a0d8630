"""A failure of ours in a call of JAX reaches nobody; no JAX is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evenstep.hooks.jax.jax import JaxHooks


def test_a_collective_that_could_not_be_recorded_goes_on_and_has_no_end():
    def full(*_):
        raise BufferError("no room")

    given_up = []
    recorder = SimpleNamespace(collective=full, host_waited=pytest.fail)
    agent = SimpleNamespace(recorder=recorder, spool=SimpleNamespace(), give_up=given_up.append)
    hooks = JaxHooks(None, agent)
    hooks._group = SimpleNamespace()
    module = SimpleNamespace(gather=lambda value: value + 1)
    hooks._wrap(module, "gather", 1)
    assert module.gather(1) == 2
    assert [str(error) for error in given_up] == ["no room"]
    assert module.gather(2) == 3  # disarmed by then
