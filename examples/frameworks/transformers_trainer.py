"""transformers' Trainer with evaluation, checkpoints, accumulated gradients; the last rank is late.

torchrun --nproc-per-node 2 examples/frameworks/transformers_trainer.py --out run
evenstep diagnose run
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
from late import Late, Points, leave, network
from torch import Tensor, nn
from torch.nn import functional
from transformers import Trainer, TrainingArguments

from evenstep.frameworks.transformers import EvenstepCallback

BATCH, ACCUMULATED = 8, 2


class Regression(nn.Module):
    """The length of a point, with the loss as the Trainer wants it."""

    def __init__(self, late: Late) -> None:
        super().__init__()
        self.network = network(late)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found = self.network(x)
        return {"loss": functional.mse_loss(found, labels), "logits": found}


def collate(points: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    x, y = zip(*points, strict=True)
    return {"x": torch.stack(x), "labels": torch.stack(y)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="the run's folder; by default evenstep-runs/run-…")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument(
        "--pause-ms", type=float, default=50.0, help="of the last rank, in every step"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    is_last = int(os.environ.get("RANK", "0")) == ranks - 1
    late = Late(args.pause_ms if is_last else 0, batches=ACCUMULATED)
    options = TrainingArguments(
        output_dir=os.environ.get("SCRATCH") or tempfile.gettempdir() + "/evenstep-example",
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATED,
        max_steps=args.steps,
        eval_strategy="steps",
        eval_steps=args.steps // 2,
        save_steps=args.steps // 2,
        logging_steps=args.steps // 4,
        report_to="none",
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
    )
    trainer = Trainer(
        Regression(late),
        options,
        data_collator=collate,
        train_dataset=Points(args.steps * ACCUMULATED * BATCH * ranks),
        eval_dataset=Points(10 * BATCH * ranks),
        callbacks=[EvenstepCallback(**({"out": args.out} if args.out else {}))],
    )
    trainer.train()
    late.report()
    leave()


if __name__ == "__main__":
    main()
