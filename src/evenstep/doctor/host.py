"""The host that is checked: its `/proc`, `/sys`, environment, drivers and packages.

All of these are passed in, so that copies of another machine's files can be checked too.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from evenstep.host.sources.nvml import Nvml
from evenstep.host.sources.source import SourceUnavailable
from evenstep.host.sysfs import children, read_int, read_text
from evenstep.trace.ranks import parse_ranks

_LOCAL_WORLD = (
    "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE",
)  # fmt: skip
_LOG_BYTES = 4_000_000  # read at most from the kernel log


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine, as far as its files are readable."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)  # versions by name
    nvml: Nvml | None = None
    nvml_reason: str = "NVML was not used"
    planned_ranks: int | None = None  # on this host; None: from the environment
    spool: Path = Path()
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs

    @property
    def live(self) -> bool:
        """Whether this is the running machine and not a copy of files."""
        return self.root == Path("/")

    def text(self, name: str) -> str | None:
        return read_text(str(self.root / name))

    def number(self, name: str) -> int | None:
        return read_int(str(self.root / name))

    def children(self, name: str) -> list[str]:
        """Return the names in a folder; none if it is missing."""
        return children(str(self.root / name))

    @property
    def name(self) -> str:
        return self.text("proc/sys/kernel/hostname") or "this host"

    @property
    def cpus(self) -> list[int]:
        """Processors that this process may use; in a copy without that, those online."""
        status = self.text("proc/self/status") or ""
        match = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
        online = self.text("sys/devices/system/cpu/online") or ""
        try:
            return list(parse_ranks(match[1] if match else online))
        except ValueError:
            return []

    @property
    def ranks(self) -> int | None:
        """Ranks on this host: as given, from the launcher, or one for each GPU."""
        if self.planned_ranks:
            return self.planned_ranks
        given = (self.environ.get(name, "") for name in _LOCAL_WORLD)
        numbers = (int(text) for text in given if text.isascii() and text.isdigit())
        return next((n for n in numbers if n > 0), None) or self.gpu_count or None

    @property
    def gpu_count(self) -> int:
        """The number of NVIDIA GPUs with a driver, else of AMD GPUs."""
        nvidia = len(self.children("proc/driver/nvidia/gpus"))
        nodes = "sys/class/kfd/kfd/topology/nodes"
        amd = sum((self.number(f"{nodes}/{n}/gpu_id") or 0) > 0 for n in self.children(nodes))
        return nvidia or amd

    def elsewhere(self, environ: Mapping[str, str]) -> Host:
        """Return a machine of which only the environment is known."""
        return replace(
            self, root=Path("/nonexistent"), environ=environ, packages={}, nvml=None,
            nvml_reason="it is another machine",
        )  # fmt: skip


def this_host(*, root: Path = Path("/"), ranks: int | None = None, spool: Path = Path()) -> Host:
    """Return the running machine, or the copy of another's `/proc` and `/sys` below `root`."""
    if root != Path("/"):
        reason = f"{root} is a copy of files without drivers"
        return Host(root=root, planned_ranks=ranks, spool=spool, nvml_reason=reason)
    try:
        nvml, reason = Nvml.load(), ""
    except SourceUnavailable as error:
        nvml, reason = None, str(error)
    return Host(
        environ=dict(os.environ), packages=installed_versions(), nvml=nvml, nvml_reason=reason,
        planned_ranks=ranks, spool=spool,
    )  # fmt: skip


def installed_versions() -> dict[str, str]:
    """Return the versions of Python, torch, and libraries of torch, without importing them."""
    found = {"python": platform.python_version()}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name in ("torch", "mpi4py") or name.startswith(("nvidia-nccl", "nvidia-cuda-runtime")):
            found[name] = distribution.version
    found |= torch_build()
    if "torch-cuda" in found and not any(name.startswith("nvidia-nccl") for name in found):
        found |= nccl_library()
    return found


def nccl_library() -> dict[str, str]:
    """Return the version of an NCCL library that is not from a package; {} if there is none."""
    out = ctypes.c_int()
    try:
        code = int(ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(out)))
    except (OSError, AttributeError):
        return {}
    major, rest = divmod(out.value, 10_000)  # NCCL_VERSION of nccl.h from 2.9 on
    return {} if code else {"nvidia-nccl": f"{major}.{rest // 100}.{rest % 100}"}


def torch_build() -> dict[str, str]:
    """Return the CUDA or HIP version in `torch/version.py`, without the slow import of torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    text = read_text(str(Path(spec.origin).parent / "version.py")) or ""
    pairs = re.findall(r"^(cuda|hip)\b[^=\n]*= *'([^']+)'", text, re.MULTILINE)
    return {f"torch-{name}": version for name, version in pairs}


def kernel_log(host: Host) -> list[str] | None:
    """Return the kept messages of the kernel log; None without permission."""
    try:
        descriptor = os.open(host.root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    content = record = b"\n"
    with os.fdopen(descriptor, "rb", 0), suppress(OSError):  # it ends with EAGAIN
        while record and len(content) < _LOG_BYTES:
            with suppress(BrokenPipeError):  # the next record was overwritten; later ones remain
                content += (record := os.read(descriptor, 8_192))
    lines = content.decode(errors="replace").splitlines()[1:]
    return [line.partition(";")[2] for line in lines]
