"""`evenstep watch` as a person and a program use it."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from evenstep.cli.watch import Look, _log
from evenstep.trace.spool.identity import boot_id, hostname
from evenstep.watch.findings import Journal, live_findings
from evenstep.watch.frame import frame
from evenstep.watch.run import LiveRun
from tests.report.live_ranks import LiveRank, job

PATIENCE_S = 60.0


@pytest.fixture
def run(tmp_path):
    job(tmp_path / "run", late=3)
    return tmp_path / "run"


def lines_until(child, wanted):
    """Lines of a process until one has this in it."""
    found = []
    for line in child.stdout:
        found.append(line)
        if wanted in line:
            return found
    raise AssertionError(f"no {wanted!r} in {found}")


def test_once_prints_one_plain_picture_of_80_columns(command, run):
    done = command("watch", run, "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Rank 3 is late by 30 ms" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json_is_a_line_a_look(start, run):
    child = start("watch", run, "--json", "--every", "0.1")
    frames = [json.loads(child.stdout.readline()) for _ in range(3)]
    assert [frame["schema"] for frame in frames] == ["evenstep.watch/1"] * 3
    assert frames[0]["findings"][0]["ranks"] == [3]


def test_json_once_is_one_line(command, run):
    assert json.loads(command("watch", run, "--json", "--once").stdout)["world"] == 4


def test_a_run_that_has_not_begun_is_waited_for(start, tmp_path):
    child = start("watch", tmp_path / "later", "--every", "0.1")
    lines_until(child, "waiting for")
    job(tmp_path / "made", late=1)
    (tmp_path / "made").rename(tmp_path / "later")  # all its steps at once
    assert "Rank 1 is late" in lines_until(child, "is late")[-1]


def test_a_run_that_has_not_begun_has_no_picture(command, tmp_path):
    done = command("watch", tmp_path / "later", "--once")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no rank has started" in done.stderr


def test_an_attempt_stands_for_its_run(command, run):
    shown = command("watch", run / "attempt-000", "--once").stdout
    assert "4 ranks" in " ".join(shown.split())  # the folder may be long, and wrap


def test_a_log_tells_what_is_new_once(start, tmp_path):
    ranks = job(tmp_path / "run", late=2)
    child = start("watch", tmp_path / "run", "--every", "0.1")
    assert "Rank 2 is late" in lines_until(child, "is late")[-1]
    LiveRank(tmp_path / "made", 0, attempt=1, world=1).steps(20)
    (tmp_path / "made" / "attempt-001").rename(tmp_path / "run" / "attempt-001")
    assert len(lines_until(child, "No rank is late")) == 1
    assert ranks


def test_a_log_says_nothing_where_only_numbers_change(run, capsys):
    live = LiveRun(run)
    live.refresh()
    shown = frame(live, live_findings(live))
    told = [replace(each, text=f"{each.text}, now") for each in shown.findings]
    calmer = replace(shown, verdict="Rank 3 is late by 29 ms", findings=told)
    over = replace(shown, verdict="No rank is late", findings=[])
    _log(Look(each, Journal(), [], None) for each in (shown, calmer, calmer, over))
    first, last = capsys.readouterr().out.splitlines()
    assert "Rank 3 is late by 30 ms" in first
    assert "No rank is late" in last


def test_ctrl_c_ends_it_without_a_word(start, run):
    child = start("watch", run, "--every", "0.1")
    lines_until(child, "is late")
    child.send_signal(signal.SIGINT)
    assert child.wait(PATIENCE_S) == 130
    assert child.stderr.read() == ""


def test_once_sums_a_node_up_and_ends(command, run):
    done = command("watch", run, "--aggregate", "--once")
    assert done.returncode == 0
    (place,) = (run / "live").iterdir()
    assert done.stderr.startswith("evenstep: wrote a summary of ")
    assert done.stderr.endswith(f" ranks to {place}\n")


def test_a_page_of_one_moment_is_refused(command, run):
    done = command("watch", run, "--web", "--once")
    assert done.returncode == 2
    assert "leave out --once" in done.stderr


def test_once_without_a_rank_of_this_host_is_refused(command, run, tmp_path):
    """As on a node from which nothing has been copied: nothing is written."""
    for each in run.glob("attempt-*"):
        shutil.rmtree(each)
    (run / "live").mkdir()
    (run / "live" / "node-other.bin").touch()
    done = command("watch", run, "--aggregate", "--once", "--into", tmp_path / "sums")
    assert (done.returncode, "no rank of" in done.stderr) == (2, True)
    assert not (tmp_path / "sums").exists()


@pytest.mark.parametrize("arguments", [["--every", "0"], ["--port", "0"], ["--port", "http"]])
def test_what_cannot_be_is_refused(command, run, arguments):
    assert command("watch", run, *arguments).returncode == 2


def on_terminal(run, environ, size="80x24", around=()):
    """What reaches a terminal until the verdict is there and Ctrl-C was pressed, or a line was
    entered for the command `around` that starts it; and the code."""
    master, slave = pty.openpty()
    columns, rows = size.split("x")
    child = subprocess.Popen(
        [*around, sys.executable, "-m", "evenstep", "watch", str(run), "--every", "0.1"],
        env=environ | {"TERM": "xterm", "COLUMNS": columns, "LINES": rows},
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    shown, due, told = b"", time.monotonic() + PATIENCE_S, False
    while time.monotonic() < due:
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            shown += os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not told and shown.count(b"is late by") > 2:
            os.write(master, b"\n") if around else child.send_signal(signal.SIGINT)
            told = True
    code = child.wait(PATIENCE_S)
    os.close(master)
    return shown.decode(), code


def test_on_a_terminal_the_picture_stays_in_its_place_and_the_cursor_comes_back(run, environ):
    shown, code = on_terminal(run, environ)
    assert code == 130
    assert "\x1b[1A" in shown  # up again, to draw over the picture before
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "Traceback" not in shown


def test_in_the_background_it_leaves_the_keyboard_alone(run, environ):
    shell = ("setsid", "--ctty", "--wait", "sh", "-mc", '"$@" & read _; kill $!', "sh")
    shown, code = on_terminal(run, environ, around=shell)
    assert shown.count("is late by") > 2  # it was not stopped
    assert code == 0


def test_no_color_is_heard(run, environ):
    shown, _ = on_terminal(run, environ | {"NO_COLOR": "1"})
    assert "\x1b[34m" not in shown
    assert "\x1b[1m" not in shown


def test_web_prints_the_address_and_the_tunnel(start, run):
    child = start("watch", run, "--web", "--every", "0.1")
    assert "http://127.0.0.1:" in child.stderr.readline()
    assert "ssh -N -L" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(PATIENCE_S) == 130


def test_web_says_where_the_page_of_a_run_that_is_over_comes_from(command, tmp_path):
    """Its server ends at once, as no attempt follows: nobody has the time to open that page."""
    gone = {"pid": 1 << 30, "hostname": hostname(), "boot_id": boot_id(), "started_ticks": 1}
    LiveRank(tmp_path, 0, world=1).steps(20).ends()
    (tmp_path / "run.json").write_text(json.dumps({"written_by": "launcher", **gone}))
    done = command("watch", tmp_path, "--web", "--every", "0.1")
    assert done.returncode == 0
    assert f"; evenstep diagnose {tmp_path} --html FILE writes a page\n" in done.stderr


def test_a_file_is_no_run_to_wait_for(command, tmp_path):
    (tmp_path / "log.txt").write_text("")
    done = command("watch", tmp_path / "log.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("log.txt is a file; give the run folder\n")
