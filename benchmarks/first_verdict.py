"""From nothing to a first verdict: clone, environment, install, run, and who it is that is named.

Twice in an environment of its own. "The package alone" simulates a run and diagnoses it; "with
torch" takes the torch of the interpreter that runs this (users bring their own build) and trains
the script of the guide under `evenstep run`. What is downloaded comes through the registry that pip
is set up for, so the time has the network in it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment

COMMAND = "python -m benchmarks first_verdict"
ROOT = Path(__file__).parents[1]
ALONE_S, WITH_TORCH_S = 30.0, 90.0
SCENARIO = "examples/scenarios/straggler.toml"
TORCH = ("torch", "torchgen", "functorch", "torch-*", "typing_extensions*", "sympy*", "mpmath*",
         "networkx*", "fsspec*", "filelock*", "jinja2*", "markupsafe*")  # fmt: skip
VERDICT = "costs"  # of its first line: "Rank 19 (node0002) costs 22 % of step time, …"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(args: argparse.Namespace) -> list[Row]:
    """The two rows."""
    del args
    return [
        _row("clone to a first verdict, the package alone", ALONE_S, _alone, torch=False),
        _row("clone to a first verdict on a real job, torch installed", WITH_TORCH_S, _trained,
             torch=True),
    ]  # fmt: skip


def _row(what: str, bar_s: float, verdict: Callable[[str, Path], str], *, torch: bool) -> Row:
    with tempfile.TemporaryDirectory(prefix="first-verdict-") as folder:
        began = time.monotonic()
        python = _installed(Path(folder), torch=torch)
        installed_s = time.monotonic() - began
        said = verdict(python, Path(folder) / "clone")
        took_s = time.monotonic() - began
    print(said.strip().partition("\n")[0], file=sys.stderr, flush=True)
    measured = f"{took_s:.0f} s, {installed_s:.0f} s of it until it is installed"
    return Row(what, f"<= {bar_s:.0f} s", measured, took_s <= bar_s, COMMAND)


def _installed(folder: Path, *, torch: bool) -> str:
    """A fresh clone's own interpreter, with the package and what it needs."""
    clone, place = folder / "clone", folder / "environment"
    _done(["git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), str(clone)], folder)
    _done([sys.executable, "-m", "venv", str(place)], folder)
    python = str(place / "bin" / "python")
    if torch:
        _give_torch(next((place / "lib").glob("python3*")) / "site-packages")
    _done([python, "-m", "pip", "install", "--quiet", ".[all]"], clone)
    return python


def _give_torch(packages: Path) -> None:
    """Torch and what it came with, as links: nothing else that happens to be installed here."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise JobError("torch is not installed here: pip install torch")
    for name in TORCH:
        for path in Path(spec.origin).parents[1].glob(name):
            (packages / path.name).symlink_to(path)


def _alone(python: str, clone: Path) -> str:
    _done([python, "-m", "evenstep", "simulate", SCENARIO, "--out", "run"], clone)
    return _judged([python, "-m", "evenstep", "diagnose", "run"], clone)


def _trained(python: str, clone: Path) -> str:
    job = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = ["examples/gpt.py", "--steps", "60", "--garbage-rank", "1"]
    _done([python, "-m", "evenstep", "run", "--out", "run", "--", python, *job, *script], clone)
    return _judged([python, "-m", "evenstep", "diagnose", "run"], clone)


def _judged(command: list[str], place: Path) -> str:
    text = _done(command, place, fine=(0, 1))
    if VERDICT not in text.partition("\n")[0]:
        raise JobError(f"no verdict, but: {text[:300]}")
    return text


def _done(command: list[str], place: Path, *, fine: tuple[int, ...] = (0,)) -> str:
    """What it prints. Raises `JobError` where it fails."""
    bare = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=place, env=bare, capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    if done.returncode not in fine:
        raise JobError(f"{' '.join(command[:5])} … failed: {done.stderr[-800:]}")
    return done.stdout
