"""Run a probe, as a rank of a running job or as the launcher of local ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from evenstep.errors import MissingExtra, UsageError
from evenstep.probe.outcome import FAILED, STAGES, Board, ProbeResult, connect, gather
from evenstep.probe.rank import ProbePlan, ProbeRank
from evenstep.stores import second_client
from evenstep.trace.spool.identity import from_environment

_GRACE_S = 3.0  # after one rank has failed, for the others to report
_LOOK_S = 0.1
_OVERTIME = 1.5  # multiple of the planned seconds: slow ranks take longer for the same work

ReportProgress = Callable[[str], None]


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
