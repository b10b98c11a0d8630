"""The page's own scripts, run by node: numbers read as in Python, ranks and axes parse."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from evenstep import words
from evenstep.cli import sweep
from evenstep.report.page import html, sheet
from evenstep.trace.ranks import format_ranks
from lab import drawing as lab_page

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(not NODE, reason="no node on this machine")

VALUES_US = [
    *(0, 1.125, 12.25, 8.375, 9.8765e10, 0.0004, 0.9996, 1),
    *(12.345, 999.4, 999.6, 41_230, 999_600, 3.2e6, 9.87e9),
]


def evaluated(scripts: str, expression: str) -> Any:
    source = "\n".join((sheet.PAGE / name).read_text("utf-8") for name in scripts.split())
    code = f"{source}\nconsole.log(JSON.stringify({expression}));"
    done = subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_durations_read_as_they_do_in_python() -> None:
    found = evaluated("quantities.js", f"{VALUES_US}.map((value) => duration(value))")
    assert found == [words.duration(value * 1e3) for value in VALUES_US]


def test_sets_of_ranks_go_there_and_back() -> None:
    ranks = [0, 1, 2, 8, 10, 11]
    assert evaluated("quantities.js", f"formatRanks({ranks})") == format_ranks(ranks)
    assert evaluated("quantities.js", 'parseRanks("0-2, 8,10-11")') == ranks
    assert evaluated("quantities.js", 'parseRanks("seven")') is None


def test_ticks_are_round_and_within_the_axis() -> None:
    assert evaluated("quantities.js", "ticks(0, 99, 5)") == [0, 20, 40, 60, 80]
    assert evaluated("quantities.js", "ticks(7, 7, 5)") == [7]


def test_logarithmic_ticks_are_thinned_to_powers_of_ten() -> None:
    assert evaluated("quantities.js", "decades([3, 60], 9)") == [5, 10, 20, 50]
    assert evaluated("quantities.js", "decades([3, 6000], 4)") == [10, 100, 1000]


def test_a_byte_of_detail_decodes_as_it_was_encoded() -> None:
    codes = "decoder(Uint8Array.of(0, 1, 2, 128, 255), [2, 200])"
    found = evaluated("heat.js", f"[0, 1, 2, 3, 4].map({codes})")
    assert found[0] is None  # NaN: unknown
    assert found[1] == 0
    assert found[2:] == pytest.approx([2.0, 2 * 100 ** (126 / 253), 200.0], rel=1e-5)


def test_a_zoomed_view_never_leaves_the_run() -> None:
    shape = "{first_step: 100, last_step: 159}"
    acts = f"const view = heatView({shape}, 8); view.zoom(0.5, 0, 159); return view.now;"
    code = f"(() => {{ {acts} }})()"
    now = evaluated("heat.js", code)
    assert now["rank"] == [0, 4]
    assert now["step"] == [129, 160]  # whole steps


def test_shares_read_as_they_do_in_python() -> None:
    shares = [0, 0.125, 0.0625, 0.00001, 0.0004, 0.0095, 0.084, 0.0994, 0.0996, 0.61, 1, -0.02]
    found = evaluated("quantities.js", f"{shares}.map(percent)")
    assert found == [words.percent(share) for share in shares]


def test_rows_sort_by_number_and_unknown_ones_stand_last_either_way() -> None:
    rows = [["8"], [""], ["16"], ["2"], ["8"]]
    assert evaluated("sortable.js", f"sortedRows({rows}, 0)") == [3, 0, 4, 2, 1]
    assert evaluated("sortable.js", f"sortedRows({rows}, 0, true)") == [2, 0, 4, 3, 1]


ROWS = [{"varied": {"n": n, "b": b, "s": s}} for n in (2, 4) for b in (1, 8) for s in ("x", "y")]


def test_a_sweep_has_a_matrix_for_each_value_of_what_runs_nowhere() -> None:
    rows = json.dumps(ROWS[:-1])  # the last combination was not finished
    found = evaluated("quantities.js sweep_view.js", f'matricesOf({rows}, "n", "b")')
    assert [matrix["fixed"] for matrix in found] == [[["s", "x"]], [["s", "y"]]]
    assert found[0]["lines"][1] == {"value": 8, "cells": [ROWS[2], ROWS[6]]}
    assert found[1]["lines"][1]["cells"][1] is None


def test_a_sweep_of_one_field_is_a_single_line() -> None:
    rows = json.dumps([{"varied": {"n": n}} for n in (2, 4, 8)])
    found = evaluated("sweep_view.js", f'matricesOf({rows}, "n", "")')
    assert len(found) == 1
    assert [len(line["cells"]) for line in found[0]["lines"]] == [3]


def test_a_blocks_median_is_that_of_the_steps_that_count() -> None:
    table = "{start_s: [0, 1, 2, 11], step_ms: [90, 40, 42, 50], counts: [0, 1, 1, 0]}"
    blocks = "[{from: 0, to: 10}, {from: 10, to: 20}]"
    assert evaluated("blocks.js", f"blockMedians({table}, {blocks})") == [42, None]


def test_text_on_a_colour_is_the_one_that_stands_out() -> None:
    found = evaluated("cells.js", "[[246, 243, 238], [240, 162, 74], [140, 29, 24]].map(inkOn)")
    assert found == ["#1d2126", "#1d2126", "#ffffff"]


EVERY = sorted({*html.SCRIPTS, *sweep.SCRIPTS, *lab_page.SCRIPTS})


def test_the_scripts_pass_the_type_checker() -> None:
    tsc = shutil.which("tsc")
    if not tsc:
        pytest.skip("no tsc on this machine: npm install --global typescript")
    config = Path(__file__).with_name("tsconfig.json")
    done = subprocess.run([tsc, "-p", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", EVERY)
def test_every_script_is_checked_for_types_and_says_what_it_is_for(name: str) -> None:
    first, second, *_ = (sheet.PAGE / name).read_text("utf-8").splitlines()
    assert first == "// @ts-check"
    assert second.startswith("// ")
