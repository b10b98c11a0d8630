"""Torch as a stack: how often its ranks have met."""

import torch
import torch.distributed as dist

from evenstep.hooks.torch.torch_stack import TorchStack


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
