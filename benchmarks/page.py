"""The page of 1,024 ranks and 2,000 steps: how large it is, how long a browser takes to open it.

The run is a closed-form job (`benchmarks.jobs.large_run`), diagnosed whole. Opening ends when the
last chart is drawn, in the system's Chromium, without a GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row
from benchmarks.ranks import JobError, run_alone

RANKS, STEPS, COLLECTIVES = 1024, 2000, 2
MOST_SECONDS, MOST_BYTES = 3.0, 8_000_000
FREE_BYTES = 5_000_000_000
DRAWN = "html[data-ready]"
COMMAND = "python -m benchmarks page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--folder", type=Path, help="where to write the run (default: a new one)")
    parser.add_argument("--repeats", type=int, default=5, help="times the page is opened")
    parser.add_argument("--python", default=sys.executable, help="interpreter with evenstep")
    parser.add_argument("--page", type=Path, help="keep the page here")


def run(args: argparse.Namespace) -> list[Row]:
    """Write the run and its page, then open it."""
    what = f"page of {RANKS:,} ranks × {STEPS:,} steps opened"
    bar = f"< {MOST_SECONDS:.0f} s, < {MOST_BYTES / 1e6:.0f} MB"
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium:
        return [Row(what, bar, "skipped: no Chromium", None, COMMAND)]
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="page-") as folder:
        if shutil.disk_usage(folder).free < FREE_BYTES:
            raise JobError(f"{folder} needs {FREE_BYTES / 1e9:.0f} GB of free disk; see --folder")
        page = args.page or Path(folder) / "page.html"
        made = _made(Path(folder) / "run", page, args.python)
        opened = list(_openings(page, chromium, args.repeats))
    middle, size = statistics.median(opened), int(made["bytes"])
    measured = (
        f"{middle:.2f} s ({min(opened):.2f} to {max(opened):.2f}), {size / 1e6:.1f} MB; "
        f"written in {made['seconds']:.0f} s"
    )
    return [Row(what, bar, measured, middle < MOST_SECONDS and size < MOST_BYTES, COMMAND)]


def _made(folder: Path, page: Path, python: str) -> dict[str, Any]:
    size = ["--ranks", str(RANKS), "--steps", str(STEPS), "--collectives", str(COLLECTIVES)]
    run_alone("benchmarks.jobs.large_run", "--folder", str(folder / "attempt-000"), *size)
    return run_alone("benchmarks.jobs.page_making", str(folder), str(page), python=python)


def _openings(page: Path, chromium: str, repeats: int) -> Iterator[float]:
    """Seconds from asking for the page until its last chart is drawn, each in a new tab."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(repeats):
            tab = browser.new_page()
            begun = time.perf_counter()
            tab.goto(page.resolve().as_uri())
            tab.wait_for_selector(DRAWN, timeout=60_000)
            yield time.perf_counter() - begun
            tab.close()
        browser.close()
