"""A sweep on Ray beside the same sweep by local processes: the same bytes, and how fast."""

from __future__ import annotations

import argparse
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Row
from benchmarks.ranks import ROOT, JobError, environment

COMMAND = "python -m benchmarks ray_sweep"
SCENARIO = ROOT / "examples" / "scenarios" / "oversubscribed.toml"
WORKERS = 2
BAR = 0.9
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
PORT = 6399
START_TIMEOUT_S = 90.0
#: The node lets in only who knows this run's own token.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100, help="of each scenario")
    parser.add_argument("--pairs", type=int, default=2, help="runs of each engine, in turns")


def run(args: argparse.Namespace) -> list[Row]:
    """Both engines in turns, on a cluster that is there and on one that has to be started."""
    local: list[float] = []
    ray: list[float] = []
    with tempfile.TemporaryDirectory() as folder, cluster():
        tables = set()
        for pair in range(args.pairs):
            for taken, options in (
                (local, []),
                (ray, ["--engine", "ray", "--address", f"127.0.0.1:{PORT}"]),
            ):
                out = Path(folder) / f"{len(options)}-{pair}"
                taken.append(_sweep(out, args, options))
                tables.add((out / "results.parquet").read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        alone_s = _sweep(Path(folder) / "alone", args, ["--engine", "ray"])
        tables.add((Path(folder) / "alone" / "results.parquet").read_bytes())
    local_s, ray_s = statistics.median(local), statistics.median(ray)
    what = f"sweep of {args.scenarios} scenarios, {WORKERS} workers: Ray against local processes"
    return [
        Row(
            what,
            f"the same bytes; ≥ {BAR:g} of the local speed",
            f"{'the same' if len(tables) == 1 else 'other'} bytes; {local_s / ray_s:.2f} of the "
            f"local speed ({ray_s:.1f} s against {local_s:.1f} s); with a cluster started for it "
            f"{local_s / alone_s:.2f} ({alone_s:.1f} s)",
            len(tables) == 1 and local_s / ray_s >= BAR,
            COMMAND,
        )
    ]


def _sweep(out: Path, args: argparse.Namespace, options: list[str]) -> float:
    """Seconds of a whole command."""
    repeats = str(args.scenarios // 4)
    command = [
        *(sys.executable, "-m", "evenstep", "sweep", str(SCENARIO), "--out", str(out)),
        *("--vary", "oversubscription=1,2,4,8", "--repeats", repeats),
        *("--set", f"run.steps={args.steps}", "--workers", str(WORKERS), *options),
    ]
    begun = time.perf_counter()
    _done(command)
    return time.perf_counter() - begun


@contextmanager
def cluster() -> Iterator[None]:
    """A Ray node of this machine with as many workers, for as long as this lasts."""
    options = [f"--port={PORT}", f"--num-cpus={WORKERS}", "--include-dashboard=false", "--block"]
    head = subprocess.Popen(
        [*RAY, "start", "--head", "--disable-usage-stats", *options],
        env=environment(**TOKEN), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_for(head)
        yield
    finally:
        head.terminate()
        head.wait()


def _wait_for(head: subprocess.Popen[bytes]) -> None:
    """Until the node answers."""
    code = f"import ray; ray.init('127.0.0.1:{PORT}', log_to_driver=False)"
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and head.poll() is None:
        asked = [sys.executable, "-c", code]
        if not subprocess.run(
            asked, env=environment(**TOKEN), capture_output=True, check=False
        ).returncode:
            return
    raise JobError("the Ray node did not start; `ray start --head` says why")


def _done(command: list[str]) -> None:
    done = subprocess.run(
        command, env=environment(**TOKEN), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise JobError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}")
