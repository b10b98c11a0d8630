"""Build the shim with the MPI's own compiler wrapper, once for each MPI."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from evenstep.compiled import LibrarySource, build
from evenstep.errors import UsageError

SOURCE = Path(__file__).with_name("evenstep_pmpi.c")


def library(environ: Mapping[str, str]) -> Path:
    """The shim for the MPI whose `mpicc` is first on PATH; compiled if necessary.

    Raises `UsageError` where there is no such wrapper, or it cannot compile.
    """
    wrapper = environ.get("MPICC") or "mpicc"
    compiler = shutil.which(wrapper, path=environ.get("PATH"))
    if compiler is None:
        raise UsageError(
            f"--mpi-shim needs a C compiler for MPI, and there is no {wrapper} on PATH; load your "
            "MPI's module or name its wrapper in MPICC (mpi4py programs need no shim)"
        )
    shown = subprocess.run([compiler, "-show"], capture_output=True, text=True, check=False)
    built = build(
        LibrarySource(SOURCE, against=(shown.stdout,), compiler=shlex.quote(compiler)), environ
    )
    if built.path is None:
        raise UsageError(f"--mpi-shim: {built.reason}")
    return built.path
