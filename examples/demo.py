"""`make demo`: who waits for whom in a real job, and what pacing does about it.

Four ranks train the GPT of `gpt.py`: first undisturbed, then with one rank that collects garbage
inside backward and with pacing off and on in alternating blocks. Every command is printed before
it runs, so that it can be repeated by hand.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from pacing_effect import describe, pacing_effect

import evenstep

HERE = Path(__file__).resolve().parent
RANKS = 4
EVENSTEP = [sys.executable, "-m", "evenstep"]


def fresh_folder(parent: Path) -> Path:
    """The first of demo-1, demo-2 … that does not exist yet, created."""
    for number in count(1):
        folder = parent / f"demo-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable: count() has no end")


def observe(run: Path, options: Sequence[str], *, pace: str | None = None) -> None:
    """Train under `evenstep run`, which prints its verdict at the end."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    training = [sys.executable, "-m", *launcher, str(HERE / "gpt.py"), *options]
    pacing = ["--pace", pace] if pace else []
    command = [*EVENSTEP, "run", "--out", str(run), *pacing, "--", *training]
    say(shown(command))
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


def write_report(run: Path) -> Path:
    """The same verdict as a page to look around in."""
    page = run / "report.html"
    command = [*EVENSTEP, "diagnose", str(run), "--html", str(page)]
    say("\n" + shown(command))
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):  # 1: it found something
        raise subprocess.CalledProcessError(done.returncode, command)
    return page


def shown(command: Sequence[str]) -> str:
    """A command as one would type it."""
    text = shlex.join(command).replace(shlex.join(EVENSTEP), "evenstep", 1)
    return "$ " + text.replace(
        f"{shlex.quote(sys.executable)} -m torch.distributed.run", "torchrun"
    )


def say(text: str) -> None:
    print(text, flush=True)


def heading(text: str) -> None:
    say(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("evenstep-runs"), help="parent folder")
    parser.add_argument("--steps", type=int, default=260, help="of each of the two runs")
    args = parser.parse_args()
    folder = fresh_folder(args.out)

    heading(f"1. A small GPT on {RANKS} ranks and {os.cpu_count()} cores, undisturbed")
    observe(folder / "healthy", ["--steps", str(args.steps)])
    healthy = write_report(folder / "healthy")

    heading("2. The same, but rank 2 makes garbage inside backward and collects it; pacing is on")
    disturbance = ["--steps", str(args.steps), "--garbage-rank", "2"]
    observe(folder / "disturbed", disturbance, pace="on")
    disturbed = write_report(folder / "disturbed")

    heading("3. What pacing did there, in alternating blocks of steps")
    say(describe(pacing_effect(evenstep.load(folder / "disturbed"))))

    heading("The reports, to open in a browser")
    say(f"{healthy}\n{disturbed}")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"the demo stops here: `{shown(error.cmd)[2:]}` failed with code {error.returncode}"
        )
