"""The fair tier for real: processes, their traces, and what is left of them."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind, Phase
from lab import run
from lab.arms import Schedule, arm
from lab.scenario import parse
from lab.steps import job_steps
from lab.tier import LabError

BUCKET_NS = 2_000_000  # 200 kB over .1 GB/s; a ring of two puts its message on the link once


def children():
    """Processes of the laboratory whose parent is this one."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    found = {child for task in tasks for child in task.read_text().split()}
    return {child for child in found if b"lab.fair" in Path(f"/proc/{child}/cmdline").read_bytes()}


def test_nothing_is_faster_than_the_link(two_jobs):
    _, _, _, folder = two_jobs
    seen = load(folder / "job-1").of_kind(Kind.COLLECTIVE)
    assert len(seen) > 40
    assert (seen.exit_ns - seen.enter_ns).min() >= BUCKET_NS


def test_nobody_leaves_an_exchange_before_the_last_has_entered(two_jobs):
    _, _, _, folder = two_jobs
    seen = load(folder / "job-0").of_kind(Kind.COLLECTIVE)
    for sequence in np.unique(seen.group_seq)[:100]:
        here = seen.group_seq == sequence
        assert seen.exit_ns[here].min() >= seen.enter_ns[here].max() + BUCKET_NS


def test_every_block_has_steps_of_every_job(two_jobs):
    scenario, schedule, record, folder = two_jobs
    assert (record.whole, record.ended) == (schedule.blocks, "")
    for job in job_steps(scenario, schedule, record, folder):
        assert set(np.unique(job.block)) >= set(range(schedule.blocks))
        assert np.median(job.step_ns) >= 12_000_000 + 4 * BUCKET_NS


def test_the_late_rank_works_longer_by_the_injected_delay(two_jobs):
    """In its quickest step of all: what else this machine does makes some longer, none shorter."""
    _, _, _, folder = two_jobs
    seen = load(folder / "job-0").of_kind(Kind.COLLECTIVE)
    quickest_ns = []
    for rank in (0, 1):
        mine = seen.select(seen.rank == rank)
        first = np.flatnonzero(mine.group_seq[1:] % 4 == 0) + 1
        quickest_ns.append((mine.enter_ns[first] - mine.exit_ns[first - 1]).min())
    assert quickest_ns[1] - quickest_ns[0] == pytest.approx(8_000_000, rel=0.2)


def test_only_the_paced_arm_holds_anybody(two_jobs):
    scenario, schedule, record, folder = two_jobs
    for job in job_steps(scenario, schedule, record, folder):
        baseline = [block for block in range(schedule.blocks) if schedule.arm_at(block) == 0]
        assert job.held_ns[np.isin(job.block, baseline)].max() == 0


def test_a_run_leaves_no_process_and_no_scratch(two_jobs):
    _, _, _, folder = two_jobs
    assert not children()
    assert not (folder / ".board").exists()


def test_what_a_rank_says_when_it_fails_is_passed_on(tmp_path):
    scenario = parse({"jobs": [{"compute_ms": 5}]})
    (tmp_path / "job-0").write_text("in the way")  # where the job's folder has to be
    with pytest.raises(LabError, match="cannot create"):
        run.carry_out(scenario, Schedule((arm("baseline"),), 1, 0, 0), tmp_path)
    assert not children()


def test_paused_ranks_and_neighbours_show_in_the_trace(tmp_path):
    scenario = parse(
        {
            "jobs": [{"compute_ms": 6, "gradient_bytes": 100_000, "buckets": 4}],
            "faults": [
                {"kind": "paused_rank", "ranks": "0", "delay_ms": 60, "every": 5},
                {"kind": "neighbour_job", "compute_ms": 5, "exchange_ms": 15},
            ],
            "run": {"rounds": 1, "warm_up_rounds": 0, "block_s": 1.2, "settle_s": 0},
        }
    )
    run.carry_out(scenario, Schedule((arm("baseline"),), 1, 0, 0), tmp_path)
    trace = load(tmp_path / "job-0")
    steps = trace.of_kind(Kind.STEP)
    long = steps.select((steps.rank == 0) & (steps.exit_ns - steps.enter_ns >= 55_000_000))
    due = steps.select((steps.rank == 0) & (steps.step % 5 == 0)).step[1:-1]
    stopped = set(long.step)  # between the last exchange and the next: in this step or the last
    assert len(due)
    assert all(step in stopped or step - 1 in stopped for step in due)
    seen = trace.of_kind(Kind.COLLECTIVE)
    shared = (seen.exit_ns - seen.enter_ns)[seen.group_seq % 4 == 3]
    assert np.quantile(shared, 0.9) >= 2 * 250_000  # a bucket takes 250 µs alone


def test_what_happens_on_cores_and_between_steps_shows_and_ends(tmp_path):
    faults = [
        {"kind": "cpu_hog", "share": 0.2},
        {"kind": "slow_core", "ranks": "1", "share": 0.8},
        {"kind": "collector", "delay_ms": 3, "every": 3},
        {"kind": "checkpoint", "delay_ms": 20, "every": 4},
        {"kind": "bursty_neighbour", "on_ms": 50, "off_ms": 50, "flows": 2},
    ]
    run_of = {"rounds": 1, "warm_up_rounds": 0, "block_s": 1.0, "settle_s": 0}
    scenario = parse({"jobs": [{"compute_ms": 8}], "faults": faults, "run": run_of})
    run.carry_out(scenario, Schedule((arm("baseline"),), 1, 0, 0), tmp_path)
    trace = load(tmp_path / "job-0")
    assert set(trace.of_kind(Kind.PAUSE).rank) == {0, 1}
    phases = trace.of_kind(Kind.PHASE)
    assert set(phases.select(phases.op == Phase.CHECKPOINT).rank) == {0}
    assert not children()


def test_a_job_that_trains_learns_what_it_would_learn_alone(tmp_path):
    """Losses are those of both ranks' models trained in one process, bit by bit."""
    pytest.importorskip("torch", reason="trains for real")
    job = {"work": "train", "compute_ms": 3, "buckets": 4, "gradient_bytes": 4096}
    run_of = {"rounds": 1, "warm_up_rounds": 0, "block_s": 0.4, "settle_s": 0}
    scenario = parse({"seed": 5, "jobs": [job], "run": run_of})
    paced = Schedule((arm("baseline"), arm("paper+unguarded")), 1, 0, 0)
    run.carry_out(scenario, paced, tmp_path)
    seen = load(tmp_path / "job-0").of_kind(Kind.MARKER)
    losses = seen.bytes_in[seen.rank == 0].astype(np.uint64).view(np.float64)
    assert len(losses) >= 5
    alone = trained(seed=5, ranks=2, layers=4, width=16, steps=len(losses))
    assert losses.tolist() == alone
    assert not list(tmp_path.glob(".store-*"))


def trained(*, seed, ranks, layers, width, steps):
    """Rank 0's losses: every rank its own batch, all the same weights."""
    import torch

    torch.manual_seed(seed)
    stack = [part for _ in range(layers)
             for part in (torch.nn.Linear(width, width, bias=False), torch.nn.Tanh())]  # fmt: skip
    model = torch.nn.Sequential(*stack)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    draws = [torch.Generator().manual_seed(seed + rank) for rank in range(ranks)]
    found = []
    for _ in range(steps):
        gradients = []
        for rank, draw in enumerate(draws):
            batch = torch.randn(16, width, generator=draw)
            loss = (model(batch) - batch.flip(1)).square().mean()
            found += [loss.item()] if rank == 0 else []
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        for parameter, *each in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = sum(each) / ranks
        optimizer.step()
    return found


def test_ranks_die_with_whoever_started_them(tmp_path):
    """Even where that one had no time to say goodbye."""
    import signal
    import subprocess
    import sys

    from lab.children import python_path

    scenario = tmp_path / "s.toml"
    scenario.write_text("[[jobs]]\nranks = 4\ncompute_ms = 5\n")
    line = [sys.executable, "-m", "lab", "run", "-f", scenario, "--out", "run"]
    begun = subprocess.Popen(line, cwd=tmp_path, env=os.environ | {"PYTHONPATH": python_path()})
    spools = [tmp_path / "run" / "job-0" / "attempt-000" / f"rank-0000{n}.spool" for n in range(4)]
    wait_until(lambda: all(spool.exists() for spool in spools))
    wait_until(lambda: len(started_in(tmp_path)) >= 6)  # four ranks, the fabric, who started them
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    wait_until(lambda: not started_in(tmp_path))


def started_in(folder):
    """Processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == folder.resolve() and (
                process / "cmdline"
            ).read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def wait_until(true, *, seconds=60):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_blocks_too_short_for_their_steps_are_lengthened_and_it_is_said(capsys):
    jobs = [{"compute_ms": 400, "gradient_bytes": 20_000_000}]
    asked = parse(
        {"network": {"link_gBps": 0.1}, "jobs": jobs, "run": {"block_s": 2, "settle_s": 1}}
    )
    found = run.lengthened(asked)
    # 8 steps of .4 s and an exchange of 20 MB, or of twice that on a ring of many, at .1 GB/s
    assert found.run.block_s >= 1 + 8 * (0.4 + 0.2)
    assert "too few steps" in capsys.readouterr().err
    assert run.lengthened(found) == found
