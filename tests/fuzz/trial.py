"""Inputs one after the other, in a process of their own that is held to its limits.

    python -m tests.fuzz.trial FIRST COUNT [SUBJECT…]

Prints a line of JSON for each finding, and at last how many inputs there were. A finding is a
traceback, a refusal that names the file twice, more than a second of CPU for a megabyte and two
besides, more memory than ten times the file and 200 MB, or anything done that a reader never does:
a process, a connection, a file written elsewhere.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

from tests.fuzz.mutation import mutated
from tests.fuzz.subjects import BY_NAME, SUBJECTS, Subject

CPU_S, CPU_S_PER_MB = 2.0, 1.0
MEMORY_BYTES, MEMORY_TIMES = 200_000_000, 10
FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "ctypes.dlopen",
)
CONNECTING = ("socket.connect", "socket.bind", "socket.getaddrinfo", "pickle.find_class")
REPEATED = 40  # a subject that has failed so often is not drawn again


class TooSlow(BaseException):
    """An input has used up its time; no reader catches it."""


class Watch:
    """What an input does besides reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.seen: list[str] = []
        self.armed = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple) -> None:
        if not self.armed:
            return
        writes = (
            event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        )
        place = str(args[0]) if args else ""
        inside = (args and isinstance(args[0], int)) or place.startswith(
            (self.folder, "/dev/null", tempfile.gettempdir())
        )
        if event in FORBIDDEN + CONNECTING or (
            writes and not inside and "__pycache__" not in place
        ):
            self.seen.append(f"{event} {place[:100]}")


def run(first: int, count: int, names: list[str]) -> None:
    """Try so many inputs; what is found goes to standard output."""
    from evenstep.errors import EvenstepError

    subjects = [BY_NAME[name] for name in names] or list(SUBJECTS)
    weights = [subject.weight for subject in subjects]
    failed = dict.fromkeys((subject.name for subject in subjects), 0)
    signal.signal(signal.SIGVTALRM, _too_slow)
    with tempfile.TemporaryDirectory(prefix="evenstep-fuzz-") as place:
        watch = Watch(Path(place))
        for subject in subjects:  # imports, and what is made once
            _try(subject, Path(place), subject.seeds()[:1] or [b""], EvenstepError, watch, None)
        for number in range(first, first + count):
            random = Random(number)
            subject = random.choices(subjects, weights)[0]
            if failed[subject.name] > REPEATED:
                continue
            data = [mutated(random.choice(subject.seeds() or [b"{}"]), random)]
            found = _try(subject, Path(place), data, EvenstepError, watch, number)
            failed[subject.name] += found
    print(json.dumps({"inputs": count}))


def _try(
    subject: Subject,
    place: Path,
    inputs: list[bytes],
    known: type,
    watch: Watch,
    number: int | None,
) -> bool:
    """Whether an input has found something."""
    folder = place / subject.name.replace(" ", "-")
    folder.mkdir(exist_ok=True)
    path = folder / subject.file
    path.write_bytes(inputs[0])
    size = len(inputs[0])
    limit_s = CPU_S + CPU_S_PER_MB * size / 1e6
    _forget_peak()
    before, began = _memory("VmRSS"), time.process_time()
    what, watch.seen, watch.armed = "", [], True
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 3 * limit_s if number is not None else 0)
        subject.read(path)
    except known as refusal:
        if str(refusal).count(str(path)) > 1:
            what = f"refused with its path twice: {refusal}"
    except (Exception, TooSlow):
        what = traceback.format_exc(limit=-6)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        watch.armed = False
    used_s, grown = time.process_time() - began, _memory("VmHWM") - before
    if number is None:
        if what:
            raise RuntimeError(f"{subject.name}: its own seed fails: {what}")
        return False
    if used_s > limit_s:
        what += f"\ntook {used_s:.1f} s of CPU for {size} bytes"
    if grown > MEMORY_TIMES * size + MEMORY_BYTES:
        what += f"\ntook {grown / 1e6:.0f} MB for {size} bytes"
    if watch.seen:
        what += f"\ndid {watch.seen[:4]}"
    if what:
        print(json.dumps({"subject": subject.name, "number": number, "what": what}), flush=True)
    return bool(what)


def _too_slow(*_: object) -> None:
    raise TooSlow


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
