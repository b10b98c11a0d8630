"""The host a check looks at: its `/proc`, `/sys`, environment, drivers and packages.

All of it comes in from outside, so that a folder with copies of the files is examined as well as
the machine itself.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from evenstep.host.sources.nvml_library import Nvml
from evenstep.host.sources.source import SourceUnavailable
from evenstep.host.sysfs import children, parse_cpus, read_int, read_text

_LOCAL_WORLD = (
    "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE",
)  # fmt: skip
_LOG_BYTES = 4_000_000  # of the kernel's log, the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine, as far as it can be read."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)  # versions by name
    nvml: Nvml | None = None
    nvml_reason: str = "NVML was not asked"
    planned_ranks: int | None = None  # on this host; None: as the environment says
    spool: Path = Path()
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs

    @property
    def live(self) -> bool:
        """Whether it is the machine this runs on, and not a copy of its files."""
        return self.root == Path("/")

    def text(self, name: str) -> str | None:
        """What a file says, or None."""
        return read_text(str(self.root / name))

    def number(self, name: str) -> int | None:
        """The number in a file, or None."""
        return read_int(str(self.root / name))

    def children(self, name: str) -> list[str]:
        """Names in a folder, none where it is absent."""
        return children(str(self.root / name))

    @property
    def name(self) -> str:
        """What it is called."""
        return self.text("proc/sys/kernel/hostname") or "this host"

    @property
    def cpus(self) -> list[int]:
        """Processors that this process may use; of a copy without that, those online."""
        status = self.text("proc/self/status") or ""
        match = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
        online = self.text("sys/devices/system/cpu/online") or ""
        try:
            return parse_cpus(match[1] if match else online)
        except ValueError:
            return []

    @property
    def ranks(self) -> int | None:
        """Ranks on this host: as asked for, as the launcher says, or one for each GPU."""
        if self.planned_ranks:
            return self.planned_ranks
        given = (self.environ.get(name, "") for name in _LOCAL_WORLD)
        numbers = (int(text) for text in given if text.isascii() and text.isdigit())
        return next((n for n in numbers if n > 0), None) or self.gpu_count or None

    @property
    def gpu_count(self) -> int:
        """GPUs that a driver serves: NVIDIA's or AMD's."""
        nvidia = len(self.children("proc/driver/nvidia/gpus"))
        nodes = "sys/class/kfd/kfd/topology/nodes"
        amd = sum((self.number(f"{nodes}/{n}/gpu_id") or 0) > 0 for n in self.children(nodes))
        return nvidia or amd

    def elsewhere(self, environ: Mapping[str, str]) -> Host:
        """A machine of which nothing but the environment is known."""
        return replace(
            self, root=Path("/nonexistent"), environ=environ, packages={}, nvml=None,
            nvml_reason="it is another machine",
        )  # fmt: skip


def this_host(*, root: Path = Path("/"), ranks: int | None = None, spool: Path = Path()) -> Host:
    """The machine this runs on, or a copy of another's `/proc` and `/sys` below `root`."""
    if root != Path("/"):
        return Host(
            root=root, planned_ranks=ranks, spool=spool,
            nvml_reason=f"{root} is a copy of files: drivers cannot be asked",
        )  # fmt: skip
    nvml, reason = _nvml()
    return Host(
        environ=dict(os.environ), packages=installed(), nvml=nvml, nvml_reason=reason,
        planned_ranks=ranks, spool=spool,
    )  # fmt: skip


def _nvml() -> tuple[Nvml | None, str]:
    try:
        return Nvml.load(), ""
    except SourceUnavailable as error:
        return None, str(error)


def installed() -> dict[str, str]:
    """Versions of Python, torch and what torch was built with. Imports none of them."""
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
    """The version of a library that no package brought; nothing where none can be loaded."""
    out = ctypes.c_int()
    try:
        code = int(ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(out)))
    except (OSError, AttributeError):
        return {}
    major, rest = divmod(out.value, 10_000)  # NCCL_VERSION of nccl.h from 2.9 on
    return {} if code else {"nvidia-nccl": f"{major}.{rest // 100}.{rest % 100}"}


def torch_build() -> dict[str, str]:
    """CUDA or HIP version in `torch/version.py`; importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    text = read_text(str(Path(spec.origin).parent / "version.py")) or ""
    pairs = re.findall(r"^(cuda|hip)\b[^=\n]*= *'([^']+)'", text, re.MULTILINE)
    return {f"torch-{name}": version for name, version in pairs}


def kernel_log(host: Host) -> list[str] | None:
    """Messages of the kernel since it started, as far as they are kept; None without permission."""
    try:
        descriptor = os.open(host.root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    content = b""
    try:
        while len(content) < _LOG_BYTES and (record := os.read(descriptor, 8_192)):
            content += record
    except OSError:  # no more records, or one was overwritten meanwhile
        pass
    finally:
        os.close(descriptor)
    return [line.partition(";")[2] for line in content.decode(errors="replace").splitlines()]
