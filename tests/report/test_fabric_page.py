"""The map of a simulated fabric in a real Chromium: its numbers are those of the result."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.report.page import html, sheet
from evenstep.report.page.sheet import Chart
from evenstep.scenario import scenario as scenarios
from evenstep.simulate.result import Result
from evenstep.simulate.simulation import simulate_trace
from evenstep.words import number, percent
from tests.report.test_browser import Opened

JOB = (
    "work.forward_ms=10", "work.gradient_bytes=20MB", "collectives.algorithm=ring", "run.steps=3",
    "fabric.nodes_per_leaf=2",
)  # fmt: skip
FABRICS = {
    "switch": (),
    "leaf_spine": ("job.placement=scattered",),
    "fat_tree": ("fabric.leaves_per_pod=2", "job.placement=scattered"),
    "rail": ("cluster.nics_per_node=2", "cluster.gpus_per_node=2"),
    "torus": ("fabric.shape=[2, 4]",),
    "dragonfly": ("fabric.nodes_per_router=1", "fabric.routers_per_group=2"),
}

OUTSIDE = """(boxes) => {
  const all = document.getElementById("fabric").getBoundingClientRect();
  return boxes.map((box) => box.getBoundingClientRect()).filter((one) => one.left < all.left
    || one.right > all.right || one.top < all.top || one.bottom > all.bottom).length;
}"""

FITS = """() => {
  const all = document.getElementById("fabric");
  return Math.abs(all.viewBox.baseVal.width - all.getBoundingClientRect().width) < 1.5;
}"""

Open = Callable[..., tuple[Opened, Result]]


@pytest.fixture
def opened(tab: Any, tmp_path: Path) -> Iterator[Open]:
    pages = []

    def open_(*sets: str) -> tuple[Opened, Result]:
        result, trace = simulate_trace(scenarios.parse({}, ("cluster.nodes=8", *JOB, *sets)))
        mapped, path = result.fabric_map(), tmp_path / "page.html"
        links = Chart({"links": mapped.bundles}, mapped.facts())
        told = result.to_json()["links"]
        sheet.write(path, html.render(diagnose(trace), trace, links=told, link_map=links))
        pages.append(Opened(tab, path))
        return pages[-1], result

    yield open_
    for page in pages:
        page.leave()


def press(opened: Opened, *keys: str) -> str:
    opened.page.focus("#fabric")
    for key in keys:
        opened.page.keyboard.press(key)
    return opened.read("fabric")


def test_the_first_link_read_is_the_busiest(opened: Open) -> None:
    page, result = opened("fabric.kind=leaf_spine", *FABRICS["leaf_spine"])
    worst = result.links[0]
    text = press(page, "ArrowRight")
    assert f"{percent(worst.utilisation)} of {number(worst.capacity_gBps)} GB/s on average" in text
    assert f"{percent(worst.peak)} at the fullest moment" in text
    assert (page.complaints, len(page.requests)) == ([], 1)


@pytest.mark.parametrize("kind", FABRICS)
def test_every_bundle_of_links_is_drawn_within_the_picture(opened: Open, kind: str) -> None:
    page, result = opened(f"fabric.kind={kind}", *FABRICS[kind])
    bundles = result.fabric_map().bundles
    ends = zip(bundles.source.tolist(), bundles.target.tolist(), strict=True)
    pairs = {frozenset(pair) for pair in ends if pair[0] != pair[1]}
    for width in (390, 1280):
        page.page.set_viewport_size({"width": width, "height": 900})
        page.page.wait_for_function(FITS)
        assert page.page.locator("#fabric path").count() == len(pairs)
        assert page.page.eval_on_selector_all("#fabric rect", OUTSIDE) == 0


def test_pointing_at_a_machine_says_who_runs_there(opened: Open) -> None:
    page, _ = opened("fabric.kind=rail", *FABRICS["rail"])
    page.page.locator("#fabric rect").nth(3).hover()
    assert page.read("fabric").startswith("node 3 · ranks 6-7 · node*.gpu*.send: 2 links")


def test_the_fullest_moment_colours_a_link_that_is_idle_most_of_the_time(opened: Open) -> None:
    page, _ = opened("work.forward_ms=1000")
    strokes = "all => new Set(all.map((one) => one.getAttribute('stroke'))).size"
    before = page.page.eval_on_selector("#fabric path", "one => one.getAttribute('stroke')")
    assert page.page.inner_text("#fabric-high") == "5 %"
    page.page.select_option("#fabric-metric", "peak")
    assert page.page.inner_text("#fabric-high") == "100 %"
    assert page.page.eval_on_selector("#fabric path", "one => one.getAttribute('stroke')") != before
    assert page.page.eval_on_selector_all("#fabric path", strokes) == 1  # a ring loads all alike


def test_on_paper_pictures_have_its_width_and_nothing_is_folded(opened: Open) -> None:
    page, _ = opened()
    page.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    wide = page.page.locator("#fabric").bounding_box()["width"]
    assert wide == pytest.approx(180 / 25.4 * 96, abs=1)
    assert page.page.locator("details:not([open])").count() == 0
    page.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.page.locator("#fabric").bounding_box()["width"] > 1000
