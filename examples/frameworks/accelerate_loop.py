"""Accelerate: one's own loop, evaluation, checkpoint, accumulated gradients; the last rank is late.

torchrun --nproc-per-node 2 examples/frameworks/accelerate_loop.py --out run
evenstep diagnose run
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from accelerate import Accelerator
from late import Late, Points, network
from torch.nn import functional
from torch.utils.data import DataLoader

from evenstep.frameworks.accelerate import observe

BATCH, ACCUMULATED = 8, 2


def evaluate(accelerator: Accelerator, model, loader: DataLoader) -> float:
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in loader:
            losses.append(accelerator.gather_for_metrics(functional.mse_loss(model(x), y)))
    model.train()
    return torch.stack(losses).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="the run's folder; by default evenstep-runs/run-…")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument(
        "--pause-ms", type=float, default=50.0, help="of the last rank, in every step"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    observe(accelerator, **({"out": args.out} if args.out else {}))
    is_last = accelerator.process_index == accelerator.num_processes - 1
    late = Late(args.pause_ms if is_last else 0, batches=ACCUMULATED)
    model = network(late)
    batches = args.steps * ACCUMULATED
    model, optimizer, training, held_out = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        DataLoader(Points(batches * BATCH * accelerator.num_processes), BATCH),
        DataLoader(Points(10 * BATCH * accelerator.num_processes), BATCH),
    )
    for batch, (x, y) in enumerate(training, start=1):
        with accelerator.accumulate(model):
            accelerator.backward(functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        if batch == batches // 2:
            evaluate(accelerator, model, held_out)
            accelerator.save_state(tempfile.mkdtemp())
    late.report()
    accelerator.end_training()


if __name__ == "__main__":
    main()
