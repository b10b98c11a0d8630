"""Versions of Python, torch, CUDA and NCCL: those evenstep was tested with, those that fit."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator

from evenstep.compiled import Library
from evenstep.doctor.check import Check, Subject
from evenstep.doctor.host import Host
from evenstep.host.sources.nvml_library import Nvml, NvmlError

OLDEST_PYTHON = (3, 10)
TESTED_PYTHON = ((3, 10), (3, 13))
TESTED_TORCH = ((2, 13), (2, 14))
OLDEST_NCCL_RAS = (2, 24)
_OUR_TESTS = "evenstep's own tests"


def checks(host: Host) -> Iterator[Check]:
    """What is installed here."""
    yield _python(host)
    yield _torch(host)
    yield _nccl(host)
    yield _driver(host)


def recorder(built: Library) -> Check:
    """Whether the recorder could be compiled for the torch that is installed here."""
    subject = Subject("versions.recorder", _OUR_TESTS)
    if built.path is not None:
        return subject.ok("recorder compiled for this torch")
    return subject.advice(
        f"no compiled recorder: {built.reason}",
        "Python's own kernels cost 0.1 to 0.3 ms a collective where caches are cold",
        "install a C++ compiler (g++ or clang++), or name one in CXX",
    )


def parts(version: str) -> tuple[int, int]:
    """Major and minor number: "2.13.0+cpu" is (2, 13)."""
    major, minor, *_ = [int(text) for text in re.findall(r"\d{1,6}", version)] + [0, 0]
    return major, minor


def _python(host: Host) -> Check:
    subject = Subject("versions.python", _OUR_TESTS)
    version = host.packages.get("python")
    if version is None:
        return subject.skipped("packages of a copied host are not known")
    if parts(version) < OLDEST_PYTHON:
        return subject.problem(
            f"Python {version}",
            "evenstep needs 3.10 inside the training process",
            "use an environment with Python 3.10 or newer",
        )
    if parts(version) > TESTED_PYTHON[1]:
        return subject.advice(
            f"Python {version}", "evenstep was tested with 3.10 to 3.13", "nothing, unless it fails"
        )
    return subject.ok(f"Python {version}")


def _torch(host: Host) -> Check:
    subject = Subject("versions.torch", _OUR_TESTS)
    version = host.packages.get("torch")
    if version is None:
        return subject.skipped("torch is not installed in this environment")
    low, high = TESTED_TORCH
    if parts(version) < low:
        return subject.warning(
            f"torch {version}",
            "evenstep was tested with 2.13 and 2.14: older ones may hide collectives from it",
            'pip install "torch>=2.13"',
        )
    if parts(version) > high:
        return subject.advice(
            f"torch {version}", "evenstep was tested with 2.13 and 2.14", "nothing, unless it fails"
        )
    return subject.ok(f"torch {version}")


def _nccl(host: Host) -> Check:
    subject = Subject("versions.nccl", "NCCL user guide, RAS; NCCL release notes")
    found = [(n, v) for n, v in host.packages.items() if n.startswith("nvidia-nccl")]
    if not found:
        return subject.skipped("no NCCL is installed here")
    if len(found) > 1:
        return subject.warning(
            " and ".join(f"{name} {version}" for name, version in found),
            "which of them a process loads depends on the order of its libraries",
            f"pip uninstall {found[0][0]}, or the one that torch does not require",
        )
    version = found[0][1]
    preloaded = host.environ.get("LD_PRELOAD", "")
    if "libnccl" in preloaded:
        return subject.advice(
            f"LD_PRELOAD={preloaded} replaces NCCL {version}",
            "the version that runs is not the one torch was tested with",
            "unset LD_PRELOAD, unless it is meant",
        )
    if parts(version) < OLDEST_NCCL_RAS:
        return subject.advice(
            f"NCCL {version}",
            "from 2.24 on a job that hangs can be asked which rank is missing (ncclras)",
            f"pip install --upgrade {found[0][0]}",
        )
    return subject.ok(f"NCCL {version}")


def _driver(host: Host) -> Check:
    subject = Subject("versions.driver", "CUDA Compatibility guide, minor version compatibility")
    built = host.packages.get("torch-cuda")
    if built is None:
        return subject.skipped("torch was not built for CUDA")
    supported = _cuda_of_driver(host.nvml)
    if supported is None:
        return subject.skipped(host.nvml_reason or "the driver does not tell its version")
    if parts(built)[0] > supported[0]:
        return subject.problem(
            f"torch is built for CUDA {built}, the driver supports {supported[0]}.{supported[1]}",
            "torch finds no GPU: a driver runs CUDA of its own major version and older",
            "install a newer driver, or a torch built for that CUDA",
        )
    return subject.ok(f"CUDA {built} on a driver for {supported[0]}.{supported[1]}")


def _cuda_of_driver(nvml: Nvml | None) -> tuple[int, int] | None:
    """`nvmlSystemGetCudaDriverVersion_v2`: 12040 is 12.4."""
    if nvml is None:
        return None
    out = ctypes.c_int()
    try:
        nvml.call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(out))
    except NvmlError:
        return None
    return out.value // 1000, out.value % 1000 // 10
