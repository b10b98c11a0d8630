"""DDP around a model that `torch.compile` has compiled.

    evenstep run -- torchrun --nproc-per-node 2 examples/stacks/compiled.py --slow-rank 1

The default backend, inductor, needs a C++ compiler; `--backend aot_eager` needs none.
"""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel
from workload import Delay, batch, options, perceptron, ranks_together


def train(steps: int, delay: Delay, *, backend: str) -> None:
    """Dynamo cuts the graph where DDP's buckets end, so that they overlap with backward."""
    ddp = DistributedDataParallel(perceptron(), bucket_cap_mb=1)
    model = torch.compile(ddp, backend=backend)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for step in range(steps):
        delay()
        loss = model(batch(step, delay.rank)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--backend", default="inductor")
    args = parser.parse_args()
    with ranks_together(args) as delay:
        train(args.steps, delay, backend=args.backend)


if __name__ == "__main__":
    main()
