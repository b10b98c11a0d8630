"""What is told of one disturbance of a job whose times are known: the cost, who, when and where."""

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, Delay, World

STEPS, RANKS = 60, 4
STEP = np.arange(STEPS)[:, None]
ALONE = {rank: np.arange(RANKS) == rank for rank in range(RANKS)}
OTHERS = {0: "the other ranks", 1: "ranks 0, 2 and 3", 2: "ranks 0, 1 and 3", 3: "ranks 0-2"}


def ms(times, steps=True, ranks=True):
    return np.where(np.full((STEPS, RANKS), True) & steps & ranks, times * MS, 0)


def told(phase, times, **more):
    """The only finding of a job with this delay, whose cost is that of the job without it."""
    world = World(delays=[Delay(phase=phase, ns=times, **more)])
    [finding] = diagnose(world.trace()).findings
    injected = world.injected_share()
    assert finding.severity == pytest.approx(injected, abs=0.0025)  # or with all 0.2 ms of input
    return finding


def numbers(finding):
    return {each.metric: (each.measured, each.expected) for each in finding.evidence}


@pytest.mark.parametrize(
    ("times", "pattern", "often", "share"),
    [(ms(20, ranks=ALONE[2]), "chronic", "", 1.0),
     (ms(40, STEP % 5 == 0, ALONE[2]), "transient", " in 12 of 60 steps", 0.2)],
)  # fmt: skip
def test_a_loader_that_is_late_is_told_with_its_steps(times, pattern, often, share):
    more = int(times.max())
    finding = told(Phase.INPUT, times)
    assert (finding.mode, finding.layer, finding.when.pattern, finding.where.ranks) == (
        "input_pipeline", "framework", pattern, [2],
    )  # fmt: skip
    assert finding.title == "Slow input pipeline on rank 2"
    assert finding.cause == (
        f"rank 2 (node node0): its DataLoader hands over the batch {more // MS} ms later than the "
        f"others'{often}"
    )
    assert finding.observation == (
        f"ranks 0, 1 and 3 wait {more // MS} ms in {100 * share:.0f} % of the steps"
    )
    usual = 200_000
    assert numbers(finding) == {
        "input_per_step": (usual + more, usual), "wait_of_the_others": (more, 0),
        "steps_with_wait": (share, 0), "ranks_waiting": (3, 0),
    }  # fmt: skip


def test_input_of_all_is_told_where_all_wait_and_at_epochs_where_they_do_then():
    always = told(Phase.INPUT, ms(20))
    assert (always.when.pattern, always.where.ranks, always.title) == (
        "chronic", (), "Slow input pipeline",
    )  # fmt: skip
    assert always.observation == "every rank waits 20.2 ms for its DataLoader in the median step"
    assert numbers(always) == {"input_per_step": (20.2 * MS, 0)}
    epochs = told(Phase.INPUT, ms(300, STEP % 15 == 0))
    assert (epochs.when.pattern, epochs.where.ranks) == ("transient", ())
    assert epochs.observation == "in 4 of 60 steps every rank waits 300 ms for its DataLoader"
    assert numbers(epochs) == {"input_per_step": (300.2 * MS, 0)}


def test_input_of_one_beside_that_of_all_is_told_apart():
    world = World(delays=[Delay(phase=Phase.INPUT, ns=ms(20) + ms(30, ranks=ALONE[1]))])
    one, every = diagnose(world.trace()).findings
    length = 114.7  # ms of a step: 64.7 without both
    assert (one.where.ranks, every.where.ranks) == ([1], ())
    assert one.severity == pytest.approx(30 / length, abs=1e-3)
    assert every.severity == pytest.approx(20.2 / length, abs=1e-3)
    assert numbers(one)["input_per_step"] == (50.2 * MS, 20.2 * MS)


@pytest.mark.parametrize(
    ("phase", "title", "does", "action"),
    [(Phase.CHECKPOINT, "Checkpoints stop training", "write a checkpoint", "write asynchronously"),
     (Phase.EVALUATION, "Evaluation stops training", "evaluate", "evaluate on less data")],
)  # fmt: skip
def test_what_all_stop_for_is_told_with_its_length(phase, title, does, action):
    finding = told(phase, ms(400, STEP % 20 == 0))
    assert (finding.mode, finding.when.pattern, finding.where.ranks, finding.title) == (
        "checkpoint_stall", "transient", (), title,
    )  # fmt: skip
    assert finding.observation == f"in 3 of 60 steps all ranks {does} for 400 ms"
    assert finding.options[0].action.startswith(action)
    assert numbers(finding) == {"phase_length": (400 * MS, 0)}


@pytest.mark.parametrize(
    ("phase", "rank", "title", "does", "action"),
    [(Phase.CHECKPOINT, 0, "Checkpoints stop training", "writing a checkpoint",
      "write asynchronously"),
     (Phase.EVALUATION, 3, "Evaluation stops training", "evaluating", "evaluate on all ranks")],
)  # fmt: skip
def test_what_one_does_while_the_others_wait_is_told_with_its_length(
    phase, rank, title, does, action
):
    finding = told(phase, ms(400, STEP % 20 == 0, ALONE[rank]))
    assert (finding.where.ranks, finding.title) == ([rank], f"{title} on rank {rank}")
    assert finding.observation == "in 3 of 60 steps the other ranks wait 400 ms"
    assert (
        finding.cause == f"rank {rank} (node node0): {does} takes 400 ms while the others are ready"
    )
    assert finding.options[0].action.startswith(action)
    assert numbers(finding) == {
        "phase_length": (400 * MS, 0), "wait_of_the_others": (400 * MS, 0),
        "steps_with_wait": (0.05, 0), "ranks_waiting": (3, 0),
    }  # fmt: skip


def idle(more, those="its process is"):
    return f"{those} not computing during these {more} ms (sleeping, or waiting for I/O or a lock)"


@pytest.mark.parametrize(
    ("phase", "rank", "more", "steps", "computing", "pattern", "often", "place"),
    [(Phase.FORWARD, 1, 15, STEP >= 0, True, "chronic", "", "forward"),
     (Phase.BACKWARD, 3, 20, STEP >= 30, False, "chronic", " from step 30 on", "backward"),
     (Phase.BACKWARD, 3, 20, STEP < 30, False, "chronic", " up to step 29", "backward"),
     (Phase.BACKWARD, 3, 60, (STEP >= 20) & (STEP < 30), True, "bursty", " in steps 20-29",
      "backward"),
     (Phase.FORWARD, 1, 50, STEP % 7 == 0, False, "transient", " every 7 steps", "forward"),
     (Phase.FORWARD, 1, 50, STEP % 10 < 4, False, "bursty", " in 4 of every 10 steps", "forward"),
     (Phase.FORWARD, 1, 50, np.isin(STEP, (3, 19, 41)), False, "transient", " now and then",
      "forward")],
)  # fmt: skip
def test_a_late_rank_is_told_with_its_place_and_its_steps(
    phase, rank, more, steps, computing, pattern, often, place
):
    finding = told(phase, ms(more, steps, ALONE[rank]), computing=computing)
    assert (finding.mode, finding.layer, finding.when.pattern, finding.where.ranks) == (
        "straggler", "node", pattern, [rank],
    )  # fmt: skip
    assert finding.title == f"Slow {place} on rank {rank}"
    why = "its process is computing all the while" if computing else idle(more)
    assert finding.cause == (
        f"rank {rank} (node node0) enters last: {more} ms more{often} inside {place} than the "
        f"other ranks; {why}"
    )
    share = steps.mean()
    assert finding.observation == (
        f"{OTHERS[rank]} wait {more} ms in {100 * share:.0f} % of the steps"
    )
    usual = {Phase.FORWARD: 20, Phase.BACKWARD: 40}[phase] * MS
    assert numbers(finding) == {
        f"{place}_of_rank_{rank}": (usual + more * MS, usual), "wait_of_the_others": (more * MS, 0),
        "steps_with_wait": (pytest.approx(share, abs=1e-4), 0), "ranks_waiting": (3, 0),
    }  # fmt: skip


def test_a_rank_that_is_later_in_every_other_step_is_told_in_how_many_it_is_late():
    """By 60 ms, and by 20 in 17 of the other 30 steps."""
    odd = STEP % 2 == 1
    fewer = odd & (np.random.default_rng(2).permutation(STEPS)[:, None] % 5 < 3)
    finding = told(Phase.FORWARD, ms(60, ~odd, ALONE[1]) + ms(20, fewer, ALONE[1]))
    share = 100 * (~odd | fewer).mean()
    assert f" ms more in {share:.0f} % of the steps inside forward" in finding.cause


def test_ranks_that_are_late_in_turns_are_told_together():
    finding = told(Phase.FORWARD, ms(20, ranks=np.arange(RANKS) == (STEP // 5) % RANKS))
    assert (finding.layer, finding.when.pattern, finding.where.ranks, finding.title) == (
        "model", "rotating", [0, 1, 2, 3], "Slow forward, one rank after the other",
    )  # fmt: skip
    assert finding.observation == "ranks 0-3 wait 20 ms in 100 % of the steps"
    assert "(ranks 0-3 take turns): whoever is last spends 20 ms more inside" in finding.cause


def test_two_late_ranks_are_told_together():
    finding = told(Phase.OPTIMIZER, ms(15, ranks=ALONE[1]) + ms(14, ranks=ALONE[2]))
    assert (finding.layer, finding.when.pattern, finding.where.ranks, finding.title) == (
        "model", "chronic", [1, 2], "Slow optimizer on node0",
    )  # fmt: skip
    assert finding.cause == (
        "ranks 1 and 2 enter last: 14.5 ms more in the optimizer than the other ranks; "
        + idle(14.5, "their processes are")
    )
    assert numbers(finding)["optimizer_of_rank_1"] == (19 * MS, 4 * MS)


def test_a_collector_that_stops_one_rank_is_told_with_its_pauses():
    finding = told(Phase.FORWARD, ms(50, STEP % 6 == 0, ALONE[1]), collector=True)
    assert (finding.mode, finding.layer, finding.where.ranks, finding.title) == (
        "runtime_jitter", "runtime", [1], "Garbage collection on rank 1",
    )  # fmt: skip
    assert "rank 1 (node node0) collects for 50 ms inside forward" in finding.cause
    assert numbers(finding) == {
        "collector_pause_longest": (50 * MS, 0), "wait_of_the_others": (50 * MS, 0),
        "steps_with_wait": (0.1667, 0), "ranks_waiting": (3, 0),
    }  # fmt: skip
