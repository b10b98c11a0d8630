import re

import numpy as np
import pytest

from evenstep.diagnose.measure.overview import growth
from evenstep.report.terminal.sentences import movement

BLAME = {
    "rank_seconds": 85.8,
    "culprits": [{"rank": 19, "share": 0.9}, {"rank": 3, "share": 0.02}],
    "drift": 0.64,
    "largest_delay": {
        "step": 54, "rank": 19, "delay_ns": 32_300_978, "victims_count": 31,
        "rank_seconds_lost": 1.0, "steps_to_decay": 2,
    },
}  # fmt: skip


def said(**summary: object) -> list[str]:
    return list(movement(summary))


def test_a_summary_without_movement_says_nothing() -> None:
    assert said(regimes=None, critical_path=None, blame=None, checkpoints=None) == []


RNG = np.random.default_rng(0)


def test_steps_that_grow_longer_on_all_ranks_are_told() -> None:
    ramp = np.linspace(120e6, 240e6, 120) * RNG.normal(1, 0.03, 120)
    (line,) = said(**growth(ramp))
    first, last = (float(each) for each in re.findall(r"([\d.]+) ms", line))
    assert (first, last) == pytest.approx((135, 225), rel=0.05)  # of a line, at 1/8 and 7/8


@pytest.mark.parametrize(
    "course", [np.ones(120), np.linspace(2, 1, 120), np.linspace(1, 1.02, 120), np.ones(9)]
)
def test_steps_that_do_not_are_not(course: np.ndarray) -> None:
    assert said(**growth(1e8 * course * RNG.normal(1, 0.01, len(course)))) == []


def test_a_run_of_one_regime_is_not_worth_a_line() -> None:
    shares = {"compute": 0.98, "transfer": 0.02, "wait": 0.0, "input": 0.0}
    assert said(regimes={"shares": shares, "changes": 2, "period_steps": None}) == []


def test_regimes_that_alternate_are_named_with_their_period() -> None:
    shares = {"compute": 0.3, "transfer": 0.0, "wait": 0.7, "input": 0.0}
    (line,) = said(regimes={"shares": shares, "changes": 24, "period_steps": 8.0})
    assert line == (
        "steps are bound by waiting in 70 %, by own work in 30 % of them, with 24 changes; "
        "the pattern repeats every 8 steps"
    )


def test_blame_names_those_who_matter_and_what_moved() -> None:
    first, second, third = said(blame=BLAME)
    assert first == "of 85.8 s of waiting, most is for rank 19 (90 %)"
    assert "64 % of the waiting moves" in second
    assert third == (
        "largest delay: rank 19 is 32.3 ms late in step 54; 31 ranks lose 1 s together, "
        "gone after 2 steps"
    )


def test_a_single_victim_is_said_in_the_singular() -> None:
    event = {**BLAME["largest_delay"], "victims_count": 1}
    assert "; 1 rank loses 1 s, gone" in said(blame={**BLAME, "largest_delay": event})[-1]


def test_blame_that_is_spread_over_all_is_not_pinned_on_anyone() -> None:
    even = {**BLAME, "culprits": [{"rank": 0, "share": 0.04}], "drift": None}
    assert said(blame={**even, "largest_delay": None}) == []


def test_what_moves_among_all_ranks_names_none() -> None:
    culprits = [{"rank": rank, "share": 0.11} for rank in range(6)]
    even = {**BLAME, "culprits": culprits, "drift": None, "largest_delay": None}
    (line,) = said(blame=even)
    assert line == "of 85.8 s of waiting, no rank causes most"


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"steps_per_round": 8, "regular_rounds": True}, "ranks synchronize every 8 steps"),
        (
            {"staleness": {"mean": 3.0, "p50": 3.0, "p95": 7.0, "max": 12.0}},
            "updates are 3 steps stale on average, 7 at p95, 12 at most",
        ),
    ],
)
def test_loose_coupling_is_told(found: dict, line: str) -> None:
    assert said(asynchrony=found) == [line]


def test_checkpoints_say_how_often_they_help() -> None:
    found = {"reset": 1, "unchanged": 3, "amplified": 0, "events": []}
    (line,) = said(checkpoints=found)
    assert line == "checkpoints and restarts: the run is steadier after 1 of 4"
    assert said(checkpoints={"reset": 0, "unchanged": 3, "amplified": 0, "events": []}) == []
    (line,) = said(checkpoints={"reset": 1, "unchanged": 0, "amplified": 2, "events": []})
    assert line.endswith("the run is steadier after 1 of 3 and less steady after 2 of 3")
