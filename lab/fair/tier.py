"""The fair tier: rank processes on emulated links, no privilege needed."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from typing import IO

from lab.board import Board
from lab.children import python_path
from lab.fair.process import READY
from lab.scenario import Scenario
from lab.tier import LOG, LabError, Trial

ARMS: tuple[str, ...] = ()
STARTING_S = 120.0
ENDING_S = 10.0
SHOWN_CHARACTERS = 1500


def missing(scenario: Scenario) -> str:
    """Nothing is needed but torch where ranks train."""
    from importlib.util import find_spec

    if any(job.work == "train" for job in scenario.jobs) and find_spec("torch") is None:
        return 'jobs with work = "train" need torch; install it, or take work = "sleep"'
    return ""


def start(trial: Trial, board: Board) -> Emulated:  # noqa: ARG001 - the process opens it itself
    """Start the emulation; returns once every job steps."""
    log = (trial.folder / LOG).open("w+b")
    process = subprocess.Popen(
        [sys.executable, "-m", "lab.fair.process"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        env={**os.environ, "PYTHONPATH": python_path(), "EVENSTEP": "0", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    running = Emulated(process, log)
    try:
        running.begin(trial)
    except BaseException:
        running.end()
        raise
    return running


def clean() -> list[str]:
    """Nothing outlives the campaign: every process of this tier dies with its parent."""
    return []


class Emulated:
    """The process of a trial."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self._process, self._log = process, log

    def begin(self, trial: Trial) -> None:
        """Hand over the trial and wait until its ranks step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(pickle.dumps(trial))
            self._process.stdin.close()
        except BrokenPipeError:
            raise LabError(self._said("ended at its start")) from None
        ready, _, _ = select.select([self._process.stdout], (), (), STARTING_S)
        if not ready:
            raise LabError(self._said(f"did not step within {STARTING_S:.0f} s"))
        if self._process.stdout.readline().decode().strip() != READY:
            raise LabError(self._said("ended before all ranks stepped"))

    def check(self) -> None:
        """Raise `LabError` when a rank has failed, or the emulation itself."""
        if self._process.poll() is not None:
            raise LabError(self._said(f"ended with {self._process.returncode}"))

    def end(self) -> None:
        """Give the ranks a moment to finish their step; then nothing is left."""
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:  # it never read its trial
                    continue

    def _said(self, what: str) -> str:
        self._log.seek(0)
        text = self._log.read().decode(errors="replace").strip()[-SHOWN_CHARACTERS:]
        return f"the emulated fabric {what}" + (f"; it said: {text}" if text else "")
