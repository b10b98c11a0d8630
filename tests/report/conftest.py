import base64
import gzip
import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from evenstep.diagnose.finding import (
    Diagnosis,
    Effect,
    Evidence,
    Finding,
    Option,
    Projection,
    When,
    Where,
)
from evenstep.trace.columns import Columns
from evenstep.trace.trace import Group, RankInfo, Trace
from tests.report.small_run import (
    BOOT_NS,
    FIRST_STEP,
    LATE_NS,
    LATE_RANK,
    MS,
    NODES,
    RANKS,
    STEP_NS,
    STEPS,
    WAIT_NS,
    events,
    step_rows,
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The one Chromium that every test opens its pages in."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no Chromium on this machine")
    options = ["no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"]
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=found, args=[f"--{option}" for option in options]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def only_tab(browser: Any) -> Any:
    return browser.new_page()


@pytest.fixture
def tab(only_tab: Any) -> Iterator[Any]:
    """A tab as if it were new: one in which others were opened costs less."""
    only_tab.set_viewport_size({"width": 1280, "height": 720})
    only_tab.emulate_media(color_scheme="light", media="screen")
    yield only_tab
    only_tab.evaluate("localStorage.clear()")
    only_tab.goto("about:blank")


@pytest.fixture
def trace() -> Trace:
    ranks = {
        rank: RankInfo(rank, {"rank": rank, "hostname": NODES[rank // 2], "boot_id": "one"})
        for rank in range(RANKS)
    }
    return Trace(
        run={"run_id": "demo"},
        world=RANKS,
        attempt=0,
        ranks=ranks,
        events=events(
            row
            for rank in range(RANKS)
            for step in range(FIRST_STEP, FIRST_STEP + STEPS)
            for row in step_rows(rank, step)
        ),
        groups=(Group("uid", "default_pg", tuple(range(RANKS)), "gloo"),),
        names=("", "slack above the threshold"),
    )


@pytest.fixture
def steps() -> Columns:
    """What the table of steps says of this trace, written down by hand, one row a rank and step."""
    rank = np.repeat(np.arange(RANKS, dtype=np.int32), STEPS)
    step = np.tile(np.arange(FIRST_STEP, FIRST_STEP + STEPS, dtype=np.int64), RANKS)
    start = BOOT_NS + (step - FIRST_STEP) * STEP_NS
    late = np.where(rank == LATE_RANK, float(LATE_NS), 0.0)
    phases = {"input": 5, "forward": 30, "optimizer": 5, "checkpoint": 0, "evaluation": 0}
    return Columns(
        {
            "rank": rank,
            "step": step,
            "start_ns": start,
            "end_ns": start + STEP_NS,
            "wait_ns": np.where(rank == LATE_RANK, 0.0, float(WAIT_NS)),
            "lateness_ns": late,
            **{f"phase_{name}_ns": np.full(rank.size, ms * MS) for name, ms in phases.items()},
            "phase_backward_ns": 60 * MS + late,
            "phase_sync_ns": 50 * MS - late,
            "phase_other_ns": np.zeros(rank.size),
        }
    )


@pytest.fixture
def finding() -> Finding:
    return Finding(
        mode="straggler",
        layer="runtime",
        title="Garbage collection on rank 3",
        severity=0.2667,
        confidence=0.93,
        observation="ranks 0-2 wait 40 ms in 100 % of steps in the first gradient bucket",
        cause="rank 3 (node gpu012) enters last: garbage collection inside its backward",
        where=Where(ranks=(3,), nodes=("gpu012",)),
        when=When(steps=((100, 130), (140, 159)), pattern="chronic"),
        effect=Effect(0.2667, (Projection(16, 0.31, 0.28, 0.36),)),
        options=(
            Option(
                "freeze the collector after warm-up: gc.freeze(); gc.disable()",
                0.25, 0.22, 0.27, "one line, memory may grow", "replay without the pauses",
            ),
            Option("pace ranks 0-2", None, None, None, "none", "not predicted"),
        ),
        evidence=(
            Evidence("pause_per_step", 40e6, 0.0, "ns"),
            Evidence("share_of_steps", 1.0, 0.05, "share"),
            Evidence("clock_mhz", 1410.0, None, "MHz"),
        ),
    )  # fmt: skip


@pytest.fixture
def diagnosis(finding: Finding) -> Diagnosis:
    return Diagnosis(
        run={"run_id": "demo", "world": RANKS},
        summary={
            "verdict": (
                "Rank 3 (gpu012) makes the other three wait 40 ms a step, 27 % of step time, "
                "because it collects garbage inside backward; call gc.freeze() after warm-up."
            ),
            "steps": STEPS,
            "ranks": RANKS,
            "throughput": {"value": 213.3, "unit": "samples/s"},
            "step_time": {"mean_ns": 150e6, "cv": 0.004, "p50_ns": 150e6, "p99_ns": 151.2e6},
            "shares": {
                "compute": 0.667,
                "exposed_communication": 0.066,
                "wait": 0.2,
                "input": 0.033,
                "other": 0.034,
            },
            "overlapped_communication": 0.12,
            "communication_to_compute": None,
            "rank_hours_wasted": 0.0021,
            "agent": {"ns_per_collective": 1640.0, "share_of_step": 0.0004},
        },
        findings=[finding],
        limits=["a collective's end is an upper bound on gloo: transfer may be shorter than shown"],
    )


class Page:
    """The page taken apart again, independently of what put it together."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.facts = json.loads(self.script("facts"))
        self.diagnosis = json.loads(self.script("diagnosis"))
        self._raw = gzip.decompress(base64.b64decode(self.script("columns")))

    def script(self, name: str) -> str:
        found = re.findall(rf'<script type="[^"]*" id="{name}">(.*?)</script>', self.text, re.S)
        assert len(found) == 1
        return str(found[0])

    def column(self, table: str, name: str) -> Any:
        entry = self.facts["directory"][table][name]
        return np.frombuffer(self._raw, "<" + entry["type"], entry["length"], entry["offset"])


@pytest.fixture
def page_of() -> type[Page]:
    return Page
