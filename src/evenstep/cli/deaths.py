"""Exits of ranks: the launcher records how each rank on its machine ends, whoever started it.

A pidfd (pidfd_open(2)) becomes readable when its process has ended. Until the parent reaps it, the
kernel still has the exit code (proc(5), field 52 of `stat`): torchrun reaps every .1 s, poll(2)
wakes us at once. Since Linux 6.15 the pidfd itself also tells the exit code after reaping. The exit
is stored in the rank's own spool, as its fact `ended`.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from evenstep import words
from evenstep.agent.pulse.frames import frames_of_report
from evenstep.attachment.attempts import header
from evenstep.cli.processes import StartedRanks
from evenstep.errors import EvenstepError
from evenstep.host.sysfs import core_wait_ns, read_text
from evenstep.trace.pack import collectable
from evenstep.trace.spool import layout
from evenstep.trace.spool.files import write_whole
from evenstep.trace.spool.folder import EXIT_CODE, STARTED, STATE, RunFolder, is_here, process_stat
from evenstep.trace.spool.identity import hostname
from evenstep.trace.spool.spool import Spool, add_last_fact

PREEMPTED = "evenstep.preempted/1"
#: Signals of Slurm (`--signal`, preemption), Kubernetes and others; Ctrl-C is not one of them.
PREEMPTING = frozenset({signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM})
SOON_S, LATER_S = 0.25, 2.0  # between scans for new ranks: until some run, and afterwards
LAST_S = 10.0  # for the last exits, at most: a filesystem that hangs does not hold the launcher
MEETING_S = 10.0  # of ranks in `init_process_group` that is told; then at doubling times
SILENT_S = 5.0  # a live rank without a heartbeat for so long is reported
ENDING_S = 1.0  # one that has raised, after so long: its libraries may take many seconds to end
LOG_BYTES, LINE_LENGTH, MOST_LINES = 1 << 16, 300, 4  # limits for lines of driver and NCCL logs
_STOPPED = "T"
_GET_INFO = 0xC040FF0B  # PIDFD_GET_INFO of linux/pidfd.h, in the 64 bytes of its first version
_INFO = struct.Struct("<QQ11Ii")  # mask of valid fields, control group, eleven ids, wait status
_INFO_EXIT = 1 << 3  # in the mask: the wait status is valid


class _Rank(NamedTuple):
    """A rank on this machine that has not ended."""

    path: Path
    rank: int
    pid: int
    attempt: int


class RankExits:
    """Watches the ranks of a run on a thread, from `start` to `finish`. Calls `say` for the first
    rank of an attempt that dies, and for a rank without heartbeat. Attempts from `first` on belong
    to this launcher."""

    def __init__(self, folder: RunFolder, say: Callable[[str], None], first: int = 0) -> None:
        self._folder = folder
        self._say = say
        self._first = first
        self._started = StartedRanks(folder)
        self._ranks: dict[int, _Rank] = {}  # by pidfd
        self._unattached: dict[int, Mapping[str, Any]] = {}  # by process: who it is
        self._missed: dict[_Rank, None] = {}  # gone when they were found, in that order
        self._seen: set[Path] = set()
        self._reported: set[int] = set()  # attempts whose first death was reported
        self._clean_exit: dict[int, _Rank] = {}  # by attempt: the first rank that ended cleanly
        self._silent: set[Path] = set()
        self._look_ns = time.monotonic_ns()  # for ranks in `init_process_group`
        self._patience_s = MEETING_S
        self._told: list[tuple[int, int]] = []  # attempt and rank of who was told not to have come
        self._beats: dict[Path, tuple[int, int]] = {}  # the last one, and the core wait (ns) then
        self._asked = ""  # the signal that was forwarded
        self._kills = _out_of_memory_kills()
        self._xids = set(_xid_lines())  # before the start
        self._poll = select.poll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.POLLIN)
        self._finishing = False
        self._thread = threading.Thread(target=self._run, name="evenstep-ends", daemon=True)

    def start(self) -> None:
        """Start the thread, with all signals blocked on it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def on_signal(self, number: int) -> None:
        """Note a signal that is forwarded to the command: later exits were asked for."""
        name = _signal_name(number)
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            self._asked = name
        if number in PREEMPTING:
            try:
                self._mark_preempted(name)
            except OSError as error:  # the job comes first
                self._say(f"the run is not marked as preempted: {error}")

    def _mark_preempted(self, name: str) -> None:
        """Write the preemption mark, unless there is one or no rank has started."""
        attempt = max(self._folder.attempts(), default=-1)
        path = self._folder.preemption_path(attempt)
        if attempt < self._first or path.exists():
            return
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        facts = {"schema": PREEMPTED, "signal": name, "at": at, "hostname": hostname()}
        write_whole(path, json.dumps(facts, indent=2) + "\n")
        self._say(f"attempt {attempt} is preempted ({name}); forwarding the signal")

    def finish(self) -> None:
        """Record the last exits and stop; call it when the command has ended, before reaping."""
        self._finishing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(LAST_S)

    def _run(self) -> None:
        pause_s = SOON_S
        while not self._finishing:
            soon = self._discover() or not self._ranks
            pause_s = SOON_S if soon else min(pause_s * 1.5, LATER_S)
            self._record_exits(pause_s)
            self._report_silent_ranks()
            self._report_meeting()
        self._discover()
        self._record_exits(0)
        self._folder.forget_ended()
        for rank in self._missed:
            found = collectable(rank.path) if rank.attempt >= self._first else None
            if found and not found.closed:
                self._record(rank, {"monotonic_ns": _heartbeat_ns(rank.path)})

    def _record_exits(self, timeout_s: float) -> None:
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout_s * 1e3)}
        for descriptor, rank in [each for each in self._ranks.items() if each[0] in ready]:
            now = {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()}
            ended = _exit_status(rank.pid, descriptor) | now
            if rank.pid in self._unattached:
                self._discover()  # it, or what it has started, may have attached a moment before
            if descriptor in self._ranks and self._ranks[descriptor].pid == rank.pid:
                self._record(self._leave(descriptor), ended)

    def _discover(self) -> bool:
        """Add ranks that have started; return whether there were any."""
        found = False
        for started in self._started.find():
            attempt, number, pid = (started[name] for name in ("attempt", "rank", "pid"))
            path = self._folder.spool_path(attempt, number)
            known = any(each.path == path or each.pid == pid for each in self._ranks.values())
            if attempt >= self._first and not known and not path.exists():
                self._unattached[pid] = started
                self._follow(_Rank(path, number, pid, attempt), started)
        for attempt in self._folder.attempts():
            for path in set(self._folder.spools(attempt)) - self._seen:
                identity = header(path)
                if not identity:
                    continue  # not written yet
                self._seen.add(path)
                found = True
                if is_here(identity):
                    pid = int(identity.get("pid") or 0)
                    self._unattached.pop(pid, None)
                    self._follow(_Rank(path, int(identity["rank"]), pid, attempt), identity)
        return found

    def _follow(self, rank: _Rank, identity: Mapping[str, Any]) -> None:
        """Wait for the end of a process; of one found before, from now on as this rank's."""
        for descriptor, known in list(self._ranks.items()):
            if known.pid == rank.pid:
                self._ranks[descriptor] = rank
                return
            if known.path == rank.path:  # what has started this process
                self._leave(descriptor)
        try:
            descriptor = os.pidfd_open(rank.pid)
        except OSError:  # ended already, in another container, or no pidfd in this kernel
            self._missed[rank] = None
            return
        if int((process_stat(rank.pid) or ["0"] * 20)[STARTED]) == identity.get("started_ticks"):
            self._ranks[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)
        else:
            os.close(descriptor)
            self._missed[rank] = None

    def _leave(self, descriptor: int) -> _Rank:
        """Follow a process no longer; return what it was."""
        self._poll.unregister(descriptor)
        os.close(descriptor)
        return self._ranks.pop(descriptor)

    def _record(self, rank: _Rank, ended: dict[str, Any]) -> None:
        """Store how a rank ended in its trace, and report the first that died."""
        found = collectable(rank.path)
        if found and found.ended:  # another launcher on this host has told
            return
        if self._asked:
            ended["asked"] = self._asked
        if kills := _out_of_memory_kills() - self._kills:
            ended["out_of_memory_kills"] = kills
        wrong = "signal" in ended or bool(ended.get("exit_code"))
        if not wrong and "exit_code" not in ended:
            wrong = not (found and found.closed)
        if not wrong:
            self._clean_exit.setdefault(rank.attempt, rank)
        if rank.pid in self._unattached and not (wrong and self._bury(rank, ended)):
            return
        if wrong:
            xids = [line for line in _xid_lines() if line not in self._xids]
            told = {"xid": xids, "nccl_warnings": nccl_warnings(os.environ, rank.pid)}
            ended |= {name: lines[-MOST_LINES:] for name, lines in told.items() if lines}
        try:
            if "signal" in ended and (frames := _struck_at(rank.path)):
                add_last_fact(rank.path, "left", {"by": ended["signal"], "frames": frames})
            add_last_fact(rank.path, "ended", ended)
        except (OSError, ValueError) as error:
            self._say(f"how rank {rank.rank} ended is not in its trace: {error}")
        if wrong:
            self._report_death(rank, ended)

    def _bury(self, rank: _Rank, ended: dict[str, Any]) -> bool:
        """Make the spool of a rank that failed before it attached; False where another stopped it,
        as a launcher does with those that are left."""
        mine = (mark for mark in self._folder.marks() if mark.get("pid") == rank.pid)
        mark = next(filter(is_here, mine), {})
        status = ended.get("signal", ended.get("exit_code", signal.SIGTERM.name))
        if self._asked or (status == signal.SIGTERM.name and "raised" not in mark):
            return False
        identity = dict(self._unattached[rank.pid])
        identity |= {f"anchor_{clock}": ended[clock] for clock in ("monotonic_ns", "realtime_ns")}
        try:
            descriptor = self._folder.claim(rank.attempt, rank.rank)
            if descriptor is None:  # another launcher on this host was first
                return False
            spool = Spool.create(rank.path, identity, ring_bytes=1, summary_bytes=1, fd=descriptor)
        except EvenstepError as error:
            self._say(f"how rank {rank.rank} ended is not recorded: {error}")
            return False
        if "raised" in mark:
            spool.add_fact("raised", mark["raised"])
        spool.shut()
        self._seen.add(rank.path)
        ended["before"] = f"inside {mark['call']}" if mark else "before it had attached"
        if apart := words.meeting_apart(self._folder.meeting_places(rank.attempt)):
            ended["apart"] = apart
        return True

    def _report_death(self, rank: _Rank, ended: dict[str, Any]) -> None:
        """Report the first death of an attempt, unless it was asked for."""
        if self._asked or rank.attempt in self._reported:
            return
        self._reported.add(rank.attempt)
        living = [
            each
            for each in self._ranks.values()
            if each.attempt == rank.attempt and each != rank and each.pid not in self._unattached
        ]
        self._say(_death_message(rank, ended, self._clean_exit.get(rank.attempt), living))

    def _report_silent_ranks(self) -> None:
        """Report live ranks without heartbeat: stopped, with a blocked interpreter, or about to end
        for what they raised."""
        now_ns = time.monotonic_ns()
        for rank in self._ranks.values():
            beat_ns, waited_ns = _heartbeat_ns(rank.path), core_wait_ns(rank.pid)
            silent_ns = now_ns - beat_ns
            if self._beats.get(rank.path, (0, 0))[0] != beat_ns:
                self._beats[rank.path] = beat_ns, waited_ns
            if not beat_ns or rank.path in self._silent or silent_ns < ENDING_S * 1e9:
                continue
            found = collectable(rank.path)
            if found and found.closed:  # the process is about to end
                self._silent.add(rank.path)
                if found.raised:
                    self._report_death(rank, {})
                continue
            if silent_ns < SILENT_S * 1e9:
                continue
            self._silent.add(rank.path)
            state = (process_stat(rank.pid) or [""])[STATE]
            why = "its process is stopped" if state == _STOPPED else "its interpreter does not run"
            waited_ns -= self._beats[rank.path][1]
            if state != _STOPPED and waited_ns > silent_ns / 2:  # the machine's, not the rank's
                why = f"it waited for a core for {words.duration(waited_ns)} of that"
            silent = words.duration(silent_ns)
            self._say(f"no heartbeat of rank {rank.rank} (process {rank.pid}) for {silent}: {why}")

    def _report_meeting(self) -> None:
        """Report ranks that wait in `init_process_group`, on the machine of the first of them."""
        now_ns = time.monotonic_ns()
        if now_ns < self._look_ns:  # thousands of ranks leave as many marks
            return
        self._look_ns = now_ns + round(MEETING_S / 2 * 1e9)
        found = self._folder.meeting(here=True)
        if found is None or found.attempt < self._first:
            if (told := self._told) and all(
                self._folder.spool_path(*each).exists() for each in told
            ):
                self._say(f"{words.ranks([rank for _, rank in told])} came: all ranks have met")
            self._patience_s, self._told = MEETING_S, []
        elif found.waited_s >= self._patience_s:
            self._patience_s *= 2
            self._told = [(found.attempt, rank) for rank in found.absent]
            gone = self._clean_exit.get(found.attempt)
            ended = f"; rank {gone.rank} has ended" if gone and gone.rank in found.absent else ""
            self._say(words.meeting(found) + ended)


def nccl_warnings(environ: Mapping[str, str], pid: int) -> list[str]:
    """Return warnings of a process's own NCCL log, if NCCL_DEBUG_FILE contains %p."""
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
    """Return GPU errors in the kernel log, if there is an NVIDIA driver and the log is readable."""
    if not Path("/proc/driver/nvidia").exists():
        return []
    from evenstep.doctor.host import Host, kernel_log

    return [line.strip()[:LINE_LENGTH] for line in kernel_log(Host()) or [] if "NVRM: Xid" in line]


def _exit_status(pid: int, descriptor: int) -> dict[str, Any]:
    """Return exit code or signal of a process that has ended; empty if unknown."""
    fields = process_stat(pid)
    if fields and fields[STATE] in "ZX" and len(fields) > EXIT_CODE:
        status: int | None = int(fields[EXIT_CODE])
    else:
        status = _reaped_status(descriptor)
    if status is None:
        return {}
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code} if code >= 0 else {"signal": _signal_name(-code)}


def _signal_name(number: int) -> str:
    """The name of a signal, also of one for real time, of which Python names the first and last."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def _reaped_status(descriptor: int) -> int | None:
    """Return the wait status of a process that its parent has reaped; None before Linux 6.15."""
    asked = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(descriptor, _GET_INFO, asked)
    except OSError:
        return None
    known, *_, status = _INFO.unpack(asked)
    return int(status) if known & _INFO_EXIT else None


def _struck_at(path: Path) -> list[str]:
    """The frames that a fatal signal left behind the regions of a spool (`FaultHandler`)."""
    with path.open("rb") as file:
        head = file.read(layout.HEADER.size)
        fields = layout.HEADER.unpack(head.ljust(layout.HEADER.size, b"\0"))
        file.seek(fields[5] + fields[6] * layout.RECORD_BYTES)
        return frames_of_report(file.read().decode("utf-8", "replace"))


def _heartbeat_ns(path: Path) -> int:
    try:
        with path.open("rb", buffering=0) as file:
            word = os.pread(file.fileno(), 8, layout.HEARTBEAT_OFFSET)
    except OSError:
        return 0
    return int.from_bytes(word, "little")


def _out_of_memory_kills() -> int:
    """Return the number of out-of-memory kills since boot (/proc/vmstat)."""
    rows = (read_text("/proc/vmstat") or "").splitlines()
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)


def _death_message(
    rank: _Rank, ended: dict[str, Any], clean_exit: _Rank | None, living: Sequence[_Rank] = ()
) -> str:
    """Describe a death: rank, step, open collective and cause, as far as its spool tells.

    `clean_exit`, a rank that ended before with code 0, comes first if this rank waited for it. If
    it gave up waiting, those of the `living` come first that were in no collective; so does one
    that raised or left its script before and takes longer to end.
    """
    death = f"rank {rank.rank} (process {rank.pid}) died"
    try:
        from evenstep.diagnose.measure.attempts import gave_up, lost_peer
        from evenstep.watch.spool import SpoolTail
    except ImportError:  # the extra that reads traces is not installed
        return f"{death}: {words.how_ended({'ended': ended})}"
    tail = SpoolTail(rank.path)
    tail.refresh()
    inside, step = tail.inside(), tail.current_step()
    death += f" in step {step}" if step else ""  # 0 also where nothing marks steps
    death += f", in {inside.op} {inside.group_seq}" if inside else ""
    death += f": {words.how_ended(tail.facts)}"
    tails = {each: SpoolTail(each.path) for each in living}
    absent = sorted(each.rank for each, its in tails.items() if its.is_outside())
    if absent and any(gave_up(its.facts) for its in (tail, *tails.values())):
        return f"{words.ranks(absent)} did not come, in no collective; {death}"
    awaited = inside or "before" in ended or tail.last_operation_failed() or lost_peer(tail.facts)
    left_ns = {
        each: _left_ns(its.facts, ending=bool(awaited))
        for each, its in tails.items()
        if not lost_peer(its.facts)  # by another's end, also before that one has raised
    }
    first = min(left_ns, key=left_ns.__getitem__, default=rank)
    if "raised" in tail.facts and left_ns.get(first, math.inf) < _left_ns(tail.facts):
        facts = tails[first].facts
    elif clean_exit and awaited:
        first, gone = clean_exit, SpoolTail(clean_exit.path)
        gone.refresh()
        facts = {"ended": {"exit_code": 0}, "left": gone.facts.get("left")}
    else:
        return death
    how = f"{'raised' if 'raised' in facts else 'ended'} first: {words.how_ended(facts)}"
    return f"rank {first.rank} (process {first.pid}) {how}; {death}"


def _left_ns(facts: Mapping[str, Any], *, ending: bool = False) -> float:
    """When a rank raised, or with `ending` came to the end of its script, on the clock of this
    machine; inf where it did not."""
    closed = facts.get("closed") or {}
    ended = closed if ending and closed.get("reason") == "exit" else {}  # "detached" trains on
    each = (fact.get("monotonic_ns", math.inf) for fact in (facts.get("raised") or {}, ended))
    return float(min(each))
