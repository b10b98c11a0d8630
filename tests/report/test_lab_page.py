"""The page of a comparison in the laboratory, and the drawing of its gains."""

import re

import numpy as np
import pytest

from lab import drawing as lab_page
from lab.drawing import Block, Series
from lab.forest import LEFT, RIGHT, WIDTH, forest
from tests.report.conftest import Page
from tests.report.small_run import HOSTILE


def interval(value, low=None, high=None):
    return {"value": value, "low": low, "high": high}


def arm(name, gain, jobs=("a", "b")):
    each = {"paced": True, "steps": 9, "step_ms": 40.0, "cv": interval(0.04), "held_share": 0.0}
    return {
        "arm": name,
        "verdict": None,
        "gain": gain,
        "worst_job": gain,
        "cv": interval(0.04, 0.03, 0.05),
        "cv_ratio": gain and interval(0.9),
        "jobs": [each | {"job": job, "gain": gain} for job in jobs],
    }


@pytest.fixture
def document():
    again = arm("baseline again", interval(0.0, -0.01, 0.01))
    arms = [arm("baseline", None), again, arm("gap", interval(0.05, 0.02, 0.08))]
    found = {"scenario": "two jobs", "fabric": "fair", "arms": arms, "findings": []}
    ended = {"partial": False, "ended": None, "real_time": True}
    return found | ended | {"rounds": {"asked": 8, "counted": 8}}


SERIES = [Series("a", np.array([0.0, 1.0]), np.array([40.0, 42.0]), np.array([True, False]))]
BLOCKS = [Block("baseline", 0.0, 1.0, True), Block("gap", 1.0, 2.0, False)]


def test_gains_read_as_on_the_terminal(document):
    text = lab_page.render(document)
    assert "<dd>+5.0 % (+2.0 to +8.0)</dd>" in text
    assert 'id="blocks"' not in text  # no steps were given


def test_the_steps_travel_with_their_blocks(document):
    text = lab_page.render(document, SERIES, BLOCKS)
    facts = Steps(text).facts
    assert facts["jobs"] == ["a"]
    assert facts["blocks"][1] == {"arm": 2, "from": 1.0, "to": 2.0, "counts": False}
    assert Steps(text).column("job0", "step_ms").tolist() == [40.0, 42.0]
    assert Steps(text).column("job0", "counts").tolist() == [1, 0]


class Steps(Page):
    """A page without a diagnosis."""

    def script(self, name):
        return super().script("comparison" if name == "diagnosis" else name)


def test_predictions_stand_beside_what_was_measured(document):
    text = lab_page.render(document, predicted={"gap": [0.06, 0.04], "auto": None})
    assert "+6.0 %</td>" in text
    assert "Diamonds" in text
    assert "Diamonds" not in lab_page.render(document, predicted={"gap": None})


def test_names_stay_text(document):
    document["scenario"] = document["arms"][2]["arm"] = document["arms"][0]["jobs"][0]["job"] = (
        HOSTILE
    )
    text = lab_page.render(document, SERIES, [])
    assert "<img" not in text
    assert text.count("</script>") == 4


def test_an_interrupted_comparison_without_rounds_has_a_page(document):
    for one in document["arms"][1:]:
        one["gain"] = one["worst_job"] = one["cv_ratio"] = interval(None)
        for job in one["jobs"]:
            job["gain"] = interval(None)
    text = lab_page.render(document | {"partial": True, "ended": "interrupted"})
    assert "Partial: interrupted." in text
    assert "<svg" not in text


def test_the_band_is_the_baseline_against_itself_and_zero_lies_in_it(document):
    drawn = forest(document["arms"], {})
    assert drawn.band[0] < drawn.zero < drawn.band[1]
    assert drawn.lines[0].ends == drawn.band


def test_gains_are_drawn_to_one_scale(document):
    drawn = forest(document["arms"], {"gap": [0.06, 0.04]})
    gap = drawn.lines[3]
    # +5 % lies as far from 0 as five times the end of the band, +1 %; the mean of 6 and 4 is 5
    assert gap.value - drawn.zero == pytest.approx(5 * (drawn.band[1] - drawn.zero), abs=0.5)
    assert gap.predicted == gap.value
    assert all(LEFT <= x <= WIDTH - RIGHT for x, _ in drawn.ticks)
    assert "0" in [text for _, text in drawn.ticks]


def test_no_gain_is_no_drawing():
    assert forest([arm("baseline", None)], {}) is None


def test_the_page_fetches_nothing(document):
    assert not re.findall(r"https?://|@import|url\(|fetch\(", lab_page.render(document, SERIES))


def test_the_verdict_comes_first(document):
    document["arms"][2]["verdict"] = "gains"
    text = lab_page.render(document)
    assert '<h1 id="verdict">gap: gains, +5.0 % (+2.0 to +8.0)</h1>' in text
