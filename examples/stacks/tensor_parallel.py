"""Tensor parallelism inside, data parallelism outside: a device mesh of two dimensions.

    evenstep run -- torchrun --nproc-per-node 4 examples/stacks/tensor_parallel.py --slow-rank 3

With two ranks the mesh is 1 x 2: tensor parallelism alone.
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from workload import Delay, batch, options, perceptron, ranks_together

TENSOR_RANKS = 2


def train(steps: int, delay: Delay) -> None:
    """Each layer is cut in two over the ranks of a row; the rows share gradients."""
    rows = torch.distributed.get_world_size() // TENSOR_RANKS
    mesh = init_device_mesh("cpu", (rows, TENSOR_RANKS), mesh_dim_names=("data", "tensor"))
    model = perceptron()
    for layer in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh["tensor"], plan)
    if rows > 1:
        fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    row = delay.rank // TENSOR_RANKS
    for step in range(steps):
        delay()
        loss = model(batch(step, row)).square().mean()  # a row works on the same batch
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    args = options(__doc__ or "").parse_args()
    with ranks_together(args) as delay:
        train(args.steps, delay)


if __name__ == "__main__":
    main()
