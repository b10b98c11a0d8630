"""Processes of a trial, and what disturbs them: watched, timed, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.board import NOT_YET, Pulse
from lab.children import python_path
from lab.conductor import Conductor
from lab.crew import Crew
from lab.fair.disturbances import NEVER, of_processes
from lab.scenario import parse
from lab.tier import LabError

SOURCE = python_path()
#: starts a process that sleeps, says its id, and waits to be killed
PARENT = """
import os, sys, time
from pathlib import Path
from lab.crew import Crew
print(Crew().start("sleeper", ["sleep", "60"], dict(os.environ), Path(sys.argv[1])), flush=True)
time.sleep(60)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
"""


@pytest.fixture
def crew():
    made = Crew()
    yield made
    made.end(0.0)


def waited(happened) -> bool:
    """Whether it happens within a minute."""
    deadline = time.monotonic() + 60
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.005)
    return happened()


def test_a_failure_is_named_with_the_end_of_what_was_said(crew, tmp_path):
    command = [sys.executable, "-c", "import sys; print('no such link'); sys.exit(3)"]
    crew.start("rank 1", command, dict(os.environ), tmp_path / "log")
    assert waited(lambda: not crew.running)
    with pytest.raises(LabError, match=r"rank 1 ended with 3: no such link"):
        crew.check()


def test_a_command_that_does_not_exist_is_named(crew, tmp_path):
    with pytest.raises(LabError, match=r"cannot start rank 0 \(/nowhere\)"):
        crew.start("rank 0", ["/nowhere"], {}, tmp_path / "log")


def test_the_end_reaches_those_that_are_stopped_and_those_that_refuse(crew, tmp_path):
    log = tmp_path / "log"
    crew.start("deaf", [sys.executable, "-c", DEAF], dict(os.environ), log)
    os.kill(crew.start("stopped", ["sleep", "60"], dict(os.environ), log), signal.SIGSTOP)
    assert waited(lambda: log.exists() and log.read_text() != "")
    crew.end(0.1)
    assert not crew.running


def test_a_process_dies_with_the_one_that_started_it(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    parent = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCE}
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert waited(lambda: not _runs(child))


def _runs(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


class Witness:
    """Notes what it is told; is due once."""

    def __init__(self) -> None:
        self.steps, self.acts, self.due_ns = [], 0, 0.0

    def act(self, fabric) -> None:
        self.acts += 1
        self.due_ns = NEVER

    def stepped(self, job, step, fabric) -> None:
        self.steps.append((job, step))


def test_disturbances_are_told_each_step_once_and_act_when_due(tmp_path):
    pulse, witness = Pulse.create(tmp_path, 0), Witness()
    conductor = Conductor([witness], {0: pulse})
    for step in (3, 4):
        pulse.beat(step)
        assert waited(lambda step=step: (0, step) in witness.steps)
    conductor.close()
    assert witness.steps == [(0, 3), (0, 4)]
    assert witness.acts == 1


def test_a_disturbance_that_fails_is_kept_for_the_check(tmp_path):
    witness = Witness()
    witness.act = lambda fabric: 1 / 0
    conductor = Conductor([witness], {})
    assert waited(lambda: conductor.failure is not None)
    conductor.close()


def test_faults_of_processes_find_their_ranks(tmp_path):
    pulse = Pulse.create(tmp_path, 0)
    assert pulse.steps == NOT_YET
    pulse.enter(1, 4242)
    scenario = parse({
        "fabric": "mpi", "jobs": [{"ranks": 2}],
        "faults": [{"kind": "paused_rank", "ranks": "1"}, {"kind": "collector"}],
    })  # fmt: skip
    (pause,) = of_processes(scenario, lambda job, rank: pulse.process(rank), lambda share: 0)
    assert pause._processes == [4242]
