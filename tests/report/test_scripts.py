"""The page's own scripts, run by node: numbers read as in Python, ranks and axes parse."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from evenstep.report import html, quantities
from evenstep.trace.ranks import format_ranks

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(not NODE, reason="no node on this machine")

VALUES_US = [0, 0.0004, 0.9996, 1, 12.345, 999.4, 999.6, 41_230, 999_600, 3.2e6, 9.87e9]


def evaluated(script: str, expression: str) -> Any:
    source = (html.PAGE / script).read_text("utf-8")
    code = f"{source}\nconsole.log(JSON.stringify({expression}));"
    done = subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_durations_read_as_they_do_in_python() -> None:
    found = evaluated("quantities.js", f"{VALUES_US}.map((value) => duration(value))")
    assert found == [quantities.duration(value * 1e3) for value in VALUES_US]


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
    shape = "{first_step: 100, last_step: 159, ranks: 8, ranks_per_bin: 1, steps_per_bin: 1}"
    code = (
        f"(() => {{ const view = heatView({shape}); view.zoom(0.5, 0, 159); return view.now; }})()"
    )
    now = evaluated("heat.js", code)
    assert now["rank"] == [0, 4]
    assert now["step"][1] <= 160
    assert now["step"][1] - now["step"][0] == pytest.approx(30)


@pytest.mark.parametrize("name", html.SCRIPTS)
def test_every_script_is_checked_for_types_and_says_what_it_is_for(name: str) -> None:
    first, second, *_ = (html.PAGE / name).read_text("utf-8").splitlines()
    assert first == "// @ts-check"
    assert second.startswith("// ")
