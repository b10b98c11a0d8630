"""`evenstep demo`: who waits for whom in a real job, on this machine."""

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
from evenstep.cli.arguments import MOST_STEPS, add_json, whole
from evenstep.cli.terminal import print_json, say
from evenstep.documents import Document
from evenstep.errors import UsageError

HELP = """See evenstep at work on a real job, on this machine and without a GPU.

Four ranks train a small GPT: first undisturbed, then with one rank that collects garbage inside
backward, and with pacing on. Every command is printed before it runs, so that it can be repeated by
hand; each run ends with its verdict, and a page to look around in is written beside it."""

RANKS = 4
EVENSTEP = [sys.executable, "-m", "evenstep"]
#: The job: beside this module where evenstep is installed, among the examples in a checkout.
JOB = (Path(__file__).with_name("gpt.py"), Path(__file__).parents[3] / "examples" / "gpt.py")


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One of its runs, and its page."""

    name: str
    run: str
    page: str


@dataclass(frozen=True, slots=True)
class DemoRuns(Document):
    """Where the demo's runs and their pages lie."""

    schema: ClassVar[str] = "evenstep.demo/1"

    folder: str
    runs: tuple[DemoRun, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep demo`."""
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("evenstep-runs"),
        help="folder for the demo's own folder (evenstep-runs)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", metavar="N", type=whole(MOST_STEPS), default=260,
        help="of each of the two runs (260)",
    )  # fmt: skip
    add_json(parser, "where runs and pages lie")


def main(args: argparse.Namespace) -> int:
    """Run both jobs and say where their pages lie."""
    if find_spec("torch") is None:
        raise UsageError("the demo trains with torch, which is not installed: pip install torch")
    job = next((path for path in JOB if path.is_file()), None)
    if job is None:
        raise UsageError(f"the demo's job is not there: looked for {JOB[0]} and {JOB[1]}")
    folder = _fresh_folder(args.out)
    try:
        with _beside_the_output() if args.json else nullcontext():
            pages = _both(job, folder, args.steps)
    except subprocess.CalledProcessError as error:
        say(f"the demo stops here: `{_shown(error.cmd)[2:]}` failed with code {error.returncode}")
        return int(error.returncode) if error.returncode > 0 else 128 - int(error.returncode)
    if args.json:
        runs = tuple(DemoRun(name, str(page.parent), str(page)) for name, page in pages.items())
        print_json(DemoRuns(str(folder), runs).to_json())
        return 0
    _heading("The reports, to open in a browser")
    print(*pages.values(), sep="\n")
    return 0


def _both(job: Path, folder: Path, steps: int) -> dict[str, Path]:
    """Both runs; the page of each by its name."""
    common = ["--steps", str(steps)]
    _heading(f"1. A small GPT on {RANKS} ranks and {os.cpu_count()} cores, undisturbed")
    _observe(job, folder / "healthy", common)
    healthy = _write_report(folder / "healthy")
    _heading("2. The same, but rank 2 makes garbage inside backward and collects it; pacing is on")
    _observe(job, folder / "disturbed", [*common, "--garbage-rank", "2"], pace="on")
    return {"healthy": healthy, "disturbed": _write_report(folder / "disturbed")}


def _fresh_folder(parent: Path) -> Path:
    """The first of demo-1, demo-2 … that does not exist yet, created."""
    for number in count(1):
        folder = parent / f"demo-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"cannot make {folder}: {error.strerror}; give --out DIR") from error
        return folder
    raise AssertionError("unreachable: count() has no end")


def _observe(job: Path, run: Path, options: Sequence[str], *, pace: str | None = None) -> None:
    """Train under `evenstep run`, which prints its verdict at the end."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    training = [sys.executable, "-m", *launcher, str(job), *options]
    pacing = ["--pace", pace] if pace else []
    command = [*EVENSTEP, "run", "--out", str(run), *pacing, "--", *training]
    print(_shown(command), flush=True)
    heard: list[int] = []
    code = child.run(command, {**os.environ, "OMP_NUM_THREADS": "1"}, heard.append)
    if signal.SIGINT in heard:
        raise KeyboardInterrupt
    if code:
        raise subprocess.CalledProcessError(code, command)


@contextmanager
def _beside_the_output() -> Iterator[None]:
    """What we and our commands print goes to standard error, and leaves the output to JSON."""
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
    """The same verdict as a page to look around in."""
    page = run / "report.html"
    command = [*EVENSTEP, "diagnose", str(run), "--html", str(page)]
    print("\n" + _shown(command), flush=True)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):  # 1: it found something
        raise subprocess.CalledProcessError(done.returncode, command)
    return page


def _shown(command: Sequence[str]) -> str:
    """A command as one would type it."""
    text = shlex.join(command).replace(shlex.join(EVENSTEP), "evenstep", 1)
    launcher = f"{shlex.quote(sys.executable)} -m torch.distributed.run"
    return "$ " + text.replace(launcher, "torchrun")


def _heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)
