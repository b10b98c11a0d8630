import io
import re
import sys
import time

import pytest

from evenstep.cli import progress


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
def after_10_s(monkeypatch):
    """Every second look at the clock is ten seconds later."""
    now = iter(range(0, 100_000, 10))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))


def test_what_is_quick_says_nothing(watched, monkeypatch):
    stream = watched()
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)
    with progress.reading_progress(10**9) as report:
        report("rank-0.json", 10**8, 10**9)
    with progress.counting() as tell:
        for done in range(1, 1001):
            tell(done, 1000)
    with progress.ticking("diagnosing"):
        pass
    assert stream.getvalue() == ""


def test_long_work_says_how_far_it_is_and_how_long_it_may_take(watched, after_10_s):
    stream = watched()
    with progress.counting("compared {} of {} options") as tell:
        tell(1, 4)
    first = stream.getvalue().strip().splitlines()[0]
    assert first.startswith("compared 1 of 4 options, about ")
    assert first.endswith(" s left")


def test_a_terminal_keeps_one_line_and_is_left_clean(monkeypatch, after_10_s):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.counting("compared {} of {} options") as tell:
        for done in range(1, 5):
            tell(done, 4)
    shown = sys.stderr.getvalue()
    assert "\n" not in shown
    assert shown.endswith(" \r")


def test_before_the_first_is_done_that_is_said(watched, monkeypatch):
    stream = watched()
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "DRAWN_S", 0.01)
    with progress.counting("compared {} of {} options"):
        deadline = time.monotonic() + 60
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert re.match(r"compared none yet: \d+ s", stream.getvalue().lstrip("\r"))


def test_reading_says_its_share_of_all_files(watched, after_10_s):
    stream = watched()
    with progress.reading_progress(64_000_000) as report:
        report("rank-0.json", 32_000_000, 32_000_000)
    assert "reading: 50 % of 64 MB, about" in stream.getvalue()


def test_work_that_cannot_say_how_far_it_is_says_that_it_goes_on(watched, monkeypatch):
    stream = watched()
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "DRAWN_S", 0.01)
    with progress.ticking("diagnosing 1,024 ranks", about_s=9.0):
        deadline = time.monotonic() + 60
        while not stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    told = stream.getvalue().lstrip("\r")
    assert re.match(r"diagnosing 1,024 ranks: \d+ s of about 9 s", told)
