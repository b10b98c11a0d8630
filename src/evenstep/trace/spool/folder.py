"""A run's folder: its files, and which process may create each.

    RUN/run.json                       what was run, where, with which versions and settings
    RUN/attempt-000/rank-00000.spool   one file per rank and attempt
    RUN/attempt-000/node-HOST.pack     or one per node, of spools that were collected
    RUN/attempt-000/preempted.json     that and how the attempt was preempted
    RUN/rank-00000.joining             the identity of a rank inside `init_process_group`

Ranks need not communicate about it: the folder's name follows from their common parent process, a
rank claims a spool by creating it exclusively, and the first writer of `run.json` wins.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.errors import TraceError
from evenstep.trace.spool.files import cannot_create, claim, write_whole
from evenstep.trace.spool.identity import boot_id, hostname

SCHEMA = "evenstep.run/1"
RUNS = "evenstep-runs"
STATE, STARTED, EXIT_CODE = 0, 19, 49  # in `process_stat`: see proc(5); ticks after boot
SILENT_NS = 5_000_000_000  # without a heartbeat; there are several a second
_MARKED = ("attempt", "rank", "world", "nodes")  # of an identity, what `meeting` reads
MOST_FACTS_BYTES = 1 << 20  # of run.json and similar files


class Meeting(NamedTuple):
    """Ranks that are inside a call in which all meet, and those that have not come, ascending."""

    call: str  # `init_process_group`, say
    attempt: int
    world: int
    nodes: int
    waiting: list[int]
    absent: list[int]
    places: dict[str, list[int]]  # see `meeting_places`
    waited_s: float  # of the first of them


class RunFolder:
    """One run's folder. Creating the object touches nothing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._marks: dict[tuple[str, int], dict[str, Any]] = {}  # by name and inode

    @property
    def facts_path(self) -> Path:
        return self.path / "run.json"

    def spool_path(self, attempt: int, rank: int) -> Path:
        return self.path / f"attempt-{attempt:03d}" / spool_name(rank)

    def spools(self, attempt: int) -> list[Path]:
        """The spools of an attempt that exist."""
        return sorted(self.spool_path(attempt, 0).parent.glob("rank-*.spool"))

    def pack_path(self, attempt: int, node: str) -> Path:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", node)
        return self.path / f"attempt-{attempt:03d}" / f"node-{name}.pack"

    def preemption_path(self, attempt: int) -> Path:
        """Path of the note that an attempt was preempted."""
        return self.path / f"attempt-{attempt:03d}" / "preempted.json"

    def preemption(self, attempt: int) -> dict[str, Any]:
        """The signal and time of an attempt's preemption; empty if there was none or its file
        cannot be read."""
        try:
            found = read_facts(self.preemption_path(attempt))
            return {"attempt": attempt, "signal": str(found["signal"]), "at": str(found["at"])}
        except (TraceError, KeyError):
            return {}

    def joining_path(self, rank: int) -> Path:
        """Path of the identity of a rank, as long as it is inside `init_process_group`."""
        return self.path / f"rank-{rank:05d}.joining"

    def marks(self) -> list[dict[str, Any]]:
        """Marks, ascending by rank, and `written_s`, when (Unix time); not damaged ones. One with
        `raised` is of a rank that the call has failed in. A file is read once, since thousands of
        ranks leave as many and launchers look often: what is written anew is another file."""
        known, self._marks = self._marks, {}
        with suppress(OSError):
            for file in sorted((entry.name, entry.inode()) for entry in os.scandir(self.path)):
                if re.fullmatch(r"rank-\d+\.joining", file[0]):
                    self._marks[file] = known.get(file) or _read_mark(self.path / file[0])
        return list(filter(None, self._marks.values()))

    def meeting(self, *, here: bool = False) -> Meeting | None:
        """Who waits in `init_process_group` in the last attempt; None where nobody does, or, with
        `here`, where the first of them runs on another host. The marks of processes that have
        ended on this host count for nothing."""
        marks = [mark for mark in self.marks() if not ended_here(mark)]
        waiting = [mark for mark in marks if "raised" not in mark]
        if not waiting or (here and not is_here(waiting[0])):
            return None
        last = max(waiting, key=lambda mark: mark["attempt"])
        call, attempt, world, nodes = (last[n] for n in ("call", "attempt", "world", "nodes"))
        waiting = [mark for mark in waiting if mark["attempt"] == attempt]
        ranks = [mark["rank"] for mark in waiting]
        come = {f"rank-{mark['rank']:05d}" for mark in marks if mark["attempt"] == attempt}
        come |= {path.stem for path in self.spools(attempt)}
        absent = [rank for rank in range(world) if f"rank-{rank:05d}" not in come]
        places = self.meeting_places(attempt)
        waited_s = max(time.time() - min(mark["written_s"] for mark in waiting), 0.0)
        return Meeting(call, attempt, world, nodes, ranks, absent, places, waited_s)

    def meeting_places(self, attempt: int) -> dict[str, list[int]]:
        """Ranks that are or failed inside `init_process_group`, by the address that they meet the
        others at; without those whose address is not known."""
        found: dict[str, list[int]] = {}
        for mark in self.marks():
            if mark["attempt"] == attempt and mark.get("place"):
                found.setdefault(str(mark["place"]), []).append(mark["rank"])
        return found

    def forget_ended(self) -> None:
        """Remove the marks of ranks of this host that ended inside `init_process_group`: on other
        hosts nobody can tell that they have."""
        for mark in self.marks():
            if ended_here(mark):
                self.joining_path(mark["rank"]).unlink(missing_ok=True)

    def attempts(self) -> list[int]:
        """Numbers of the attempts that have a folder, ascending."""
        names = (entry.name for entry in self.path.glob("attempt-*"))
        found = (re.fullmatch(r"attempt-(\d+)", name) for name in names)
        return sorted(int(match[1]) for match in found if match)

    def exists(self) -> bool:
        """Whether a run has written here."""
        return self.facts_path.exists() or bool(self.attempts())

    def claim(self, attempt: int, rank: int) -> int | None:
        """Descriptor of this rank's new, empty spool; None if another process has claimed it.
        Raises `SpoolError` where the folder cannot be written."""
        return claim(self.spool_path(attempt, rank))

    def write(self, facts: Mapping[str, Any]) -> bool:
        """Write `run.json` whole or not at all; False if it exists. Raises `SpoolError`."""
        text = json.dumps({"schema": SCHEMA, **facts}, indent=2) + "\n"
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.facts_path, text, replace=False)
        except OSError as error:
            if isinstance(error, FileExistsError) and self.facts_path.is_file():
                return False
            if made:
                with suppress(OSError):  # another rank may have written there
                    self.path.rmdir()
            raise cannot_create(self.facts_path, error) from error
        return True

    def complete(self, facts: Mapping[str, Any]) -> None:
        """Fill in facts that the first writer did not know (None, or absent). For rank 0 only."""
        known = self.read()
        missing = _missing(known, facts)
        if missing:
            write_whole(self.facts_path, json.dumps({**known, **missing}, indent=2) + "\n")

    def read(self) -> dict[str, Any]:
        """Contents of `run.json`. Raises `TraceError` where there is none or it is damaged."""
        return read_facts(self.facts_path)

    def clear(self) -> None:
        """Remove the files of a run, and nothing else, to make room for another run."""
        for file in self.files():
            file.unlink(missing_ok=True)
        for folder in [*self.path.glob("attempt-*"), self.path / "live"]:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def remove(self) -> None:
        """Remove the files of a run, and the folder unless it holds other files."""
        self.clear()
        with suppress(OSError):
            self.path.rmdir()

    def files(self) -> list[Path]:
        """The files of a run that exist; any other file beside them belongs to somebody else."""
        places = (
            *("attempt-*/rank-*.spool", "attempt-*/node-*.pack", "live/node-*.bin"),
            *("attempt-*/control.json", "attempt-*/preempted.json"),
            *("run.json", "rank-*.joining", "live/window.json", "live.json", "control.json"),
        )
        return [file for place in places for file in self.path.glob(place)]


def spool_name(rank: int) -> str:
    return f"rank-{rank:05d}.spool"


def is_closed(path: Path) -> bool:
    """Whether we may not read a file, or list a folder, which `glob` takes for empty."""
    return path.exists() and not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))


def read_facts(path: Path) -> dict[str, Any]:
    """Read a small JSON object that a rank or launcher has written. Raises `TraceError`."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_FACTS_BYTES + 1) if path.is_file() else b""
        if len(text) > MOST_FACTS_BYTES:
            raise TraceError(f"{path} has more than {MOST_FACTS_BYTES} bytes; remove it")
        facts = json.loads(text)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is not JSON: {str(error)[:100]}; remove it") from error
    if not isinstance(facts, dict):
        raise TraceError(f"{path} must hold a JSON object; remove it")
    return facts


def _read_mark(path: Path) -> dict[str, Any]:
    """The contents of one mark (see `RunFolder.marks`); empty if it is gone or damaged."""
    with suppress(TraceError, KeyError, TypeError, ValueError, OSError):
        mark = read_facts(path) | {"written_s": path.stat().st_mtime}
        numbers = {name: int(mark[name]) for name in _MARKED}
        return mark | numbers | {"call": str(mark["call"])}
    return {}


def default_path(cwd: Path, pid: int) -> Path:
    """The folder of a run without a configured one, from the process that started its ranks: all
    ranks of a node derive the same without communicating."""
    started = process_start_s(pid)
    if started is None:  # the process is not visible: this is the first process of a container
        pid = os.getpid()
        started = process_start_s(pid) or 0.0
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    return cwd.absolute() / RUNS / f"run-{stamp}-{pid}"


def starter_pid(launcher: str, world: int = 0) -> int:
    """The process that started all ranks of this node, as far as a rank can tell by itself.

    A rank that its environment says is the only one counts as its own starter, since its shell may
    start other runs. A script without a launcher may start ranks itself (`multiprocessing`).
    """
    processes = sys.modules.get("multiprocessing.process")
    spawned = processes is not None and processes.parent_process() is not None
    alone = launcher == "single" or (launcher == "environment" and world == 1)
    return os.getpid() if alone and not spawned else os.getppid()


def process_start_s(pid: int) -> float | None:
    """When a process started, in seconds since the epoch; None if it is gone."""
    if fields := process_stat(pid):
        with suppress(OSError):
            rows = Path("/proc/stat").read_text().splitlines()
            boot_s = next(int(row.split()[1]) for row in rows if row.startswith("btime"))
            return boot_s + int(fields[STARTED]) / os.sysconf("SC_CLK_TCK")
    return None


def process_stat(pid: object) -> list[str]:
    """Fields of a process's `stat` from the third, its state, on (none if it is gone): the second,
    its name, may have any bytes, such as spaces and parentheses."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return stat.rpartition(b")")[2].decode("ascii", "replace").split()


def started_ticks(pid: object) -> int | None:
    """When a process started, in clock ticks after boot; None if it is gone or a zombie."""
    fields = process_stat(pid)
    return int(fields[STARTED]) if fields and fields[STATE] not in "ZX" else None


def is_here(writer: Mapping[str, Any]) -> bool:
    """Whether the process in a spool's header runs, or ran, on this host."""
    return writer.get("hostname") == hostname() and writer.get("boot_id") == boot_id()


def lives(writer: Mapping[str, Any]) -> bool:
    """Whether the process in a header still runs on this host.

    A process is identified by number and start: numbers are reused, and differ between containers.
    """
    since = started_ticks(writer.get("pid")) if is_here(writer) and boot_id() else None
    return since is not None and since == writer.get("started_ticks", since)


def ended_here(writer: Mapping[str, Any]) -> bool:
    """Whether a process ran on the host of this name and has ended, at the latest by a reboot."""
    return writer.get("hostname") == hostname() and not lives(writer)


def is_gone(writer: Mapping[str, Any], beat_ns: int) -> bool:
    """Whether the process in a header ran on this host and does not any more.

    One in another container may have another number here, but its heart beats (`beat_ns`).
    """
    silent = time.monotonic_ns() - beat_ns > SILENT_NS
    return silent and bool(boot_id()) and is_here(writer) and not lives(writer)


def _missing(known: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of `facts` that `known` lacks, one level of nesting included."""
    missing: dict[str, Any] = {}
    for key, value in facts.items():
        have = known.get(key)
        if isinstance(have, dict) and isinstance(value, Mapping):
            inner = {k: v for k, v in value.items() if v is not None and have.get(k) is None}
            if inner:
                missing[key] = {**have, **inner}
        elif have is None and value is not None:
            missing[key] = value
    return missing


# -- contents of run.json --------------------------------------------------------------------------

_RECORDED_PREFIXES = (
    *("EVENSTEP", "NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "TORCH_", "TORCHELASTIC_"),
    *("PYTORCH_", "OMPI_COMM_WORLD_", "SLURM_JOB_", "SLURM_STEP_"),
)
_RECORDED_NAMES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"}
    | {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    | {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"}
    | {"SLURM_NNODES", "SLURM_NTASKS", "SLURM_RESTART_COUNT", "KMP_AFFINITY", "PYTHONPATH"}
)
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_SECRET_OPTIONS = frozenset(
    {"token", "secret", "password", "passwd", "key", "apikey", "credential", "credentials", "auth"}
)
_SECRET_VALUE = re.compile(r"://[^/\s]*@")  # a URL with a user name or password


def recorded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain a run, without any that may hold a secret."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in _RECORDED_NAMES or name.startswith(_RECORDED_PREFIXES))
        and not _SECRET_NAME.search(name)
        and not _SECRET_VALUE.search(value)
    }


def recorded_command(command: Sequence[str]) -> list[str]:
    """The command with `…` for values of options named like secrets and for URLs with passwords:
    `--api-key …`, `--hub-token=…`, but `--tokenizer gpt2`."""
    found: list[str] = []
    hidden = False
    for argument in command:
        option, equals, _ = argument.partition("=")
        words = set(re.split(r"[-_]+", option.lower())) if option.startswith("-") else set()
        if _SECRET_VALUE.search(argument) or (hidden and not argument.startswith("-")):
            argument = "…"
        elif equals and words & _SECRET_OPTIONS:
            argument = f"{option}=…"
        hidden = not equals and bool(words & _SECRET_OPTIONS)
        found.append(argument)
    return found


def run_facts(
    *,
    run_id: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    versions: Mapping[str, str | None],
    world: int | None = None,
    nodes: int | None = None,
    python: str | None = None,
) -> dict[str, Any]:
    """Contents of `run.json` for this process's run. None stands for what it cannot know."""
    return {
        "run_id": run_id,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": recorded_command(command),
        "cwd": str(Path.cwd()),
        "hostname": hostname(),
        "boot_id": boot_id(),
        "pid": os.getpid(),
        "started_ticks": started_ticks(os.getpid()),
        "python": python,
        "versions": dict(versions),
        "world": world,
        "nodes": nodes,
        "environment": recorded_environment(environ),
    }


def loaded_versions(evenstep: str) -> dict[str, str | None]:
    """Versions of this interpreter and, if torch has been imported, of torch and NCCL."""
    torch = sys.modules.get("torch")
    return {
        "evenstep": evenstep,
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": str(getattr(torch, "__version__", "")) or None,
        "nccl": _nccl_version(torch),
    }


def _nccl_version(torch: Any) -> str | None:
    cuda = getattr(torch, "cuda", None)
    if not getattr(getattr(torch, "version", None), "cuda", None):
        return None
    try:
        return ".".join(map(str, cuda.nccl.version())) if cuda else None
    except (AttributeError, RuntimeError, TypeError):
        return None
