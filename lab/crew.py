"""The processes of a trial: started together, watched, and never left behind.

Each is in a session of its own, so that Ctrl-C reaches the campaign alone, which ends the others in
order; and each is killed by the kernel when the process that started it dies, however it dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lab.realtime import end_with_parent
from lab.tier import LabError

_SHOWN_CHARACTERS = 1500
_POLL_S = 0.02


class Member(NamedTuple):
    """One process, and where it writes what it says."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path


class Crew:
    """Processes of one trial. Start them from the thread that outlives them."""

    def __init__(self) -> None:
        self.members: list[Member] = []

    def start(
        self, name: str, command: Sequence[str], environ: Mapping[str, str], output: Path
    ) -> int:
        """Start one; its process id. Raises `LabError` where there is no such command."""
        output.parent.mkdir(parents=True, exist_ok=True)
        here = os.getpid()
        try:
            with output.open("ab") as file:
                process = subprocess.Popen(
                    command,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: end_with_parent(here),
                )
        except OSError as error:
            raise LabError(f"cannot start {name} ({command[0]}): {error.strerror}") from error
        self.members.append(Member(name, process, output))
        return process.pid

    def check(self) -> None:
        """Raise `LabError` naming the first that has failed, with the end of what it said."""
        for name, process, output in self.members:
            code = process.poll()
            if code:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
                raise LabError(f"{name} {how}: {_end_of(output) or 'it said nothing'}")

    @property
    def running(self) -> list[int]:
        """Process ids of those that have not ended."""
        return [m.process.pid for m in self.members if m.process.poll() is None]

    def wait(self, seconds: float) -> bool:
        """Give them so long to end by themselves; whether all have."""
        deadline = time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return not self.running

    def end(self, grace_s: float) -> None:
        """Ask those that are left to end, and kill them after a grace. Never raises."""
        for signal_number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            for pid in self.running:
                _signal(pid, signal.SIGCONT)  # a stopped process hears nothing else
                _signal(pid, signal_number)
            if self.wait(patience_s):
                return


def _signal(pid: int, number: signal.Signals) -> None:
    """To the process and all of its session that have not left it."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _end_of(output: Path) -> str:
    try:
        text = output.read_text(errors="replace").strip()
    except OSError:
        return ""
    return text[-_SHOWN_CHARACTERS:]
