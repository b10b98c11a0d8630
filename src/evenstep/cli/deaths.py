"""How the ranks of a run end: the launcher sees each of them on its machine, whoever started it.

A descriptor of a process (pidfd_open(2)) becomes readable when it has ended. Until its parent has
asked for it, the kernel still has its exit code (proc(5), field 52 of `stat`): torchrun asks every
.1 s, we are woken at once. Who asked before us is no matter since Linux 6.15, where the descriptor
itself tells. What was found goes into the rank's own spool, as its fact `ended`.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from evenstep import words
from evenstep.attachment.attempts import header
from evenstep.trace.pack import collectable
from evenstep.trace.spool import layout
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import boot_id, hostname
from evenstep.trace.spool.spool import add_last_fact

PREEMPTED = "evenstep.preempted/1"
#: What Slurm (`--signal`, preemption), Kubernetes and others send; not what a person types.
PREEMPTING = frozenset({signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM})
SOON_S, LATER_S = 0.25, 2.0  # between looks for ranks that have begun, and once all are known
SILENT_S = 5.0  # without a heartbeat for so long, a rank that lives is told of
LOG_BYTES, LINE_LENGTH, MOST_LINES = 1 << 16, 300, 4  # of what others said, that is kept
_STATE, _STARTED, _EXIT_CODE = 0, 19, 49  # places in `stat` behind the process's name
_STOPPED = "T"
_GET_INFO = 0xC040FF0B  # PIDFD_GET_INFO of linux/pidfd.h, in the 64 bytes of its first version
_INFO = struct.Struct("<QQ11Ii")  # what is known, control group, eleven ids, wait status
_INFO_EXIT = 1 << 3  # of what is known: the last


class _Rank(NamedTuple):
    """A rank on this machine that has not ended."""

    path: Path
    rank: int
    pid: int
    attempt: int


class RankEnds:
    """Follows a run's ranks from `start` to `settle`, on a thread of its own. `say` is told of the
    first rank of an attempt that dies, and of one that stands still. Attempts from `first` on are
    this launcher's own."""

    def __init__(self, folder: RunFolder, say: Callable[[str], None], first: int = 0) -> None:
        self._folder = folder
        self._say = say
        self._first = first
        self._ranks: dict[int, _Rank] = {}  # by descriptor
        self._seen: set[Path] = set()
        self._told: set[int] = set()  # attempts of which the first death was told
        self._left: dict[int, _Rank] = {}  # of an attempt: who ended first, and nothing was wrong
        self._silent: set[Path] = set()
        self._asked = ""  # the signal that was passed on
        self._kills = _out_of_memory_kills()
        self._xids = _xid_lines()
        self._poll = select.poll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.POLLIN)
        self._settling = False
        self._thread = threading.Thread(target=self._run, name="evenstep-ends", daemon=True)

    def start(self) -> None:
        """Begin to watch; no signal of this process is ever handled on the thread."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def heard(self, number: int) -> None:
        """A signal is passed on to the command: who ends from now on was asked to."""
        name = signal.Signals(number).name
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            self._asked = name
        if number in PREEMPTING:
            try:
                self._mark_preempted(name)
            except OSError as error:  # the job comes first
                self._say(f"the run is not marked as preempted: {error}")

    def _mark_preempted(self, name: str) -> None:
        """Write down which signal came, unless one came before or no rank has begun."""
        attempt = max(self._folder.attempts(), default=-1)
        path = self._folder.preemption_path(attempt)
        if attempt < self._first or path.exists():
            return
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        facts = {"schema": PREEMPTED, "signal": name, "at": at, "hostname": hostname()}
        write_whole(path, json.dumps(facts, indent=2) + "\n")
        self._say(f"attempt {attempt} is preempted ({name}); passing it on")

    def settle(self) -> None:
        """The command has ended and was not waited for yet: look once more, and stop."""
        self._settling = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(1.0)

    def _run(self) -> None:
        pause_s = SOON_S
        while not self._settling:
            pause_s = SOON_S if self._find() else min(pause_s * 1.5, LATER_S)
            for descriptor, _ in self._poll.poll(pause_s * 1e3):
                if descriptor in self._ranks:
                    self._ended(descriptor)
            self._listen()
        self._find()
        for descriptor, _ in self._poll.poll(0):
            if descriptor in self._ranks:
                self._ended(descriptor)

    def _find(self) -> bool:
        """Take in the ranks that have begun; whether there were any."""
        found = False
        for attempt in self._folder.attempts():
            folder = self._folder.spool_path(attempt, 0).parent
            for path in set(folder.glob("rank-*.spool")) - self._seen:
                identity = header(path)
                if not identity:
                    continue  # not written yet
                self._seen.add(path)
                found = True
                if identity.get("boot_id") == boot_id() and identity.get("hostname") == hostname():
                    self._take_in(path, identity, attempt)
        return found

    def _take_in(self, path: Path, identity: Any, attempt: int) -> None:
        pid = int(identity.get("pid") or 0)
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # gone already, in another container, or a kernel without
            return
        if int((_stat(pid) or ["0"] * 20)[_STARTED]) != identity.get("started_ticks"):
            os.close(descriptor)
            return
        self._ranks[descriptor] = _Rank(path, int(identity["rank"]), pid, attempt)
        self._poll.register(descriptor, select.POLLIN)

    def _ended(self, descriptor: int) -> None:
        rank = self._ranks.pop(descriptor)
        ended = _how(rank.pid, descriptor)
        ended |= {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()}
        self._poll.unregister(descriptor)
        os.close(descriptor)
        if self._asked:
            ended["asked"] = self._asked
        if kills := _out_of_memory_kills() - self._kills:
            ended["out_of_memory_kills"] = kills
        code = ended.get("exit_code")
        wrong = "signal" in ended or (code is None and not _closed(rank.path)) or bool(code)
        if wrong:
            ended |= {name: lines for name, lines in self._heard_of(rank).items() if lines}
        try:
            add_last_fact(rank.path, "ended", ended)
        except (OSError, ValueError) as error:
            self._say(f"how rank {rank.rank} ended is not in its trace: {error}")
        if wrong and not self._asked and rank.attempt not in self._told:
            self._told.add(rank.attempt)
            self._say(_last_words(rank, ended, self._left.get(rank.attempt)))
        elif not wrong:
            self._left.setdefault(rank.attempt, rank)

    def _heard_of(self, rank: _Rank) -> dict[str, list[str]]:
        """What the driver has said since the start, and NCCL: Xid and NCCL WARN lines, the last."""
        before = set(self._xids)
        return {
            "xid": [line for line in _xid_lines() if line not in before][-MOST_LINES:],
            "nccl_warnings": nccl_warnings(os.environ, rank.pid)[-MOST_LINES:],
        }

    def _listen(self) -> None:
        """Tell of ranks that live and are not heard of: stopped, or holding the interpreter."""
        now_ns = time.monotonic_ns()
        for rank in self._ranks.values():
            beat_ns = _heartbeat_ns(rank.path)
            if not beat_ns or rank.path in self._silent or now_ns - beat_ns < SILENT_S * 1e9:
                continue
            self._silent.add(rank.path)
            if _closed(rank.path):  # its trace has ended; the process takes its time
                continue
            state = (_stat(rank.pid) or [""])[_STATE]
            why = "its process is stopped" if state == _STOPPED else "its interpreter does not run"
            silent = words.duration(now_ns - beat_ns)
            self._say(f"nothing heard of rank {rank.rank} (process {rank.pid}) for {silent}: {why}")


def nccl_warnings(environ: Mapping[str, str], pid: int) -> list[str]:
    """Warnings in a process's own log of NCCL, where NCCL_DEBUG_FILE (with %p) gives it one."""
    place = environ.get("NCCL_DEBUG_FILE", "")
    if "%p" not in place:
        return []
    path = Path(place.replace("%h", hostname()).replace("%p", str(pid)))
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - LOG_BYTES, 0))
            lines = file.read(LOG_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line.strip()[:LINE_LENGTH] for line in lines if "NCCL WARN" in line]


def _xid_lines() -> list[str]:
    """Errors of GPUs in the kernel's log, where there is an NVIDIA driver and it may be read."""
    if not Path("/proc/driver/nvidia").exists():
        return []
    from evenstep.doctor.host import Host, kernel_log

    return [line.strip()[:LINE_LENGTH] for line in kernel_log(Host()) or [] if "NVRM: Xid" in line]


def _closed(path: Path) -> bool:
    """Whether a rank has ended its trace itself."""
    found = collectable(path)
    return found is not None and found.closed


def _stat(pid: int) -> list[str] | None:
    """Fields of a process behind its name, from the state on; None where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return stat.rpartition(b")")[2].decode("ascii", "replace").split()


def _how(pid: int, descriptor: int) -> dict[str, Any]:
    """Exit code or signal of a process that has ended; empty where nobody can tell any more."""
    fields = _stat(pid)
    if fields is not None and fields[_STATE] in "ZX" and len(fields) > _EXIT_CODE:
        status: int | None = int(fields[_EXIT_CODE])
    else:
        status = _reaped(descriptor)
    if status is None:
        return {}
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code} if code >= 0 else {"signal": signal.Signals(-code).name}


def _reaped(descriptor: int) -> int | None:
    """The wait status of a process whose parent has asked for it; None before Linux 6.15."""
    asked = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, asked)
    except OSError:
        return None
    known, *_, status = _INFO.unpack(asked)
    return int(status) if known & _INFO_EXIT else None


def _heartbeat_ns(path: Path) -> int:
    try:
        with path.open("rb", buffering=0) as file:
            word = os.pread(file.fileno(), 8, layout.HEARTBEAT_OFFSET)
    except OSError:
        return 0
    return int.from_bytes(word, "little")


def _out_of_memory_kills() -> int:
    """Processes that the kernel has killed for want of memory since it booted (vmstat)."""
    try:
        rows = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)


def _last_words(rank: _Rank, ended: dict[str, Any], left: _Rank | None) -> str:
    """Who died, of what, and in what, as far as the rank's own spool tells; who had `left` before,
    where this rank was still in something with it."""
    told = f"rank {rank.rank} (process {rank.pid}) died"
    try:
        from evenstep.watch.spool import SpoolTail
    except ImportError:  # without what reads traces
        return f"{told}: {words.ended({'ended': ended})}"
    tail = SpoolTail(rank.path)
    tail.refresh()
    inside, step = tail.inside(), tail.current_step()
    told += f" in step {step}" if step is not None else ""
    told += f", in {inside.op} {inside.group_seq}" if inside else ""
    told += f": {words.ended(tail.facts)}"
    if left is None or not (inside or tail.broke_off()):
        return told
    first = f"rank {left.rank} (process {left.pid}) ended first, with exit code 0, and was awaited"
    return f"{first}; {told}"
