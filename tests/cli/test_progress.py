import io
import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from evenstep import words
from evenstep.cli import progress, traces
from evenstep.trace.loading import load
from evenstep.trace.reports import REPORT, report_file, reporting
from tests.diagnose.attempts_run import Start, write


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(params=[io.StringIO, Terminal])
def watched(request, monkeypatch):
    """Standard error from when it is asked for, in a pipe and on a terminal."""

    def start():
        monkeypatch.setattr(sys, "stderr", request.param())
        return sys.stderr

    return start


@pytest.fixture
def at_once(monkeypatch):
    """Even quick work shows its progress."""
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    for pause in ("DRAWN_S", "LINE_S"):
        monkeypatch.setattr(progress, pause, 0.01)


def printed(stream, text):
    """What is on the stream once it has this text."""
    deadline = time.monotonic() + 60
    while text not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    return stream.getvalue().lstrip("\r")


def test_what_is_quick_says_nothing(watched):
    stream = watched()
    with progress.reading("run"):
        REPORT.get()("rank-0.json", 10**8, 10**9)
    with progress.counting() as tell:
        for done in range(1, 1001):
            tell(done, 1000)
    with progress.ticking("diagnosing"):
        pass
    assert stream.getvalue() == ""


def test_long_work_says_how_far_it_is_and_how_long_it_may_take(watched, at_once):
    stream = watched()
    with progress.counting("compared {} of {} options") as tell:
        tell(1, 10**9)
        told = printed(stream, "compared 1")
    assert re.search(r"compared 1 of 1000000000 options, about [\d.,]+ \w+ left", told)


def test_a_part_that_takes_longer_than_the_others_adds_no_time_to_what_is_left(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "_show_seconds", lambda text: nullcontext(texts.append(text)))
    texts, said = [], []
    with progress.counting() as tell:
        for clock[0], done in ((5.0, 2), (10.0, 4), (12.0, 4), (14.0, 4), (40.0, 4)):
            tell(done, 6)
            said.append(texts[0](clock[0]))
    lefts = ["10 s left", "5 s left", "3 s left", "1 s left"]
    assert [one.rpartition("about ")[2] for one in said[:4]] == lefts
    assert said[4] == "simulated 4 of 6: 40 s"


@pytest.mark.parametrize(("about_s", "told"), [(1.04, "diagnosing: 3 s"),
                                               (12.34, "3 s of about 12 s")])  # fmt: skip
def test_what_is_expected_is_told_while_it_lies_ahead_no_finer_than_it_is_known(
    monkeypatch, about_s, told
):
    texts = []
    monkeypatch.setattr(progress, "_show_seconds", lambda text: nullcontext(texts.append(text)))
    with progress.ticking("diagnosing", about_s):
        assert texts[0](3.0).endswith(told)


def test_a_terminal_keeps_one_line_and_is_left_clean(monkeypatch, at_once):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.counting("compared {} of {} options") as tell:
        for done in range(1, 5):
            tell(done, 4)
            printed(stream, f"compared {done}")
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith(" \r")


def test_before_the_first_is_done_that_is_said(watched, at_once):
    stream = watched()
    with progress.counting("compared {} of {} options"):
        told = printed(stream, "compared")
    assert re.match(r"compared none yet: \d+ s", told)


def test_reading_says_its_share_of_all_files(watched, at_once):
    stream = watched()
    with progress.reading("run"):
        REPORT.get()("rank-1.json", 0, 32_000_000)
        REPORT.get()("rank-0.json", 32_000_000, 32_000_000)
        assert " s, 50 % of 64 MB, about" in printed(stream, "50 %")


@pytest.mark.parametrize("large", [False, True])
def test_reading_a_run_says_how_far_it_is_by_its_spools(tmp_path, monkeypatch, large):
    monkeypatch.setattr("evenstep.trace.spools.LARGE_RECORDS", -1 if large else 10**9)
    write(tmp_path, [Start(0, 5)], world=3)
    told = []
    with reporting(lambda name, done, size: told.append((Path(name).name, done / size))):
        load(tmp_path)
    names = [f"rank-{rank:05d}.spool" for rank in range(3)]
    assert told == [(name, share) for share in (0.0, 1.0) for name in names]


def test_holes_of_a_file_are_not_among_what_is_read(tmp_path):
    with (tmp_path / "rank-00000.spool").open("wb") as file:
        file.write(bytes(range(256)) * 4096)
        file.truncate(1 << 30)
    told = []
    with reporting(lambda *each: told.append(each)):
        report_file(tmp_path / "rank-00000.spool", read=True)
    ((_, done, size),) = told
    assert done == size < 1 << 24


def test_a_diagnosis_says_how_long_it_may_take_by_the_time_of_reading(
    tmp_path, watched, at_once, monkeypatch
):
    write(tmp_path, [Start(0, 5)])
    trace, read_s = traces.read_timed(tmp_path)
    assert read_s > 0
    stream = watched()
    monkeypatch.setattr("evenstep.diagnose.engine.diagnose", lambda _: printed(stream, "of about"))
    told = traces.judge(trace, read_s=100.0)
    about = words.duration(1e11 * traces.TO_READING)
    assert told.startswith(f"diagnosing 2 ranks: 0 s of about {about}")


def test_work_that_cannot_say_how_far_it_is_says_that_it_goes_on(watched, at_once):
    stream = watched()
    with progress.ticking("diagnosing 1,024 ranks", about_s=9.0):
        told = printed(stream, "diagnosing")
    assert re.match(r"diagnosing 1,024 ranks: \d+ s of about 9 s", told)
