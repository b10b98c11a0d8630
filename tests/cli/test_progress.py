import io
import sys

import pytest

from evenstep.cli import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "size"), [(io.StringIO, progress.LONG_BYTES), (Terminal, progress.LONG_BYTES - 1)]
)
def test_nothing_is_shown_in_a_pipe_or_of_what_is_quick(monkeypatch, stream, size):
    monkeypatch.setattr(sys, "stderr", stream())
    with progress.shown(size) as report:
        assert report is None
    assert sys.stderr.getvalue() == ""


def test_a_terminal_sees_the_file_that_is_read_and_how_far(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.shown(2 * progress.LONG_BYTES) as report:
        report("rank-0.json", progress.LONG_BYTES, progress.LONG_BYTES)
    shown = sys.stderr.getvalue()
    assert "rank-0.json" in shown
    assert "32.0/64.0 MB" in shown


def test_a_terminal_sees_how_many_are_done_and_a_pipe_nothing(monkeypatch):
    shown = []
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        tell = progress.counter("simulated {} of {} steps")
        for done in range(1, 1001):
            tell(done, 1000)
        shown.append(stream.getvalue())
    assert shown[0].endswith("\rsimulated 1000 of 1000 steps\n")
    assert shown[0].count("\r") <= 101  # once a percent
    assert shown[1] == ""
