"""The machine a number was measured on, in one line."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def machine(python: str) -> str:
    """Processor, cores this process may use, memory, kernel, and the Python and torch measured."""
    cores = len(os.sched_getaffinity(0))
    memory_gB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9  # noqa: N806
    return (
        f"{cores} cores of {_processor()}, {memory_gB:.0f} GB, Linux {platform.release()}, "
        f"{_software(python)}"
    )


def load_average() -> float:
    """Runnable processes over the last minute: above 0 before a run, the machine is not quiet."""
    return os.getloadavg()[0]


def _processor() -> str:
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith("model name"):
            return row.partition(":")[2].strip()
    return platform.machine()


def _software(python: str) -> str:
    code = (
        "import platform, importlib.metadata as m;"
        "print('Python', platform.python_version() + ', torch', m.version('torch'))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
