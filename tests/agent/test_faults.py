"""Where a fatal signal struck, by Python's own handler, which ends the process as ever."""

import signal
import subprocess
import sys

import pytest

from evenstep.agent.pulse.frames import frames_of_report
from evenstep.cli.deaths import _struck_at
from evenstep.trace.spool.spool import Spool

START = """
import ctypes, faulthandler, os, signal, sys, threading
from pathlib import Path
from evenstep.trace.spool.faults import FaultHandler
handler, spool = FaultHandler(), Path(sys.argv[1])

def strike():
    ctypes.string_at(0)

"""


@pytest.fixture
def struck(tmp_path):
    """Runs a script with a spool; how it ended, the frames behind the spool, its errors."""
    path = tmp_path / "rank-00000.spool"
    Spool.create(path, {"rank": 0}, ring_bytes=1, summary_bytes=1).shut()

    def run(script):
        file = tmp_path / "job.py"
        file.write_text(START + script)
        done = subprocess.run(
            [sys.executable, str(file), str(path)], capture_output=True, text=True, check=False
        )
        return done.returncode, [frame.split()[-1] for frame in _struck_at(path)], done.stderr

    return run


def test_the_signal_ends_the_process_and_leaves_the_frames_of_its_thread(struck):
    code, frames, said = struck("handler.install(spool)\nstrike()")
    assert (code, said) == (-signal.SIGSEGV, "")
    assert frames == ["string_at", "strike", "<module>"]


def test_so_does_an_abort_in_another_thread(struck):
    body = "handler.install(spool)\nthreading.Thread(target=os.abort, name='x').start()\ninput()"
    code, frames, _ = struck(body.replace("os.abort", "lambda: os.abort()"))
    assert code == -signal.SIGABRT
    assert "<lambda>" in frames


@pytest.mark.parametrize(
    "before",
    [
        "faulthandler.enable()",
        "signal.signal(signal.SIGABRT, lambda *_: None)",
        "signal.signal(signal.SIGFPE, signal.SIG_IGN)",
    ],
)
def test_where_anybody_handles_such_a_signal_nothing_is_installed(struck, before):
    on = "handler.install(spool)\nprint(faulthandler.is_enabled(), file=sys.stderr)"
    _, frames, said = struck(f"{before}\nwas = faulthandler.is_enabled()\n{on}")
    assert frames == []
    assert said == f"{'faulthandler' in before}\n"


def test_a_handler_that_the_script_sets_up_later_is_its_own(struck):
    code, frames, said = struck(
        "handler.install(spool)\nfaulthandler.enable()\nhandler.remove()\nstrike()"
    )
    assert (code, frames) == (-signal.SIGSEGV, [])
    assert "in strike" in said


def test_removed_it_leaves_nothing(struck):
    code, frames, said = struck("handler.install(spool)\nhandler.remove()\nstrike()")
    assert (code, frames, said) == (-signal.SIGSEGV, [], "")


@pytest.mark.parametrize(("close", "left"), [("", True), ("os.closerange(3, 64)", False)])
def test_a_script_that_closes_our_file_is_not_written_into_its_next_one(struck, close, left):
    _, _, said = struck(
        f"handler.install(spool)\n{close}\nhandler.remove(lost=True)\n"
        "print(faulthandler.is_enabled(), file=sys.stderr)"
    )
    assert said == f"{left}\n"


BEATING = """
from evenstep.agent.pulse.heartbeat import Heartbeat
from evenstep.agent.recording.recorder import Recorder
from evenstep.trace.spool.spool import Spool
made = Spool.create(spool.with_name("live"), {"rank": 0}, ring_bytes=1, summary_bytes=1)
pulse = Heartbeat(Recorder(made), lambda now_ns: (now_ns + 10**9, 0))
pulse.start()
"""


@pytest.mark.parametrize(
    ("script", "frames"),
    [
        ("strike()", 3),
        ("os.fork() or (pulse.disarm(), strike())\nos.wait()\npulse.stop(9.0)", 0),  # the child's
        ("pulse.stop(9.0)\nstrike()", 0),
    ],
)
def test_a_rank_is_told_while_it_is_observed_and_its_forked_children_are_not(
    struck, tmp_path, script, frames
):
    struck(BEATING + script)
    assert len(_struck_at(tmp_path / "live")) == frames


def test_of_a_thread_without_python_the_main_thread_is_told():
    frame, thread = '  File "/home/w/job/train.py", line', "(most recent call first):\n"
    report = (
        f"Fatal Python error: Aborted\n\nThread 0x00007f01 {thread}"
        f"{frame} 5 in fetch\n\nThread 0x00007f02 {thread}"
        f"{frame} 31 in step\n{frame} 40 in <module>\n\nExtension modules: numpy (total: 1)\n"
    )
    assert frames_of_report(report) == ["w/job/train.py:31 step", "w/job/train.py:40 <module>"]
    current = f"Current thread 0x00007f03 {thread}"
    assert (
        frames_of_report(f"{report}{current}  <no Python frame>\n")[0] == "w/job/train.py:31 step"
    )
    assert frames_of_report(f"{current}{frame} 7 in call\n\n{report}") == ["w/job/train.py:7 call"]
    assert frames_of_report("\0" * 96) == []


def test_where_not_all_threads_are_listed_none_of_the_others_is_taken_for_the_main_one():
    frame, thread = '  File "/home/w/job/train.py", line', "(most recent call first):\n"
    cut = f"Thread 0x00007f01 {thread}{frame} 5 in fetch\n\n...\n\nExtension modules: numpy\n"
    assert frames_of_report(cut) == []
    current = f"Current thread 0x00007f03 {thread}{frame} 7 in call\n\n"
    assert frames_of_report(current + cut) == ["w/job/train.py:7 call"]


MANY = """
ready = threading.Barrier(21)

def deep(left):
    deep(left - 1) if left else (ready.wait(), threading.Event().wait())

for _ in range(20):
    threading.Thread(target=deep, args=(90,), daemon=True).start()
ready.wait()
strike()
"""


def test_the_report_is_read_to_its_end_where_the_main_thread_stands(struck):
    _, frames, _ = struck(f"handler.install(spool){MANY}")
    assert frames == ["string_at", "strike", "<module>"]


def test_a_file_that_is_no_spool_any_more_has_no_frames(tmp_path):
    (tmp_path / "rank-00000.spool").touch()
    assert _struck_at(tmp_path / "rank-00000.spool") == []
