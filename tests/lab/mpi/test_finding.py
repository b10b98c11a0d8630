"""The remedy that comes first is the one that was measured to give back most."""

from __future__ import annotations

import json

import pytest

from evenstep.diagnose.finding import Finding
from lab.mpi.finding import findings
from lab.outcome import ArmOutcome, Interval, JobOutcome
from lab.scenario import parse

SCENARIO = parse({"fabric": "mpi", "jobs": [{"name": "ring", "ranks": 4}]})
UNKNOWN = Interval(0.0, None, None)


def outcome(name: str, step_ms: float, *gain: float) -> ArmOutcome:
    measured = Interval(*gain)
    job = JobOutcome("ring", True, 100, step_ms * 1e6, measured, UNKNOWN, 0.0)
    return ArmOutcome(name, 20, measured, measured, UNKNOWN, UNKNOWN, 1.0, (job,))


BASELINE = outcome("baseline", 50, 0.0, 0.0, 0.0)
AGAIN = outcome("baseline again", 50, 0.01, 0.001, 0.02)
PACED = outcome("slack", 43.5, 0.15, 0.11, 0.19)
BLOCKING = outcome("blocking", 34, 0.47, 0.40, 0.54)


def test_a_blocking_wait_comes_first_with_its_measured_gain():
    (finding,) = findings(SCENARIO, [BASELINE, AGAIN, PACED, BLOCKING])
    first, second, last = finding.options
    assert "block" in first.action
    # throughput × 1.47 is a step of 1/1.47: .32 of it is given back
    assert (first.gain, first.low, first.high) == pytest.approx((0.3197, 0.2857, 0.3506), abs=1e-4)
    assert "slack" in second.action
    assert last.gain is None
    assert finding.severity == first.gain


def test_what_was_not_shown_to_gain_is_no_option():
    (finding,) = findings(SCENARIO, [BASELINE, outcome("slack", 49, 0.02, -0.01, 0.05), BLOCKING])
    assert not any("slack" in option.action for option in finding.options)


def test_where_blocking_was_not_shown_to_help_there_is_no_finding():
    assert not findings(SCENARIO, [BASELINE, outcome("blocking", 50, 0.01, -0.02, 0.04)])
    assert not findings(SCENARIO, [BASELINE, PACED])


def test_a_finding_has_the_keys_of_the_contract():
    (finding,) = findings(SCENARIO, [BASELINE, BLOCKING])
    assert set(json.loads(json.dumps(finding.to_json()))) == {
        name for name in Finding.__dataclass_fields__ if name != "change"
    }
