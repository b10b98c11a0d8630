"""Two hosts whose clocks do not agree: real ranks in network namespaces, one of them in another
time namespace and under another boot id; and the drift that no kernel offers, put into a copy.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

from evenstep.trace.reader import RECORD, SUMMARY
from evenstep.trace.spool import layout
from lab.children import python_path
from lab.crew import Crew
from lab.faults import Fault
from lab.scenario import Job
from lab.tcp import training
from lab.tcp.layout import Layout, address
from lab.tcp.network import Network
from lab.tcp.order import Order

SOURCE = python_path()
STEPS = 30
DELAY_MS = 50.0
OFFSET_S = 86_400  # rank 1's clock is a day ahead
BOOT_ID = "11111111-2222-3333-4444-555555555555"
ATTACHED = """
import runpy, sys, evenstep
evenstep.attach()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: in the mount namespace that `ip netns exec` makes for its command alone
OTHER_BOOT = 'mount --bind {file} /proc/sys/kernel/random/boot_id && exec "$@"'


def run(folder: Path) -> Path:
    """Two ranks of an ordinary job, each on a host of its own; the run's folder."""
    delay = Fault(kind="slow_rank", ranks="1", phase="backward", delay_ms=DELAY_MS)
    order = folder / "order.json"
    Order(Job(ranks=2, compute_ms=10.0, buckets=2), 0, 0, (delay,), STEPS).write(order)
    boot = folder / "boot_id"
    boot.write_text(BOOT_ID + "\n")
    elsewhere = ["unshare", "--time", "--monotonic", str(OFFSET_S), "--fork", "--kill-child",
                 "sh", "-c", OTHER_BOOT.format(file=boot), "sh"]  # fmt: skip
    crew = Crew()
    with Network(Layout(leaf_of=[0, 0])) as network:
        for rank, apart in enumerate(([], elsewhere)):
            job = [sys.executable, "-c", ATTACHED, training.__file__, str(order)]
            on_host = ["ip", "netns", "exec", network.hosts[rank], *apart, *job]
            crew.start(f"rank {rank}", on_host, environment(folder, rank), folder / f"{rank}.log")
        done = crew.wait(600.0)
        crew.end(0.0)
        crew.check()
        assert done
    return folder / "run"


def environment(folder: Path, rank: int) -> dict[str, str]:
    """A launcher's variables, and where the trace goes."""
    return {
        **os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1",
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": address(0), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0",
        "EVENSTEP_OUT": str(folder / "run"), "EVENSTEP_PACE_MODE": "off",
    }  # fmt: skip


def drifting(run: Path, copy: Path, rate: float) -> Path:
    """A copy of the run in which rank 1's clock gains `rate` seconds a second from its start."""
    shutil.copytree(run, copy)
    path = copy / "attempt-000" / "rank-00001.spool"
    data = bytearray(path.read_bytes())
    head = layout.HEADER.unpack_from(data)
    ring_offset, ring_capacity, summary_offset, summary_capacity = head[5:9]
    length = head[11]
    text = data[layout.HEADER_TEXT_OFFSET : layout.HEADER_TEXT_OFFSET + length]
    zero = json.loads(text)["anchor_monotonic_ns"]
    ring = np.frombuffer(data, RECORD, ring_capacity, ring_offset)
    summaries = np.frombuffer(data, SUMMARY, summary_capacity, summary_offset)
    for table, names in ((ring, ("enter_ns", "exit_ns")), (summaries, ("start_ns", "end_ns"))):
        for name in names:
            stamps = table[name]
            moved = stamps + ((stamps - zero) * rate).astype(np.int64)
            table[name] = np.where(stamps, moved, 0)
    path.write_bytes(data)
    return copy


def truth_ns(own_ns: np.ndarray, zero_ns: int, rate: float) -> np.ndarray:
    """Rank 1's times on rank 0's clock, by construction."""
    return zero_ns + (own_ns - zero_ns) / (1 + rate) - OFFSET_S * 1e9
