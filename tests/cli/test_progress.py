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
    with progress.reading_progress(10**9) as report:
        report("rank-0.json", 10**8, 10**9)
    with progress.counting() as tell:
        for done in range(1, 1001):
            tell(done, 1000)
    with progress.ticking("diagnosing"):
        pass
    assert stream.getvalue() == ""


def test_long_work_says_how_far_it_is_and_how_long_it_may_take(watched, at_once):
    stream = watched()
    with progress.counting("compared {} of {} options") as tell:
        tell(1, 4)
        told = printed(stream, "compared 1")
    assert re.search(r"compared 1 of 4 options, about [\d.]+ .?s left", told)


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
    with progress.reading_progress(64_000_000) as report:
        report("rank-0.json", 32_000_000, 32_000_000)
        assert "reading: 50 % of 64 MB, about" in printed(stream, "50 %")


def test_work_that_cannot_say_how_far_it_is_says_that_it_goes_on(watched, at_once):
    stream = watched()
    with progress.ticking("diagnosing 1,024 ranks", about_s=9.0):
        told = printed(stream, "diagnosing")
    assert re.match(r"diagnosing 1,024 ranks: \d+ s of about 9 s", told)
