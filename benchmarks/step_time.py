"""Step time with evenstep ÷ without, and what other tools cost on the same script."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Ratio, Row, differences, paired_ratio
from benchmarks.ranks import ROOT, JobError, environment, run_ranks
from evenstep.statistics.interval import half_width

JOB = "benchmarks.jobs.steps"
WORLD = 4
BAR, SHORT_BAR, BESIDE_BAR = 1.003, 1.003, 1.01
SHORT = "a shorter step on one rank with ten buckets, with evenstep ÷ without"
COMMAND = "python -m benchmarks step_time"
SLEEPING = "step time with evenstep ÷ without: 4 ranks on gloo, compute is a sleep"
COMPUTING = "the same, compute-bound, 4 ranks on this machine's cores"
HALF_WIDTH = 0.005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--minutes", type=float, default=10.0, help="at most, for the first row")
    parser.add_argument("--compute-minutes", type=float, default=3.0, help="0 skips that row")
    parser.add_argument("--short-minutes", type=float, default=3.0, help="0 skips those rows")
    parser.add_argument("--blocks", type=int, default=40, help="of five steps, under other tools")
    parser.add_argument("--no-peers", action="store_true", help="skip the other tools")
    parser.add_argument("--traceml-python", help="interpreter that has traceml-ai and this torch")
    parser.add_argument("--python", default=sys.executable, help="interpreter with another torch")


def run(args: argparse.Namespace) -> list[Row]:
    """The ratio, the same without sleeps, and the peers."""
    rows = _sleeping(_paired(args, args.minutes))
    if args.short_minutes > 0:
        rows += [row for beside in (False, True) for row in _short(args, beside=beside)]
    if args.compute_minutes > 0:
        rows.append(_computing(_paired(args, args.compute_minutes, "--compute")))
    return rows if args.no_peers else rows + _peers(args)


def _paired(
    args: argparse.Namespace, minutes: float, *more: str, world: int = WORLD
) -> dict[str, Any]:
    options = ["--tool", "evenstep", "--minutes", str(minutes), *more]
    return run_ranks(JOB, *options, world=world, python=args.python, timeout_s=minutes * 60 + 300)


def _short(args: argparse.Namespace, *, beside: bool) -> list[Row]:
    """A step of about 38 ms on one rank, alone or beside a Python thread that computes."""
    more = ["--scale", "0.5", *["--beside"] * beside]
    figures = _paired(args, args.short_minutes, *more, world=1)
    ratio, bar = paired_ratio(figures["on"], figures["off"]), BESIDE_BAR if beside else SHORT_BAR
    resolved = ratio.half_width <= HALF_WIDTH
    step_ms = statistics.median(figures["off"]) * 1e3
    what = SHORT + (", beside a Python thread that computes" if beside else "")
    measured = f"{_text(ratio)}{'' if resolved else '; not resolved'}; steps of {step_ms:.1f} ms"
    met = ratio.high <= bar if resolved else None
    return [Row(what, f"upper end ≤ {bar}", measured, met, COMMAND), _processor(what, figures)]


def _sleeping(figures: dict[str, Any]) -> list[Row]:
    ratio = paired_ratio(figures["on"], figures["off"])
    resolved = ratio.half_width <= HALF_WIDTH
    step_ms = statistics.median(figures["off"]) * 1e3
    note = "" if resolved else "; not resolved"
    measured = f"{_text(ratio)}{note}; steps of {step_ms:.1f} ms in {figures['buckets']} buckets"
    met = ratio.high <= BAR if resolved else None
    row = Row(SLEEPING, f"upper end ≤ {BAR}", measured, met, COMMAND)
    return [row, _processor(SLEEPING, figures)]


def _computing(figures: dict[str, Any]) -> Row:
    ratio = paired_ratio(figures["on"], figures["off"])
    step_ms = statistics.median(figures["off"]) * 1e3
    measured = f"{_text(ratio)}; steps of {step_ms:.0f} ms"
    return Row(COMPUTING, "none", measured, None, COMMAND)


def _processor(what: str, figures: dict[str, Any]) -> Row:
    """What a step takes more of rank 0's processor time: a busy host hardly changes it, where it
    leaves the clock's ratio unresolved. The training thread's part lengthens the step."""
    more = differences(figures["on_processor"], figures["off_processor"])
    mean, half = statistics.fmean(more), half_width(more)
    share = (mean + half) / statistics.median(figures["off"])
    spent, switches = map(statistics.fmean, zip(*figures["own_threads"], strict=True))
    return Row(
        f"{what}: processor time added to a step",
        f"upper end of the training thread's ≤ {100 * (BAR - 1):.1f} % of the step",
        f"training thread {mean * 1e6:.0f} µs (± {half * 1e6:.0f}, {100 * share:.2f} % at most), "
        f"evenstep's own threads {spent * 1e6:.0f} µs in {switches:.1f} turns on a core",
        share <= BAR - 1,
        COMMAND,
    )


def _text(ratio: Ratio) -> str:
    return f"{ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f}, {ratio.pairs} pairs of blocks)"


def _peers(args: argparse.Namespace) -> list[Row]:
    """Whole runs, one per tool, between two under nobody: their ratio is the noise of the rest."""
    first = _whole(args, "none")
    tools = {
        "torch.profiler, every step": _attempt(_whole, args, "profiler"),
        "TraceML": _attempt(_traceml, args),
    }
    last = _whole(args, "none")
    plain_s = statistics.fmean([first, last])
    rows = [
        Row(f"{name}, an unpaired run of the same script", "none", _against(found, plain_s), None,
            COMMAND)
        for name, found in tools.items()
    ]  # fmt: skip
    noise = Row("nobody, twice, as unpaired as those", "none", f"{last / first:.4f}", None, COMMAND)
    return [*rows, noise]


def _against(found: float | str, plain_s: float) -> str:
    return found if isinstance(found, str) else f"{found / plain_s:.4f}"


def _attempt(measure: Any, *arguments: Any) -> float | str:
    """The figure, or why there is none."""
    try:
        return float(measure(*arguments))
    except JobError as error:
        return f"skipped: {str(error).strip().splitlines()[-1]}"


def _whole(args: argparse.Namespace, tool: str) -> float:
    options = ["--tool", tool, "--blocks", str(args.blocks)]
    figures = run_ranks(JOB, *options, world=WORLD, python=args.python)
    return statistics.fmean(figures["times"])


def _traceml(args: argparse.Namespace) -> float:
    """Seconds per step under TraceML's own launcher."""
    if not args.traceml_python:
        raise JobError("no --traceml-python was given")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        launcher = Path(args.traceml_python).with_name("traceml")
        script = ROOT / "benchmarks" / "jobs" / "steps.py"
        command = [str(launcher), "run", "--nproc-per-node", str(WORLD), "--logs-dir", folder]
        command += [str(script), "--args", "--tool", "traceml", "--blocks", str(args.blocks)]
        command += ["--result", str(result)]
        done = subprocess.run(
            command, env=environment(), cwd=folder, capture_output=True, text=True, check=False
        )
        if not result.exists():
            raise JobError(f"{(done.stderr or done.stdout)[-2000:]}")
        return statistics.fmean(json.loads(result.read_text())["times"])
