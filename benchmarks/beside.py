"""The same three faults seen by evenstep, by TraceML, and by torch.profiler with HTA.

A script of two ranks in which rank 1 sleeps in backward, has a slow loader, or collects garbage.
evenstep runs it unchanged; TraceML and the profiler get the lines their documentation asks for.
What a tool says is right where its verdict names rank 1 and what it does: `EXPECTED` has the words
that are looked for, in all of the text that a tool prints as its result. A tool that is not
installed is said to be skipped.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.jobs.beside import FAULTS
from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment, free_port
from evenstep.words import plural

JOB = "benchmarks.jobs.beside"
COMMAND = "python -m benchmarks beside --traceml-python PATH --hta-python PATH"
RANKS = 2
RANK = re.compile(r"\brank 1\b|\bR1\b", re.IGNORECASE)
EXPECTED = {
    "backward": re.compile(r"backward", re.IGNORECASE),
    "loader": re.compile(r"input|loader|batch", re.IGNORECASE),
    "collector": re.compile(r"garbage|collector|\bgc\b", re.IGNORECASE),
}
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1], 1: sys.argv[2]})
print(found.get_temporal_breakdown(visualize=False).to_string())
"""


class Told(NamedTuple):
    """What a tool said of a fault: its verdict, all it printed, and how it was asked."""

    verdict: str
    lines: int
    commands: int
    edited: int  # lines of the script

    def right(self, fault: str) -> bool:
        """Whether the verdict names the rank and what it does."""
        return bool(RANK.search(self.verdict) and EXPECTED[fault].search(self.verdict))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--traceml-python", help="interpreter with traceml-ai and torch")
    parser.add_argument("--hta-python", help="interpreter with HolisticTraceAnalysis")


def run(args: argparse.Namespace) -> list[Row]:
    """A row for each tool."""
    tools: tuple[tuple[str, str, Callable[[str, Path], Told] | None, str], ...] = (
        ("evenstep", f"{len(args.faults)} of {len(args.faults)}",
         lambda fault, at: _evenstep(fault, at, args.steps), ""),
        ("TraceML", "",
         (lambda fault, at: _traceml(args.traceml_python, fault, at, args.steps))
         if args.traceml_python else None, "no --traceml-python"),
        ("torch.profiler + HTA", "",
         (lambda fault, at: _hta(args.hta_python, fault, at)) if args.hta_python else None,
         "no --hta-python"),
    )  # fmt: skip
    rows = []
    for name, bar, ask, missing in tools:
        what = f"faults of which {name} names the rank and the cause"
        if ask is None:
            rows.append(Row(what, bar or "none", f"skipped: {missing}", None, COMMAND))
            continue
        with tempfile.TemporaryDirectory(prefix="beside-") as folder:
            told = {fault: ask(fault, Path(folder) / fault) for fault in args.faults}
        rows.append(_row(what, bar, told))
        for fault, said in told.items():
            verdict = " ".join(said.verdict.split())
            print(f"{name}, {fault}: {verdict[:300]}", file=sys.stderr, flush=True)
    return rows


def _row(what: str, bar: str, told: dict[str, Told]) -> Row:
    right = [fault for fault, said in told.items() if said.right(fault)]
    first = next(iter(told.values()))
    lines = "/".join(str(said.lines) for said in told.values())
    named = f" ({', '.join(right)})" if right else ""
    measured = (
        f"{len(right)} of {len(told)}{named}; {plural(first.commands, 'command')}, "
        f"{plural(first.edited, 'line')} edited, {lines} lines to read"
    )
    return Row(what, bar or "none", measured, len(right) == len(told) if bar else None, COMMAND)


def _evenstep(fault: str, folder: Path, steps: int) -> Told:
    """The script unchanged; what `evenstep run` prints of it."""
    command = [sys.executable, "-m", "evenstep", "run", "--out", str(folder), "--"]
    command += [*_torchrun(sys.executable), "--fault", fault, "--steps", str(steps)]
    _done(command)
    text = _done([sys.executable, "-m", "evenstep", "diagnose", str(folder)], wrong=(0, 1)).stdout
    head = text.partition("\n\n")[0]
    return Told(head, len(text.splitlines()), 1, 0)


def _traceml(python: str, fault: str, folder: Path, steps: int) -> Told:
    """Two lines in the script; its summary's verdict and reason."""
    script = Path(__file__).with_name("jobs") / "beside.py"
    command = [str(Path(python).with_name("traceml")), "run", "--mode", "summary"]
    command += ["--nproc-per-node", str(RANKS), "--logs-dir", str(folder.parent)]
    command += ["--run-name", folder.name, "--aggregator-port", str(free_port())]
    command += [str(script), "--args", "--fault", fault, "--tool", "traceml", "--steps", str(steps)]
    text = _done(command, path=python).stdout
    summary = [line for line in text.splitlines() if line.startswith(("|", "+"))]
    said = [line for line in summary if re.search(r"Verdict:|Why:|Next:|Evidence:", line)]
    return Told("\n".join(said), len(summary), 1, 2)


def _hta(python: str, fault: str, folder: Path) -> Told:
    """Eight lines in the script and a second one to write; HTA's table of the profiles."""
    folder.mkdir()
    job = [*_torchrun(sys.executable), "--fault", fault, "--steps", "40", "--tool", "profiler"]
    _done([*job, "--traces", str(folder)])
    files = [str(folder / f"rank-{rank}.json") for rank in range(RANKS)]
    done = _done([python, "-c", HTA, *files], wrong=(0, 1))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        why = f"no result without kernels of a GPU in the profile: {last}"
        return Told(why, len(done.stderr.splitlines()), 2, 8)
    return Told(done.stdout, len(done.stdout.splitlines()), 2, 8)


def _torchrun(python: str) -> list[str]:
    return [
        python, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS),
        "--master-port", str(free_port()), "-m", JOB,
    ]  # fmt: skip


def _done(
    command: list[str], *, wrong: tuple[int, ...] = (0,), path: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run it. Raises `JobError` where it ends with another code than those that are no failure."""
    inherited = environment()
    inherited["PATH"] = f"{Path(path).parent}:{inherited['PATH']}"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env=inherited, check=False
    )
    if done.returncode not in wrong:
        raise JobError(f"{command[0]} ended with {done.returncode}: {done.stderr[-1500:]}")
    return done
