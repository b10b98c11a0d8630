"""What sharing costs rank 0's store at a thousand ranks: its connections and its processor time."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.measure import Row
from benchmarks.ranks import environment
from evenstep.agent.exchange.messages import StepRow, summarize
from evenstep.agent.exchange.node_store import JobStore, StoreClient, StoreServer
from evenstep.agent.exchange.sharing import Sharing, gathers_by_node

COMMAND = "python -m benchmarks sharing_scale"
LOCAL = 8
WINDOWS = 6
STEP_NS = 100_000_000
TICKS_PER_WINDOW = 6
PATIENCE = timedelta(seconds=1)
SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--ranks", type=int, default=1000)


def run(args: argparse.Namespace) -> list[Row]:
    """A client for every rank, and one for every node."""
    found = {each: _measured(args.ranks, by_node=each) for each in (False, True)}
    apart, together = found[False], found[True]
    most = args.ranks // LOCAL
    text = (
        f"{together['connections']} connections for {args.ranks} ranks on {most} nodes (a client "
        f"for every rank: {apart['connections']}); the store's process spends "
        f"{together['server_ms']:.0f} ms a window ({apart['server_ms']:.0f}); rank 0 knows who is "
        f"late after {together['ticks']:.0f} exchanges ({apart['ticks']:.0f}), right in "
        f"{together['right']} of {WINDOWS} windows"
    )
    met = together["connections"] <= most and together["right"] == WINDOWS
    what = f"the job's store under {args.ranks:,} simulated ranks that share windows"
    return [Row(what, "one connection a node; nobody waits", text, met, COMMAND)]


def _measured(ranks: int, *, by_node: bool) -> dict[str, Any]:
    command = [sys.executable, "-c", SERVER]
    server = subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        return _Simulated(ranks, port, server.pid, by_node=by_node).played()
    finally:
        server.kill()
        server.wait()


class _Simulated:
    """All ranks of a job in one process, and the store's server in another."""

    def __init__(self, ranks: int, port: int, server: int, *, by_node: bool) -> None:
        from torch.distributed import DistNetworkError, TCPStore

        def client() -> JobStore:
            while True:  # one in some dozens is not answered, and asks again
                try:
                    made: JobStore = TCPStore(
                        "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=PATIENCE
                    )
                    return made
                except DistNetworkError:
                    continue

        self._server = server
        self._late: list[int] = []
        before = _connections(server)
        self._stores: list[Any] = []
        self._ranks = [
            Sharing(
                self._store(client, rank, by_node=by_node, world=ranks),
                prefix="job", rank=rank, world=ranks, local_rank=rank % LOCAL, local_world=LOCAL,
                threshold=0.03, period_s=0.25, on_window=self._judge,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        time.sleep(0.5)
        self.connections = _connections(server) - before

    def _store(self, client: Any, rank: int, *, by_node: bool, world: int) -> Any:
        if not by_node:
            return client()
        name = f"evenstep-scale-{os.getpid()}-{rank // LOCAL}"
        inner = gathers_by_node(world, LOCAL)
        found: Any = StoreClient(name, client, lambda: False)
        if rank % LOCAL == 0:
            found = StoreServer(client(), name, lambda key: inner and "/r" in key)
        self._stores.append(found)
        return found

    def _judge(self, reports: Any, late: Any) -> None:
        self._late.append(-1 if late is None else late.rank)

    def played(self) -> dict[str, Any]:
        """Some windows, in each of which one rank is late; the store's processor time."""
        spent, ticks = [], []
        for window in range(WINDOWS):
            busy = _busy_ms(self._server)
            culprit = 37 * window % len(self._ranks)
            for rank, sharing in enumerate(self._ranks):
                sharing.post(_report(rank, 4 * window, late=rank == culprit))
            told = len(self._late)
            for tick in range(TICKS_PER_WINDOW):
                for store in self._stores:
                    store.pump()
                for sharing in self._ranks:
                    sharing.exchange()
                if len(self._late) > told:
                    ticks.append(tick + 1)
                    told = len(self._late)
            spent.append(_busy_ms(self._server) - busy)
        expected = [37 * window % len(self._ranks) for window in range(WINDOWS)]
        right = sum(found == wanted for found, wanted in zip(self._late, expected, strict=False))
        return {
            "connections": self.connections,
            "server_ms": statistics.median(spent),
            "ticks": statistics.fmean(ticks) if ticks else float("inf"),
            "right": right,
        }


def _report(rank: int, window: int, *, late: bool) -> Any:
    work = STEP_NS - 20_000_000 * (not late)
    row = StepRow(STEP_NS, work, STEP_NS - work, 0, work)
    return summarize([row] * 16, rank=rank, end=16 * window)


def _connections(pid: int) -> int:
    """Sockets that a process holds open."""
    folder = Path(f"/proc/{pid}/fd")
    return sum(str(link.readlink()).startswith("socket:") for link in folder.iterdir())


def _busy_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")
