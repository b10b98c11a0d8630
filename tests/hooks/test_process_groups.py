"""How torch's process-group hooks are read; those that need them run on torch 2.14.1 or later."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from evenstep.hooks.torch import process_groups
from evenstep.hooks.torch.groups import Groups
from evenstep.hooks.torch.install import DISPATCHER, PROCESS_GROUP_HOOKS, TorchHooks
from evenstep.hooks.torch.process_groups import HOOK_ID, READINGS, device_only
from evenstep.trace.spool.layout import Flag, Op

needs_hooks = pytest.mark.skipif(
    not process_groups.available(torch), reason="this torch has no process-group hooks"
)


def test_the_lightest_mechanism_is_chosen_unless_another_is_asked_for(recorder):
    groups = Groups(recorder.spool, dist)
    default = TorchHooks(torch, recorder, groups, print, print).describe()["mechanism"]
    asked = TorchHooks(torch, recorder, groups, print, print, mechanism=DISPATCHER).describe()
    has = process_groups.available(torch)
    assert default == (PROCESS_GROUP_HOOKS if has else DISPATCHER)
    assert asked["mechanism"] == DISPATCHER


def test_operations_are_found_by_torchs_numbers_and_unknown_ones_are_left_out():
    table = process_groups._by_number({"BARRIER": 2, "SEND": 0, "INVENTED": 4})
    assert [None if reading is None else reading[0] for reading in table] == [
        Op.SEND, None, Op.BARRIER, None, None
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "only"), [(("cuda",), True), (("cpu", "cuda"), False), (("cpu",), False), ((), False)]
)
def test_a_barrier_runs_on_the_device_only_where_there_is_no_cpu_backend(kinds, only):
    group = SimpleNamespace(_device_types=[SimpleNamespace(type=kind) for kind in kinds])
    assert device_only(group) is only


def test_several_operations_in_one_are_told_by_the_number_of_tensors():
    coalesced = process_groups._coalesced
    assert coalesced(Op.ALL_REDUCE, [1, 2], [1, 2]) == Flag.COALESCED
    assert coalesced(Op.REDUCE_SCATTER, [1, 2], [1]) == 0  # a list to scatter
    assert coalesced(Op.ALL_TO_ALL, [1, 2], [1, 2]) == 0


def test_a_group_that_does_not_let_go_of_our_hooks_keeps_no_other_from_it(caplog):
    class Group:
        def __init__(self, *, gone):
            self.gone, self.left = gone, ["pre", "post"]

        def unregister_pre_hook(self, _):
            if self.gone:
                raise RuntimeError("no such hook")
            self.left.remove("pre")

        def unregister_post_hook(self, _):
            self.left.remove("post")

    groups = [Group(gone=True), Group(gone=False)]
    hooks = process_groups.ProcessGroupHooks.__new__(process_groups.ProcessGroupHooks)
    hooks._world, hooks._begun = SimpleNamespace(pg_names=dict.fromkeys(groups, "g")), {}
    hooks.remove()
    assert [group.left for group in groups] == [["pre"], []]
    assert caplog.text.count("no such hook") == 1


@needs_hooks
def test_every_operation_torch_reports_can_be_read():
    members = torch._C._distributed_c10d.HookOpName.__members__
    assert set(members) - set(READINGS) <= {"SPLIT", "NEW_WINDOW", "UNKNOWN"}


@needs_hooks
def test_a_users_own_hooks_keep_working_beside_ours_and_after(alone, recorder):
    seen = []
    group = dist.group.WORLD
    group.register_pre_hook(HOOK_ID + 1, lambda call: seen.append(call.name.name))
    hooks = TorchHooks(torch, recorder, Groups(recorder.spool, dist), print, print)
    hooks.install()
    dist.all_reduce(torch.ones(1))
    hooks.remove()
    dist.all_reduce(torch.ones(1))
    assert seen == ["ALLREDUCE", "ALLREDUCE"]
    assert recorder.spool.words[0] == 1


@needs_hooks
def test_a_collective_refused_by_somebody_elses_hook_counts_as_failed(alone, recorder):
    def refuse(call):
        raise KeyError("refused")

    hooks = TorchHooks(torch, recorder, Groups(recorder.spool, dist), print, print)
    hooks.install()
    group = dist.group.WORLD
    group.register_pre_hook(HOOK_ID + 1, refuse)  # torch 2.14 may call it before ours
    with pytest.raises(KeyError):
        dist.all_reduce(torch.ones(1))
    group.unregister_pre_hook(HOOK_ID + 1)
    hooks.remove()
    times = recorder.spool.times(1)
    assert times is None or times[1] > 0
