"""What one device can show: the cost of observing it, and its stamps beside Kineto's.

Where there is no device the row says so; nothing here has a result before it has run on one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.measure import Row, paired_ratio
from benchmarks.ranks import run_ranks

JOB = "benchmarks.jobs.device_steps"
COMMAND = "python -m benchmarks gpu"
COST_BAR, STAMP_BAR_US = 1.003, 20.0
COST = "step of about 20 ms on one device, with evenstep ÷ without"
STAMPS = "ends of collectives on the device beside Kineto's, 95 % of them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--blocks", type=int, default=40, help="of twenty steps, with and without")
    parser.add_argument("--python", default=sys.executable, help="interpreter with another torch")


def run(args: argparse.Namespace) -> list[Row]:
    """Cost and stamps; one row with the reason where there is no device."""
    reason = unusable(args.python)
    if reason:
        return [Row("what one device can show", "", f"skipped: {reason}", None, COMMAND)]
    found = run_ranks(JOB, "--blocks", str(args.blocks), world=1, python=args.python)
    ratio = paired_ratio(found["on"], found["off"])
    apart = sorted(abs(each["between_ends_us"]) for each in found["stamps"])
    worst = apart[int(0.95 * (len(apart) - 1))] if apart else float("inf")
    text = f"{ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f}) on {found['device']}"
    return [
        Row(COST, f"upper end ≤ {COST_BAR}", text, ratio.high <= COST_BAR, COMMAND),
        Row(STAMPS, f"≤ {STAMP_BAR_US:g} µs", f"{worst:.1f} µs", worst <= STAMP_BAR_US, COMMAND),
    ]


def unusable(python: str) -> str:
    """Why this interpreter's torch cannot use a device; "" where it can."""
    code = "import torch; print(torch.cuda.is_available(), torch.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    usable, _, version = done.stdout.strip().partition(" ")
    return "" if usable == "True" else f"torch {version or '?'} sees no CUDA device"
