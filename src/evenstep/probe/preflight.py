"""Run a probe, as a rank of a running job or as the launcher of local ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, NamedTuple

from evenstep.errors import MissingExtra, UsageError
from evenstep.host.sysfs import core_wait_ns
from evenstep.probe import measurements
from evenstep.probe.measurements import Exchange
from evenstep.probe.outcome import FAILED, STAGES, Board, ProbeResult, connect, gather
from evenstep.stores import second_client
from evenstep.trace.spool.identity import Identity, from_environment, hostname

#: Shares of the time; the rest is for starting.
COMPUTE, MEMORY, SWEEP, NODE_SWEEP, PAIRS = 0.12, 0.06, 0.27, 0.10, 0.40
MOST_GROUPS = 64  # with more nodes there are no groups within nodes
_GRACE_S = 3.0  # after one rank has failed, for the others to report
_LOOK_S = 0.1
_OVERTIME = 1.5  # multiple of the planned seconds: slow ranks take longer for the same work
ReportProgress = Callable[[str], None]


class ProbePlan(NamedTuple):
    """The settings of a probe."""

    seconds: float
    timeout_s: float
    device: str = "auto"
    backend: str = "auto"

    def budget_ns(self, share: float) -> int:
        return int(share * self.seconds * 1e9)


class ProbeRank(threading.Thread):
    """The measuring thread of one rank: stage after stage, it posts the results on the board. If a
    collective hangs because another rank has died, the main thread can still report and exit."""

    def __init__(self, identity: Identity, store: Any, plan: ProbePlan) -> None:
        super().__init__(name="evenstep-probe", daemon=True)
        self._identity, self._plan = identity, plan
        self._store = store
        self._board = Board(second_client(store), identity.world, str(identity.attempt))
        self.stage = "arrived"

    def run(self) -> None:
        """Measure all stages; post an error that ends them."""
        try:
            self._measure()
        except Exception as error:  # errors of stores and backends have no common class
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        message = str(error).strip().partition("\n")[0][:300]
        post = {"stage": self.stage, "error": f"{type(error).__name__}: {message}"}
        try:
            self._post(FAILED, post | {"time_ns": time.time_ns()})
        except Exception:  # the store ended with rank 0
            os.write(2, f"evenstep: rank {self._identity.rank}: {post['error']}\n".encode())

    def _post(self, stage: str, value: Any) -> None:
        self._board.post(self._identity.rank, stage, value)

    def _measure(self) -> None:
        import torch

        me, plan = self._identity, self._plan
        device = measurements.choose(torch, plan.device, me.local_rank)
        self._post("arrived", self._place(device))
        if not self._board.wait_for_all(plan.timeout_s):
            return  # the reader of the board reports missing ranks
        backend = "gloo" if device.kind == "cpu" else "nccl"
        backend = backend if plan.backend == "auto" else plan.backend
        _join(self._store, me, backend, device, plan.timeout_s)
        begun, begun_ready = time.monotonic_ns(), core_wait_ns()
        exchange = Exchange(device, me.rank)
        places = _places(me)
        for stage, made, share in (("compute", measurements.product, COMPUTE),
                                   ("memory", measurements.memory_copy, MEMORY)):  # fmt: skip
            self.stage = stage
            exchange.agree(0.0)  # start at the same time on all ranks
            taken = measurements.time_repeats(made(device), device, plan.budget_ns(share))
            self._post(stage, taken)
        self.stage = "all_reduce"
        self._post("all_reduce", self._sweeps(exchange, places))
        self.stage = "pairs"
        found, omitted = exchange.time_pairs(teams(places), plan.budget_ns(PAIRS))
        self._post("pairs", asdict(found) | {"rounds_left_out": omitted})
        self._post("done", {"backend": backend, "ready_ns": core_wait_ns() - begun_ready,
                            "lasted_ns": time.monotonic_ns() - begun})  # fmt: skip

    def _place(self, device: measurements.ProbeDevice) -> dict[str, Any]:
        me = self._identity
        return {
            "node": me.node, "host": hostname(), "device": device.describe(),
            "flop": 2 * device.side**3, "copied_bytes": device.copied_bytes,
        }  # fmt: skip

    def _sweeps(self, exchange: Exchange, places: list[int]) -> dict[str, Any]:
        """Time all-reduces over all ranks, and over those of each node if there are several."""
        import torch.distributed as distributed

        found = {"world": exchange.sweep(self._plan.budget_ns(SWEEP))}
        nodes = sorted(set(places))
        if 1 < len(nodes) <= MOST_GROUPS and len(places) > len(nodes):
            mine = None
            for node in nodes:
                members = [rank for rank, place in enumerate(places) if place == node]
                group = distributed.new_group(members)
                mine = group if places[self._identity.rank] == node else mine
            found["node"] = exchange.sweep(self._plan.budget_ns(NODE_SWEEP), mine)
        return found


def teams(places: list[int]) -> list[int]:
    """Return the ranks that form pairs: the first of each node, or all on a single node."""
    first = [places.index(node) for node in dict.fromkeys(places)]
    return first if len(first) > 1 else list(range(len(places)))


def _places(me: Identity) -> list[int]:
    import torch.distributed as distributed

    found: list[Any] = [None] * me.world
    distributed.all_gather_object(found, me.node)
    return [int(node) for node in found]


def _join(
    store: Any, me: Identity, backend: str, device: measurements.ProbeDevice, timeout_s: float
) -> None:
    import torch.distributed as distributed

    distributed.init_process_group(
        backend,
        store=distributed.PrefixStore(f"evenstep-probe-group/{me.attempt}", store),
        rank=me.rank,
        world_size=me.world,
        timeout=timedelta(seconds=timeout_s),
        device_id=device.place if device.kind != "cpu" else None,
    )


class Ended(NamedTuple):
    """The result of a probe, in the process that reads the board; None in others."""

    outcome: ProbeResult | None
    signal: int = 0  # that interrupted it


def as_rank(
    plan: ProbePlan, environ: Mapping[str, str], report: ReportProgress, *, reports: bool = True
) -> Ended:
    """Measure as a rank of a running job; rank 0 gathers the result if `reports`."""
    require_torch()
    identity = from_environment(environ)
    store = connect(identity, environ, plan.timeout_s)
    rank = ProbeRank(identity, store, plan)
    rank.start()
    if identity.rank == 0 and reports:
        board = Board(second_client(store), identity.world, str(identity.attempt))
        return _gather(board, identity.world, plan, report, lambda: False)
    rank.join(plan.timeout_s * 2 + plan.seconds * _OVERTIME)
    return Ended(None)


def with_ranks(
    number: int,
    plan: ProbePlan,
    command: Sequence[str],
    environ: Mapping[str, str],
    report: ReportProgress,
) -> Ended:
    """Start `number` ranks here, each with `command`, and gather the result."""
    require_torch()
    _require(plan)
    shared = _environment(environ, number, free_port())
    first, *_ = environs = [
        shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)
    ]
    identity = from_environment(first)
    store = connect(identity, first | {"TORCHELASTIC_USE_AGENT_STORE": "False"}, plan.timeout_s)
    children: list[subprocess.Popen[Any]] = []
    try:
        for one in environs:
            null = subprocess.DEVNULL
            children.append(subprocess.Popen(command, env=one, stdin=null, stdout=null))
        board = Board(second_client(store), number, str(identity.attempt))
        return _gather(
            board, number, plan, report,
            lambda: any(child.poll() not in (None, 0) for child in children),
        )  # fmt: skip
    finally:
        _stop(children)


def _gather(
    board: Board, world: int, plan: ProbePlan, report: ReportProgress, failed: Callable[[], bool]
) -> Ended:
    """Gather until all ranks have ended, a timeout, or a signal."""
    caught = 0
    try:
        _watch(board, world, plan, report, failed)
    except KeyboardInterrupt:
        caught = 2
    except SystemExit as end:  # SIGTERM
        caught = int(end.code or 0) - 128 if isinstance(end.code, int) else 15
    board.read()
    outcome = gather(board, world)
    if caught and not board.posts[FAILED]:
        limit = "the probe was interrupted: the measurements are incomplete"
        outcome = replace(outcome, stopped={}, whole=False, limits=(*outcome.limits, limit))
    return Ended(outcome, caught)


def _watch(
    board: Board, world: int, plan: ProbePlan, report: ReportProgress, failed: Callable[[], bool]
) -> None:
    latest = time.monotonic() + plan.timeout_s + 1.0
    came = False
    while len(board.ended) < world:
        new = board.read()
        now = time.monotonic()
        if new:
            report(_progress(board, world))
        if len(board.posts["arrived"]) >= world and not came:
            came, latest = True, now + plan.seconds * _OVERTIME + plan.timeout_s
        if board.posts[FAILED] or failed():
            latest = min(latest, now + _GRACE_S)
        if now > latest:
            return
        time.sleep(_LOOK_S)


def _progress(board: Board, world: int) -> str:
    """Describe the progress: "probing 4 ranks: memory 3, pairs 1"."""
    done = Counter(board.last_stage(rank) for rank in range(world))
    parts = (f"{STAGES[stage]} {count}" for stage, count in done.items() if stage >= 0)
    return f"probing {world} ranks: {', '.join(parts)}"


# -- local ranks -----------------------------------------------------------------------------------


def require_torch() -> None:
    """Raise `MissingExtra` if torch is not installed."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", extra="analyze", purpose="evenstep probe")


def _require(plan: ProbePlan) -> None:
    """Raise `UsageError` if this torch does not support the device or backend."""
    import torch

    if plan.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU here; use --device cpu")
    if plan.backend == "nccl" and not torch.distributed.is_nccl_available():
        raise UsageError("--backend nccl: this torch was built without NCCL; use --backend gloo")


def _environment(environ: Mapping[str, str], number: int, port: int) -> dict[str, str]:
    """Return the environment of ranks as torchrun sets it; threads share the cores by default."""
    cores = len(os.sched_getaffinity(0))
    return {
        "OMP_NUM_THREADS": str(max(cores // number, 1)),
        **environ,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(number),
        "LOCAL_WORLD_SIZE": str(number), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _stop(children: Sequence[subprocess.Popen[Any]]) -> None:
    for child in children:
        if child.poll() is None:
            child.terminate()
    for child in children:
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
