"""The network while it stands: made from a layout, changed by faults, taken away in the end.

Whatever happens to this process, nothing stays: a process of its own, the reaper, waits for the end
of its input, which comes when we close it and also when we are killed, and removes the namespaces
then. A namespace takes its cards, bridges and queues with it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from evenstep.errors import UsageError
from evenstep.trace.spool.folder import started_ticks
from lab.children import environment
from lab.tcp import layout as layouts
from lab.tcp import shaping
from lab.tcp.layout import Layout
from lab.tcp.shaping import Shape
from lab.tier import LabError

NAMESPACES = Path("/run/netns")
PREFIX = "evenstep-lab"
_REAPED_S = 15.0
_NAME = re.compile(rf"{PREFIX}-(\d+)-(\d+)-(\d+)-([a-z0-9]+)")
_numbers = count()
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21  # capabilities(7)
_TOOLS = ("ip", "tc", "unshare")


class NetworkError(LabError):
    """The kernel refused a part of the network."""


class Owner(NamedTuple):
    """A process, and which of its networks: part of the name of each of its namespaces.

    `start` is when it began, in the kernel's ticks since boot, so that a later process with the
    same number is not taken for the owner. Nothing is ever touched that is not named like this.
    """

    pid: int
    start: int
    number: int

    @classmethod
    def here(cls) -> Owner:
        """This process, with a network it has not made yet."""
        pid = os.getpid()
        return cls(pid, started_ticks(pid) or 0, next(_numbers))

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return started_ticks(self.pid) == self.start

    def name(self, part: str) -> str:
        """The name of one of its namespaces."""
        return f"{PREFIX}-{self.pid}-{self.start}-{self.number}-{part}"


def owner_of(name: str) -> Owner | None:
    """Whose namespace this is; None where it is not one of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else Owner(*map(int, found.groups()[:3]))


class Network:
    """Hosts, leaves and links that exist. Use it as a context, or call `close`.

    Raises `UsageError` where this process may not make one, `NetworkError` where the kernel
    refuses.
    """

    def __init__(self, layout: Layout) -> None:
        if lacking := missing():
            raise UsageError(f"no network can be made here: {lacking}")
        self.layout = layout
        self.owner = Owner.here()
        self.switches = self.owner.name("switches")
        self.hosts = [self.owner.name(f"host{host}") for host in range(layout.hosts)]
        self._reaper = _start_reaper(self.owner)
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _build(self) -> None:
        layout = self.layout
        _batch(["ip"], [f"netns add {name}" for name in (self.switches, *self.hosts)])
        for host in self.hosts:
            _settle(host, layouts.kernel_settings())
        inside = ["ip", "-n", self.switches]
        _batch(inside, layouts.switch_lines(layout) + layouts.port_lines(layout, self.hosts))
        _batch(["tc", "-n", self.switches], layouts.switch_shapes(layout))
        for number, host in enumerate(self.hosts):
            _batch(["ip", "-n", host], layouts.host_lines(number, layout.congestion))
            if layout.edge is not None:
                _batch(["tc", "-n", host], shaping.lines("eth0", layout.edge))

    def close(self) -> None:
        """Take everything away, processes in it first; does nothing the second time."""
        if self._reaper.stdin is not None and not self._reaper.stdin.closed:
            self._reaper.stdin.close()
        try:
            self._reaper.wait(_REAPED_S)
        except subprocess.TimeoutExpired:
            self._reaper.kill()
            self._reaper.wait()
            remove([name for name in names() if owner_of(name) == self.owner])

    def reshape(self, leaf: int, shape: Shape) -> None:
        """Give a leaf's uplink another rate and buffer, both ways."""
        cards = (f"up{leaf}", f"down{leaf}")
        rows = [row for card in cards for row in shaping.changes(card, shape)]
        _batch(["tc", "-n", self.switches], rows)

    def dropped(self) -> int:
        """Frames that any switch queue has thrown away so far, for want of buffer."""
        shown = _run(["tc", "-n", self.switches, "-s", "-j", "qdisc", "show"])
        return sum(int(row.get("drops", 0)) for row in json.loads(shown) if "root" not in row)


def missing() -> str:
    """What this process lacks for the tier, in one sentence; "" where it lacks nothing."""
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if absent:
        return (
            f"it needs {' and '.join(absent)}, not found on PATH; install iproute2 and util-linux, "
            "or take --fabric fair"
        )
    if not _capable(_CAP_NET_ADMIN) or not _capable(_CAP_SYS_ADMIN):
        return (
            "it makes network namespaces, which takes root (or CAP_NET_ADMIN and CAP_SYS_ADMIN); "
            "run it with sudo, or take --fabric fair"
        )
    return ""


def names() -> list[str]:
    """All network namespaces of this machine that have a name."""
    return sorted(path.name for path in NAMESPACES.glob("*")) if NAMESPACES.is_dir() else []


def clean() -> list[str]:
    """Remove what killed processes have left; the names removed. Touches nothing that lives."""
    left = [name for name in names() if (owner := owner_of(name)) and not owner.alive]
    remove(left)
    return left


def remove(spaces: Sequence[str]) -> None:
    """End the processes of these namespaces, and the namespaces with all that is in them."""
    for name in spaces:
        for _ in range(50):
            pids = _run(["ip", "netns", "pids", name], may_fail=True).split()
            if not pids:
                break
            _run(["kill", "-KILL", *pids], may_fail=True)
            time.sleep(0.02)
        _run(["ip", "netns", "delete", name], may_fail=True)


def main(argv: list[str]) -> None:
    """The reaper: wait for the end of the input, then remove what an owner has made.

    `python -m lab.tcp.network PID START NUMBER`; the input ends when the owner's does.
    """
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    owner = Owner(*map(int, argv))
    sys.stdin.read()
    remove([name for name in names() if owner_of(name) == owner])


def _start_reaper(owner: Owner) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C and the end of a terminal leave it to its work."""
    return subprocess.Popen(
        [sys.executable, "-m", "lab.tcp.network", *map(str, owner)],
        stdin=subprocess.PIPE,
        env=environment(EVENSTEP="0"),
        start_new_session=True,
    )


def _settle(namespace: str, settings: dict[str, str]) -> None:
    script = "; ".join(f"echo {value} > {path}" for path, value in settings.items())
    _run(["ip", "netns", "exec", namespace, "sh", "-ec", script])


def _batch(tool: Sequence[str], rows: Sequence[str]) -> None:
    if rows:
        _run([*tool, "-batch", "-"], "\n".join(rows) + "\n")


def _run(command: Sequence[str], text: str = "", *, may_fail: bool = False) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        if any("qdisc kind is unknown" in row for row in said):
            raise NetworkError('this kernel has no such queue; take network.queue = "bfifo"')
        raise NetworkError(f"the kernel refused `{' '.join(command)}`: {'; '.join(said[:3])}")
    return done.stdout


def _capable(capability: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
