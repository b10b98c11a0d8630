"""The shim as a library: compiled with the MPI's own compiler wrapper, once for each MPI."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from evenstep.errors import UsageError

SOURCE = Path(__file__).with_name("evenstep_pmpi.c")


def library(environ: Mapping[str, str]) -> Path:
    """The shim for the MPI whose `mpicc` comes first on PATH; compiled if need be.

    Raises `UsageError` where there is no such wrapper, or it cannot compile.
    """
    wrapper = environ.get("MPICC") or "mpicc"
    compiler = shutil.which(wrapper, path=environ.get("PATH"))
    if compiler is None:
        raise UsageError(
            f"--mpi-shim needs a C compiler for MPI, and there is no {wrapper} on PATH; load your "
            "MPI's module or name its wrapper in MPICC (mpi4py programs need no shim)"
        )
    target = _cache(environ) / f"evenstep-pmpi-{_fingerprint(compiler)}.so"
    if not target.exists():
        _compile(compiler, target, environ)
    return target


def _cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "/tmp")) / ".cache")
    return Path(base) / "evenstep"


def _fingerprint(compiler: str) -> str:
    """Changes with the source and with what the wrapper would call."""
    shown = subprocess.run([compiler, "-show"], capture_output=True, text=True, check=False)
    text = SOURCE.read_bytes() + os.path.realpath(compiler).encode() + shown.stdout.encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _compile(compiler: str, target: Path, environ: Mapping[str, str]) -> None:
    scratch = target.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", str(scratch), str(SOURCE)]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=dict(environ)
        )
    except OSError as error:
        raise UsageError(f"--mpi-shim cannot run {compiler}: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip() or "it said nothing").split("\n")[0]
        raise UsageError(f"--mpi-shim: {compiler} cannot compile {SOURCE.name}: {said}")
    scratch.replace(target)  # whole or not at all: several launchers may build at once
