"""Lightning, two ranks, validation, checkpoints and accumulated gradients; the last rank is late.

python examples/frameworks/lightning_trainer.py --out run && evenstep diagnose run
"""

from __future__ import annotations

import argparse
import os
import tempfile

import lightning
import torch
from late import Late, Points, network
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional
from torch.utils.data import DataLoader

from evenstep.frameworks.lightning import EvenstepCallback

BATCH, ACCUMULATED = 8, 2


class Regression(lightning.LightningModule):
    """The length of a point."""

    def __init__(self, late: Late) -> None:
        super().__init__()
        self.network = network(late)

    def training_step(self, batch, _index: int):
        x, y = batch
        return functional.mse_loss(self.network(x), y)

    def validation_step(self, batch, _index: int) -> None:
        x, y = batch
        self.log("loss", functional.mse_loss(self.network(x), y), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="the run's folder; by default evenstep-runs/run-…")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument(
        "--pause-ms", type=float, default=50.0, help="of the last rank, in every step"
    )
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    is_last = os.environ.get("LOCAL_RANK") == str(args.ranks - 1)
    late = Late(args.pause_ms if is_last else 0, batches=ACCUMULATED)
    scratch = tempfile.mkdtemp()
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=args.ranks,
        max_steps=args.steps,
        accumulate_grad_batches=ACCUMULATED,
        val_check_interval=args.steps,  # in batches: once, in the middle
        num_sanity_val_steps=0,
        callbacks=[
            EvenstepCallback(**({"out": args.out} if args.out else {})),
            ModelCheckpoint(scratch, every_n_train_steps=args.steps // 2),
        ],
        logger=CSVLogger(scratch),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches = args.steps * ACCUMULATED
    training = DataLoader(Points(batches * BATCH * args.ranks), BATCH, num_workers=0)
    validation = DataLoader(Points(10 * BATCH * args.ranks), BATCH)
    trainer.fit(Regression(late), training, validation)
    late.report()


if __name__ == "__main__":
    main()
