"""A probe from beginning to end, as the launcher's rank or as the launcher itself."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from evenstep.errors import MissingExtra, UsageError
from evenstep.probe.outcome import FAILED, Board, ProbeResult, connect, gather
from evenstep.probe.rank import ProbePlan, ProbeRank
from evenstep.stores import second_client
from evenstep.trace.spool.identity import from_environment

_GRACE_S = 3.0  # after one rank has failed, for the others to say so
_LOOK_S = 0.1
_OVERTIME = 1.5  # times the planned seconds: slow ranks take longer over the same work

Told = Callable[[str], None]


class Ended(NamedTuple):
    """What a process has to report: nothing, unless it is the one that reads the board."""

    outcome: ProbeResult | None
    signal: int = 0  # that cut it short


def as_rank(
    plan: ProbePlan, environ: Mapping[str, str], told: Told, *, reports: bool = True
) -> Ended:
    """Measure as one rank of a job that is running; rank 0 gathers, unless another process does."""
    require_torch()
    identity = from_environment(environ)
    store = connect(identity, environ, plan.timeout_s)
    rank = ProbeRank(identity, store, plan)
    rank.start()
    if identity.rank == 0 and reports:
        board = Board(second_client(store), identity.world, str(identity.attempt))
        return _read_to_the_end(board, identity.world, plan, told, lambda: False)
    rank.join(plan.timeout_s * 2 + plan.seconds * _OVERTIME)
    return Ended(None)


def with_ranks(
    number: int, plan: ProbePlan, command: Sequence[str], environ: Mapping[str, str], told: Told
) -> Ended:
    """Start so many ranks here, each with `command`, and gather what they measure."""
    require_torch()
    _require(plan)
    shared = _environment(environ, number, free_port())
    first, *_ = environs = [
        shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)
    ]
    identity = from_environment(first)
    store = connect(identity, first | {"TORCHELASTIC_USE_AGENT_STORE": "False"}, plan.timeout_s)
    children = [
        subprocess.Popen(command, env=one, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for one in environs
    ]
    try:
        board = Board(second_client(store), number, str(identity.attempt))
        return _read_to_the_end(board, number, plan, told, lambda: _one_failed(children))
    finally:
        _stop(children)


def _read_to_the_end(
    board: Board, world: int, plan: ProbePlan, told: Told, failed: Callable[[], bool]
) -> Ended:
    """Gather until all have ended or nothing more is to be expected. A signal ends it too."""
    caught = 0
    try:
        _watch(board, world, plan, told, failed)
    except KeyboardInterrupt:
        caught = 2
    except SystemExit as end:  # the command line's answer to SIGTERM
        caught = int(end.code or 0) - 128 if isinstance(end.code, int) else 15
    board.read()
    outcome = gather(board, world)
    if caught and not board.posts[FAILED]:
        told_so = "the probe was interrupted: what it had measured until then is shown"
        outcome = replace(outcome, stopped={}, whole=False, limits=(*outcome.limits, told_so))
    return Ended(outcome, caught)


def _watch(
    board: Board, world: int, plan: ProbePlan, told: Told, failed: Callable[[], bool]
) -> None:
    latest = time.monotonic() + plan.timeout_s + 1.0
    came = False
    while len(board.ended) < world:
        new = board.read()
        now = time.monotonic()
        if new:
            told(_progress(board, world))
        if board.all_came and not came:
            came, latest = True, now + plan.seconds * _OVERTIME + plan.timeout_s
        if board.posts[FAILED] or failed():
            latest = min(latest, now + _GRACE_S)
        if now > latest:
            return
        time.sleep(_LOOK_S)


def _progress(board: Board, world: int) -> str:
    """ "probing 4 ranks: memory 3, pairs 1"."""
    stages = [board.last_stage(rank) for rank in range(world)]
    done = dict.fromkeys(stage for stage in stages if stage)
    return f"probing {world} ranks: " + ", ".join(f"{s} {stages.count(s)}" for s in done)


# -- local ranks -----------------------------------------------------------------------------------


def require_torch() -> None:
    """Raise `MissingExtra` where torch is not installed."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", extra="analyze", purpose="evenstep probe")


def _require(plan: ProbePlan) -> None:
    """Raise `UsageError` where this torch cannot do what is asked for."""
    import torch

    if plan.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU here; take --device cpu")
    if plan.backend == "nccl" and not torch.distributed.is_nccl_available():
        raise UsageError("--backend nccl: this torch was built without NCCL; take --backend gloo")


def _environment(environ: Mapping[str, str], number: int, port: int) -> dict[str, str]:
    """That of torchrun's ranks. Threads share the cores, unless their number is given."""
    cores = len(os.sched_getaffinity(0))
    return {
        "OMP_NUM_THREADS": str(max(cores // number, 1)),
        **environ,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(number),
        "LOCAL_WORLD_SIZE": str(number), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _one_failed(children: Sequence[subprocess.Popen[Any]]) -> bool:
    return any(child.poll() not in (None, 0) for child in children)


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
