"""The examples of stacks, really run: on two ranks, each with a rank that sleeps in every step."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import evenstep
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.attempts import with_attempts
from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.measure.transfers import arrivals
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace
from tests.environment import plain

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "stacks"
JOB = Path(__file__).with_name("pair_job.py")
STEPS, DELAY_MS = 20, 50

#: How each stack is run beside `--steps`. The default is a slow rank 1.
STACKS = {
    "fsdp2": "--slow-rank 1",
    "fsdp1": "--slow-rank 1",
    "tensor_parallel": "--slow-rank 1",
    "pipeline": "--slow-rank 0",
    "zero": "--slow-rank 1",
    "local_sgd": "--slow-rank 1",
    "compiled": "--slow-rank 1 --backend aot_eager",
    "accumulation": "--slow-rank 1",
    "mixed_precision": "--slow-rank 1",
}
SHORT_DELAYS = {"pipeline": 12}  # of each micro-batch


class Ran(NamedTuple):
    """An example after it has run."""

    trace: Trace
    report: dict[str, Any]  # as `evenstep diagnose --json` prints it
    said: dict[str, Any]  # what the example printed as JSON, all ranks together

    def finding(self, mode: str) -> dict[str, Any]:
        """The finding of a mode."""
        return next(found for found in self.report["findings"] if found["mode"] == mode)

    def evidence(self, mode: str) -> dict[str, float]:
        """What a finding rests on."""
        return {item["metric"]: item["measured"] for item in self.finding(mode)["evidence"]}

    def longest_wait_ms(self, rank: int, members: tuple[int, ...] | None = None) -> float:
        """The longest that a rank waits in one collective (of a group) in a step, median step."""
        grid = step_grid(self.trace)
        rows = arrivals(self.trace, grid.clocks)
        mine = (rows["rank"] == rank) & np.isin(rows.step, grid.steps)
        if members is not None:
            groups = [at for at, group in enumerate(self.trace.groups) if group.ranks == members]
            mine &= np.isin(rows.group, groups)
        longest = np.zeros(int(grid.steps.max()) + 1)
        np.maximum.at(longest, rows.step[mine], rows.wait_ns[mine])
        return float(np.median(longest[grid.steps])) / 1e6

    def phases(self, rank: int = 0) -> list[int]:
        """The phases a rank recorded, in order."""
        rows = self.trace.of_kind(Kind.PHASE)
        return rows.op[rows["rank"] == rank].tolist()


def read(folder: Path, output: str) -> Ran:
    """A run's trace, diagnosed."""
    trace = evenstep.load(folder)
    said: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            said |= json.loads(line)
    return Ran(trace, diagnose(with_attempts(trace, folder)).to_json(), said)


def environ() -> dict[str, str]:
    """Nobody else's settings; one thread a rank."""
    path = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    return plain(PYTHONPATH=path, OMP_NUM_THREADS="1", EVENSTEP_VERDICT="0")


def free_ports(number: int) -> int:
    """The first of some neighbouring ports that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        first = int(probe.getsockname()[1])
    return first if first + number < 65536 else first - number


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all that two ranks have run."""
    folder = tmp_path_factory.mktemp("stacks")
    stacks = [
        f"{name} {options} --steps {STEPS} --delay-ms {SHORT_DELAYS.get(name, DELAY_MS)}"
        for name, options in STACKS.items()
    ]
    port = str(free_ports(len(stacks)))
    ranks = [
        subprocess.Popen(
            [sys.executable, JOB, folder, str(rank), port, *stacks], env=environ(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        output, _ = rank.communicate(timeout=300)
        assert rank.returncode == 0, output
    return folder


@pytest.fixture(scope="session")
def ran(pair: Path) -> dict[str, Ran]:
    """Each stack by its name."""
    return {
        name: read(pair / name, "".join(path.read_text() for path in pair.glob(f"{name}-*.txt")))
        for name in STACKS
    }


def launch(folder: Path, ranks: int, name: str, *arguments: object, restarts: int = 0) -> str:
    """`evenstep run -- torchrun … examples/stacks/NAME.py …`; what it printed."""
    command = [
        *(sys.executable, "-m", "evenstep", "run", "--out", folder, "--"),
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
        *("--max-restarts", restarts, EXAMPLES / f"{name}.py", *arguments),
    ]
    # a restart on gloo would find the addresses of the attempt before in a store that is shared
    afresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [str(word) for word in command], env=environ() | afresh, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
