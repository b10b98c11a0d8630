"""The charts of the page, read and moved as a person would."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.what_if.what_if import WhatIfGain
from evenstep.report.page import html
from evenstep.report.terminal import overview
from evenstep.trace.columns import Columns
from evenstep.trace.trace import Trace
from tests.report.test_browser import CHROMIUM, Opened, browser
from tests.report.test_scaling import PROJECTION

__all__ = ["browser"]
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ASKED = WhatIfGain("rank:3=median", 0.25, 0.24, 0.26, 150_000_000, 112_000_000, "replay", None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one page lies that is only looked at."""
    return tmp_path_factory.mktemp("page") / "page.html"


@pytest.fixture
def file(place: Path, diagnosis: Diagnosis, trace: Trace, steps: Columns) -> Path:
    if not place.exists():
        more = {"answers": [ASKED], "projection": PROJECTION, "price_per_rank_hour": 2.0}
        html.write(diagnosis, trace, place, steps=steps, **more)
    return place


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Opened]:
    page = browser.new_page(color_scheme="light")
    yield Opened(page, file)
    page.close()


def press(opened: Opened, chart: str, *keys: str) -> str:
    opened.page.focus(f"#{chart}")
    for key in keys:
        opened.page.keyboard.press(key)
    return opened.read(chart)


def test_every_section_is_there_and_nothing_complains(opened: Opened) -> None:
    shown = opened.page.eval_on_selector_all("section > h2", "all => all.map(h => h.textContent)")
    assert shown == [
        "Where a step’s time goes", "Findings", "Step time over the run", "Who waits",
        "Who is late", "Inside one step", "Who waits for whom", "The critical path",
        "Phases of each rank", "Collectives by size", "Where ranks run",
        "Which hosts wait for each other", "Scaling", "What if",
        "Mean step of each rank", "How well clocks agree", "What evenstep itself cost",
        "What this trace cannot tell",
    ]  # fmt: skip
    assert opened.complaints == []
    assert len(opened.requests) == 1


def test_links_lead_to_sections(opened: Opened) -> None:
    anchors = opened.page.eval_on_selector_all("nav a", "all => all.map(a => a.hash.slice(1))")
    assert len(anchors) == 14
    assert all(opened.page.query_selector(f"#{anchor}") for anchor in anchors)


def test_money_is_the_summarys_rank_hours_times_the_price(opened: Opened) -> None:
    text = opened.page.inner_text(".cost")
    assert "0.0021 of 0.01" in text  # 4 ranks × 60 steps × 150 ms are .01 hours
    assert "0.0042" in text  # at 2 a rank-hour
    best = opened.page.inner_text(".best")
    assert "worth 48 a day at 2 a rank-hour" in best  # a quarter of 4 ranks × 24 h × 2


def test_the_best_option_stands_at_the_top_with_its_gain(opened: Opened) -> None:
    text = opened.page.inner_text(".best")
    assert "gc.freeze()" in text
    assert "gives back 25 % of step time (22 to 27 %)" in text


def test_a_row_of_the_matrix_reads_what_it_lost(opened: Opened) -> None:
    text = press(opened, "matrix", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight")
    assert text.startswith("rank 0 on gpu011 lost 2.1 s waiting for rank 3 on gpu012: 33.3 %")


def test_a_step_of_the_critical_path_names_its_rank_and_phase(opened: Opened) -> None:
    assert opened.page.inner_text("#bounds-legend").split() == ["backward"]
    assert press(opened, "bounds", "End") == "step 159: bounded by rank 3 on gpu012, in backward"
    opened.page.keyboard.press("Enter")
    chosen = opened.page.eval_on_selector("#spans-step", "s => s.selectedOptions[0].text")
    assert chosen.startswith("159 ")


def test_a_box_reads_its_quantiles(opened: Opened) -> None:
    text = press(opened, "boxes", "ArrowDown", "ArrowDown")
    assert text.startswith("backward on rank 0: median 60 ms")
    assert press(opened, "boxes", "End").startswith("backward on rank 3: median 100 ms")


def test_a_floor_reads_its_size_time_and_bandwidth(opened: Opened) -> None:
    assert press(opened, "scatter", "ArrowRight") == "floor of 25 MB: 5 ms, 5 GB/s"
    assert "7.5 GB/s (the run's own best)" in opened.page.inner_text("#scatter-note")


def test_a_tile_reads_where_its_rank_runs(opened: Opened) -> None:
    text = press(opened, "places", "End")
    assert text == "rank 3 on gpu012 · waits 0 a step · late by 40 ms"


def test_a_line_between_hosts_reads_what_each_waited_for_the_other(opened: Opened) -> None:
    # ranks 0 and 1 on one host wait 35 ms in 60 steps for rank 3 on the other; so does rank 2 there
    text = press(opened, "host-waits", "ArrowRight")
    assert text == "gpu011 waited 4.2 s for gpu012 · gpu012 waited 0 for gpu011"
    row = " ".join(opened.page.inner_text("#host-waits-map tbody tr").split())
    assert row == "gpu011 gpu012 4.2 s 67 %"


def test_what_if_and_scaling_stand_in_the_page(opened: Opened) -> None:
    row = " ".join(opened.page.inner_text("#what-if tbody tr").split())
    assert row == "rank:3=median 25 % (24 to 26 %) 150 ms 112 ms replay"
    assert opened.page.eval_on_selector_all("#scaling circle", "all => all.length") == 2


def test_zooming_by_a_drag_shows_fewer_steps_in_both_maps(opened: Opened) -> None:
    heat = opened.page.query_selector("#heat")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    before = opened.page.eval_on_selector("#late", "canvas => canvas.toDataURL()")
    opened.page.mouse.move(box["x"] + 300, box["y"] + 15)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 500, box["y"] + 60)
    opened.page.mouse.up()
    assert opened.page.eval_on_selector("#late", "canvas => canvas.toDataURL()") != before
    assert ", step 100: " in press(opened, "heat", "Home")  # the view follows what is read
    opened.page.click("#heat-all")
    opened.page.mouse.move(0, 0)
    assert opened.page.eval_on_selector("#late", "canvas => canvas.toDataURL()") == before


def test_close_up_does_not_begin_at_nothing(opened: Opened) -> None:
    before = opened.page.eval_on_selector("#curve", "canvas => canvas.toDataURL()")
    opened.page.check("#curve-close")
    assert opened.page.eval_on_selector("#curve", "canvas => canvas.toDataURL()") != before


def test_no_width_scrolls_the_page_sideways(opened: Opened) -> None:
    for width in (390, 800, 1400):
        opened.page.set_viewport_size({"width": width, "height": 900})
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_control_is_reached_by_the_tab_key(opened: Opened) -> None:
    opened.page.evaluate("document.body.focus()")
    reached = set()
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        reached.add(opened.page.evaluate("document.activeElement.id"))
    charts = {"curve", "heat", "late", "spans", "matrix", "bounds", "boxes", "scatter", "places"}
    assert charts | {"host-waits"} <= reached


def test_zooming_into_a_large_run_reads_single_ranks_and_steps(
    browser: Any, diagnosis: Diagnosis, trace: Trace, steps: Columns, tmp_path: Path
) -> None:
    ranks = 3 * overview.RANK_BINS
    whole = Columns(
        {name: np.tile(steps[name], ranks // len(trace.ranks)) for name in steps}
    ).with_column("rank", np.repeat(np.arange(ranks, dtype=np.int32), 60))
    large = replace(trace, world=ranks)
    html.write(diagnosis, large, tmp_path / "large.html", steps=whole)
    page = Opened(browser.new_page(), tmp_path / "large.html")
    assert press(page, "heat", "Home").startswith("ranks 0-2, step 100: ")
    text = press(page, "heat", "+", "+", "ArrowDown", "ArrowDown", "ArrowDown")
    assert text == "rank 3 on gpu012, step 100: wait 0, lateness 40 ms, step 150 ms (to within 2 %)"
    page.page.close()
