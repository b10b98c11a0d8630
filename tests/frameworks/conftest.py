"""The examples, run for real on two gloo ranks once a session; and a Ray cluster of one machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import evenstep
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import Diagnosis
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.trace.trace import Trace

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STEPS, BATCH, ACCUMULATED, PAUSE_MS = 20, 8, 2, 80

#: Package, how its example is started; Lightning starts its second rank itself.
JOBS = {
    "lightning": (str(EXAMPLES / "lightning_trainer.py"),),
    "transformers": (*TORCHRUN, str(EXAMPLES / "transformers_trainer.py")),
    "accelerate": (*TORCHRUN, str(EXAMPLES / "accelerate_loop.py")),
    "deepspeed": (*TORCHRUN, str(Path(__file__).with_name("deepspeed_job.py"))),
}


class Job(NamedTuple):
    """What a job with a late rank 1 left behind."""

    trace: Trace
    diagnosis: Diagnosis
    late_ns: float  # in a step, as the example has measured it

    @property
    def wait_ns(self) -> float:
        """What the diagnosis says that the others waited."""
        first = self.diagnosis.findings[0]
        assert list(first.where.ranks) == [1]
        return next(one.measured for one in first.evidence if one.metric == "wait_of_the_others")

    def phases(self, phase: Phase, rank: int = 0) -> Columns:
        """A rank's records of a phase, the longest first."""
        found = self.trace.of_kind(Kind.PHASE)
        found = found.select((found.op == int(phase)) & (found.rank == rank))
        return found.select((found.enter_ns - found.exit_ns).argsort(kind="stable"))


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Job]:
    """Runs a package's example when it is first asked for."""

    @cache
    def run(package: str) -> Job:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        folder = tmp_path_factory.mktemp(package)
        options = ["--out", "run", "--steps", str(STEPS), "--pause-ms", str(PAUSE_MS)]
        said = started([sys.executable, *JOBS[package], *options], folder)
        trace = evenstep.load(folder / "run")
        return Job(trace, diagnose(trace), said["late_ns"])

    return run


def started(command: list[str], folder: Path) -> dict[str, Any]:
    """Run a job in a folder; the object that it printed."""
    added = {
        "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
        "TMPDIR": str(folder), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, **added}, cwd=folder, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = next(line for line in done.stdout.splitlines() if line.startswith('{"late_ns"'))
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A Ray cluster of this machine, whose workers find this tree and the examples."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    added = [str(ROOT), str(ROOT / "src"), str(EXAMPLES)]
    path = os.pathsep.join([*added, os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("OMP_NUM_THREADS", "1")
        for entry in reversed(added):
            patch.syspath_prepend(entry)
        ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()
