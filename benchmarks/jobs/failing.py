"""Two ranks that train while one piece of evenstep after the other fails, on rank 1.

run by `benchmarks.ranks.run_ranks`; prints what reached the training as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import pkgutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep

PACKAGES = (
    "evenstep.agent",
    "evenstep.attachment",
    "evenstep.hooks.torch",
    "evenstep.trace.spool",
    "evenstep.pacing",
)
STEPS = 8
NEARLY = 1.5
LEFT_OUT = ("evenstep.agent.bootstrap",)
#: What the script and torch call themselves, and what guards the rest: what is behind them may not
#: fail into these.
CALLED = (
    "evenstep.attachment.agent.attach",
    "evenstep.attachment.agent.detach",
    "evenstep.hooks.torch.phases.PhaseHooks._optimizer_in",
    "evenstep.hooks.torch.phases.PhaseHooks._optimizer_out",
    "evenstep.hooks.torch.phases.PhaseHooks._tell",
)


class Seam(NamedTuple):
    """A function of a class or a module."""

    owner: Any
    name: str
    label: str

    @contextmanager
    def replaced(self, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
        """Have another function in its place, wherever a module of ours holds it by this name."""
        original = getattr(self.owner, self.name)
        holders = [self.owner]
        if isinstance(self.owner, ModuleType):
            ours = [found for name, found in sys.modules.items() if name.startswith("evenstep")]
            holders += [each for each in ours if getattr(each, self.name, None) is original]
        other = make(original)
        for holder in holders:
            setattr(holder, self.name, other)
        try:
            yield
        finally:
            for holder in holders:
                setattr(holder, self.name, original)


class InjectedError(RuntimeError):
    """What fails."""


def seams() -> Iterator[Seam]:
    """Every function there is, in order of its name."""
    for package in PACKAGES:
        root = importlib.import_module(package)
        for found in pkgutil.walk_packages(root.__path__, f"{package}."):
            if not found.name.startswith(LEFT_OUT):
                yield from of_module(importlib.import_module(found.name))


def of_module(module: ModuleType) -> Iterator[Seam]:
    """The functions a module defines, and those of its classes."""
    for name, value in sorted(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            yield Seam(module, name, f"{module.__name__}.{name}")
        elif isinstance(value, type):
            for inner, method in sorted(vars(value).items()):
                if isinstance(method, FunctionType) and inner not in ("__repr__", "__new__"):
                    yield Seam(value, inner, f"{module.__name__}.{name}.{inner}")


def failing(original: Callable[..., Any], at: int, hits: list[int]) -> Callable[..., Any]:
    """The function, but for its `at`-th call."""
    lock, calls = threading.Lock(), [0]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with lock:
            calls[0] += 1
            now = calls[0]
        if now == at:
            hits.append(now)
            raise InjectedError(f"call {at}")
        return original(*args, **kwargs)

    return wrapper


def train() -> list[str]:
    """A few steps that give the same losses each time, to the bit."""
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        batch = torch.sin(torch.arange(32.0) + 100 * step + 1000 * dist.get_rank()).reshape(4, 8)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(torch.ones(3))
        losses.append(loss.item().hex())
    return losses


def scene(folder: Path) -> list[str]:
    """Train with evenstep attached; the losses."""
    small = {"ring_bytes": 1 << 16, "summary_bytes": 1 << 16}
    evenstep.attach(out=folder, sample_period_s=0.05, **small)
    losses = train()
    evenstep.detach()
    return losses


def counted(chosen: list[Seam], folder: Path) -> list[int]:
    """How often each is called in a scene."""
    calls = [0] * len(chosen)

    def counting(index: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                calls[index] += 1
                return original(*args, **kwargs)

            return wrapper

        return make

    with ExitStack() as stack:
        for index, seam in enumerate(chosen):
            stack.enter_context(seam.replaced(counting(index)))
        scene(folder)
    told: list[Any] = [None, None]
    dist.all_gather_object(told, calls)
    return list(told[1])


def failed(seam: Seam, at: int, folder: Path) -> tuple[list[str], bool]:
    """Train with one seam failing on rank 1; the losses, and whether it did fail."""
    if dist.get_rank() != 1:
        return scene(folder), False
    hits: list[int] = []
    with seam.replaced(lambda original: failing(original, at, hits)):
        return scene(folder), bool(hits)


def main() -> None:
    """All scenes, or every n-th."""
    parser = argparse.ArgumentParser()
    parser.add_argument("progress", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--at", type=int, nargs="*", default=[1, 2, 100])
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("evenstep").setLevel(logging.CRITICAL)
    logging.disable(logging.CRITICAL)
    dist.init_process_group("gloo")
    expected = train()
    found: dict[str, Any] = {"scenes": 0, "reached": 0, "different": []}
    chosen = [seam for seam in seams() if args.only in seam.label and seam.label not in CALLED]
    with tempfile.TemporaryDirectory() as name:
        calls = counted(chosen, Path(name) / "counted")
        cases = [
            (seam, at)
            for seam, times in zip(chosen, calls, strict=True)
            for at in args.at
            if at <= NEARLY * times  # threads do not call as often every time
        ]
        found |= {"seams": len(chosen), "called": sum(map(bool, calls)), "cases": len(cases)}
        for number, (seam, at) in enumerate(cases):
            if number % args.every or number < args.first:
                continue
            (args.progress / f"rank-{dist.get_rank()}").write_text(f"{number} {seam.label} {at}")
            losses, hit = [], False
            try:
                losses, hit = failed(seam, at, Path(name) / str(number))
            except BaseException:  # the ranks are out of step now: nothing more can be shown
                traceback.print_exc()
                print(f"reached the training: {seam.label} at {at}", file=sys.stderr, flush=True)
                os._exit(1)
            if losses != expected:
                found["different"].append(f"{seam.label} at {at}")
            found["scenes"] += 1
            found["reached"] += hit
    told = [None, None]
    dist.all_gather_object(told, found)
    if dist.get_rank() == 0:
        print(json.dumps(told[1]), flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
