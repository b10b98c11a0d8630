"""Is the right rank named? Jobs with a known disturbance, diagnosed as a user would.

Each job runs under `evenstep run` and torchrun; the verdict is that of `evenstep diagnose --json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Row
from benchmarks.ranks import JobError, environment

JOB = "benchmarks.jobs.disturbed"
SLEEP_MS = 50.0
TOLERANCE = 0.10
SEVERE = 0.05
OWN_WAIT_BAR_MS = 5.0
LONG_PAUSE_NS = 200_000_000
COMMAND = "python -m benchmarks waits"
EXIT_FINDINGS = 1


class OwnWait(NamedTuple):
    """What rank 1 waited in the steps in which it collected garbage, and in the others (medians).

    `in_flight_ms` is what its own records say of the longest bucket of such a step, taken at face
    value: the callback that ends it could not run before the collection was over.
    """

    collecting_ms: float
    otherwise_ms: float
    in_flight_ms: float

    @property
    def rise_ms(self) -> float:
        """The difference."""
        return self.collecting_ms - self.otherwise_ms


class Outcome(NamedTuple):
    """A diagnosed run."""

    diagnosis: dict[str, Any]
    truth: dict[str, Any]
    own: OwnWait | None  # of the rank that collects garbage

    @property
    def findings(self) -> list[dict[str, Any]]:
        """All of them, worst first."""
        found: list[dict[str, Any]] = self.diagnosis["findings"]
        return found

    @property
    def top(self) -> dict[str, Any] | None:
        """The worst."""
        return self.findings[0] if self.findings else None

    def says(self) -> str:
        """Who, why, how much: the worst finding in short."""
        if self.top is None:
            return "no finding"
        ranks = self.top["where"]["ranks"]
        who = f"rank {', '.join(map(str, ranks))}" if ranks else "no rank"
        return f"{self.top['mode']}, {who}, severity {self.top['severity']:.2f}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a healthy run")
    parser.add_argument("--repeats", type=int, default=2, help="of the healthy runs")
    parser.add_argument("--python", default=sys.executable, help="interpreter with another torch")


def run(args: argparse.Namespace) -> list[Row]:
    """Every scenario at two and four ranks; the collector's at two."""
    rows = []
    for world in (2, 4):
        rows.append(_slept(world, play("sleep", world, args)))
        rows.append(_rotated(world, play("rotate", world, args)))
    rows.append(_collected(play("collect", 2, args)))
    return rows + [
        _healthy(world, [play("healthy", world, args) for _ in range(args.repeats)])
        for world in (2, 4)
    ]


def play(scenario: str, world: int, args: argparse.Namespace) -> Outcome:
    """Run one job under `evenstep run` and diagnose it."""
    with tempfile.TemporaryDirectory() as folder:
        run, truth = Path(folder) / "run", Path(folder) / "truth"
        job = ["--scenario", scenario, "--steps", str(args.steps), "--truth", str(truth)]
        if scenario == "healthy":
            job += ["--seconds", str(args.seconds)]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        ours = [args.python, "-m", "evenstep", "run", "--out", str(run), "--"]
        _call([*ours, args.python, *launcher, "-m", JOB, *job], folder)
        said = _call([sys.executable, "-m", "evenstep", "diagnose", str(run), "--json"], folder)
        own = own_wait(run) if scenario == "collect" else None
        return Outcome(json.loads(said), json.loads(truth.read_text()), own)


def _call(command: list[str], folder: str) -> str:
    """Output of a command that ends well, findings above the threshold included."""
    quiet = environment(EVENSTEP_VERDICT="0")
    done = subprocess.run(
        command, env=quiet, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, EXIT_FINDINGS):
        raise JobError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def own_wait(run: Path) -> OwnWait:
    """Rank 1's own waits, from the trace."""
    import numpy as np

    from evenstep.diagnose.measure.grid import step_grid
    from evenstep.trace.loading import load
    from evenstep.trace.spool.layout import Kind

    trace = load(run)
    grid = step_grid(trace)
    column = list(grid.ranks).index(1)
    wait, pause = grid.wait_ns[:, column], grid.pause_ns[:, column]
    long = pause >= LONG_PAUSE_NS
    rows = trace.of_kind(Kind.COLLECTIVE)
    rows = rows.select((rows["rank"] == 1) & np.isin(rows.step, grid.steps[long]))
    in_flight = [
        (rows.exit_ns - rows.enter_ns)[rows.step == step].max() for step in grid.steps[long]
    ]
    figures = (np.median(wait[long]), np.median(wait[~long]), np.median(in_flight))
    return OwnWait(*(float(value) / 1e6 for value in figures))


def evidence(finding: dict[str, Any], metric: str) -> float | None:
    """What a finding has measured, None where it does not say."""
    for entry in finding["evidence"]:
        if entry["metric"] == metric and entry["measured"] is not None:
            return float(entry["measured"])
    return None


def _slept(world: int, outcome: Outcome) -> Row:
    top = outcome.top
    wait_ns = evidence(top, "wait_of_the_others") if top else None
    error = None if wait_ns is None else wait_ns / 1e6 / SLEEP_MS - 1
    right = (
        top is not None
        and top["where"]["ranks"] == [1]
        and "backward" in top["cause"]
        and error is not None
        and abs(error) <= TOLERANCE
    )
    shown = "no wait given" if error is None else f"wait {error:+.1%}"
    cause = f"; cause: {top['cause']}" if top else ""
    return Row(
        f"rank 1 sleeps 50 ms inside backward, {world} ranks",
        "rank 1 alone; 50 ms ± 10 %; “inside backward”",
        f"{outcome.says()}; {shown}{cause}",
        right,
        COMMAND,
    )


def _rotated(world: int, outcome: Outcome) -> Row:
    """Nobody may be singled out: all ranks take turns, or none is named."""
    top = outcome.top
    ranks = sorted(top["where"]["ranks"]) if top else []
    pattern = top["when"]["pattern"] if top else None
    right = top is not None and pattern == "rotating" and ranks in ([], list(range(world)))
    return Row(
        f"the sleeping rank rotates, {world} ranks",
        "rotating; nobody singled out",
        f"{outcome.says()}; pattern {pattern}",
        right,
        COMMAND,
    )


def _collected(outcome: Outcome) -> Row:
    top, own = outcome.top, outcome.own
    pause_s = outcome.truth["shortest_pause_s"]
    right = (
        top is not None
        and top["where"]["ranks"] == [1]
        and top["mode"] == "runtime_jitter"
        and "garbage" in top["cause"]
        and own is not None
        and own.rise_ms < OWN_WAIT_BAR_MS
        and pause_s * 1e9 >= LONG_PAUSE_NS
    )
    return Row(
        "garbage collection of ≥ 200 ms on rank 1 with a bucket in flight, 2 ranks",
        f"rank 1, garbage collection; its own wait rises < {OWN_WAIT_BAR_MS:.0f} ms",
        f"{outcome.says()}; {_own(own)}; shortest pause {pause_s * 1e3:.0f} ms"
        + (f"; cause: {top['cause']}" if top else ""),
        right,
        COMMAND,
    )


def _own(own: OwnWait | None) -> str:
    if own is None:
        return "no wait given"
    return (
        f"own wait {own.collecting_ms:.2f} ms against {own.otherwise_ms:.2f} ms in the other steps "
        f"(bucket in flight as recorded: {own.in_flight_ms:.0f} ms)"
    )


def _healthy(world: int, outcomes: list[Outcome]) -> Row:
    """Two ranks fit this machine's two cores; four do not, and that may be said."""
    bar = "no finding above 5 %"
    allowed = 0
    if world > 2:
        bar = "at most one runtime_jitter, cause CPU oversubscription, no culprit rank"
        allowed = 1
    right = all(_innocent(outcome, allowed) for outcome in outcomes)
    cv = [outcome.diagnosis["summary"]["step_time"]["cv"] for outcome in outcomes]
    said = "; ".join(
        f"{outcome.says()} (CV {value:.2f})" for outcome, value in zip(outcomes, cv, strict=True)
    )
    return Row(f"healthy, compute-bound, {world} ranks", bar, said, right, COMMAND)


def _innocent(outcome: Outcome, allowed: int) -> bool:
    severe = [finding for finding in outcome.findings if finding["severity"] > SEVERE]
    return len(severe) <= allowed and all(
        finding["mode"] == "runtime_jitter"
        and not finding["where"]["ranks"]
        and ("oversubscri" in finding["cause"] or "runnable" in finding["cause"])
        for finding in severe
    )
