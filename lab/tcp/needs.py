"""What the tier asks of the machine: network namespaces and shaped links need the administrator."""

from __future__ import annotations

import shutil
from pathlib import Path

from evenstep.errors import UsageError

_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21  # capabilities(7)
_TOOLS = ("ip", "tc", "unshare")


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


def require() -> None:
    """Raise `UsageError` with that sentence where something is lacking."""
    lacking = missing()
    if lacking:
        raise UsageError(f"no network can be made here: {lacking}")


def _capable(capability: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False
