"""C and C++ sources of the package as shared libraries, compiled once for a user and a machine.

A launcher calls `build` before its processes start; these call `find`, which starts no process, and
load the library with `ctypes`. Neither raises: without a library they give the reason, and the
caller goes on without it.

A library's name has digests of its inputs: source, flags, machine and C library, inputs that the
caller names (version and ABI of torch), and the compiler's version. It is written in a private
folder and renamed into place.

A library is code that our processes run, so a folder or file that another user could have written
is refused, and so is a symbolic link.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 600.0
SAID_LINES = 12  # of a failed compiler's messages
_FLAGS = ("-O2", "-fPIC", "-shared", "-pthread")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE = 0o700

#: The variable that names a compiler, and default names.
_COMPILERS = {
    ".c": ("CC", ("cc", "gcc", "clang")),
    ".cpp": ("CXX", ("c++", "g++", "clang++")),
}


class Library(NamedTuple):
    """A library to load, or None and the reason in one sentence."""

    path: Path | None
    reason: str = ""


class LibrarySource(NamedTuple):
    """A `.c` or `.cpp` file and how it is compiled.

    `flags` follow the default ones; `against`: other inputs of the result. `compiler` replaces that
    of CC or CXX.
    """

    path: Path
    flags: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    compiler: str = ""


def find(source: LibrarySource, environ: Mapping[str, str] = os.environ) -> Library:
    """The newest matching library of any compiler; starts no process."""
    try:
        folder = _folder(environ, make=False)
        stem = _stem(source)
        fitting = [path for path in folder.glob(f"{stem}-*.so") if _is_trusted(path)]
        if fitting:
            return Library(max(fitting, key=lambda path: path.stat().st_mtime_ns))
    except FileNotFoundError:
        pass
    except OSError as error:
        return Library(None, str(error))
    return Library(None, f"{source.path.name} has not been compiled for this machine")


def build(source: LibrarySource, environ: Mapping[str, str] = os.environ) -> Library:
    """The library of the available compiler, compiled if necessary."""
    compiler = _compiler(source, environ)
    if not compiler:
        variable, names = _COMPILERS[source.path.suffix]
        return Library(None, f"there is no compiler: neither {variable} nor {', '.join(names)}")
    try:
        folder = _folder(environ, make=True)
        target = folder / f"{_stem(source)}-{_digest(_version(compiler, environ))}.so"
        if _is_trusted(target):
            return Library(target)
        with _turn(folder):
            said = "" if _is_trusted(target) else _compile(compiler, source, target, environ)
    except subprocess.TimeoutExpired:
        return Library(None, f"{compiler[0]} took more than {TIMEOUT_S:.0f} s")
    except OSError as error:
        return Library(None, str(error))
    return Library(None, said) if said else Library(target)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """A lock, so that a node's launchers do not all compile the same library."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / ".turn", flags, 0o600)
    try:
        with suppress(OSError):  # a filesystem without locks: several may build, harmlessly
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _compiler(source: LibrarySource, environ: Mapping[str, str]) -> list[str]:
    """The compile command, with the arguments in its variable; empty without a compiler."""
    import shlex  # by launchers alone: a rank only finds

    variable, names = _COMPILERS[source.path.suffix]
    asked = source.compiler or environ.get(variable, "")
    for command in [shlex.split(asked)] if asked else [[name] for name in names]:
        found = shutil.which(command[0], path=environ.get("PATH")) if command else None
        if found is not None:
            return [found, *command[1:]]
    return []


def _version(compiler: list[str], environ: Mapping[str, str]) -> str:
    done = subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True, errors="replace",
        env=dict(environ), timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return f"{compiler}{done.stdout}"


def _stem(source: LibrarySource) -> str:
    """The stem of a library's name. Raises OSError where the source cannot be read."""
    text = source.path.read_text(encoding="utf-8")
    machine = (os.uname().machine, _libc())
    return f"{source.path.stem}-{_digest(text, *_FLAGS, *source.flags, *source.against, *machine)}"


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # another C library
        return ""


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def _compile(
    compiler: list[str], source: LibrarySource, target: Path, environ: Mapping[str, str]
) -> str:
    """Compile the library; return the messages of a failed compiler. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as private:
        scratch = Path(private) / target.name
        command = [*compiler, *_FLAGS, "-o", str(scratch), str(source.path), *source.flags]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", cwd=private,
            env=dict(environ), timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode or not scratch.exists():
            said = done.stderr.strip().splitlines()[-SAID_LINES:] or ["it said nothing"]
            return f"{compiler[0]} cannot compile {source.path.name}: " + "\n".join(said)
        scratch.chmod(0o700)
        scratch.replace(target)
    return ""


def _folder(environ: Mapping[str, str], *, make: bool) -> Path:
    """`evenstep` in the user's cache (XDG_CACHE_HOME, ~/.cache), else below the temporary folder.

    `make` creates it. Raises OSError with a message where there is none or it cannot be trusted.
    """
    refused: OSError | None = None
    for place in _places(environ):
        try:
            if make:
                place.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
            _trust(place.lstat(), place, stat.S_ISDIR, "a folder")
            if os.access(place, os.W_OK) or not make:
                return place
            refused = OSError(f"{place} cannot be written")
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError("no folder for compiled libraries")


def _is_trusted(path: Path) -> bool:
    """Whether a library exists. Raises OSError where another user could have written it."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    _trust(found, path, stat.S_ISREG, "a file")
    return found.st_size > 0


def _places(environ: Mapping[str, str]) -> list[Path]:
    """Candidate folders, best first; the XDG specification ignores relative paths."""
    asked = environ.get("XDG_CACHE_HOME", "")
    home = environ.get("HOME", "")
    places = [Path(asked)] if Path(asked).is_absolute() else []
    if not places and Path(home).is_absolute():
        places.append(Path(home) / ".cache")
    shared = Path(tempfile.gettempdir()) / f"evenstep-{os.geteuid()}"
    return [*(place / "evenstep" for place in places), shared]


def _trust(found: os.stat_result, path: Path, is_kind: object, kind: str) -> None:
    if not (callable(is_kind) and is_kind(found.st_mode)):
        raise PermissionError(f"{path} is not {kind} of its own; remove it")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}, not to this one")
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError(f"{path} can be written by others; chmod go-w {path}")
