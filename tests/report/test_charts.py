"""The charts of the page, read and moved as a person would."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.diagnose.finding import Diagnosis, Where
from evenstep.diagnose.predict.what_if import WhatIfGain
from evenstep.report.page import html, sheet
from evenstep.trace.columns import Columns
from evenstep.trace.trace import RankInfo, Trace
from tests.report.test_browser import COLORS, Opened

ASKED = WhatIfGain("rank:3=median", 0.25, 0.24, 0.26, 150_000_000, 112_000_000, "replay", None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one page lies that is only looked at."""
    return tmp_path_factory.mktemp("page") / "page.html"


@pytest.fixture
def file(place: Path, diagnosis: Diagnosis, trace: Trace, steps: Columns) -> Path:
    if not place.exists():
        more = {"answers": [ASKED], "price_per_rank_hour": 2.0}
        sheet.write(place, html.render(diagnosis, trace, steps=steps, **more))
    return place


@pytest.fixture
def opened(tab: Any, file: Path) -> Iterator[Opened]:
    page = Opened(tab, file)
    yield page
    page.leave()


def press(opened: Opened, chart: str, *keys: str) -> str:
    opened.page.focus(f"#{chart}")
    for key in keys:
        opened.page.keyboard.press(key)
    return opened.read(chart)


def test_every_section_is_there_and_nothing_complains(opened: Opened) -> None:
    shown = opened.page.eval_on_selector_all("section h2", "all => all.map(h => h.textContent)")
    assert shown == [
        "Shares of step time", "Findings", "Step time over the run", "Who is late, who waits",
        "Inside one step", "Who waits for whom", "The critical path",
        "Phases of each rank", "Collectives by size", "Where ranks run",
        "Which hosts wait for each other", "What if",
        "Mean step of each rank", "How well clocks agree", "Overhead of evenstep",
        "What this trace cannot tell",
    ]  # fmt: skip
    assert opened.complaints == []
    assert len(opened.requests) == 1


def test_links_lead_to_sections_by_their_names(opened: Opened) -> None:
    named = (
        "all => all.map(a => [a.textContent, document.querySelector(a.hash + ' h2').textContent])"
    )
    links = opened.page.eval_on_selector_all("nav a", named)
    assert len(links) == 15
    assert all(link == heading for link, heading in links)


def test_money_is_the_summarys_rank_hours_times_the_price(opened: Opened) -> None:
    text = opened.page.inner_text(".cost")
    assert "0.0021 of 0.01" in text  # 4 ranks × 60 steps × 150 ms are .01 hours
    assert "0.0042" in text  # at 2 a rank-hour
    best = opened.page.inner_text(".best")
    assert "worth 48 a day at 2 per rank-hour" in best  # a quarter of 4 ranks × 24 h × 2


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
    assert "7.5 GB/s (the best of this run)" in opened.page.inner_text("#scatter-note")


def test_a_tile_reads_where_its_rank_runs(opened: Opened) -> None:
    text = press(opened, "places", "End")
    assert text == "rank 3 on gpu012 · waits 0 a step · late by 40 ms"


def test_a_line_between_hosts_reads_what_each_waited_for_the_other(opened: Opened) -> None:
    # ranks 0 and 1 on one host wait 35 ms in 60 steps for rank 3 on the other; so does rank 2 there
    text = press(opened, "host-waits", "ArrowRight")
    assert text == "gpu011 waited 4.2 s for gpu012 · gpu012 waited 0 for gpu011"
    row = " ".join(opened.page.inner_text("#host-waits-map tbody tr").split())
    assert row == "gpu011 gpu012 4.2 s 67 %"


def test_what_if_stands_in_the_page(opened: Opened) -> None:
    row = " ".join(opened.page.inner_text("#what-if tbody tr").split())
    assert row == "rank:3=median 25 % (24 to 26 %) 150 ms 112 ms replay"


def test_zooming_by_a_drag_shows_fewer_steps(opened: Opened) -> None:
    heat = opened.page.query_selector("#heat")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    press(opened, "heat", "Home")
    before = opened.page.eval_on_selector("#heat", "canvas => canvas.toDataURL()")
    opened.page.mouse.move(box["x"] + 300, box["y"] + 25)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 500, box["y"] + 70)
    opened.page.mouse.up()
    assert opened.page.eval_on_selector("#heat", "canvas => canvas.toDataURL()") != before
    assert ", step 100: " in press(opened, "heat", "Home")  # the view follows what is read
    opened.page.click("#heat-all")
    press(opened, "heat", "ArrowUp", "ArrowUp", "ArrowUp", "Home")
    assert opened.page.eval_on_selector("#heat", "canvas => canvas.toDataURL()") == before


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
    for _ in range(80):
        opened.page.keyboard.press("Tab")
        reached.add(opened.page.evaluate("document.activeElement.id"))
    charts = {"search", "curve", "heat", "spans", "matrix", "bounds", "boxes", "scatter", "places"}
    assert charts | {"host-waits"} <= reached


RANKS, NODE, LATE = 1024, 8, 341


@pytest.fixture(scope="module")
def large_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("large") / "large.html"


@pytest.fixture
def large(tab: Any, large_place: Path, diagnosis: Diagnosis, trace: Trace) -> Iterator[Opened]:
    """1,024 ranks in 150 steps, all a little late, one of them by 9 ms and named."""
    if not large_place.exists():
        write_large(large_place, diagnosis, trace)
    tab.set_viewport_size({"width": 1280, "height": 900})
    page = Opened(tab, large_place, folded=True)
    yield page
    page.leave()


def write_large(place: Path, diagnosis: Diagnosis, trace: Trace) -> None:
    steps = 150
    rank = np.repeat(np.arange(RANKS, dtype=np.int32), steps)
    late = np.random.default_rng(5).uniform(0, 2e6, rank.size) + 9e6 * (rank == LATE)
    step = np.tile(np.arange(100, 100 + steps), RANKS)
    table = Columns(
        {
            "rank": rank, "step": step, "start_ns": step * 80_000_000,
            "end_ns": step * 80_000_000 + 75_000_000, "wait_ns": 11e6 - late, "lateness_ns": late,
            "phase_backward_ns": np.full(rank.size, 40e6),
        }
    )  # fmt: skip
    ranks = {
        at: RankInfo(
            at, {"rank": at, "hostname": f"gpu{at // NODE:03d}", "boot_id": f"{at // NODE}"}
        )
        for at in range(RANKS)
    }
    named = replace(diagnosis.findings[0], where=Where(ranks=(LATE,)), title="Slow rank")
    whole = replace(diagnosis, findings=[named, *diagnosis.findings[1:]])
    several = replace(trace, world=RANKS, ranks=ranks)
    sheet.write(place, html.render(whole, several, steps=table))


COLUMN = """(canvas) => {
  const box = canvas.getBoundingClientRect();
  const at = Math.round(canvas.width * 0.5);
  const pixels = canvas.getContext("2d").getImageData(at, 0, 1, canvas.height).data;
  const found = [];
  for (let y = 0; y < canvas.height; y += 1) found.push([...pixels.slice(4 * y, 4 * y + 3)]);
  return found;
}"""


def test_the_culprit_of_1024_ranks_is_seen_without_zooming(large: Opened) -> None:
    large.page.hover("#heat", position={"x": 600, "y": 28})  # the first row
    assert large.read("heat").startswith("rank 341 on gpu042, step")
    column = large.page.eval_on_selector("#heat", COLUMN)
    row, others = column[28], column[60:400:10]
    assert row[1] < 60  # the green of the strongest colours: --heat-2 has 29
    assert all(other[1] > row[1] + 50 for other in others)  # and nobody else is near it


def test_a_page_of_1024_ranks_is_short_while_its_sections_are_folded(large: Opened) -> None:
    assert large.page.evaluate("document.documentElement.scrollHeight") <= 4000
    assert large.complaints == []


def test_ranks_that_share_a_row_are_as_late_as_each_other(large: Opened) -> None:
    large.page.focus("#heat")
    for key in ("Home", "ArrowDown"):
        large.page.keyboard.press(key)
    assert re.match(
        r"ranks [\d,-]+, step 100: wait .* \(extremes, to within 2 %\)", large.read("heat")
    )


def test_a_node_has_the_map_to_itself(large: Opened) -> None:
    large.page.select_option("#heat-node", "gpu003")
    large.page.focus("#heat")
    for key in ("ArrowDown", "End"):
        large.page.keyboard.press(key)
    assert re.match(r"rank (2[4-9]|3[01]) on gpu003, step 249: ", large.read("heat"))


def test_searching_for_a_rank_gives_it_a_row_of_its_own(large: Opened) -> None:
    large.page.fill("#search", "rank 77")
    assert "rank 77 has a row of its own" in large.page.inner_text("#search-read")
    large.page.hover("#heat", position={"x": 600, "y": 28})
    assert large.read("heat").startswith("rank 77 on gpu009")
    large.page.fill("#search", "no such word")
    assert large.page.inner_text("#search-read").startswith("0 of ")


def test_the_theme_is_the_readers_choice(large: Opened) -> None:
    before = large.page.evaluate("getComputedStyle(document.body).color")
    large.page.select_option("#theme", "dark")
    assert large.page.evaluate("getComputedStyle(document.body).color") != before


def test_the_address_of_a_step_opens_it(opened: Opened) -> None:
    opened.page.goto(opened.page.url.partition("#")[0] + "#step-120")
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready]")
    chosen = opened.page.eval_on_selector("#spans-step", "s => s.selectedOptions[0].text")
    assert chosen.startswith("120 ")
    assert opened.page.evaluate("document.querySelector('#one-step details').open")


def test_every_finding_has_its_picture_beside_it(opened: Opened) -> None:
    for canvas in opened.page.query_selector_all("canvas.picture"):
        assert len(canvas.evaluate(COLORS)) > 4
    assert "rank 3" in opened.page.inner_text("#finding-1 figcaption")


WORDS = """window.words = [];
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, left, top) {
    window.words.push([this.canvas.id, text, top]); draw.call(this, text, left, top);
  };"""


def test_a_step_that_the_axis_cuts_off_is_named_with_its_length(
    browser: Any, tmp_path: Path, diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    longer = np.where(steps.step == np.unique(steps.step)[40], 9_000_000_000, 0)
    steps = steps.with_column("end_ns", steps.end_ns + longer)
    sheet.write(tmp_path / "page.html", html.render(diagnosis, trace, steps=steps))
    page = browser.new_page()
    page.add_init_script(WORDS)
    shown = Opened(page, tmp_path / "page.html").page.evaluate("window.words")
    assert "↑ 9.15 s" in [text for _, text, _ in shown]  # with its usual 150 ms
    page.close()


def test_no_name_beside_the_step_times_covers_another(
    browser: Any, tmp_path: Path, diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    """A median far below the longest steps is named just above the findings' names."""
    time = {**diagnosis.summary["step_time"], "p50_ns": 1_000_000}
    short = replace(diagnosis, summary={**diagnosis.summary, "step_time": time})
    sheet.write(tmp_path / "page.html", html.render(short, trace, steps=steps))
    page = browser.new_page()
    page.add_init_script(WORDS)
    shown = Opened(page, tmp_path / "page.html").page.evaluate("window.words")
    title = diagnosis.findings[0].title[:8]
    at = [top for chart, text, top in shown if chart == "curve" and text.startswith(title)]
    median = [top for chart, text, top in shown if chart == "curve" and text.startswith("p50 ")]
    assert at
    assert median
    assert at[0] - median[0] >= 12  # a line of text
    page.close()


def test_a_finding_of_all_ranks_has_no_line_of_the_others(
    tab: Any, tmp_path: Path, diagnosis: Diagnosis, trace: Trace, steps: Columns
) -> None:
    first, *rest = diagnosis.findings
    every = replace(first, where=Where(ranks=tuple(trace.ranks)))
    shown = replace(diagnosis, findings=(every, *rest))
    sheet.write(tmp_path / "page.html", html.render(shown, trace, steps=steps))
    opened = Opened(tab, tmp_path / "page.html")
    assert opened.page.inner_text("#finding-1 figcaption").strip() == "ranks 0-3"
    opened.leave()


def test_a_printed_title_is_not_parted_from_its_section(opened: Opened) -> None:
    opened.page.emulate_media(media="print")
    breaks = "all => all.map(one => getComputedStyle(one).breakAfter)"
    assert set(opened.page.eval_on_selector_all("summary", breaks)) == {"avoid"}
