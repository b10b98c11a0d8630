"""A gloo rank that allocates as scripts do, with `act` as it is told; rank 0 prints what came.

The same model and data in a loop of its own, in a transformers Trainer and in Lightning.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import evenstep
from evenstep.agent.actions.garbage import resident_bytes
from evenstep.attachment import agent

KEPT = 200_000  # objects that stay: modules, data sets, configurations
MADE = 3_000  # cycles of a step …
LASTING = 20  # … which are gone so many steps later, as what is cached is
ROWS, WIDTH = 16, 128


class Node:
    """An object in a cycle."""

    def __init__(self) -> None:
        self.itself = self


class Model(torch.nn.Module):
    """Four layers, whose forward leaves objects behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self._recent: deque[list[Node]] = deque(maxlen=LASTING)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of a batch."""
        self._recent.append([Node() for _ in range(MADE)])
        return {"loss": self.layers(x).square().mean()}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """As many rows as all ranks ask for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((WIDTH,), 1.0 + row % 7)}


def acts() -> tuple[bool, bool]:
    """Whether the running step is acted in, and whether a trial has found that this pays."""
    attached = agent.current()
    parts = [] if attached is None else attached._conductor.parts
    return any(part.acting for part in parts), any(part.trial.word == "pays" for part in parts)


class Seen:
    """When each step ended, its loss, and what memory grew from a quarter of the run on."""

    def __init__(self, steps: int) -> None:
        self.times: list[int] = []
        #: Whether a step is acted in, and pays; one entry ahead: what the next step is.
        self.acted: list[tuple[bool, bool]] = []
        self.losses: list[float] = []
        self._steps = steps
        self._last = time.monotonic_ns()
        self._resident = 0

    def step(self, loss: float) -> None:
        """A step is over."""
        now = time.monotonic_ns()
        self.times.append(now - self._last)
        self.acted.append(acts())
        self.losses.append(loss)
        self._last = now
        if len(self.times) == self._steps // 4:
            self._resident = resident_bytes()

    @property
    def grown(self) -> float:
        """As a share."""
        return resident_bytes() / self._resident - 1 if self._resident else 0.0


def own_loop(seen: Seen, steps: int) -> None:
    """DDP, and a loop of its own."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(ROWS, WIDTH) + dist.get_rank()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(batch)["loss"]
        loss.backward()
        optimizer.step()
        seen.step(loss.item())


def trainer(seen: Seen, steps: int) -> None:
    """A transformers Trainer."""
    import transformers

    class Stamps(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            seen.step(0.0)

    folder = tempfile.TemporaryDirectory(prefix="trainer-")
    arguments = transformers.TrainingArguments(
        folder.name, max_steps=steps, per_device_train_batch_size=ROWS,
        use_cpu=True, ddp_backend="gloo", report_to="none", disable_tqdm=True, save_strategy="no",
        logging_steps=max(1, steps // 20), remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )  # fmt: skip
    rows = Rows(steps * ROWS * int(os.environ["WORLD_SIZE"]))
    made = transformers.Trainer(Model(), arguments, train_dataset=rows, callbacks=[Stamps()])
    made.train()
    seen.losses = [each["loss"] for each in made.state.log_history if "loss" in each]
    folder.cleanup()


def lightning(seen: Seen, steps: int) -> None:
    """A Lightning Trainer."""
    import lightning.pytorch as pl

    class Task(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(batch["x"])["loss"]

        def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
            seen.step(float(outputs["loss"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    world = int(os.environ["WORLD_SIZE"])
    loader = torch.utils.data.DataLoader(Rows(steps * ROWS * world), batch_size=ROWS)
    pl.Trainer(
        accelerator="cpu", devices=world, strategy="ddp", max_steps=steps, max_epochs=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Task(), loader)  # fmt: skip


LOOPS: dict[str, Callable[[Seen, int], None]] = {
    "own loop": own_loop, "Trainer": trainer, "Lightning": lightning,
}  # fmt: skip


def main() -> None:
    """Train for so many steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--act", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--loop", choices=LOOPS, default="own loop")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    evenstep.attach(out=args.out, act=args.act, verdict=False, sample_period_s=1.0)
    kept = [[n] for n in range(KEPT)]
    torch.manual_seed(1)
    seen = Seen(args.steps)
    LOOPS[args.loop](seen, args.steps)
    attached = agent.current()
    told = attached._conductor.account() if attached is not None else []
    found = {"times_ns": seen.times, "losses": seen.losses, "grown": seen.grown, "told": told}
    acted = [(False, False), *seen.acted[:-1]]
    found["acted"], found["pays"] = zip(*acted, strict=True)
    evenstep.detach()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    print(json.dumps(found | {"kept": len(kept)}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort at the interpreter's end


if __name__ == "__main__":
    main()
