"""`evenstep selftest`: whether a known delay in a small job is found on this machine."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

from evenstep.cli import files
from evenstep.cli.progress import ticking
from evenstep.cli.terminal import print_json, say
from evenstep.documents import Document, Meta
from evenstep.errors import UsageError

RANKS = 2
STEPS = 40
HELD_S = 0.05
WIDTH = 64
ABOUT_S = 17.0  # on two idle cores: torch is imported by three processes


@dataclass(frozen=True, slots=True)
class SelfTest(Document):
    """Whether a known delay was found on this machine."""

    schema: ClassVar[str] = "evenstep.selftest/1"

    works: Annotated[bool, Meta("Exactly the delayed rank was named.")]
    held_rank: int
    named_ranks: tuple[int, ...]
    held_ms: float
    found_ms: Annotated[float | None, Meta("Cost of the first finding per step; null if unknown.")]


def main(args: argparse.Namespace) -> int:
    if find_spec("torch") is None:
        raise UsageError("the test trains with torch, which is not installed: pip install torch")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _as_rank(args)
    with tempfile.TemporaryDirectory(prefix="evenstep-selftest-") as scratch:
        out = args.out or Path(scratch) / "run"
        files.check_folder(out)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        command = [sys.executable, *launcher, "-m", "evenstep", "selftest", "--out", str(out)]
        environ = {name: v for name, v in os.environ.items() if not name.startswith("EVENSTEP")}
        command += ["--json"] if args.json else []
        with ticking("training two ranks", ABOUT_S):
            code, told = _run(command, {**environ, "OMP_NUM_THREADS": "1", "TMPDIR": scratch})
    print(told, end="", flush=True)
    if not told:
        say(f"the selftest job failed with code {code}")
    return 0 if code == 0 else 1


def _run(command: list[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """Run the job's launcher and return its exit code and output. Its messages follow at the end;
    of a job that is interrupted there are none, and no process is left."""
    with tempfile.TemporaryFile("w+") as messages:
        job = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=messages, env=environ, text=True
        )
        try:
            told, _ = job.communicate()
        except BaseException as error:
            job.terminate()  # the launcher ends its ranks
            job.wait()
            if isinstance(error, SystemExit):
                say("stopped by SIGTERM before the test had ended")
            raise
        messages.seek(0)
        sys.stderr.write(messages.read())
    return job.returncode, told


def _as_rank(args: argparse.Namespace) -> int:
    """Train as one rank; rank 0 diagnoses the run."""
    import torch.distributed as dist

    import evenstep

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    chosen = [str(args.out or Path(tempfile.mkdtemp(prefix="evenstep-selftest-")) / "run")]
    dist.broadcast_object_list(chosen)
    evenstep.attach(out=chosen[0], verdict=False)
    _train(held=rank == world - 1)
    evenstep.detach()
    dist.barrier()
    works = _judge(Path(chosen[0]), world - 1, as_json=args.json) if rank == 0 else True
    dist.destroy_process_group()
    if args.out is None and rank == 0:  # the rank that has read the traces
        shutil.rmtree(Path(chosen[0]).parent, ignore_errors=True)
    return 0 if works else 1


def _train(*, held: bool) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        hidden = model(torch.randn(8, WIDTH))
        if held:
            hidden.register_hook(lambda _: time.sleep(HELD_S))
        hidden.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _judge(run: Path, held: int, *, as_json: bool) -> bool:
    """Diagnose, print the outcome, and return whether exactly the delayed rank was named."""
    from evenstep.diagnose.engine import diagnose
    from evenstep.importers.opening import load

    found = diagnose(load(run))
    first = next(iter(found.findings), None)
    named = first.where.ranks if first else ()
    mean_ns = (found.summary.get("step_time") or {}).get("mean_ns")
    found_ms = round(first.severity * mean_ns / 1e6, 3) if first and mean_ns else None
    works = list(named) == [held]
    if as_json:
        print_json(SelfTest(works, held, tuple(named), 1e3 * HELD_S, found_ms).to_json())
    elif works:
        print(f"evenstep works here: it named rank {held}, delayed by {1e3 * HELD_S:.0f} ms a step")
        print(f"({found_ms:.0f} ms a step would be gained without the delay)")
    else:
        print(f"evenstep did not name rank {held}, delayed by {1e3 * HELD_S:.0f} ms a step but:")
        print(found.verdict)
    return works
