"""The page of a sweep: its numbers are the document's, and names of values stay text."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evenstep.cli import sweep
from evenstep.cli.sweep import MEASURES
from evenstep.report.page import sheet
from tests.report.small_run import HOSTILE


def combination(value: float, **varied: object) -> dict[str, object]:
    known = {"throughput": 100 * value, "efficiency": value, "step_mean_ns": 1e6 / value}
    spread = {name: {"value": at, "low": 0.9 * at, "high": 1.1 * at} for name, at in known.items()}
    row = {measure.name: spread.get(measure.name) for measure in MEASURES}
    return {"varied": varied, "ranks": 8, "nodes": 2, "steps": 9, "unit": "samples/s"} | row


@pytest.fixture
def document() -> dict[str, object]:
    rows = [
        combination(1 / (nodes * buckets), **{"cluster.nodes": nodes, "work.buckets": buckets})
        for nodes in (2, 4)
        for buckets in (1, 4)
    ]
    vary = {"cluster.nodes": ["2", "4"], "work.buckets": ["1", "4"]}
    counts = {"repeats": 3, "simulations": 12, "finished": 12, "partial": False}
    return {"schema": "evenstep.sweep/1", "vary": vary, "combinations": rows} | counts


def script(text: str, name: str) -> object:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def test_the_page_carries_the_json_of_the_sweep(document: dict[str, object]) -> None:
    assert script(sweep.render(document, "job"), "sweep") == document


def test_the_best_combination_of_each_measure_is_named(document: dict[str, object]) -> None:
    text = sweep.render(document, "job")
    assert "highest throughput</th>" in text
    assert "50 samples/s</td><td>nodes 2, buckets 1" in text


def test_what_no_combination_has_is_no_column(document: dict[str, object]) -> None:
    assert "cost a unit" not in sweep.render(document, "job")


def test_a_partial_sweep_says_how_far_it_came(document: dict[str, object]) -> None:
    text = sweep.render(document | {"partial": True, "finished": 5}, "job")
    assert "5 of 12 simulations are finished" in text


def test_a_sweep_of_which_nothing_is_finished_has_a_page(document: dict[str, object]) -> None:
    assert "No simulation finished." in sweep.render(document | {"combinations": []}, "job")


def test_names_and_values_stay_text(document: dict[str, object]) -> None:
    row = combination(1.0, **{HOSTILE: HOSTILE})
    text = sweep.render(document | {"vary": {HOSTILE: ["1"]}, "combinations": [row]}, HOSTILE)
    assert "<img" not in text
    assert text.count("</script>") == 3


def test_nothing_is_fetched_from_anywhere(document: dict[str, object]) -> None:
    text = sweep.render(document, "job")
    assert not re.findall(r"https?://|@import|url\(|fetch\(", text)
    assert sheet.content_hash(sheet.script(sweep.SCRIPTS)) in text


def test_the_verdict_names_the_best_combination_and_what_each_field_changes(document) -> None:
    text = sweep.render(document, "job")
    assert "Throughput is highest with nodes 2, buckets 1: 50 samples/s</h1>" in text
    rows = document["combinations"]  # 50, 12.5, 25 and 6.25
    assert sweep.swing(rows, "cluster.nodes") == pytest.approx(1.0)
    assert sweep.swing(rows, "work.buckets") == pytest.approx(3.0)
    assert sweep.swing(rows[:1], "work.buckets") is None


def test_a_narrow_window_scrolls_its_charts_and_not_the_page(
    document: dict[str, object], browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "sweep.html"
    file.write_text(sweep.render(document, "job"))
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto(file.as_uri())
    page.wait_for_function("document.getElementById('sweep-lines').width > 0")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.close()
