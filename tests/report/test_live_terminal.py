"""The live view as text."""

import re

import pytest

from evenstep.watch.findings import Journal, LiveFinding, live_findings
from evenstep.watch.frame import frame
from evenstep.watch.run import LiveRun
from evenstep.watch.terminal import HOST_WIDTH, View, finding_text, lines, sparkline, status_line
from tests.report.live_ranks import LiveRank, job
from tests.report.small_run import HOSTILE

CODES = re.compile(r"\x1b\[[0-9;]*m")


def shown(run, **view):
    live, journal = LiveRun(run), Journal()
    live.refresh()
    found = live_findings(live)
    seen = frame(live, found)
    journal.note(found, seen.step)
    return lines(seen, journal, View(**view))


@pytest.fixture
def run(tmp_path):
    job(tmp_path / "run", late=3)
    return tmp_path / "run"


@pytest.mark.parametrize("width", [40, 80, 132])
def test_no_line_is_wider_than_asked(run, width):
    assert max(map(len, shown(run, width=width))) <= width


def test_colour_changes_no_word(run):
    plain, coloured = shown(run), shown(run, color=True)
    assert any("\x1b" in line for line in coloured)
    assert [CODES.sub("", line) for line in coloured] == plain


def test_the_verdict_stands_above_the_ranks(run):
    text = "\n".join(shown(run))
    assert text.index("Rank 3 is late by 30 ms") < text.index("rank host")


def test_a_rows_bar_shows_its_shares(run):
    row = next(line for line in shown(run, width=137) if line.startswith("   0 "))
    # 100 cells: 60 compute, 10 transfer, 30 wait
    assert row.endswith("█" * 60 + "▓" * 10 + "▒" * 30)


def test_many_ranks_are_cut_to_the_height_with_the_worst_first(tmp_path):
    job(tmp_path / "run", late=33, world=40, steps=10)
    text = shown(tmp_path / "run", height=20)
    assert len(text) <= 20
    first = text[1 + next(at for at, line in enumerate(text) if line.startswith("rank host"))]
    assert first.startswith("  33 ")
    assert "of 40 ranks" in "\n".join(text)


def test_what_a_trace_contains_moves_no_cursor(tmp_path):
    LiveRank(tmp_path / "run", 0, world=1, hostname="\x1b[2J" + HOSTILE).steps(9)
    assert all(line.isprintable() for line in shown(tmp_path / "run"))


def test_a_long_name_of_a_host_is_cut_to_its_column(tmp_path):
    LiveRank(tmp_path / "run", 0, world=1, hostname="h" * 50).steps(9)
    (row,) = (line for line in shown(tmp_path / "run") if line.startswith("   0 "))
    assert row.split()[1] == "h" * (HOST_WIDTH - 1) + "…"


def test_the_times_are_called_those_of_the_latest_steps(run):
    assert any(line.startswith("latest 32 steps: 100 ms mean") for line in shown(run))


def test_a_status_is_one_line(run):
    live = LiveRun(run)
    live.refresh()
    seen = frame(live, live_findings(live))
    assert status_line(seen).startswith("step 39 · 100 ms · Rank 3 is late")


def test_a_sparkline_spans_least_to_greatest_and_shows_no_noise():
    assert sparkline([1, 2, 8], 10) == "▁▂█"
    assert sparkline([100, 101, 100], 10) == "▁▁▁"
    assert sparkline([1, 5, 9], 2) == "▁█"
    assert sparkline([], 5) == sparkline([1.0], 0) == ""


def test_a_finding_that_is_over_stays_for_a_while():
    journal = Journal()
    journal.note([], 9)
    journal.note([LiveFinding("straggler", (3,), 0.2, "rank 3 is late")], 10)
    assert journal.note([LiveFinding("straggler", (3,), 0.3, "rank 3 is later")], 20) == []
    journal.note([], 50)
    assert journal.past == ["steps 10-50: rank 3 is later"]


def test_what_is_so_at_the_first_look_may_have_begun_at_any_time():
    journal, finding = Journal(), LiveFinding("straggler", (3,), 0.2, "rank 3 is late")
    for step in (10, 20):
        journal.note([finding], step)
        assert finding_text(finding, journal) == "straggler: rank 3 is late"
