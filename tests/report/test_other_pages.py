"""The pages of a sweep and of a comparison in a real Chromium, and the commands that write them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.cli import sweep as command
from evenstep.cli.main import main
from evenstep.report.page import sheet
from lab import drawing as lab_page
from lab.__main__ import main as lab
from lab.drawing import Block, Series
from tests.report.test_browser import Opened
from tests.report.test_lab_page import Steps
from tests.report.test_lab_page import document as comparison  # noqa: F401 - a fixture
from tests.report.test_sweep_page import document as sweep  # noqa: F401 - a fixture

SCENARIO = """
name = "two nodes"
[cluster]
nodes = 2
[work]
forward_ms = 10
gradient_bytes = "10MB"
[run]
steps = 5
"""


@pytest.fixture
def opened(tab: Any, tmp_path: Path) -> Iterator[Any]:
    pages = []

    def open_(text: str) -> Opened:
        sheet.write(tmp_path / "page.html", text)
        pages.append(Opened(tab, tmp_path / "page.html"))
        return pages[-1]

    yield open_
    for page in pages:
        page.leave()


def test_a_sweeps_cells_carry_its_numbers_and_follow_the_measure(opened: Any, sweep: Any) -> None:  # noqa: F811
    page = opened(command.render(sweep, "job"))
    assert page.page.locator(".matrix td").all_inner_texts() == ["50", "25", "12.5", "6.25"]
    page.page.select_option("#sweep-measure", "efficiency")
    assert page.page.locator(".matrix td").all_inner_texts() == ["50 %", "25 %", "12 %", "6.2 %"]
    assert (page.complaints, len(page.requests)) == ([], 1)


def test_a_sweeps_table_sorts_by_the_head_that_is_pressed(opened: Any, sweep: Any) -> None:  # noqa: F811
    page = opened(command.render(sweep, "job")).page
    first = ".sortable tbody tr:first-child th:first-child"
    page.click(".sortable thead th:nth-child(4) button")  # throughput, lowest first
    assert page.inner_text(first) == "4"
    page.click(".sortable thead th:nth-child(4) button")
    assert page.inner_text(first) == "2"
    assert page.get_attribute(".sortable thead th:nth-child(4)", "aria-sort") == "descending"


def test_a_sweeps_curves_are_read_with_the_keyboard(opened: Any, sweep: Any) -> None:  # noqa: F811
    page = opened(command.render(sweep, "job"))
    page.page.focus("#sweep-lines")
    page.page.keyboard.press("ArrowRight")
    assert page.read("sweep-lines") == "nodes 2, buckets 1: throughput 50 (45 to 55)"


def test_a_comparisons_steps_are_drawn_and_read(opened: Any, comparison: Any) -> None:  # noqa: F811
    start_s = np.arange(0.0, 4.0, 0.1)
    series = [Series("a", start_s, 40 + (start_s < 2), start_s >= 0.5)]
    blocks = [Block("baseline", 0.0, 2.0, True), Block("gap", 2.0, 4.0, True)]
    page = opened(lab_page.render(comparison, series, blocks))
    page.page.focus("#blocks")
    page.page.keyboard.press("ArrowRight")
    assert page.read("blocks") == (
        "a at 0 s (block 0, baseline): step 41 ms, median of the block 41 ms; not counted"
    )
    assert len(page.colors("blocks")) > 5
    assert (page.complaints, len(page.requests)) == ([], 1)


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    (tmp_path / "two.toml").write_text(SCENARIO)
    return str(tmp_path / "two.toml")


def test_sweep_writes_its_page(scenario: str, tmp_path: Path, capsys: Any) -> None:
    page = tmp_path / "sweep.html"
    asked = ["sweep", scenario, "--vary", "nodes=2,4", "--workers", "1", "--html", str(page)]
    assert main(asked) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"Wrote {page}"
    assert "two nodes · sweep · 2 combinations" in page.read_text("utf-8")
    assert main(asked) == 2
    assert "--force" in capsys.readouterr().err


def test_simulate_writes_the_page_of_its_trace_with_the_links(
    scenario: str, tmp_path: Path, capsys: Any
) -> None:
    page = tmp_path / "simulated.html"
    assert main(["simulate", scenario, "--html", str(page)]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"Wrote {page}"
    text = page.read_text("utf-8")
    assert "The simulated fabric." in text
    assert "node0.nic0.send" in text
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


ONE_JOB = """
[[jobs]]
ranks = 2
compute_ms = 8
gradient_bytes = "200kB"
[run]
rounds = 1
warm_up_rounds = 0
block_s = 0.6
settle_s = 0.1
"""


def test_a_real_comparison_has_every_step_and_what_the_simulator_says(
    tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "one.toml").write_text(ONE_JOB)
    page = tmp_path / "compared.html"
    asked = ["compare", "slack", "-f", str(tmp_path / "one.toml"), "--html", str(page)]
    assert lab(asked) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"Wrote {page}"
    drawn = Steps(page.read_text("utf-8"))
    assert sorted(block["arm"] for block in drawn.facts["blocks"]) == [0, 1, 2]
    start_s, step_ms = drawn.column("job0", "start_s"), drawn.column("job0", "step_ms")
    assert np.diff(start_s) == pytest.approx(step_ms[:-1] / 1e3, abs=1e-6)  # one after the other
    assert "Diamonds are predictions of the simulator" in drawn.text


def test_only_a_comparison_of_the_laboratory_has_a_page(tmp_path: Path, capsys: Any) -> None:
    assert lab(["fields", "--html", str(tmp_path / "x.html")]) == 2
    assert "--html is of" in capsys.readouterr().err
