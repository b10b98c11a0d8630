"""Small files in which the kernel tells about itself (`/proc`, `/sys`).

Any of them may be absent, unreadable or gone between two reads; all of that is `None`, never an
error. Every reader takes the root of the file system, so tests bring their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_CHUNK_BYTES = 65_536


def read_text(path: str) -> str | None:
    """What the file says, stripped, or None where it cannot be read.

    Bare system calls: a third of the cost of `open()`, and sources do this for dozens of files.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = b""
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            content += chunk
    except OSError:  # a counter the driver does not implement fails at the read
        return None
    finally:
        os.close(descriptor)
    return content.decode(errors="replace").strip()


def read_head(path: str, *, lines: int) -> list[str]:
    """The first lines, for files that cost as much as they are long (`/proc/cpuinfo`)."""
    try:
        with Path(path).open(errors="replace") as file:
            return [line.rstrip("\n") for _, line in zip(range(lines), file, strict=False)]
    except OSError:
        return []


def read_int(path: str) -> int | None:
    """The number in the file, decimal or `0x…`, or None."""
    text = read_text(path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def children(path: str) -> list[str]:
    """Names in a folder in natural order (`card2` before `card10`); none where it is absent."""
    try:
        return sorted((child.name for child in Path(path).iterdir()), key=natural)
    except OSError:
        return []


def natural(name: str) -> list[str | int]:
    """Sorting key that counts the numbers in a name instead of spelling them."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]


def target(path: str) -> str | None:
    """Where a link finally points, or None if nothing is there."""
    place = Path(path)
    return str(place.resolve()) if place.exists() else None


def format_cpus(cpus: Iterable[int]) -> str:
    """CPU numbers as the kernel lists them: `0-3,8`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_cpus(text: str) -> list[int]:
    """The kernel's list of CPUs as numbers; the inverse of `format_cpus`."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus
