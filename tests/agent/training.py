"""A small training that gives the same losses every time, as torch users write it."""

from __future__ import annotations

import atexit
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCH = 4


def model_and_optimizer():
    """A seeded two-layer model under DDP, and its optimizer."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    parallel = DistributedDataParallel(model)
    return parallel, torch.optim.SGD(parallel.parameters(), lr=0.1)


def batch(step, rank=0):
    """The rank's batch of a step."""
    return torch.sin(torch.arange(BATCH * 8.0) + 100 * step + 1000 * rank).reshape(BATCH, 8)


def train(steps, *, rank=0, first=0, between=lambda step: None, parts=None):
    """The losses of these steps to the bit; `parts` are a model and optimizer already in use."""
    model, optimizer = parts or model_and_optimizer()
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = model(batch(step, rank)).square().mean()
        loss.backward()
        between(step)
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


def leave():
    """End the process group, do what is due at exit, and end: the interpreter is not taken down.

    A gloo thread that still drops its last work while it is aborts the process (with torch alone,
    one time in four).
    """
    dist.destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
