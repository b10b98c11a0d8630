"""A job whose last rank is late in a known function, once in a few steps or in every one.

torchrun … -m benchmarks.jobs.late FOLDER PLACE [--steps N] [--first N] [--every K] [--sleep S]
    [--pause S]
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH = 512, 256  # a step of some tens of ms
lock = threading.Lock()
late = False


def slow_backward(gradient: torch.Tensor) -> torch.Tensor:
    """A tensor's hook in backward."""
    dawdle("backward")
    return gradient


def slow_hook(*_: object) -> None:
    """A module's hook in forward."""
    dawdle("hook")


def wait_for_lock() -> None:
    """Somebody else has what this thread needs."""
    if late and PLACE == "lock":
        with lock:
            pass


class Batches(Dataset[torch.Tensor]):
    """What the loader gives."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % BATCH == 0:
            slow_loading()
        return torch.ones(WIDTH)


def slow_loading() -> None:
    """A sample that takes long to read."""
    dawdle("loader")


def dawdle(place: str) -> None:
    """Lose time here if this is where it is to be lost."""
    if late and place == PLACE:
        time.sleep(SLEEP_S)


#: The function that must be named.
FUNCTIONS = {
    "backward": "dawdle",
    "loader": "dawdle",
    "hook": "dawdle",
    "lock": "wait_for_lock",
}


def hold_lock(stop: threading.Event) -> None:
    """Another thread that keeps the lock for a while, again and again."""
    while not stop.wait(0.001):
        with lock:
            time.sleep(SLEEP_S)


def main() -> None:
    """Train."""
    global late
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine = dist.get_rank() == dist.get_world_size() - 1
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    layers[1].register_forward_hook(slow_hook)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    stop = threading.Event()
    if mine and PLACE == "lock":
        threading.Thread(target=hold_lock, args=(stop,), daemon=True).start()
    batches = iter(DataLoader(Batches(), batch_size=BATCH))
    for step in range(ARGS.steps):
        late = mine and step >= ARGS.first and step % ARGS.every == 0
        if mine and step == ARGS.first:
            (ARGS.folder / "began").write_text(str(time.monotonic_ns()))
        batch = next(batches)
        wait_for_lock()
        time.sleep(ARGS.pause / 2)
        optimizer.zero_grad()
        hidden = model(batch)
        hidden.register_hook(slow_backward)
        time.sleep(ARGS.pause / 2)
        hidden.sum().backward()
        optimizer.step()
    stop.set()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("place", choices=FUNCTIONS)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--sleep", type=float, default=0.06)
    parser.add_argument("--pause", type=float, default=0.0, help="every rank, in every step")
    ARGS = parser.parse_args()
    PLACE, SLEEP_S = ARGS.place, ARGS.sleep
    main()
