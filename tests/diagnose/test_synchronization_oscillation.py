import itertools

import numpy as np
import pytest
from scipy.stats import t

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.thresholds import BY_CHANCE
from evenstep.diagnose.measure.grid import step_grid
from evenstep.diagnose.modes.synchronization import _few
from evenstep.importers.opening import open_trace
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Phase
from tests.diagnose.programs import Do, Job
from tests.diagnose.synthetic import MS, World

WORLD = World(steps=120, noise=0.01)
STEPS = np.arange(120)


def swinging(shape) -> World:
    """Extra forward time of all ranks, by step."""
    return WORLD.delayed(Phase.FORWARD, (shape * 20 * MS)[:, None])


@pytest.mark.parametrize(
    ("period", "shape"),
    [
        (2, STEPS % 2 == 0),
        (3, STEPS % 3 == 0),
        (6, STEPS % 6 < 3),
        (7.5, (1 + np.sin(2 * np.pi * STEPS / 7.5)) / 2),
    ],
)
def test_steps_that_swing_have_a_period_and_a_cost(period, shape, worst, evidence):
    world = swinging(shape)
    finding = worst(world)
    assert (finding.mode, finding.when.pattern) == ("synchronization_oscillation", "oscillating")
    assert evidence(finding)["oscillation_period"] == pytest.approx(period, rel=0.03)
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)
    assert not finding.where.ranks


@pytest.mark.parametrize("period", [3, 5, 7])
def test_slow_steps_of_devices_cost_as_much_with_the_first_of_the_run(period, worst):
    """Which is one of 14, of 8 or of 6."""
    world = World(steps=40, on_device=True, noise=0.01)
    extra = np.where(STEPS[:40] % period == 0, 40 * MS, 0)[:, None]
    world = world.delayed(Phase.FORWARD, extra)
    finding = worst(world)
    assert finding.mode == "synchronization_oscillation"
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.05)


@pytest.mark.parametrize(("before", "more"), [(0, 35), (2, 0)])
def test_a_device_was_idle_before_the_runs_first_step_but_not_before_the_first_on_record(
    before, more
):
    """Whose groups had so many collectives before: it may have had work from these. The first step
    of 7 lasts 40 ms longer, and hosts issue at least 5 ms before."""
    slow = np.where(STEPS[:20] % 7 == 0, 40 * MS, 0)[:, None]
    trace = World(steps=20, on_device=True).delayed(Phase.FORWARD, slow).trace()
    trace.events = trace.events.with_column("group_seq", trace.events.group_seq + before)
    work = step_grid(trace).work_ns
    assert (work[0] - work[1]) / MS == pytest.approx([more] * 4, abs=1)


def test_inferred_steps_that_swing_together_are_parts_of_the_programs_own():
    trace = swinging(STEPS % 6 < 3).trace()
    steps = trace.events.kind == int(Kind.STEP)
    flags = np.where(steps, trace.events.flags | int(Flag.INFERRED), trace.events.flags)
    trace.events = trace.events.with_column("flags", flags)
    found = [finding.mode for finding in diagnose(trace).findings]
    assert "synchronization_oscillation" not in found


@pytest.mark.parametrize(("part", "swings"), [(0.5, False), (0.98, True)])
def test_steps_of_another_program_by_what_they_move_are_compared_with_one_another(part, swings):
    trace = swinging(STEPS % 2 == 0).trace()
    less = np.where(trace.events.step % 2 == 1, trace.events.bytes_in * part, trace.events.bytes_in)
    trace.events = trace.events.with_column("bytes_in", less.astype(np.int64))
    found = [finding.mode for finding in diagnose(trace).findings]
    assert ("synchronization_oscillation" in found) == swings


def test_a_rank_that_is_late_in_every_other_step_is_named(worst):
    table = WORLD.everywhere()
    table[::2, 1] = 20 * MS
    world = WORLD.delayed(Phase.BACKWARD, table)
    finding = worst(world)
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_what_recurs_now_and_then_is_a_transient_straggler(worst):
    table = WORLD.everywhere()
    table[::10, 1] = 60 * MS
    finding = worst(WORLD.delayed(Phase.BACKWARD, table))
    assert (finding.mode, finding.when.pattern) == ("straggler", "transient")


def test_a_checkpoint_every_tenth_step_is_no_oscillation(worst):
    table = WORLD.everywhere()
    table[::10, 0] = 200 * MS
    assert worst(WORLD.delayed(Phase.CHECKPOINT, table)).mode == "checkpoint_stall"


@pytest.mark.parametrize("seed", range(15))
def test_noise_does_not_oscillate(seed):
    random = np.random.default_rng(seed)
    world = WORLD.delayed(Phase.FORWARD, random.exponential(5 * MS, (120, 1)))
    modes = [finding.mode for finding in diagnose(world.trace()).findings]
    assert "synchronization_oscillation" not in modes


def test_a_slow_step_in_five_is_seen_by_whichever_harmonic_is_strongest(worst):
    # over 78 steps, twice the frequency of an impulse train of five has the most power
    world = World(steps=81, ranks=8, noise=0.01)
    made = world.delayed(Phase.FORWARD, 30 * MS * (np.arange(81) % 5 == 0)[:, None], computing=True)
    finding = worst(made)
    assert finding.mode == "synchronization_oscillation"
    assert finding.severity == pytest.approx(made.injected_share(), rel=0.1)


def test_one_rank_s_alternate_delay_is_not_most_ranks_work():
    # of two ranks both do 2 ms more in every other step, and rank 1 another 50
    more = (STEPS % 2)[:, None] * np.array([2.0, 52.0]) * MS
    findings = diagnose(
        World(ranks=2, steps=120, noise=0.005).delayed(Phase.OPTIMIZER, more).trace()
    )
    found = {tuple(one.where.ranks): one.severity for one in findings.findings}
    assert findings.findings[0].where.ranks == [1]
    assert found.get((), 0.0) < 0.05
    assert found[1,] == pytest.approx(25 / (64.2 + 26), abs=0.04)


@pytest.mark.parametrize("number", [5, 15])
def test_few_slow_steps_of_all_ranks_without_a_period_are_stalls(number, worst, evidence):
    table = WORLD.everywhere()
    table[np.random.default_rng(0).choice(len(table), number, replace=False)] = 400 * MS
    world = WORLD.delayed(Phase.FORWARD, table)
    finding = worst(world)
    assert (finding.mode, finding.when.pattern) == ("runtime_jitter", "transient")
    assert finding.where.ranks == ()
    assert evidence(finding)["slow_steps"] == number
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_a_program_of_two_kinds_of_steps_does_not_stall():
    table = WORLD.everywhere()
    table[np.random.default_rng(0).choice(len(table), 40, replace=False)] = 60 * MS
    found = diagnose(WORLD.delayed(Phase.FORWARD, table).trace()).findings
    assert [one.mode for one in found if one.severity >= 0.05] == []


@pytest.mark.parametrize("steps", [4, 11, 14, 15])
def test_the_first_of_a_few_steps_is_no_stall(steps):
    world = World(ranks=4, steps=steps, noise=0.02)
    table = world.everywhere()
    table[0] = 200 * MS
    titles = [one.title for one in diagnose(world.delayed(Phase.FORWARD, table).trace()).findings]
    assert not any("Slow step" in title for title in titles)


@pytest.mark.parametrize("slow", [0, 2])
def test_of_few_steps_amid_a_run_one_far_beyond_the_others_is_said_with_its_cost(slow, worst):
    world = World(ranks=4, steps=4, noise=0.02)
    table = world.everywhere()
    table[slow] = 200 * MS
    world = world.delayed(Phase.FORWARD, table)
    trace = world.trace()
    later = np.where(trace.events.step >= 0, trace.events.step + 40, trace.events.step)
    trace.events = trace.events.with_column("step", later)
    found = diagnose(trace).findings[0]
    assert found.title == f"Slow step {40 + slow}"
    assert found.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_of_few_steps_that_vary_none_is_said_to_be_slow():
    world = World(ranks=4, steps=4, noise=0.02)
    table = np.array([0, 10, 20, 45])[:, None] * MS + world.everywhere()
    trace = world.delayed(Phase.FORWARD, table).trace()
    trace.events = trace.events.with_column("step", trace.events.step + 40)
    assert not any("Slow step" in one.title for one in diagnose(trace).findings)


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.OTHER])
def test_one_step_that_is_long_on_all_ranks_is_said_with_its_cost_and_place(phase):
    world = World(ranks=4, steps=120, noise=0.02)
    table = world.everywhere()
    table[80] = 600 * MS  # of 120 steps of 64 ms
    world = world.delayed(phase, table)
    finding = diagnose(world.trace()).findings[0]
    assert finding.title == "Slow step 80"
    assert finding.observation.startswith("1 step of 120 lasts 66")
    place = {Phase.FORWARD: "inside forward", Phase.OTHER: "in your training loop"}[phase]
    assert f"more work in step 80, {place}" in finding.cause
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.05)


def test_two_long_steps_of_all_ranks_are_said():
    """Twice 600 ms in 120 steps of 64 ms: of so few the mean has a wide interval."""
    world = World(ranks=2, steps=120, noise=0.02)
    table = world.everywhere()
    table[[40, 71]] = 600 * MS
    world = world.delayed(Phase.OTHER, table)
    finding = diagnose(world.trace()).findings[0]
    assert finding.title == "Slow steps now and then"
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.05)


def test_a_log_of_one_rank_says_what_the_job_does_and_nothing_of_other_sizes(tmp_path):
    lines = [f"iter {n}: loss 3.2, time {150 + 900 * (n % 10 == 0)}.00ms" for n in range(80)]
    (tmp_path / "train.log").write_text("\n".join(lines))
    found = diagnose(open_trace([tmp_path / "train.log"]))
    worst, shares = found.findings[0], found.to_json()["summary"]["shares"]
    assert worst.cause.startswith("the job does more work every 10 steps")
    assert not worst.effect.projected
    assert shares is None


def test_a_slow_step_is_as_long_as_its_devices_needed_whose_hosts_ran_ahead():
    """A step is five times 10 ms of work, .1 more for the slowest of four, and 1 ms of transfer.

    One is 300 ms longer. Hosts issue it in 1 ms, and wait until the step before the last is over.
    """
    layer, turn = [Do("work", 10 * MS), Do("call", group=0)], itertools.count()
    slow = {rank: 4 * 30 + rank for rank in range(4)}.values()
    run = Job(
        ranks=4, groups=[("default_pg", (0, 1, 2, 3))], steps=60, device=True,
        program=lambda _: ([Do("work", 300 * MS)] if next(turn) in slow else []) + 5 * layer,
        transfer=lambda *_: MS, issue_ns=lambda *_: 0.2 * MS, ahead=True, noise=0.01,
    ).run()  # fmt: skip
    ends: dict[int, list[float]] = {}
    for row in run.rows:
        if row["kind"] == Kind.STEP:
            over = ends.setdefault(row["rank"], [row["enter_ns"]])
            over.append(row["exit_ns"])
            at = [over[max(len(over) - back, 0)] + MS for back in (4, 3)]
            row["enter_ns"], row["exit_ns"] = at
    finding = diagnose(run.trace()).findings[0]
    assert finding.title == "Slow step 30"
    assert finding.observation == "1 step of 60 lasts 355 ms, the usual one 55.5 ms"


def test_steps_in_which_the_program_acts_before_it_learns_are_compared_with_one_another():
    """A policy is asked in every third step before it is trained: forwards without a backward."""
    trace = swinging(STEPS % 3 == 0).trace()
    rows = trace.events
    asked = (rows.kind == int(Kind.PHASE)) & (rows.op == int(Phase.FORWARD)) & (rows.step % 3 == 0)
    again = rows.select(np.flatnonzero(asked).repeat(20))
    brief = again.with_column("exit_ns", again.enter_ns + 1)
    trace.events = Columns.concatenate([rows, brief])
    assert "synchronization_oscillation" not in [each.mode for each in diagnose(trace).findings]


@pytest.mark.parametrize(("every", "swings"), [(1, True), (100, False)])
def test_of_sampled_steps_the_period_may_be_that_of_the_sample(tmp_path, every, swings):
    """pix2pix prints every hundredth step, and shows its images in every fourth of these."""
    log, seconds = tmp_path / "loss_log.txt", np.where(STEPS % 4 == 3, 0.68, 0.128)
    line = "(epoch: 1, iters: {}, time: {:.3f}, data: 0.002) G_GAN: 1.9 D_real: 0.3\n"
    log.write_text("".join(map(line.format, (STEPS + 1) * every, seconds)))
    found = [finding.mode for finding in diagnose(open_trace([log])).findings]
    assert ("synchronization_oscillation" in found) == swings


@pytest.mark.parametrize(("beyond", "is_slow"), [(0.95, False), (1.05, True)])
def test_of_few_steps_one_is_slow_beyond_the_prediction_interval_of_the_others(beyond, is_slow):
    """One-sided, of a normal sample (Hahn 1970): t of n - 1 degrees times s √(1 + 1/n)."""
    others = np.array([80.0, 120.0, 90.0, 110.0, 100.0])
    chance = t.ppf(1 - BY_CHANCE / 6, 4)
    reach = chance * others.std(ddof=1) * np.sqrt(1 + 1 / 5)
    found = _few(np.append(others, np.median([*others, 200.0]) + beyond * reach))
    assert (found is not None) == is_slow
    assert found is None or found.slow.tolist() == [False] * 5 + [True]
