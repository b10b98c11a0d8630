"""Is the function named in which a rank is late, and how soon is the rank?

Real jobs of two ranks on gloo, the last of which sleeps in a known function. A step counts as
looked at when a burst of looks fell into it; its place is where more of them were than anywhere
else, but for what the other rank is in as often.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import evenstep
from benchmarks.jobs.late import FUNCTIONS
from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment, free_port
from evenstep.diagnose.measure.culprits import SEPARATOR
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind

JOB = "benchmarks.jobs.late"
COMMAND = "python -m benchmarks stacks"
NAMED_BAR, SOON_BAR_S = 0.95, 5.0
SPANNED = 0.9  # of a step, by the looks at it
FIRST, AFTER = 60, 200  # steps before a rank becomes late, and since, in jobs that are timed …
LONG_S, LONG_FIRST, LONG_AFTER = 2.0, 14, 4  # … and where every step is so much longer
LONG_LATE_S = 0.4


class Found(NamedTuple):
    """What a job's trace and its terminal said."""

    right: int
    looked_at: int  # late steps
    told_s: float | None  # after the rank became late, its log named it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--places", nargs="*", default=list(FUNCTIONS))
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--every", type=int, nargs="*", default=[1, 5])
    parser.add_argument("--repeats", type=int, default=2)


def run(args: argparse.Namespace) -> list[Row]:
    """The rows."""
    found: list[Found] = []
    for place in args.places:
        for every in args.every:
            found.append(late(place, steps=args.steps, every=every))
            say(f"{place}, one step in {every}", found[-1])
    result = looked_at(found)
    for where, job in (("", short), (f", steps of {LONG_S:g} s", long)):
        timed = []
        for _ in range(args.repeats):
            timed.append(job())
            say(f"late from a step on{where}", timed[-1])
        result += told(where, [each.told_s for each in timed])
    return result


def short() -> Found:
    """A rank becomes late in steps of some tens of ms."""
    return late("hook", steps=FIRST + AFTER, first_step=FIRST)


def long() -> Found:
    """A rank becomes late in steps of seconds, in backward, which only their ends show."""
    more = ("--pause", str(LONG_S), "--sleep", str(LONG_LATE_S))
    return late("backward", *more, steps=LONG_FIRST + LONG_AFTER, first_step=LONG_FIRST)


def say(what: str, found: Found) -> None:
    """A line of progress."""
    told = "not told" if found.told_s is None else f"told after {found.told_s:.1f} s"
    print(f"{what}: {found.right} of {found.looked_at}; {told}", file=sys.stderr, flush=True)


def looked_at(found: list[Found]) -> list[Row]:
    """Steps."""
    right, total = sum(each.right for each in found), sum(each.looked_at for each in found)
    what = "late steps looked at in which the right function is named"
    met = right >= NAMED_BAR * total
    row = Row(what, f"≥ {NAMED_BAR:.0%}", f"{right} of {total}", met, COMMAND)
    return [row] if total else []


def told(where: str, told_s: list[float | None]) -> list[Row]:
    """Times."""
    known = sorted(each for each in told_s if each is not None)
    measured = f"{len(known)} of {len(told_s)}, after {max(known, default=0.0):.1f} s at most"
    met = len(known) == len(told_s) and known[-1:] <= [SOON_BAR_S]
    what = f"a rank that becomes late is named in the job's own log{where}"
    return [Row(what, f"≤ {SOON_BAR_S:.0f} s", measured, met, COMMAND)] if told_s else []


def late(place: str, *more: str, steps: int, first_step: int = 0, every: int = 1) -> Found:
    """Run a job. Raises `JobError` where it fails."""
    options = ["--steps", str(steps), "--first", str(first_step), "--every", str(every)]
    options += more
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        command = [
            sys.executable, "-m", "evenstep", "run", "--out", str(folder / "run"), "--",
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--master-port", str(free_port()), "-m", JOB, str(folder), place, *options,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, env=environment(EVENSTEP_VERDICT="0"), text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        told = [(time.monotonic(), line) for line in process.stderr]
        if process.wait():
            raise JobError("".join(line for _, line in told)[-3000:])
        began = float((folder / "began").read_text()) / 1e9
        named = re.compile(r"evenstep: rank 1 is late")
        first = next((at - began for at, line in told if named.search(line) and at > began), None)
        return Found(*judged(folder / "run", FUNCTIONS[place], every), first)


def judged(run_folder: Path, function: str, every: int) -> tuple[int, int]:
    """Late steps of rank 1 that were looked at and told right, and all that were looked at."""
    trace = evenstep.load(run_folder)
    rows = trace.of_kind(Kind.STACK)
    usual: Counter[str] = Counter()
    steps: dict[int, Counter[str]] = {}
    for rank, step, looks, name in zip(
        rows["rank"], rows.step, rows.payload, rows.name, strict=True
    ):
        place = trace.names[int(name)].partition(SEPARATOR)[0].rpartition(" ")[2]
        (usual if rank == 0 else steps.setdefault(int(step), Counter()))[place] += int(looks)
    right, looked_at = 0, 0
    for step, places in steps.items():
        if step % every == 0 and spanned(trace, rows, step):
            total = sum(places.values())
            share = {p: n / total - usual[p] / max(usual.total(), 1) for p, n in places.items()}
            right += max(share, key=lambda place: share[place]) == function
            looked_at += 1
    return right, looked_at


def spanned(trace: evenstep.Trace, rows: Columns, step: int) -> bool:
    """Whether the looks at rank 1 went through most of a step."""
    mine = rows.select((rows["rank"] == 1) & (rows.step == step))
    summary = trace.summaries[(trace.summary_rank == 1) & (trace.summaries["first_step"] == step)]
    if not len(summary):
        return False
    return int(mine.exit_ns.max() - mine.enter_ns.min()) > SPANNED * int(summary["step_sum_ns"][0])
