"""Torch as a stack: how often its ranks have met, and why Python's own kernels record it."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from evenstep.agent.pulse import heartbeat
from evenstep.hooks.torch.torch_stack import TorchStack
from evenstep.trace.spool.folder import RunFolder


def test_a_process_group_made_before_anybody_looked_counts(alone):
    stack, told = TorchStack(torch), []
    stack.arm(lambda: told.append(stack.meetings))
    try:
        assert stack.meetings == 1
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    finally:
        stack.disarm()
    assert told == [2]


def test_there_is_no_place_before_the_ranks_have_met(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    assert TorchStack(torch).place() is None


@pytest.mark.parametrize(
    ("asked", "why"), [(True, "the setting `compiled` is off"), (False, "something else had begun")]
)
def test_the_trace_says_why_python_s_own_kernels_record(recorder, alone, asked, why):
    stack = TorchStack(torch)
    if asked:
        assert stack.compiled(recorder.spool, allowed=False) is None
    agent = SimpleNamespace(
        spool=recorder.spool, recorder=recorder, gate=None, end_step=None, give_up=None
    )
    assert why in stack.hooks(agent).describe()["instead"]


@pytest.mark.parametrize(("out", "marked"), [(".", True), ("absent", False)])
def test_a_rank_that_its_script_has_spawned_is_marked_in_a_folder_that_there_is(
    tmp_path, monkeypatch, out, marked
):
    monkeypatch.setenv("EVENSTEP_OUT", str(tmp_path / out))
    call, run = {"rank": 1, "world_size": 3}, RunFolder(tmp_path)
    with TorchStack(torch)._joining(call):
        found = run.meeting()
        assert (found and (found.waiting, found.absent)) == (([1], [0, 2]) if marked else None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TimeoutError), TorchStack(torch)._joining(call):
        raise TimeoutError("2 of 3 have come")
    assert run.meeting() is None
    assert [mark["raised"]["message"] for mark in run.marks()] == ["2 of 3 have come"] * marked


@pytest.mark.parametrize(
    ("keywords", "address", "nodes", "place"),
    [
        ({}, "10.0.0.1", 2, "10.0.0.1:29500"),
        ({"init_method": "env://"}, "localhost", 1, "localhost:29500"),
        ({}, "127.0.0.1", 2, "127.0.0.1:29500 of here"),
        ({"init_method": "tcp://10.0.0.1:1?rank=1&world_size=4"}, "localhost", 2, "10.0.0.1:1"),
        ({"init_method": "tcp://localhost:1"}, "10.0.0.1", 2, "localhost:1 of here"),
        ({"store": object()}, "localhost", 2, None),
    ],
)
def test_where_ranks_meet_differs_by_node_where_the_address_is_of_the_node_itself(
    tmp_path, monkeypatch, keywords, address, nodes, place
):
    monkeypatch.setattr(heartbeat, "hostname", lambda: "here")
    known = {"MASTER_ADDR": address, "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "4"}
    known |= {"GROUP_WORLD_SIZE": str(nodes), "EVENSTEP_OUT": str(tmp_path)}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    with TorchStack(torch)._joining(keywords):
        assert RunFolder(tmp_path).meeting_places(0) == ({place: [1]} if place else {})
