from typing import Any

import pytest

from evenstep.diagnose.finding import Diagnosis
from evenstep.report.page.html import HEIGHT, WIDTH, scaling
from evenstep.report.terminal import scaling as scaling_text

CURVE = {
    "kind": "weak",
    "unit": "samples/s",
    "points": [
        {"ranks": 8, "throughput": 800.0, "efficiency": 1.0, "fitted": 810.0},
        {"ranks": 16, "throughput": 1200.0, "efficiency": 0.75, "fitted": 1190.0},
    ],
    "law": {
        "name": "universal scalability law",
        "contention": {"value": 0.03, "low": 0.02, "high": 0.04},
        "coherency": {"value": 0.0012, "low": 0.0, "high": 0.002},
        "peak": {"value": 31.0, "low": 25.0, "high": None},
        "knee": {"value": None, "low": None, "high": None},
    },
    "last_doubling": {"ranks": [8, 16], "gain": 0.5, "marginal": 0.5, "marginal_cost": 2.0},
    "recommended_ranks": 12,
}


def several() -> Diagnosis:
    return Diagnosis({}, {"verdict": "It scales.", "scaling": CURVE}, [])


def places(line: str) -> list[list[float]]:
    return [[float(part) for part in pair.split(",")] for pair in line.split()]


def drawn() -> dict[str, Any]:
    result = scaling(several())
    assert result is not None
    return result


def test_perfect_scaling_is_as_steep_as_the_axes_make_a_doubling() -> None:
    (x0, y0), (x1, y1) = places(drawn()["ideal"])
    assert x1 > x0
    assert y1 < y0  # upwards
    assert (drawn()["measured"][0]["x"], drawn()["measured"][0]["y"]) == (x0, y0)


def test_a_run_that_scales_badly_lies_below_the_ideal_line() -> None:
    assert drawn()["measured"][1]["y"] > places(drawn()["ideal"])[1][1]


def test_everything_lies_inside_the_drawing() -> None:
    found = drawn()
    points = places(found["ideal"]) + places(found["fitted"])
    points += [[one["x"], one["y"]] for one in found["measured"]]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)


def test_one_size_alone_is_no_curve() -> None:
    assert scaling(Diagnosis({}, {"verdict": "It waits."}, [])) is None


def test_the_table_has_a_row_a_size_under_aligned_heads() -> None:
    heads, *rows = scaling_text.measured_table(CURVE)
    assert heads.split() == ["ranks", "throughput", "efficiency", "law"]
    assert [row.split()[0] for row in rows] == ["8", "16"]
    assert rows[1].split()[3:] == ["75", "%", "1,190"]
    assert len({len(line) for line in (heads, *rows)}) == 1


def test_notes_say_what_the_law_knows_and_nothing_else() -> None:
    text = "\n".join(scaling_text.measured_notes(CURVE))
    assert "contention 3 %, coherency 0.0012" in text
    assert "highest at about 31 ranks (25 to any number)" in text
    assert "from 8 to 16 ranks throughput grows by 50 %" in text
    assert "ranks worth using: 12" in text
    assert "half of what" not in text  # no knee


@pytest.mark.parametrize("missing", ["law", "last_doubling", "recommended_ranks"])
def test_what_is_missing_is_passed_over(missing: str) -> None:
    list(scaling_text.measured_notes({**CURVE, missing: None}))
