"""Several ranks that share one device: who is late on it, and who died.

Not under CUDA's multi-process service: there, a rank that is killed takes the others with it.
"""

import statistics
import subprocess
import sys

import pytest

import evenstep
from benchmarks.ranks import environment, run_ranks
from evenstep.trace.spool.layout import Flag, Kind, Op

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
    rows = trained(way, tmp_path / "run", world=world).events
    rows = rows.select((rows.flags & int(Flag.ON_DEVICE)) != 0)
    assert len(rows) > 40 * world
    assert (rows.device_exit_ns > 0).mean() > 0.9


def test_messages_of_a_batch_last_until_they_have_arrived(tmp_path):
    late = ("--late-rank", "1", "--loader-ms", "40")
    rows = trained("ring", tmp_path / "run", *late, world=3).of_kind(Kind.POINT_TO_POINT)
    rows = rows.select((rows.rank == 2) & (rows.op == int(Op.RECV)) & (rows.step > 10))
    longest = [
        (rows.device_exit_ns - rows.device_enter_ns)[rows.step == step].max()
        for step in range(11, 40)
    ]
    assert statistics.median(longest) > 30_000_000  # the rank before enters 40 ms later


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
