"""Where the script called: one step of many, the first collective of each kind."""

import pytest
import torch
import torch.distributed as dist

from evenstep.hooks.torch.call_sites import EVERY_STEPS, CallSites
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.install import TorchHooks
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.layout import Kind
from tests.hooks.conftest import observed


def router_statistics():
    dist.all_reduce(torch.ones(7))


def named(recorder):
    found = read_spool(recorder.spool.path)
    rows = found.records[found.records["kind"] == Kind.COLLECTIVE]
    return [found.names[int(row["name"])] if row["name"] else "" for row in rows]


def test_the_first_of_each_kind_has_its_place_and_the_next_steps_have_none(alone, recorder):
    hooks = TorchHooks(torch, observed(recorder), Groups(recorder.spool, dist))
    before = vars(dist.ProcessGroup)["allreduce"]
    hooks.install()
    try:
        router_statistics()
        router_statistics()
        hooks.begins_step(1, spared=True)
        router_statistics()
        hooks.begins_step(2, spared=True)
        assert vars(dist.ProcessGroup)["allreduce"] is before
        router_statistics()
        hooks.begins_step(EVERY_STEPS, spared=True)
        router_statistics()
    finally:
        hooks.remove()
    assert vars(dist.ProcessGroup)["allreduce"] is before
    first, again, second, between, last = named(recorder)
    assert first == second == last
    assert first.endswith("router_statistics")
    assert again == between == ""


@pytest.mark.parametrize(
    "call",
    [
        lambda: dist.all_gather_into_tensor(torch.ones(7), torch.ones(7)),
        lambda: dist.reduce_scatter_tensor(torch.ones(7), torch.ones(7)),
        lambda: dist.all_to_all_single(torch.ones(7), torch.ones(7)),
        lambda: dist.monitored_barrier(),
    ],
)
def test_collectives_that_torch_has_renamed_have_their_places(alone, recorder, call):
    hooks = TorchHooks(torch, observed(recorder), Groups(recorder.spool, dist))
    hooks.install()
    try:
        call()
    finally:
        hooks.remove()
    assert all("test_call_sites.py" in name for name in named(recorder))


def test_a_failure_of_ours_is_not_the_scripts(alone, recorder, monkeypatch):
    sites = CallSites(torch, recorder)
    monkeypatch.setattr(CallSites, "_note", lambda *_: 1 / 0)
    sites.begins(0)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    sites.remove()
    assert tensor.tolist() == [1.0, 1.0]
