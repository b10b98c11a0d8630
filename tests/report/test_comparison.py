"""A comparison as text and as a page: 80 columns, and whatever a run is called stays text."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from evenstep.cli.compare import page
from evenstep.diagnose.compare.comparison import account, compare
from evenstep.report.terminal.comparison import difference, render
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World
from tests.report.small_run import HOSTILE


def run_of(name, world):
    trace = world.trace()
    return account(name, trace)


@pytest.fixture(scope="module")
def baseline():
    return run_of("calm", World(noise=0.02))


@pytest.fixture(scope="module")
def slowed(baseline):
    world = World(noise=0.02, samples=1_000_000).slow(2, Phase.BACKWARD, 900 * MS)
    return compare(baseline, run_of("slowed", world))


@pytest.fixture(scope="module")
def hostile(slowed):
    finding = replace(slowed.findings[0], mode=HOSTILE * 3)
    limits = [*slowed.limits, HOSTILE]
    changed = {"findings": [finding], "limits": limits, "sentence": HOSTILE, "name": HOSTILE}
    return replace(slowed, **changed)


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.attributes = set(), [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("which", ["slowed", "hostile"])
def test_every_line_fits_80_columns(request, which, normalised):
    found = request.getfixturevalue(which)
    text = render(HOSTILE, [found], normalised=normalised, color=False)
    assert max(len(line.replace("\u0336", "")) for line in text.splitlines()) <= 80


def test_plain_text_has_no_escape_and_no_control_character(hostile):
    text = render(HOSTILE, [hostile], color=False)
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_color_changes_no_word(slowed):
    painted = render("calm", [slowed], color=True)
    assert re.sub(r"\x1b\[\d+m", "", painted) == render("calm", [slowed], color=False)
    assert "\x1b[31mworse\x1b[0m" in painted


def test_the_verdict_stands_first(slowed):
    assert render("calm", [slowed], color=False).startswith("Worse: slowed is slower than calm")


def test_normalised_shows_ratios_beside_a_struck_baseline(slowed):
    line = next(
        line for line in render("calm", [slowed], normalised=True, color=False).splitlines()
        if line.startswith("step time  ")
    )  # fmt: skip
    step = slowed.change("step_time")
    assert re.match(rf"step time\s+1\u0336\s+{step.value / step.baseline:.1f}\d* ", line)
    assert " ms" not in render("calm", [slowed], normalised=True, color=False)


def test_the_page_holds_every_number_of_the_text(slowed):
    words = " ".join(Tags(page("calm", [slowed])).words)
    for change in slowed.changes:
        assert difference(change) in words
    assert all(item.title in words for item in slowed.findings)


def test_the_page_shows_all_runs_side_by_side(slowed):
    words = Tags(page("calm", [slowed, replace(slowed, name="third")])).words
    assert {"calm", "slowed", "third"} <= {word.strip() for word in words}


def test_hostile_names_are_text_on_the_page(hostile):
    read = Tags(page(HOSTILE, [hostile]))
    assert not {"script", "img", "link", "iframe"} & read.tags
    assert not [
        name for name in read.attributes if name.startswith("on") or name in ("src", "href")
    ]
    assert any("alert(1)" in word for word in read.words)


def test_a_normalised_page_strikes_the_baseline(slowed):
    text = page("calm", [slowed], normalised=True)
    assert "<s>1</s>" in text
    assert " ms" not in " ".join(Tags(text).words)


def test_a_run_without_steps_has_a_page_too(baseline, slowed):
    empty = compare(baseline, replace(baseline, step_ns=baseline.step_ns[:0], name="empty"))
    assert "nothing to compare" in page("calm", [empty])
    assert "nothing to compare" in render("calm", [empty, slowed], color=False)


def test_beside_what_is_worse_nothing_is_called_no_evidence(slowed):
    assert {item.verdict for item in slowed.changes} >= {"worse", "no evidence"}
    text = render("calm", [slowed], color=False)
    assert "worse" in text
    assert "no evidence" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())
