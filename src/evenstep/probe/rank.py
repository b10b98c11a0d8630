"""One rank of a probe: it measures stage after stage and posts the results on the board.

Measurements run on a separate thread: if a collective hangs because another rank has died, the main
thread can still report and exit.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any, NamedTuple

from evenstep.host.sysfs import core_wait_ns
from evenstep.probe import kernels
from evenstep.probe.exchange import Exchange
from evenstep.probe.outcome import FAILED, Board
from evenstep.stores import second_client
from evenstep.trace.spool.identity import Identity, hostname

#: Shares of the time; the rest is for starting.
COMPUTE, MEMORY, SWEEP, NODE_SWEEP, PAIRS = 0.12, 0.06, 0.27, 0.10, 0.40
MOST_GROUPS = 64  # with more nodes there are no groups within nodes


class ProbePlan(NamedTuple):
    """The settings of a probe."""

    seconds: float
    timeout_s: float
    device: str = "auto"
    backend: str = "auto"

    def budget_ns(self, share: float) -> int:
        return int(share * self.seconds * 1e9)


class ProbeRank(threading.Thread):
    """The measuring thread."""

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
        device = kernels.choose(torch, plan.device, me.local_rank)
        self._post("arrived", self._place(device))
        if not self._board.wait_for_all(plan.timeout_s):
            return  # the reader of the board reports missing ranks
        backend = "gloo" if device.kind == "cpu" else "nccl"
        backend = backend if plan.backend == "auto" else plan.backend
        _join(self._store, me, backend, device, plan.timeout_s)
        begun, begun_ready = time.monotonic_ns(), core_wait_ns()
        exchange = Exchange(device, me.rank)
        places = _places(me)
        for stage, made, share in (("compute", kernels.product, COMPUTE),
                                   ("memory", kernels.memory_copy, MEMORY)):  # fmt: skip
            self.stage = stage
            exchange.agree(0.0)  # start at the same time on all ranks
            self._post(stage, kernels.time_repeats(made(device), device, plan.budget_ns(share)))
        self.stage = "all_reduce"
        self._post("all_reduce", self._sweeps(exchange, places))
        self.stage = "pairs"
        found, omitted = exchange.time_pairs(teams(places), plan.budget_ns(PAIRS))
        self._post("pairs", asdict(found) | {"rounds_left_out": omitted})
        self._post("done", {"backend": backend, "ready_ns": core_wait_ns() - begun_ready,
                            "lasted_ns": time.monotonic_ns() - begun})  # fmt: skip

    def _place(self, device: kernels.ProbeDevice) -> dict[str, Any]:
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
    store: Any, me: Identity, backend: str, device: kernels.ProbeDevice, timeout_s: float
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
