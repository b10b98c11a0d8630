"""The network while it stands: made from a layout, changed by faults, taken away in the end.

Whatever happens to this process, nothing stays: a process of its own, the reaper, waits for the end
of its input, which comes when we close it and also when we are killed, and removes the namespaces
then. A namespace takes its cards, bridges and queues with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from evenstep.errors import EvenstepError
from lab.children import python_path
from lab.tcp import layout as layouts
from lab.tcp import needs, shaping
from lab.tcp.layout import Layout
from lab.tcp.owner import Owner
from lab.tcp.owner import of as owner_of
from lab.tcp.shaping import Shape

NAMESPACES = Path("/run/netns")
_REAPED_S = 15.0


class NetworkError(EvenstepError):
    """The kernel refused a part of the network."""


class Network:
    """Hosts, leaves and links that exist. Use it as a context, or call `close`.

    Raises `UsageError` where this process may not make one, `NetworkError` where the kernel
    refuses.
    """

    def __init__(self, layout: Layout) -> None:
        needs.require()
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


def _start_reaper(owner: Owner) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C and the end of a terminal leave it to its work."""
    command = [sys.executable, "-m", "lab.tcp.reaper", *map(str, owner)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path(), "EVENSTEP": "0"},
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
