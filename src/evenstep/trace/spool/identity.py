"""The identity of a process in its job, from the environment that its launcher sets.

Launchers are tried in the order of `SCHEMES`. A restart is a new attempt of the same run: the
attempt is the launcher's restart count, plus EVENSTEP_ATTEMPT (else SLURM_RESTART_COUNT) where the
launcher itself was restarted.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.errors import ConfigError


class Identity(NamedTuple):
    """Run, attempt, rank and node of a process."""

    run_id: str  # the same on every rank of the job
    attempt: int  # 0, then one more for every restart
    rank: int  # invariant: 0 <= rank < world
    local_rank: int
    world: int
    node: int
    launcher: str  # torchrun, environment, slurm, openmpi, pmi, kubernetes or single
    nodes: int = 1

    def at(self, *, rank: int, world: int) -> Identity:
        """The identity with rank and world as `init_process_group` has them. Processes spawned by
        one script have no environment of their own: their local rank is the rank."""
        if (rank, world) == (self.rank, self.world):
            return self
        local_rank = rank if self.launcher == "single" else self.local_rank
        return self._replace(rank=rank, world=world, local_rank=local_rank)

    def header(self) -> dict[str, Any]:
        """The identity in a spool's header, JSON-able."""
        return {**self._asdict(), "hostname": hostname(), "boot_id": boot_id(), "pid": os.getpid()}


class Scheme(NamedTuple):
    """The environment variables of a launcher. Of several in a text the first one set counts."""

    launcher: str
    rank: str
    world: str
    local_rank: str = ""
    local_world: str = ""
    node: str = ""
    nodes: str = ""
    run_id: str = ""
    restarts: str = ""


_SLURM_NODES = "SLURM_STEP_NUM_NODES SLURM_NNODES"
_OPENMPI_JOB = "PMIX_NAMESPACE OMPI_MCA_ess_base_jobid"
SCHEMES = (
    Scheme("torchrun", "RANK", "WORLD_SIZE", restarts="TORCHELASTIC_RESTART_COUNT",
           local_rank="LOCAL_RANK SLURM_LOCALID OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID",
           local_world="LOCAL_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALNRANKS",
           node="GROUP_RANK SLURM_NODEID", nodes=f"GROUP_WORLD_SIZE {_SLURM_NODES}",
           run_id=f"TORCHELASTIC_RUN_ID SLURM_JOB_ID {_OPENMPI_JOB}"),
    Scheme("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS",
           local_rank="SLURM_LOCALID", node="SLURM_NODEID", nodes=_SLURM_NODES,
           run_id="SLURM_JOB_ID"),
    Scheme("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", run_id=_OPENMPI_JOB,
           local_rank="OMPI_COMM_WORLD_LOCAL_RANK", local_world="OMPI_COMM_WORLD_LOCAL_SIZE"),
    Scheme("pmi", "PMI_RANK", "PMI_SIZE", local_rank="MPI_LOCALRANKID PMI_LOCAL_RANK",
           local_world="MPI_LOCALNRANKS PMI_LOCAL_SIZE", run_id="PMI_JOBID"),
    # an indexed job: one process a pod
    Scheme("kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", node="JOB_COMPLETION_INDEX",
           nodes="WORLD_SIZE"),
)  # fmt: skip


def from_environment(environ: Mapping[str, str]) -> Identity:
    """The identity from a launcher's variables; a single process where there are none. Raises
    `ConfigError` naming the variable with an impossible value."""
    scheme = next((scheme for scheme in SCHEMES if _applies(scheme, environ)), None)
    if scheme is None:
        run_id = given_run_id(environ) or "single"
        return Identity(run_id, _first_attempt(environ), 0, 0, 1, 0, "single")
    rank = _number(environ, scheme.rank, default=0)
    world = _number(environ, scheme.world, default=rank + 1)
    if rank >= world:
        raise ConfigError(
            f"{_first(environ, scheme.rank)} is {rank} but {_first(environ, scheme.world)} is "
            f"{world}: a rank is below the number of ranks; correct the launcher's environment"
        )
    local_world = _number(environ, scheme.local_world, default=world)
    return Identity(
        # else the address of the rendezvous, the only name that ranks of a nameless job share
        run_id=given_run_id(environ)
        or f"{environ.get('MASTER_ADDR', 'local')}:{environ.get('MASTER_PORT', '0')}",
        attempt=_first_attempt(environ) + _number(environ, scheme.restarts, default=0),
        rank=rank,
        local_rank=_number(environ, scheme.local_rank, default=0),
        world=world,
        node=_number(environ, scheme.node, default=rank // max(local_world, 1)),
        launcher=(
            "environment"
            if scheme.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in environ
            else scheme.launcher
        ),
        nodes=_number(environ, scheme.nodes, default=-(-world // max(local_world, 1))),
    )


def given_run_id(environ: Mapping[str, str]) -> str | None:
    """The job's name in the environment, the same on all ranks; None where it has none."""
    if environ.get("EVENSTEP_RUN_ID"):
        return environ["EVENSTEP_RUN_ID"]
    for scheme in SCHEMES:
        if not _applies(scheme, environ):
            continue
        for variable in scheme.run_id.split():
            if environ.get(variable, "none") not in ("", "none"):  # torchrun's default is "none"
                return environ[variable]
        if scheme.launcher == "kubernetes":
            pod, index = environ.get("HOSTNAME", ""), environ["JOB_COMPLETION_INDEX"]
            return pod.removesuffix(f"-{index}") or None
    return environ.get("SLURM_JOB_ID") or None


def hostname() -> str:
    return socket.gethostname()


def boot_id() -> str:
    """Identity of this boot of the kernel ("" unknown): processes with the same one share a
    monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _applies(scheme: Scheme, environ: Mapping[str, str]) -> bool:
    """Whether rank and world are set; the world of an indexed job may become known later."""
    ranked = _first(environ, scheme.rank) is not None
    return ranked and (_first(environ, scheme.world) is not None or scheme.launcher == "kubernetes")


def _first_attempt(environ: Mapping[str, str]) -> int:
    return _number(environ, "EVENSTEP_ATTEMPT SLURM_RESTART_COUNT", default=0)


def _first(environ: Mapping[str, str], variables: str) -> str | None:
    return next((name for name in variables.split() if environ.get(name)), None)


def _number(environ: Mapping[str, str], variables: str, *, default: int) -> int:
    name = _first(environ, variables)
    if name is None:
        return default
    text = environ[name]
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"{name} in the environment must be a whole number from 0, found {text!r}; "
            "correct it or unset it"
        )
    return int(text)
