"""The board in the job's store on which ranks post what they have measured, stage by stage.

Whoever reads it never blocks on a rank that is gone: keys are asked for before they are read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from evenstep.errors import ConfigError
from evenstep.trace.spool.identity import Identity

STAGES = ("arrived", "compute", "memory", "all_reduce", "pairs", "done")
FAILED = "failed"
_PREFIX = "evenstep-probe"
_PORT = 29_531


def address(identity: Identity, environ: Mapping[str, str]) -> tuple[str, int]:
    """Where the ranks meet; port 0, any that is free, for one alone.

    Raises `ConfigError` where nothing tells.
    """
    port = environ.get("MASTER_PORT") or ("0" if identity.world == 1 else str(_PORT))
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ConfigError(f"MASTER_PORT in the environment must be a port, found {port!r}")
    host = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if identity.nodes > 1 and not environ.get("MASTER_ADDR"):
        raise ConfigError(
            "MASTER_ADDR is not set, and the ranks are on several nodes; export it as the name of "
            "the node of rank 0: export MASTER_ADDR=$(scontrol show hostnames | head -n 1)"
        )
    return host or "127.0.0.1", int(port)


def connect(identity: Identity, environ: Mapping[str, str], timeout_s: float) -> Any:
    """The store of this job: rank 0 keeps it, unless the launcher does."""
    from torch.distributed import TCPStore

    host, port = address(identity, environ)
    kept = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        return TCPStore(
            host, port, is_master=identity.rank == 0 and not kept, wait_for_workers=False,
            timeout=timedelta(seconds=max(timeout_s, 1.0)),
        )  # fmt: skip
    except RuntimeError as error:
        raise ConfigError(
            f"rank {identity.rank} cannot reach rank 0 at {host}:{port} ({_first_line(error)}); "
            "check MASTER_ADDR, MASTER_PORT and the firewall"
        ) from None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]


class Board:
    """What all ranks have posted. Each thread needs a store of its own (`store.clone()`)."""

    def __init__(self, store: Any, world: int, attempt: str = "0") -> None:
        self._store = store
        self._world = world
        self._prefix = f"{_PREFIX}/{attempt}"
        self.posts: dict[str, dict[int, Any]] = {stage: {} for stage in (*STAGES, FAILED)}

    def post(self, rank: int, stage: str, value: Any) -> None:
        """Put up what a rank has to say of a stage."""
        self._store.set(self._key(rank, stage), json.dumps(value))
        if stage == "arrived":
            self._store.add(f"{self._prefix}/count", 1)

    def all_arrived(self) -> bool:
        """Whether every rank has posted that it is there."""
        return int(self._store.add(f"{self._prefix}/count", 0)) >= self._world

    def wait_for_all(self, timeout_s: float) -> bool:
        """Whether every rank arrived in time."""
        end = time.monotonic() + timeout_s
        while not self.all_arrived():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def read(self) -> bool:
        """Take in what is new; whether anything was."""
        new = False
        for stage, posts in self.posts.items():
            for rank in range(self._world):
                key = self._key(rank, stage)
                if rank not in posts and self._store.check([key]):
                    posts[rank] = json.loads(self._store.get(key))
                    new = True
        return new

    @property
    def ended(self) -> set[int]:
        """Ranks that will post nothing more."""
        return {*self.posts["done"], *self.posts[FAILED]}

    @property
    def all_came(self) -> bool:
        """Whether every rank has been heard of, as far as was read."""
        return len(self.posts["arrived"]) >= self._world

    def last_stage(self, rank: int) -> str | None:
        """The last stage a rank has finished; None of one that never came."""
        return next((s for s in reversed(STAGES) if rank in self.posts[s]), None)

    def _key(self, rank: int, stage: str) -> str:
        return f"{self._prefix}/{rank}/{stage}"
