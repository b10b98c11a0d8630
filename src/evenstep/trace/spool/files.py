"""Files in folders that others may write to: written whole, and read only if they are ours.

Strangers may plant links under guessed names, endless pipes or their own files in a run's folder:
no link is followed and no read blocks here. Also: types of filesystems, as far as a memory-mapped
file must know them, and settings in TOML.
"""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from evenstep.errors import ConfigError, SpoolError

_ROOT = 0
MOST_NAME_BYTES = 200  # of a file's 255, before what makes the name of its scratch file unguessable


def claim(path: Path) -> int | None:
    """Create an empty file exclusively; return its descriptor, or None if the file exists. Raises
    `SpoolError` where the folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if isinstance(error, FileExistsError) and path.is_file():
            return None
        raise cannot_create(path, error) from error


def cannot_create(path: Path, error: OSError) -> SpoolError:
    """The error of a file that cannot be created in a run's folder."""
    return SpoolError(
        f"cannot create {path} ({error.strerror}); "
        "choose a writable folder with --out or EVENSTEP_OUT"
    )


@contextmanager
def appearing(path: Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """Open a new file that gets its name if the block ends well, and is removed if it does not.

    Until then it lies beside `path` under an unguessable name (`.NAME.PID-RANDOM`). Raises OSError,
    FileExistsError where the name is taken and `replace` is False.
    """
    name = os.fsdecode(os.fsencode(path.name)[:MOST_NAME_BYTES])
    scratch = path.with_name(f".{name}.{os.getpid()}-{os.urandom(6).hex()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(scratch, flags, 0o644), "w+b", buffering=0) as file:
            yield file
        if replace:
            scratch.replace(path)
        else:
            _link(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def write_whole(path: Path, data: str | bytes, *, replace: bool = True) -> None:
    """Write a file so that a reader sees all of it or none; raises like `appearing`. Text becomes
    UTF-8, surrogates (file names that are not UTF-8) backslash escapes."""
    encoded = data if isinstance(data, bytes) else data.encode(errors="backslashreplace")
    with appearing(path, replace=replace) as file:
        left = memoryview(encoded)
        while left:
            left = left[file.write(left) :]


def read_own(path: Path, most_bytes: int) -> bytes:
    """Read a small file that this user or root has written; never blocks.

    Raises FileNotFoundError where there is none, and OSError, in words, for a link, for anything
    but a plain file, for a file that others own or everybody can write, and beyond `most_bytes`.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(None, "it is not a plain file", str(path))
        if found.st_uid not in (os.geteuid(), _ROOT):
            raise PermissionError(None, f"it belongs to user {found.st_uid}", str(path))
        if found.st_mode & stat.S_IWOTH:
            raise PermissionError(None, "everybody can write it", str(path))
        data = os.read(descriptor, most_bytes + 1)
        if len(data) > most_bytes:
            raise OSError(None, f"it has more than {most_bytes} bytes", str(path))
        return data
    finally:
        os.close(descriptor)


def _link(scratch: Path, path: Path) -> None:
    """Give a finished file its name, unless the name is taken."""
    try:
        os.link(scratch, path)
    except FileExistsError:
        raise
    except OSError:  # a filesystem without hard links: two simultaneous writers both succeed
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        scratch.replace(path)


# -- filesystems -----------------------------------------------------------------------------------

#: A mapped page may fail to be written back, or block on a server: never map these.
NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "smb3", "smbfs", "virtiofs", "wekafs"}
)
#: Rewriting takes new blocks, allocated or not: a full disk kills a mapped writer.
COPY_ON_WRITE = frozenset({"bcachefs", "btrfs", "zfs"})

_MOUNTS = Path("/proc/self/mountinfo")


def filesystem_type(path: Path, mountinfo: str | None = None) -> str:
    """Type of the filesystem that holds `path` ("ext4", "nfs4", …); "" where it is unknown."""
    if mountinfo is None:
        try:
            mountinfo = _MOUNTS.read_text()
        except OSError:
            return ""
    target = str(path.resolve())
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        mount = fields[4].replace("\\040", " ")
        inside = mount == "/" or target == mount or target.startswith(mount + "/")
        if inside and len(mount) >= best:
            best, found = len(mount), right.split()[0]
    return found


def unfit_for_mapping(fstype: str) -> str:
    """Why a mapped spool is not safe on this filesystem; "" where it is."""
    if fstype in NETWORK or fstype.startswith("fuse"):
        return f"{fstype} is a network filesystem"
    if fstype in COPY_ON_WRITE:
        return f"{fstype} copies on write"
    return ""


# -- settings in TOML ------------------------------------------------------------------------------

MOST_BYTES = 1 << 18
#: A dotted key with 32 parts: the standard parser takes quadratic time and memory for long ones.
_DEEP = r"""(?<![\w"'-])(?:[\w"'-]{1,200}[ \t]*\.[ \t]*){32}"""


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a file. Raises OSError, and `ConfigError` for anything but a small TOML file."""
    if path.exists() and not path.is_file():  # a pipe would never end
        raise ConfigError(f"{path} is not a plain file; name one")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path} has more than {MOST_BYTES} bytes; settings take a few")
    try:
        return parse_toml(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reasons = {RecursionError: "it is nested too deep", UnicodeDecodeError: "it is not text"}
        said = reasons.get(type(error), error)
        raise ConfigError(f"{path} is not TOML: {said}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text. Raises ValueError, or RecursionError where brackets nest too deep."""
    reader: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    if re.search(_DEEP, text):
        raise ValueError("a name has too many parts")
    found: dict[str, Any] = reader.loads(text)
    return found


# -- open files ------------------------------------------------------------------------------------
# That we hold open in a process that may close them behind our back. A job that closes all files
# from 3 on, as daemons do, gets our numbers for files of its own: a number is used only while it is
# still the file that was opened.


class Held:
    """A descriptor of ours. `fd`: its number, -1 (from the start, too) where it is not ours."""

    __slots__ = ("_fd", "_file")

    def __init__(self, fd: int) -> None:
        self._fd, self._file = fd, _file(fd)

    @property
    def fd(self) -> int:
        if self._fd >= 0 and ((now := _file(self._fd)) is None or now != self._file):
            self._fd = -1
        return self._fd

    def close(self) -> None:
        fd, self._fd = self.fd, -1  # first: another thread may close it too
        if fd >= 0:
            os.close(fd)


class Bell:
    """Wakes the thread that waits or polls `ear`; a pipe: event counters cannot be told apart."""

    def __init__(self) -> None:
        ear, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.ear, self._bell = Held(ear), Held(bell)

    def ring(self) -> None:
        """Wake the thread; nothing after `close`."""
        if self.ear.fd >= 0 and (fd := self._bell.fd) >= 0:
            with suppress(BlockingIOError):  # it has been rung often enough
                os.write(fd, b"1")

    def wait(self, limit_ms: int, *files: Held) -> bool:
        """Wait until it rings or a file can be read; False where neither was within the limit."""
        heard = select.poll()
        for fd in (file.fd for file in (self.ear, *files)):
            if fd >= 0:
                heard.register(fd, select.POLLIN)
        found = heard.poll(limit_ms)
        if any(fd == self.ear.fd for fd, _ in found):
            os.read(self.ear.fd, 4096)
        return bool(found)

    def close(self) -> None:
        self._bell.close()
        self.ear.close()


def _file(fd: int) -> tuple[int, int, str] | None:
    """Device, number and, for what shares these (event counters, watches), kind of an open file."""
    try:
        found = os.fstat(fd)
        whole = stat.S_IFMT(found.st_mode)
        kind = "" if whole else os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 (a tenth)
    except OSError:
        return None
    return found.st_dev, found.st_ino, kind
