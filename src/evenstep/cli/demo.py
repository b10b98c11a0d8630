"""`evenstep demo`: diagnose a small training job on this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import ClassVar

from evenstep.cli import child
from evenstep.cli.terminal import print_json, say
from evenstep.documents import Document
from evenstep.errors import UsageError, refuse_as

RANKS = 4
EVENSTEP = [sys.executable, "-m", "evenstep"]
#: The training script: beside this module when installed, among the examples in a checkout.
JOB = (Path(__file__).with_name("gpt.py"), Path(__file__).parents[3] / "examples" / "gpt.py")


@dataclass(frozen=True, slots=True)
class DemoRun:
    """A run of the demo and its report page."""

    name: str
    run: str
    page: str


@dataclass(frozen=True, slots=True)
class DemoRuns(Document):
    """Paths of the demo's runs and report pages."""

    schema: ClassVar[str] = "evenstep.demo/1"

    folder: str
    runs: tuple[DemoRun, ...]


def main(args: argparse.Namespace) -> int:
    if find_spec("torch") is None:
        raise UsageError("the demo trains with torch, which is not installed: pip install torch")
    job = next((path for path in JOB if path.is_file()), None)
    if job is None:
        raise UsageError(f"the demo's script is missing: looked for {JOB[0]} and {JOB[1]}")
    folder = _fresh_folder(args.out)
    try:
        with _output_to_stderr() if args.json else nullcontext():
            pages = _run_both(job, folder, args.steps)
    except subprocess.CalledProcessError as error:
        say(f"the demo stops here: `{_show(error.cmd)[2:]}` failed with code {error.returncode}")
        return int(error.returncode) if error.returncode > 0 else 128 - int(error.returncode)
    if args.json:
        runs = tuple(DemoRun(name, str(page.parent), str(page)) for name, page in pages.items())
        print_json(DemoRuns(str(folder), runs).to_json())
        return 0
    _heading("The reports, to open in a browser")
    print(*pages.values(), sep="\n")
    return 0


def _run_both(job: Path, folder: Path, steps: int) -> dict[str, Path]:
    """Run both jobs and return the report page of each by its name."""
    common = ["--steps", str(steps)]
    _heading(f"1. A small GPT on {RANKS} ranks and {os.cpu_count()} cores, undisturbed")
    _observe(job, folder / "healthy", common)
    healthy = _write_report(folder / "healthy")
    _heading("2. The same, but rank 2 makes garbage inside backward and collects it; pacing is on")
    _observe(job, folder / "disturbed", [*common, "--garbage-rank", "2"], pace="on")
    return {"healthy": healthy, "disturbed": _write_report(folder / "disturbed")}


def _fresh_folder(parent: Path) -> Path:
    """Create and return the first of demo-1, demo-2 … that does not exist yet."""
    folders = (parent / f"demo-{number}" for number in count(1))
    folder = next(folder for folder in folders if not folder.exists())
    with refuse_as(UsageError, f"cannot make {folder}", "; give --out DIR"):
        folder.mkdir(parents=True)
    return folder


def _observe(job: Path, run: Path, options: Sequence[str], *, pace: str | None = None) -> None:
    """Train under `evenstep run`, which prints the verdict at the end."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    training = [sys.executable, "-m", *launcher, str(job), *options]
    pacing = ["--pace", pace] if pace else []
    command = [*EVENSTEP, "run", "--out", str(run), *pacing, "--", *training]
    print(_show(command), flush=True)
    signals: list[int] = []
    code = child.run(command, {**os.environ, "OMP_NUM_THREADS": "1"}, signals.append)
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    if code:
        raise subprocess.CalledProcessError(code, command)


@contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Redirect our output and that of child processes to standard error: stdout is for JSON."""
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
        sys.stdout.flush()
    finally:
        os.dup2(output, 1)
        os.close(output)


def _write_report(run: Path) -> Path:
    page = run / "report.html"
    command = [*EVENSTEP, "diagnose", str(run), "--html", str(page)]
    print("\n" + _show(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):  # 1: there are findings
        raise subprocess.CalledProcessError(done.returncode, command)
    return page


def _show(command: Sequence[str]) -> str:
    """Return a command as a user would type it."""
    text = shlex.join(command).replace(shlex.join(EVENSTEP), "evenstep", 1)
    launcher = f"{shlex.quote(sys.executable)} -m torch.distributed.run"
    return "$ " + text.replace(launcher, "torchrun")


def _heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)
