"""SimGrid's SMPI on the links of a scenario: a peer that carries the same ring all-reduce out.

Its platform has our network's links and the route of every message between neighbours of the ring;
all that it adds by default (TCP's factors, time for calls and copies) is off.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from evenstep.scenario.scenario import Scenario
from evenstep.simulate.simulation import Setup, set_up

SOURCE = Path(__file__).parent / "jobs" / "ring.c"
PLAIN = (
    "network/model:CM02", "network/latency-factor:1", "network/bandwidth-factor:1",
    "network/weight-S:0", "network/TCP-gamma:0", "network/crosstraffic:no",
    "smpi/simulate-computation:no", "smpi/os:0:0:0", "smpi/or:0:0:0", "smpi/ois:0:0:0",
    "smpi/send-is-detached-thresh:0", "smpi/async-small-thresh:0",
)  # fmt: skip
TIMEOUT_S = 600


class Peer(NamedTuple):
    """When its last rank was through, and the CPU seconds it took, starting included."""

    end_ns: float
    cpu_s: float


def can_run() -> bool:
    """Whether SMPI is installed (`libsimgrid-dev` of Debian)."""
    return shutil.which("smpicc") is not None and shutil.which("smpirun") is not None


def ring(scenario: Scenario) -> Peer:
    """The scenario's gradients all-reduced once, in rank order."""
    setup = set_up(scenario)
    with tempfile.TemporaryDirectory() as folder:
        program, platform, hosts = (Path(folder) / name for name in ("ring", "links.xml", "hosts"))
        subprocess.run(["smpicc", "-O2", SOURCE, "-o", program], check=True, timeout=TIMEOUT_S)
        platform.write_text(_platform(setup))
        hosts.write_text("".join(f"h{rank}\n" for rank in range(scenario.ranks)))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = subprocess.run(
            ["smpirun", "-np", str(scenario.ranks), "-platform", platform, "-hostfile", hosts,
             *(f"--cfg={setting}" for setting in PLAIN), "--log=root.thres:error", program,
             str(scenario.work.gradient_bytes)],
            check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Peer(max(map(float, told.stdout.split())), spent)


def _platform(setup: Setup) -> str:
    """Hosts, links, and the routes between neighbours of the ring; others are never used."""
    ranks, network, gpu = setup.scenario.ranks, setup.network, setup.placement.gpu
    routes = network.routes(gpu, np.roll(gpu, -1))
    used = np.unique(routes.link)
    lines = [
        "<?xml version='1.0'?>",
        '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
        '<platform version="4.1"><zone id="all" routing="Full">',
        *(f'<host id="h{rank}" speed="1Gf"/>' for rank in range(ranks)),
        *(f'<link id="l{link}" bandwidth="{network.capacity[link] * 1e9:.17g}Bps" '
          f'latency="{network.latency_ns[link] * 1e-9:.17g}s"/>' for link in used),
    ]  # fmt: skip
    for rank in range(ranks):
        taken = routes.link[routes.start[rank] : routes.start[rank + 1]]
        passed = "".join(f'<link_ctn id="l{link}"/>' for link in taken)
        target = (rank + 1) % ranks
        lines.append(f'<route src="h{rank}" dst="h{target}" symmetrical="NO">{passed}</route>')
    return "\n".join([*lines, "</zone></platform>\n"])
