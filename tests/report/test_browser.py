"""The page in a real Chromium, opened from disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenstep.diagnose.finding import Diagnosis
from evenstep.diagnose.sentences import verdict
from evenstep.report.page import html, sheet
from evenstep.trace.columns import Columns
from evenstep.trace.trace import Trace
from tests.report.small_run import HOSTILE

#: Each colour once, as "red,green,blue,alpha"; a pixel is one little-endian word.
COLORS = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const words = new Set(new Uint32Array(data.buffer));
  return [...words].map((one) => [one, one >>> 8, one >>> 16, one >>> 24].map((c) => c & 255) + "");
}"""

HAS_COLOR = f"""([id, color]) => ({COLORS})(document.getElementById(id)).includes(color)"""

LIGHT_ENDS = ("246,243,238,255", "140,29,24,255")  # --heat-0 and --heat-2 of page.css


UNFOLD = "for (const one of document.querySelectorAll('details')) one.open = true"


class Opened:
    """A page in the browser, its sections unfolded, and whatever went wrong or left it."""

    def __init__(self, page: Any, path: Path, *, folded: bool = False) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._heard = {
            "console": lambda message: self.complaints.append(message.text),
            "pageerror": lambda error: self.complaints.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, hears in self._heard.items():
            page.on(event, hears)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        if not folded:
            page.evaluate(UNFOLD)

    def leave(self) -> None:
        """Listen no more: the tab is another test's."""
        for event, hears in self._heard.items():
            self.page.remove_listener(event, hears)

    def colors(self, canvas: str) -> list[str]:
        return list(self.page.eval_on_selector(f"#{canvas}", COLORS))

    def read(self, chart: str) -> str:
        return str(self.page.inner_text(f"#{chart}-read"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one page lies that all of these look at."""
    return tmp_path_factory.mktemp("page") / "page.html"


@pytest.fixture
def file(place: Path, diagnosis: Diagnosis, trace: Trace, steps: Columns) -> Path:
    if not place.exists():
        trace.ranks[2].identity["hostname"] = HOSTILE
        sheet.write(place, html.render(diagnosis, trace, steps=steps))
    return place


@pytest.fixture
def opened(tab: Any, file: Path) -> Iterator[Opened]:
    page = Opened(tab, file)
    yield page
    page.leave()


def test_the_verdict_is_the_heading(opened: Opened, diagnosis: Diagnosis) -> None:
    assert opened.page.inner_text("h1") == verdict(diagnosis.findings, diagnosis.summary).head


def test_the_page_makes_no_request_and_no_complaint(opened: Opened, file: Path) -> None:
    assert opened.requests == [file.as_uri()]
    assert opened.complaints == []


def test_every_chart_is_drawn(opened: Opened) -> None:
    assert len(opened.colors("curve")) > 3
    assert len(opened.colors("spans")) > 10
    # the two ends of the scale: three ranks wait 35 ms, the late one does not at all
    assert set(LIGHT_ENDS) <= set(opened.colors("heat"))


def test_pointing_at_a_cell_reads_its_numbers(opened: Opened) -> None:
    opened.page.hover("#heat", position={"x": 300, "y": 25})
    assert opened.read("heat").startswith("rank 0 on gpu011, step ")
    assert "wait 35 ms, lateness 0, step 150 ms" in opened.read("heat")


def test_the_heat_map_can_be_walked_with_the_keyboard(opened: Opened) -> None:
    opened.page.focus("#heat")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "End"):
        opened.page.keyboard.press(key)
    assert opened.read("heat").startswith("rank 3 on gpu012, step 159: wait 0, lateness 40 ms")


def test_picking_a_cell_opens_its_step_in_the_timeline(opened: Opened) -> None:
    opened.page.focus("#heat")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        opened.page.keyboard.press(key)
    chosen = opened.page.eval_on_selector("#spans-step", "s => s.selectedOptions[0].text")
    assert chosen == "102 (150 ms)"


def test_the_timeline_tells_waiting_from_transfer(opened: Opened) -> None:
    opened.page.focus("#spans")
    for _ in range(7):  # five phases and the pacing delay of rank 0, then its first collective
        opened.page.keyboard.press("n")
    text = opened.read("spans")
    assert "all-reduce, 65 ms, from 75 ms · 25 MB · waits 40 ms" in text
    assert "then transfers 25 ms" in text


def test_zooming_in_and_back_out_restores_the_picture(opened: Opened) -> None:
    picture = "canvas => canvas.toDataURL()"
    before = opened.page.eval_on_selector("#spans", picture)
    opened.page.click("#spans-in")
    assert opened.page.eval_on_selector("#spans", picture) != before
    opened.page.focus("#spans")
    opened.page.keyboard.press("0")
    assert opened.page.eval_on_selector("#spans", picture) == before


def test_ranks_are_chosen_as_a_set(opened: Opened) -> None:
    tall = opened.page.eval_on_selector("#spans", "canvas => canvas.clientHeight")
    opened.page.fill("#spans-ranks", "1,3")
    opened.page.keyboard.press("Enter")
    assert opened.page.eval_on_selector("#spans", "canvas => canvas.clientHeight") < tall
    opened.page.fill("#spans-ranks", "seven")
    opened.page.keyboard.press("Enter")
    assert opened.read("spans") == "Give ranks as in 0-3,8; this page has 0-3."


def test_dark_mode_repaints_the_charts_and_print_is_light(opened: Opened) -> None:
    opened.page.emulate_media(color_scheme="dark")
    opened.page.wait_for_function(HAS_COLOR, arg=["heat", "34,38,43,255"])  # --heat-0, dark
    opened.page.emulate_media(color_scheme="dark", media="print")
    opened.page.wait_for_function(HAS_COLOR, arg=["heat", LIGHT_ENDS[0]])
    assert set(LIGHT_ENDS) <= set(opened.colors("heat"))


def test_a_browser_without_decompression_says_so(browser: Any, file: Path) -> None:
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(file.as_uri())
    page.wait_for_selector("#trouble:not([hidden])")
    assert "too old" in page.inner_text("#trouble")
    page.close()
