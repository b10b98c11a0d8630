"""What `run.json` says of a run: command, machine, versions, settings. Never a secret."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from evenstep.trace.spool.identity import boot_id, hostname

_RECORDED_PREFIXES = (
    *("EVENSTEP", "NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "TORCH_", "TORCHELASTIC_"),
    *("PYTORCH_", "OMPI_COMM_WORLD_", "SLURM_JOB_", "SLURM_STEP_"),
)
_RECORDED_NAMES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"}
    | {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    | {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"}
    | {"SLURM_NNODES", "SLURM_NTASKS", "SLURM_RESTART_COUNT", "KMP_AFFINITY", "PYTHONPATH"}
)
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_SECRET_OPTIONS = frozenset(
    {"token", "secret", "password", "passwd", "key", "apikey", "credential", "credentials", "auth"}
)
_SECRET_VALUE = re.compile(r"://[^/\s]*@")  # a URL with a user's name or password in it


def recorded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables worth keeping with a run; never one that may hold a secret."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in _RECORDED_NAMES or name.startswith(_RECORDED_PREFIXES))
        and not _SECRET_NAME.search(name)
        and not _SECRET_VALUE.search(value)
    }


def recorded_command(command: Sequence[str]) -> list[str]:
    """The command with `…` for what an option of a secret's name is given, and for URLs with a
    password: `--api-key …`, `--hub-token=…`, not `--tokenizer gpt2`."""
    found: list[str] = []
    hidden = False
    for argument in command:
        option, equals, _ = argument.partition("=")
        words = set(re.split(r"[-_]+", option.lower())) if option.startswith("-") else set()
        if _SECRET_VALUE.search(argument) or (hidden and not argument.startswith("-")):
            argument = "…"
        elif equals and words & _SECRET_OPTIONS:
            argument = f"{option}=…"
        hidden = not equals and bool(words & _SECRET_OPTIONS)
        found.append(argument)
    return found


def run_facts(
    *,
    run_id: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    versions: Mapping[str, str | None],
    world: int | None = None,
    nodes: int | None = None,
    python: str | None = None,
) -> dict[str, Any]:
    """What `run.json` says of this process's run. None stands for what its writer cannot know."""
    return {
        "run_id": run_id,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": recorded_command(command),
        "cwd": str(Path.cwd()),
        "hostname": hostname(),
        "boot_id": boot_id(),
        "pid": os.getpid(),
        "python": python,
        "versions": dict(versions),
        "world": world,
        "nodes": nodes,
        "environment": recorded_environment(environ),
    }


def loaded_versions(evenstep: str) -> dict[str, str | None]:
    """Versions of this interpreter and, if it has been imported, of torch and NCCL."""
    torch = sys.modules.get("torch")
    return {
        "evenstep": evenstep,
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": str(getattr(torch, "__version__", "")) or None,
        "nccl": _nccl_version(torch),
    }


def _nccl_version(torch: Any) -> str | None:
    cuda = getattr(torch, "cuda", None)
    if not getattr(getattr(torch, "version", None), "cuda", None):
        return None
    try:
        return ".".join(map(str, cuda.nccl.version())) if cuda else None
    except (AttributeError, RuntimeError, TypeError):
        return None
