"""The shape that programs outside this repository read, written down from the design."""

import json

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import LAYERS, PATTERNS
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World

FINDING = {
    *("mode", "layer", "severity", "confidence", "observation", "cause"),
    *("where", "when", "effect", "options", "evidence", "title", "stacks"),
}
WORLDS = {
    "healthy": World(noise=0.005),
    "straggler": World(samples=8).slow(1, Phase.BACKWARD, 50 * MS),
    "input": World(input_ns=20 * MS).slow(1, Phase.INPUT, 50 * MS),
    "collector": World().slow(1, Phase.BACKWARD, 50 * MS, collector=True),
    "amplification": World(ranks=16, noise=0.2),
    "checkpoint": World().slow(0, Phase.CHECKPOINT, 50 * MS),
    "one step": World(steps=1).slow(0, Phase.FORWARD, 50 * MS),
    "one rank": World(ranks=1),
    "device": World(on_device=True).slow(0, Phase.FORWARD, 50 * MS),
}


@pytest.fixture(params=WORLDS, scope="module")
def printed(request):
    """What `evenstep diagnose --json` prints; not a number is refused."""
    diagnosis = diagnose(WORLDS[request.param].trace())
    return json.loads(json.dumps(diagnosis.to_json(), allow_nan=False))


def test_a_diagnosis_has_exactly_these_keys(printed):
    assert set(printed) == {"schema", "run", "summary", "findings", "limits"}


def test_the_summary_has_what_the_design_lists(printed):
    wanted = {"verdict", "throughput", "step_time", "shares", "overlapped_communication"}
    assert wanted | {"communication_to_compute", "rank_hours_wasted"} <= set(printed["summary"])
    assert {"mean_ns", "cv", "p50_ns", "p99_ns"} == set(printed["summary"]["step_time"])
    shares = {"compute", "exposed_communication", "wait", "input", "other"}
    assert shares == set(printed["summary"]["shares"])


def test_every_finding_has_exactly_these_keys(printed):
    for finding in printed["findings"]:
        assert set(finding) == FINDING
        assert set(finding["where"]) == {"ranks", "nodes", "links", "groups"}
        assert set(finding["when"]) == {"steps", "pattern"}
        assert set(finding["effect"]) == {"now", "projected"}
        rows = finding["effect"]["projected"], finding["options"], finding["evidence"]
        keys = (
            {"ranks", "share", "low", "high"},
            {"action", "gain", "low", "high", "cost", "method"},
            {"metric", "measured", "expected", "unit"},
        )
        for entries, expected in zip(rows, keys, strict=True):
            assert all(set(entry) == expected for entry in entries)


def test_values_are_in_their_ranges(printed):
    for finding in printed["findings"]:
        assert finding["layer"] in LAYERS
        assert finding["when"]["pattern"] in (*PATTERNS, None)
        assert 0 <= finding["severity"] <= 1
        assert 0 <= finding["confidence"] <= 1
        for entry in (*finding["effect"]["projected"], *finding["options"]):
            middle = entry.get("share", entry.get("gain"))
            assert middle is None or 0 <= entry["low"] <= middle <= entry["high"] <= 1


def test_findings_come_worst_first_and_tell_who_why_and_what_to_do(printed):
    severities = [finding["severity"] for finding in printed["findings"]]
    assert severities == sorted(severities, reverse=True)
    for finding in printed["findings"]:
        assert all((finding["observation"], finding["cause"], finding["options"]))


def test_unknown_is_null():
    summary = diagnose(World(steps=1).trace()).to_json()["summary"]
    assert summary["agent"]["ns_per_collective"] is None
    assert (
        diagnose(World(collectives=False, phases=False).trace()).to_json()["summary"][
            "communication_to_compute"
        ]
        is None
    )


def test_the_same_trace_gives_the_same_diagnosis_byte_for_byte():
    trace = World(noise=0.01).slow(1, Phase.BACKWARD, 20 * MS).trace()
    assert json.dumps(diagnose(trace).to_json()) == json.dumps(diagnose(trace).to_json())


def test_the_verdict_says_who_how_much_why_and_what_to_do():
    world = World().slow(1, Phase.BACKWARD, 50 * MS)
    # 50 of 64.7 + 50 ms
    assert diagnose(world.trace()).verdict == (
        "Rank 1 (node0) costs 44 % of step time, 115 → 64.7 ms a step without it. Why: enters "
        "last: 50 ms more inside backward than the other ranks. Do: find and remove what rank 1 "
        "alone does inside backward."
    )


def test_several_culprits_take_a_plural_verb():
    world = World(ranks=8).slow([5, 6], Phase.FORWARD, 50 * MS)
    assert diagnose(world.trace()).verdict.startswith("Ranks 5 and 6 (node0) cost 44 %")


def test_the_package_is_a_function_of_a_trace():
    import evenstep

    trace = World().slow(1, Phase.BACKWARD, 50 * MS).trace()
    found = evenstep.diagnose(trace)
    assert found.to_json() == diagnose(trace).to_json()
    (row,) = found.rows()
    assert (row["title"], row["ranks"]) == ("Slow backward on rank 1", [1])
    assert {"diagnose", "load", "attach"} <= set(dir(evenstep))
