"""A small GPT that learns to write Python: an ordinary training script, with nothing of evenstep.

    torchrun --nproc-per-node 4 examples/gpt.py
    evenstep run -- torchrun --nproc-per-node 4 examples/gpt.py

The text is the standard library's own sources, byte by byte, so nothing is downloaded. With
`--garbage-rank 2` rank 2 makes garbage inside backward and collects it, in every step.
"""

from __future__ import annotations

import argparse
import gc
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY = 256  # bytes
TEXT_BYTES = 4_000_000
GARBAGE_CYCLES = 20_000


class StandardLibrary(Dataset[Tensor]):
    """Windows of `length` + 1 bytes of this Python's own sources: input and target in one."""

    def __init__(self, length: int, *, size: int = TEXT_BYTES) -> None:
        self.length = length
        self.text = read_sources(Path(sysconfig.get_path("stdlib")), size)

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.length
        return self.text[start : start + self.length + 1].long()


def read_sources(folder: Path, size: int) -> Tensor:
    """The first `size` bytes of all modules of a folder, in alphabetical order."""
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return torch.frombuffer(text[:size], dtype=torch.uint8)


class Block(nn.Module):
    """Attention to what came before, then a small network at each place (Vaswani et al. 2017)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Predicts each next byte; called with a window of bytes, it returns its loss."""

    def __init__(self, *, length: int, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, window: Tensor) -> Tensor:
        known, following = window[:, :-1], window[:, 1:]
        places = torch.arange(known.shape[1], device=known.device)
        x = self.blocks(self.token(known) + self.place(places))
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def make_garbage(gradient: Tensor) -> Tensor:
    """A hook for backward: leaves reference cycles behind, and has the whole heap searched."""
    for _ in range(GARBAGE_CYCLES):
        cycle: list[object] = []
        cycle.append(cycle)
    gc.collect()  # mostly the heap that torch has filled: over 100 ms
    return gradient


def train(args: argparse.Namespace) -> None:
    """Train on this rank; rank 0 says how it goes."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = StandardLibrary(args.length)
    sampler: DistributedSampler[Tensor] = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = GPT(length=args.length, width=args.width, layers=args.layers)
    ddp = DistributedDataParallel(model, bucket_cap_mb=args.bucket_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    started, tokens = time.perf_counter(), args.batch * args.length * dist.get_world_size()
    for step, window in zip(range(1, args.steps + 1), loader, strict=False):
        loss = ddp(window)
        if rank == args.garbage_rank:
            loss.register_hook(make_garbage)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % args.every == 0 or step == args.steps):
            rate = tokens * step / (time.perf_counter() - started)
            print(f"step {step:4}  loss {loss.item():.4f}  {rate:,.0f} bytes/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--every", type=int, default=50, help="steps between lines of progress")
    parser.add_argument("--batch", type=int, default=8, help="windows per rank and step")
    parser.add_argument("--length", type=int, default=64, help="bytes in a window")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--bucket-mb", type=float, default=0.5, help="size of DDP's buckets")
    parser.add_argument("--garbage-rank", type=int, help="this rank collects garbage in backward")
    args = parser.parse_args()
    torch.set_num_threads(1)  # ranks are processes: more threads would only compete with them
    dist.init_process_group("gloo")
    train(args)
    gc.collect()  # the model goes before its group: else gloo may abort the process at its end
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
