"""Starting the processes that are measured: one alone, or the ranks of a job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.05


class JobError(Exception):
    """A measured process failed; the message holds the end of what it said."""


def environment(**added: str) -> dict[str, str]:
    """The environment of a measured process: this tree importable, nothing of a launcher's left."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EVENSTEP", "TORCHELASTIC", "SLURM"))
        and name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONDONTWRITEBYTECODE")
    }
    path = os.pathsep.join(
        filter(None, [str(ROOT / "src"), str(ROOT), inherited.get("PYTHONPATH")])
    )
    return {**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **added}


def place(rank: int, world: int, port: int) -> dict[str, str]:
    """The variables by which a rank finds the others."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def run_alone(
    module: str,
    *arguments: str,
    python: str = sys.executable,
    added: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a job of one process; the JSON object it prints. Raises `JobError`."""
    return _run([python, "-m", module, *arguments], [environment(**(added or {}))], 1800.0)


def run_ranks(
    module: str,
    *arguments: str,
    world: int,
    python: str = sys.executable,
    timeout_s: float = 1800.0,
) -> dict[str, Any]:
    """Run a job on `world` ranks; the JSON object that rank 0 prints last. Raises `JobError`."""
    port = free_port()
    places = [environment(**place(rank, world, port)) for rank in range(world)]
    return _run([python, "-m", module, *arguments], places, timeout_s)


def last_object(text: str) -> dict[str, Any]:
    """The JSON object on the last line of an output that starts with a brace."""
    for row in reversed(text.splitlines()):
        if row.startswith("{"):
            found: dict[str, Any] = json.loads(row)
            return found
    raise JobError(f"the job printed no result: {text[-2000:]}")


def go_first() -> None:
    """Let this process run before whatever else the machine does, where it may.

    A loaded machine takes the cores of a job that has enough. For one that mostly sleeps: what is
    alike waits for its turn (sched(7), SCHED_RR).
    """
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(
    command: Sequence[str], environments: Sequence[Mapping[str, str]], timeout_s: float
) -> dict[str, Any]:
    """Run the command once per environment; the object printed by the first."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        outputs = [Path(folder) / f"rank-{rank}" for rank in range(len(environments))]
        processes = [
            _start(command, environ, output)
            for environ, output in zip(environments, outputs, strict=True)
        ]
        _wait(processes, outputs, timeout_s)
        return last_object(outputs[0].read_text())


def _start(
    command: Sequence[str], environ: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(command, env=environ, stdout=file, stderr=subprocess.STDOUT)


def _wait(
    processes: Sequence[subprocess.Popen[bytes]], outputs: Sequence[Path], timeout_s: float
) -> None:
    """Until all have ended well; the first that has not ends the others."""
    deadline = time.monotonic() + timeout_s
    try:
        while any(process.poll() is None for process in processes):
            codes = [process.poll() for process in processes]
            if any(codes) or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
    finally:
        late = [process for process in processes if process.poll() is None]
        for process in late:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        if process.returncode and process not in late:
            said = outputs[rank].read_text(errors="replace")[-3000:]
            raise JobError(f"rank {rank} ended with {process.returncode}: {said}")
    if late:
        raise JobError(f"not finished after {timeout_s:.0f} s")
