"""Checks of versions of Python, torch, CUDA and NCCL."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator

from evenstep.compiled import Library
from evenstep.doctor.check import Check, fine, skip, wrong
from evenstep.doctor.host import Host
from evenstep.host.sources.nvml import Nvml, NvmlError

TESTED_PYTHON, TESTED_TORCH = ((3, 10), (3, 14)), ((2, 6), (2, 14))
OLDEST_NCCL_RAS = (2, 24)


def checks(host: Host) -> Iterator[Check]:
    if not host.packages:
        for name in ("python", "torch", "nccl", "driver"):
            yield skip(f"versions.{name}", "packages of a copied host are unknown")
        return
    yield _check_tested(host, "Python", *TESTED_PYTHON, absent="the version is unknown")
    absent = "torch is not installed in this environment"
    yield _check_tested(host, "torch", *TESTED_TORCH, absent=absent)
    yield _nccl(host)
    yield _driver(host)


def recorder(built: Library) -> Check:
    """Check whether the recorder could be compiled for the installed torch."""
    if built.path is not None:
        return fine("versions.recorder", "compiled for this torch")
    return wrong("versions.recorder.uncompiled", reason=built.reason)


def parts(version: str) -> tuple[int, int]:
    """Return major and minor number: (2, 13) of "2.13.0+cpu"."""
    major, minor, *_ = [int(text) for text in re.findall(r"\d{1,6}", version)] + [0, 0]
    return major, minor


def _check_tested(
    host: Host, title: str, oldest: tuple[int, int], newest: tuple[int, int], *, absent: str
) -> Check:
    package = title.lower()
    version = host.packages.get(package)
    if version is None:
        return skip(f"versions.{package}", absent)
    if parts(version) < oldest:
        return wrong(f"versions.{package}.old", version=version)
    if parts(version) > newest:
        return wrong(f"versions.{package}.new", version=version)
    return fine(f"versions.{package}", f"{title} {version}")


def _nccl(host: Host) -> Check:
    found = [(n, v) for n, v in host.packages.items() if n.startswith("nvidia-nccl")]
    if not found:
        return skip("versions.nccl", "no NCCL is installed here")
    if len(found) > 1:
        names = [f"{name} {version}" for name, version in found]
        return wrong("versions.nccl.several", libraries=names, first=found[0][0])
    version = found[0][1]
    preloaded = host.environ.get("LD_PRELOAD", "")
    if "libnccl" in preloaded:
        return wrong("versions.nccl.preloaded", preloaded=preloaded, version=version)
    if parts(version) < OLDEST_NCCL_RAS:
        return wrong("versions.nccl.no_ras", version=version, first=found[0][0])
    return fine("versions.nccl", f"NCCL {version}")


def _driver(host: Host) -> Check:
    built = host.packages.get("torch-cuda")
    if built is None:
        return skip("versions.driver", "torch was not built for CUDA")
    supported = _cuda_of_driver(host.nvml)
    if supported is None:
        why = host.nvml_reason or "the driver does not report its version"
        return skip("versions.driver", why)
    if parts(built)[0] > supported[0]:
        return wrong("versions.driver.newer", built=built, major=supported[0], minor=supported[1])
    return fine("versions.driver", f"CUDA {built} on a driver for {supported[0]}.{supported[1]}")


def _cuda_of_driver(nvml: Nvml | None) -> tuple[int, int] | None:
    """Return the CUDA version of `nvmlSystemGetCudaDriverVersion_v2`: 12040 is 12.4."""
    if nvml is None:
        return None
    out = ctypes.c_int()
    try:
        nvml.call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(out))
    except NvmlError:
        return None
    return out.value // 1000, out.value % 1000 // 10
