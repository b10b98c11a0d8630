"""Names from a trace on every page in a real Chromium: markup, quotes, newlines, emoji, marks that
turn the direction of text. All of it is text, and none of it moves what stands beside it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.cli import compare, sweep
from evenstep.diagnose.compare.result import Comparison
from evenstep.report.page import html
from evenstep.watch.web import LiveServer
from evenstep.words import printable
from lab import drawing as lab_page
from lab.drawing import Block, Series
from tests.report.small_run import HOSTILE
from tests.report.test_browser import UNFOLD
from tests.report.test_lab_page import document as lab_document
from tests.report.test_live_web import picture
from tests.report.test_sweep_page import combination
from tests.report.test_sweep_page import document as sweep_document

__all__ = ["lab_document", "sweep_document"]

TURNS = "\u202e\u200f\u2066"  # right-to-left override, right-to-left mark, isolate
NAME = f"{HOSTILE}😀{TURNS}שלום\u202c"
SAID = "\ufffd\ufffd\ufffdשלום"  # the turning marks as they are shown, what follows in its place

Shown = Callable[[str], str]


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Shown]:
    """Opens a page, reads every chart, and says all that stands on it."""
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def open_(text: str) -> str:
        (tmp_path / "page.html").write_text(text, "utf-8")
        page.goto((tmp_path / "page.html").as_uri())
        if "<canvas" in text:
            page.wait_for_selector("html[data-ready]")
            page.evaluate(UNFOLD)
        for chart in page.query_selector_all("canvas[tabindex], svg[tabindex]"):
            chart.focus()
            page.keyboard.press("ArrowRight")
        assert page.query_selector("img, script[src]") is None
        assert complaints == []
        return str(page.inner_text("body"))

    yield open_
    page.close()


def calm(text: str) -> bool:
    return not set(text) & set(TURNS + "\u202c")


def test_a_report(shown: Shown, diagnosis: Any, trace: Any, steps: Any) -> None:
    for rank in (2, 3):
        trace.ranks[rank].identity["hostname"] = NAME
    trace.names = ("", NAME)
    trace.groups = (replace(trace.groups[0], name=NAME),)
    finding = replace(diagnosis.findings[0], cause=NAME, observation=NAME)
    strange = replace(diagnosis, run={"run_id": NAME}, findings=[finding], limits=[NAME])
    text = shown(html.render(strange, trace, steps=steps))
    assert calm(text)
    assert text.count(SAID) >= 6  # host, finding, limit, table, and what charts read out
    assert f"waited 0 for {printable('gpu011')}" in text


def test_a_sweep(shown: Shown, sweep_document: Any) -> None:
    rows = [combination(at, **{NAME: f"{NAME}{at}"}) for at in (0.5, 0.25)]
    varied = {"vary": {NAME: [f"{NAME}0.5", f"{NAME}0.25"]}, "combinations": rows}
    text = shown(sweep.render(sweep_document | varied, NAME))
    assert calm(text)
    assert text.count(SAID) >= 6


def test_a_comparison_of_the_laboratory(shown: Shown, lab_document: Any) -> None:
    for arm in lab_document["arms"]:
        arm["jobs"][0]["job"] = NAME
    lab_document["scenario"] = NAME
    series = [Series(NAME, np.arange(4.0), np.full(4, 40.0), np.ones(4, bool))]
    text = shown(lab_page.render(lab_document, series, [Block("gap", 0.0, 4.0, True)]))
    assert calm(text)
    assert text.count(SAID) >= 4


def test_a_comparison_of_runs(shown: Shown) -> None:
    found = Comparison(name=NAME, verdict="worse", sentence=NAME, limits=[NAME])
    text = shown(compare.page(NAME, [found]))
    assert calm(text)
    assert text.count(SAID) >= 3


def test_a_live_job(browser: Any, tmp_path: Path) -> None:
    with LiveServer() as server:
        page = browser.new_page()
        page.goto(server.url)
        server.publish(picture(tmp_path / "none", verdict=NAME, run=NAME))
        page.wait_for_selector("#verdict:has-text('שלום')")
        text = page.inner_text("body")
        page.close()
    assert calm(text)
    assert text.count(SAID) == 2
