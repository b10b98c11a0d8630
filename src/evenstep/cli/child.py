"""The wrapped command as a child process: same terminal, same signals, same exit code.

The child shares our process group, so signals from the terminal (Ctrl-C, Ctrl-Z, hang-up) reach it
directly; signals that another process sends to us alone are forwarded. Signals are received with
`sigwaitinfo`, which tells their sender and runs no handler asynchronously.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from evenstep.cli.terminal import say

FORWARDED = frozenset(
    {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
#: Ignored by every Python, and by its children unless the default is restored.
_RESTORED = [signal.SIGPIPE, signal.SIGXFSZ]
_SI_KERNEL = 0x80  # siginfo's code for a signal the terminal or the kernel sent (sigaction(2))

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of a POSIX shell


def run(
    command: Sequence[str],
    environ: Mapping[str, str],
    on_signal: Callable[[int], object],
    on_exit: Callable[[], object] = lambda: None,
) -> int:
    """Run a command to its end and return its exit code, 128 + n if signal n ended it. `on_exit` is
    called before the child is reaped. Raises `OSError` if it cannot be started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it hides our child's end
    awaited = FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    try:
        pid = os.posix_spawnp(
            command[0], list(command), dict(environ), setsigmask=before, setsigdef=_RESTORED
        )
        return _wait(pid, awaited, on_signal, on_exit)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def refusal(command: Sequence[str]) -> int | None:
    """Say and return what `start_failure` would, as far as that is known before the start."""
    name = command[0]
    if shutil.which(name) is not None:
        return None
    there = Path(name).is_dir() or shutil.which(name, os.F_OK) is not None
    number = errno.EACCES if there else errno.ENOENT
    return start_failure(command, OSError(number, os.strerror(number)))


def start_failure(command: Sequence[str], error: OSError) -> int:
    """Say why a command could not be started, and return the exit code."""
    absent = isinstance(error, FileNotFoundError)
    hint = "name what starts it" if Path(command[0]).is_file() else "check its spelling"
    missing = f"there is no command {command[0]!r} on PATH; {hint}"
    say(missing if absent else f"cannot run {command[0]!r}: {error.strerror}")
    return NOT_FOUND if absent else NOT_EXECUTABLE


def _wait(
    pid: int,
    awaited: frozenset[signal.Signals],
    on_signal: Callable[[int], object],
    on_exit: Callable[[], object],
) -> int:
    while True:
        arrived = signal.sigwaitinfo(awaited)
        if arrived.si_signo != signal.SIGCHLD:
            on_signal(arrived.si_signo)
            if arrived.si_code != _SI_KERNEL:
                os.kill(pid, arrived.si_signo)  # not reaped yet, so the number is not reused
            continue
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            on_exit()
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
