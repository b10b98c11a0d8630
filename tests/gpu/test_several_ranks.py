"""Several ranks that share one device: who is late on it, and who died."""

import subprocess
import sys

import pytest

import evenstep
from benchmarks.ranks import environment, run_ranks
from evenstep.trace.spool.layout import Flag, Kind

JOB = "benchmarks.jobs.device_job"
LIMIT_S = 90


def trained(way, folder, *options, world=2):
    run_ranks(
        JOB, way, "--steps", "40", "--out", str(folder), *options, world=world, timeout_s=LIMIT_S
    )
    return evenstep.load(folder)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_rank_whose_stream_is_late_is_named(backend, tmp_path):
    late = ("--late-rank", "1", "--stream-ms", "40")
    trace = trained("ddp", tmp_path / "run", "--backend", backend, *late)
    first = evenstep.diagnose(trace).findings[0]
    assert (first.mode, list(first.where.ranks)) == ("straggler", [1])


@pytest.mark.parametrize(("way", "world"), [("fsdp", 2), ("pipeline", 2), ("ring", 3)])
def test_operations_of_every_way_have_times_of_the_device(way, world, tmp_path):
    rows = trained(way, tmp_path / "run", world=world).of_kind(Kind.COLLECTIVE)
    rows = rows.select((rows.flags & int(Flag.ON_DEVICE)) != 0)
    assert (rows.device_exit_ns > 0).mean() > 0.9


def test_a_rank_that_dies_while_another_waits_on_the_device_is_the_first_finding(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", JOB]
    job = ["ddp", "--out", str(tmp_path / "run"), "--late-rank", "1", "--dies-at", "30"]
    observed = [sys.executable, "-m", "evenstep", "run", "--out", str(tmp_path / "run"), "--"]
    done = subprocess.run(
        [*observed, *launcher, *job], env=environment(), timeout=LIMIT_S, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode
    first = evenstep.diagnose(evenstep.load(tmp_path / "run")).findings[0]
    assert (first.mode, list(first.where.ranks)) == ("rank_failed", [1]), done.stderr[-3000:]
