"""The board in the job's store on which ranks post measurements, and the result of all posts.

Reading the board never blocks on a dead rank: keys are checked before they are read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from evenstep import words
from evenstep.allreduce import bus_factor
from evenstep.errors import ConfigError
from evenstep.statistics.outliers import Series, series
from evenstep.trace.spool.identity import Identity

STAGES = ("arrived", "compute", "memory", "all_reduce", "pairs", "done")
FAILED = "failed"
_PREFIX = "evenstep-probe"
_PORT = 29_531


def address(identity: Identity, environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of the store; port 0, any free one, for a single rank. Raises `ConfigError` if
    they are unknown."""
    port = environ.get("MASTER_PORT") or ("0" if identity.world == 1 else str(_PORT))
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ConfigError(f"MASTER_PORT in the environment must be a port, found {port!r}")
    host = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if identity.nodes > 1 and not environ.get("MASTER_ADDR"):
        raise ConfigError(
            "MASTER_ADDR is not set, and the ranks are on several nodes; set it to the node of "
            "rank 0: export MASTER_ADDR=$(scontrol show hostnames | head -n 1)"
        )
    return host or "127.0.0.1", int(port)


def connect(identity: Identity, environ: Mapping[str, str], timeout_s: float) -> Any:
    """Connect to the job's store, which rank 0 hosts unless the launcher does."""
    from torch.distributed import TCPStore

    host, port = address(identity, environ)
    kept = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        return TCPStore(
            host, port, is_master=identity.rank == 0 and not kept, wait_for_workers=False,
            timeout=timedelta(seconds=max(timeout_s, 1.0)),
        )  # fmt: skip
    except RuntimeError as error:
        why = str(error).strip().partition("\n")[0][:200]
        raise ConfigError(
            f"rank {identity.rank} cannot reach rank 0 at {host}:{port} ({why}); "
            "check MASTER_ADDR, MASTER_PORT and the firewall"
        ) from None


class Board:
    """The posts of all ranks. Each thread needs its own store (`second_client(store)`)."""

    def __init__(self, store: Any, world: int, attempt: str = "0") -> None:
        self._store = store
        self._world = world
        self._prefix = f"{_PREFIX}/{attempt}"
        self.posts: dict[str, dict[int, Any]] = {stage: {} for stage in (*STAGES, FAILED)}

    def post(self, rank: int, stage: str, value: Any) -> None:
        self._store.set(self._key(rank, stage), json.dumps(value))
        if stage == "arrived":
            self._store.add(f"{self._prefix}/count", 1)

    def all_arrived(self) -> bool:
        return int(self._store.add(f"{self._prefix}/count", 0)) >= self._world

    def wait_for_all(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not self.all_arrived():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def read(self) -> bool:
        """Read new posts; return whether there were any."""
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

    def last_stage(self, rank: int) -> int:
        """Return the index of the last stage a rank has finished; -1 if it never arrived."""
        return max((at for at, s in enumerate(STAGES) if rank in self.posts[s]), default=-1)

    def _key(self, rank: int, stage: str) -> str:
        return f"{self._prefix}/{rank}/{stage}"


# -- the result ------------------------------------------------------------------------------------

CONTESTED = 0.1  # share of the time without a core


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedPlace:
    """A rank, its node and its device."""

    rank: int
    node: int
    host: str
    device: str
    flop: int  # of one matrix product
    copied_bytes: int  # of one copy, each way


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """All-reduces of one size over one kind of group."""

    bytes: int
    ranks: int
    nodes: int
    times: Series

    @property
    def algbw_gBps(self) -> float:  # noqa: N802
        """Size over time: 1 GB/s is a byte per ns."""
        return self.bytes / max(self.times.median_ns, 1.0)

    @property
    def busbw_gBps(self) -> float:  # noqa: N802
        """Bus bandwidth as in nccl-tests, comparable with the speed of a link."""
        return self.algbw_gBps * bus_factor("all_reduce", self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """All measurements."""

    world: int
    backend: str | None
    places: Mapping[int, ProbedPlace]
    compute: Mapping[int, Series]
    memory: Mapping[int, Series]
    reductions: tuple[Reduction, ...]
    latency: Mapping[tuple[int, int], Series]  # of pairs, the lower rank first
    transfer: Mapping[tuple[int, int], Series]  # from, to: of one message without latency
    message_bytes: int
    stopped: Mapping[int, str]  # ranks that did not finish: the stage, or the error
    limits: tuple[str, ...] = ()
    whole: bool = True  # every rank has finished

    @property
    def nodes(self) -> int:
        return len({place.node for place in self.places.values()})

    @property
    def between_nodes(self) -> bool:
        """Whether pairs are nodes; else ranks."""
        return self.nodes > 1

    def name(self, rank: int) -> str:
        """Return the name of a rank, with its host if there are several."""
        place = self.places.get(rank)
        return f"rank {rank}" + (f" ({place.host})" if place and self.nodes > 1 else "")

    def team_name(self, rank: int) -> str:
        """Return the name of what is paired: the node of a rank, or on one node the rank."""
        return self.node_name(rank) if self.between_nodes else f"rank {rank}"

    def node_name(self, rank: int) -> str:
        """Return the node of a rank, with its number if hosts have the same name."""
        place = self.places[rank]
        hosts = {p.node: p.host for p in self.places.values()}
        alone = list(hosts.values()).count(place.host) == 1
        return place.host if alone else f"node {place.node} ({place.host})"


def gather(board: Board, world: int) -> ProbeResult:
    posts = board.posts
    names = [one.name for one in fields(ProbedPlace)][1:]
    places = {
        rank: ProbedPlace(rank=rank, **{name: post[name] for name in names})
        for rank, post in posts["arrived"].items()
    }
    met = posts["pairs"]
    left_out = max((post["rounds_left_out"] for post in met.values()), default=0)
    limits = _contested_ranks(posts["done"])
    if left_out:
        what = f"{left_out} rounds of pairs did not fit into the time"
        limits.append(f"{what}: not every pair was measured; increase --seconds")
    return ProbeResult(
        world=world,
        backend=next((post["backend"] for post in posts["done"].values()), None),
        places=places,
        compute={rank: series(times) for rank, times in posts["compute"].items()},
        memory={rank: series(times) for rank, times in posts["memory"].items()},
        reductions=tuple(_reductions(posts["all_reduce"], places, world)),
        latency=_pairs(met, "latency_ns"),
        transfer=_pairs(met, "sent_ns")
        | {(b, a): times for (a, b), times in _pairs(met, "received_ns").items()},
        message_bytes=next((post["message_bytes"] for post in met.values()), 0),
        stopped=_stopped_ranks(board, world),
        whole=len(posts["done"]) == world,
        limits=tuple(limits),
    )


def _contested_ranks(posts: Mapping[int, Any]) -> list[str]:
    """Report ranks that often waited for a core: their figures show the host's load."""
    shares = {rank: post["ready_ns"] / max(post["lasted_ns"], 1) for rank, post in posts.items()}
    waited = sorted(rank for rank, share in shares.items() if share > CONTESTED)
    if not waited:
        return []
    most = f"{100 * max(shares.values()):.0f} %"
    return [
        f"{words.ranks(waited)} waited for a core for up to {most} of the time: the figures are "
        "those of a busy host, and findings on single links are not reliable"
    ]


def _reductions(
    posts: Mapping[int, Any], places: Mapping[int, ProbedPlace], world: int
) -> list[Reduction]:
    """Return all-reduces over all ranks, timed by the first, and within the slowest node."""
    nodes = sorted({place.node for place in places.values()})
    found = _rows(posts[min(posts)]["world"], world, len(nodes)) if posts else []
    within: dict[int, list[Reduction]] = {}
    for node in nodes:
        members = [rank for rank, place in places.items() if place.node == node]
        heard = [rank for rank in members if "node" in posts.get(rank, {})]
        if heard and len(members) > 1:
            for row in _rows(posts[min(heard)]["node"], len(members), 1):
                within.setdefault(row.bytes, []).append(row)
    found += [max(rows, key=lambda row: row.times.median_ns) for rows in within.values()]
    return found


def _rows(sweep: Mapping[str, Any], ranks: int, nodes: int) -> list[Reduction]:
    pairs = zip(sweep["sizes"], map(series, sweep["times_ns"]), strict=True)
    return [Reduction(bytes=size, ranks=ranks, nodes=nodes, times=each) for size, each in pairs]


def _pairs(met: Mapping[int, Any], name: str) -> dict[tuple[int, int], Series]:
    return {
        (rank, int(other)): series(times)
        for rank, post in met.items()
        for other, times in post[name].items()
    }


def _stopped_ranks(board: Board, world: int) -> dict[int, str]:
    """Return ranks that did not finish: those that stopped in the earliest stage, for which the
    others wait; if none is silent, all that failed, in order of time."""
    silent = [rank for rank in range(world) if rank not in board.ended]
    if silent:
        done = {rank: board.last_stage(rank) for rank in silent}
        first = min(done.values())
        why = f"stopped in stage {STAGES[min(first + 1, len(STAGES) - 1)]}"
        why = why if first >= 0 else "never arrived"
        return {rank: why for rank, stage in done.items() if stage == first}
    failures = board.posts[FAILED]
    order = sorted(failures, key=lambda rank: failures[rank]["time_ns"])
    return {r: f"failed in stage {failures[r]['stage']}: {failures[r]['error']}" for r in order}
