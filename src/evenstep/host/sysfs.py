"""Read small files of the kernel (`/proc`, `/sys`).

Any of them may be absent, unreadable or gone between two reads: the result is `None`, never an
error. Every reader takes the root of the file system, so that tests have their own.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from evenstep.trace.ranks import natural

_CHUNK_BYTES = 65_536
_HELD_BYTES = 4096

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_held = ctypes.PyDLL(None)  # system calls that keep the interpreter's lock
_held.open.argtypes = ctypes.c_char_p, ctypes.c_int
_held.pread.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long
_held.pread.restype = ctypes.c_ssize_t
_held.read.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
_held.read.restype = ctypes.c_ssize_t


def read_text(path: str, *, held: bool = False) -> str | None:
    """The text of a file, stripped, or None where it cannot be read.

    Bare system calls: a third of the cost of `open()`, and sources read dozens of files. With
    `held` they keep the interpreter's lock, for files that the kernel answers from memory: to
    release it costs a switch interval wherever a thread of the job computes in Python, a thousand
    times the cost of the file. Files of drivers, which may sleep, are read without it.
    """
    content = _read_held(path) if held else _read(path)
    return None if content is None else content.decode(errors="replace").strip()


def core_wait_ns(task: object = "thread-self") -> int:
    """How long this thread, or a process's main thread, has waited for a core: field 2 of
    `schedstat` (Linux sched-stats); 0 without it."""
    fields = (read_text(f"/proc/{task}/schedstat") or "").split()
    return int(fields[1]) if len(fields) == 3 else 0


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, _FLAGS)
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
    return content


def _read_held(path: str) -> bytes | None:
    descriptor = _held.open(os.fsencode(path), _FLAGS)
    if descriptor < 0:
        return None
    content = b""
    while chunk := pread_held(descriptor, _HELD_BYTES, len(content)):
        content += chunk
    _held.close(descriptor)
    return None if chunk is None else content


def pread_held(descriptor: int, size: int, offset: int = 0) -> bytes | None:
    """`os.pread` that keeps the interpreter's lock; None where it fails."""
    chunk = (ctypes.c_char * size)()  # a third of `create_string_buffer`
    taken = _held.pread(descriptor, chunk, size, offset)
    return None if taken < 0 else chunk.raw[:taken]


def read_held(descriptor: int, size: int) -> bytes:
    """`os.read` of a nonblocking file that keeps the lock; empty where there is no data."""
    chunk = (ctypes.c_char * size)()  # a third of `create_string_buffer`
    taken = _held.read(descriptor, chunk, size)
    return chunk.raw[: max(taken, 0)]


def read_head(path: str, *, lines: int) -> list[str]:
    """The first lines, for files that the kernel generates slowly (`/proc/cpuinfo`)."""
    try:
        with Path(path).open(errors="replace") as file:
            return [line.rstrip("\n") for _, line in zip(range(lines), file, strict=False)]
    except OSError:
        return []


def read_int(path: str, *, held: bool = False) -> int | None:
    """The number in the file, decimal or `0x…`, or None; `held` as in `read_text`."""
    text = read_text(path, held=held)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def children(path: str) -> list[str]:
    """Names in a folder in natural order (`card2` before `card10`); none if it is absent."""
    try:
        return sorted((child.name for child in Path(path).iterdir()), key=natural)
    except OSError:
        return []


def target(path: str) -> str | None:
    """The final target of a link, or None if it does not exist."""
    place = Path(path)
    return str(place.resolve()) if place.exists() else None
