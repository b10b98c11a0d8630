"""Right mode, right rank, right phase, right cost: against worlds whose losses are known."""

import re
from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.case import open_case
from evenstep.trace.spool.layout import Flag, Kind, Phase
from tests.diagnose.programs import Do, Job, pipeline
from tests.diagnose.synthetic import MS, World

STYLES = [
    World(ranks=4, noise=0.005),
    World(ranks=4, noise=0.005, style="blocking"),
    World(ranks=4, noise=0.005, style="gathered"),
    World(ranks=8, noise=0.005, style="grid", tensor_parallel=2),
    World(ranks=16, noise=0.005, style="grid", tensor_parallel=4),
]
PLACES = {
    Phase.FORWARD: "inside forward",
    Phase.BACKWARD: "inside backward",
    Phase.OPTIMIZER: "in the optimizer",
    Phase.OTHER: "in your training loop",
}
styles = pytest.mark.parametrize("world", STYLES, ids=lambda w: f"{w.style}{w.tensor_parallel}")


@styles
@pytest.mark.parametrize("phase", PLACES)
def test_a_slow_rank_is_named_with_its_phase_and_its_cost(world, phase, worst):
    disturbed = world.slow(1, phase, 50 * MS)
    finding = worst(disturbed)
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])
    assert finding.when.pattern == "chronic"
    assert PLACES[phase] in finding.cause
    assert finding.severity == pytest.approx(disturbed.injected_share(), rel=0.1)


@styles
def test_the_others_wait_as_long_as_the_slow_rank_needs_more(world, worst, evidence):
    finding = worst(world.slow(1, Phase.BACKWARD, 50 * MS))
    assert evidence(finding)["wait_of_the_others"] == pytest.approx(50 * MS, rel=0.1)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 32, 64])
def test_the_slow_rank_is_found_among_any_number(ranks, worst):
    world = World(ranks=ranks, noise=0.01, steps=40).slow(ranks - 1, Phase.BACKWARD, 30 * MS)
    finding = worst(world)
    assert finding.where.ranks == [ranks - 1]
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("more", "named"), [(2 * MS, (3,)), (8 * MS, (3, 9))])
def test_of_late_ranks_only_those_are_named_that_are_worth_mending(more, named, seed, worst):
    """Where 3 is like the others, 9 is 2 ms later than these: hardly more than their noise."""
    world = World(ranks=16, steps=120, noise=0.03, seed=seed)
    finding = worst(world.slow(3, Phase.FORWARD, 20 * MS).slow(9, Phase.FORWARD, more))
    assert tuple(finding.where.ranks) == named


@styles
def test_a_rotating_delay_is_nobodys_in_particular(world, worst):
    turn = np.eye(world.ranks)[np.arange(world.steps) % world.ranks]
    disturbed = world.delayed(Phase.BACKWARD, turn * 50 * MS)
    finding = worst(disturbed)
    assert finding.when.pattern == "rotating"
    assert sorted(finding.where.ranks) == list(range(world.ranks))
    assert finding.severity == pytest.approx(disturbed.injected_share(), rel=0.1)


@styles
@pytest.mark.parametrize(
    ("pattern", "steps"), [("bursty", [*range(10, 17), *range(40, 47)]), ("transient", [9, 22, 41])]
)
def test_how_a_delay_recurs_is_told(world, pattern, steps, worst):
    table = world.everywhere()
    table[steps, 2] = 60 * MS
    disturbed = world.delayed(Phase.FORWARD, table)
    finding = worst(disturbed)
    assert (finding.where.ranks, finding.when.pattern) == ([2], pattern)
    assert finding.severity == pytest.approx(disturbed.injected_share(), rel=0.1)


@styles
def test_a_slow_loader_on_one_rank_is_an_input_pipeline(world, worst):
    disturbed = world.slow(3, Phase.INPUT, 40 * MS)
    finding = worst(disturbed)
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", [3])
    assert finding.severity == pytest.approx(disturbed.injected_share(), rel=0.1)


@styles
def test_a_loader_that_stalls_now_and_then_is_its_ranks_though_all_hand_batches_over(world, worst):
    world.input_ns = 60_000
    table = world.everywhere()
    table[5::7, 2] = 200 * MS
    disturbed = world.delayed(Phase.INPUT, table)
    finding = worst(disturbed)
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", [2])
    assert finding.severity == pytest.approx(disturbed.injected_share(), rel=0.1)


@pytest.mark.parametrize(("workers", "named"), [(2, ()), (0, (1,)), (None, (1,))])
def test_of_loaders_with_workers_that_are_all_slow_the_last_is_no_culprit(workers, named):
    """Rank 0 waits 20 ms for its batch, and rank 1, whose comes later, 60: workers do not wait for
    the step, so that rank 0's next batch would not come sooner without rank 1."""
    trace = World(ranks=2, input_ns=20 * MS).slow(1, Phase.INPUT, 40 * MS).trace()
    for info in trace.ranks.values():
        info.facts["loader_workers"] = workers
    finding = diagnose(trace).findings[0]
    assert (finding.mode, tuple(finding.where.ranks)) == ("input_pipeline", named)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slow_worker_of_one_rank_is_not_a_slow_input_of_all(ranks, worst):
    """Every other batch of rank 1 comes 80 ms late; between them any rank is the last by chance."""
    world = World(ranks=ranks, noise=0.005)
    table = world.everywhere()
    table[::2, 1] = 80 * MS
    draw = np.random.default_rng(3).uniform(0, 16 * MS, (world.steps // 2, ranks))
    table[1::2] = draw
    table[1::2, 1] = 0
    finding = worst(world.delayed(Phase.INPUT, table))
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", [1])


def test_loaders_that_are_all_too_slow_are_one_cause_whoever_is_last():
    """A step of 64 ms waits for the latest of four queues of four batches, each of which takes
    85 ms to prepare, give or take; the other queues fill up meanwhile."""
    world, draw = World(noise=0.005), np.random.default_rng(8)
    table, ready, taken = world.everywhere(), np.zeros(world.ranks), [0.0]
    for step in range(world.steps):
        begun = max(taken[step - 4], 0.0) if step >= 4 else 0.0
        took = 85 * MS * np.exp(0.25 * draw.standard_normal(len(ready)))
        ready = np.maximum(ready, begun) + took
        waits = np.maximum(ready - taken[-1] - 64 * MS * (step > 0), 0)
        table[step] = waits
        taken.append(taken[-1] + 64 * MS * (step > 0) + waits.max())
    disturbed = world.delayed(Phase.INPUT, table.astype(int))
    first, *others = diagnose(disturbed.trace()).findings
    assert first.mode == "input_pipeline"
    assert first.severity == pytest.approx(disturbed.injected_share(), rel=0.1)
    assert all(one.severity < 0.05 for one in others)


def test_what_a_rank_does_behind_the_last_collective_makes_it_the_first_culprit(worst):
    """The others wait for it in the next step: it costs more than one long forward of another."""
    world = World(noise=0.005)
    table = world.everywhere()
    table[5::6, 0] = 60 * MS
    disturbed = world.delayed(Phase.OPTIMIZER, table)
    table = world.everywhere()
    table[8, 3] = 150 * MS
    finding = worst(disturbed.delayed(Phase.FORWARD, table))
    assert (finding.mode, finding.where.ranks) == ("straggler", [0, 3])


def test_a_loader_whose_workers_bring_several_batches_at_once_is_late_in_some_steps(worst):
    """What it takes more in these is told with how many they are."""
    table = World().everywhere()
    table[::2, 2] = 80 * MS
    cause = worst(World().delayed(Phase.INPUT, table)).cause
    assert cause.endswith("80 ms later than the others' in 30 of 60 steps")
    always = worst(World().slow(2, Phase.INPUT, 80 * MS)).cause
    assert always.endswith("later than the others'")


def test_slow_loaders_everywhere_have_no_culprit(worst):
    finding = worst(World(input_ns=20 * MS))
    # 20 ms of input + 20 forward + 40 backward + 4 optimizer + 0.5 exposed transfer
    assert finding.severity == pytest.approx(20 / 84.5, rel=0.01)
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", ())


def test_a_loader_slower_than_the_slow_loaders_of_all_is_named_beside_them():
    """All load for 20 ms and rank 3 for 60: of its 124.5 ms a step has 40 by rank 3, 20 by all."""
    found = diagnose(World(input_ns=20 * MS).slow(3, Phase.INPUT, 40 * MS).trace()).findings
    parts = {finding.where.ranks and tuple(finding.where.ranks): finding for finding in found}
    assert {finding.mode for finding in found} == {"input_pipeline"}
    assert parts[3,].severity == pytest.approx(40 / 124.5, rel=0.02)
    assert parts[()].severity == pytest.approx(20 / 124.5, rel=0.02)


def test_slow_loaders_of_all_are_found_beside_a_rank_that_is_later_than_they_take():
    """20 ms of input, and 50 more of rank 2 in backward, of a step of 134.5."""
    found = diagnose(World(input_ns=20 * MS).slow(2, Phase.BACKWARD, 50 * MS).trace()).findings
    parts = {finding.mode: finding.severity for finding in found}
    assert parts == pytest.approx({"straggler": 50 / 134.5, "input_pipeline": 20 / 134.5}, rel=0.02)


def test_who_loads_nothing_is_not_asked_whether_all_loaders_are_slow(worst):
    finding = worst(World(input_ns=0).slow([1, 2, 3], Phase.INPUT, 20 * MS))
    assert finding.severity == pytest.approx(20 / 84.5, rel=0.01)
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", ())
    assert finding.observation.startswith("every rank that loads waits 20 ms")


def test_batches_that_only_every_other_step_fetches_are_waited_for_all_the_same(worst):
    table = np.zeros((60, 4))
    table[::2] = 40 * MS
    slow = World(input_ns=0).delayed(Phase.INPUT, table)
    finding = worst(slow)
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", ())
    assert finding.severity == pytest.approx(slow.injected_share(), rel=0.05)


def test_batches_that_are_late_at_the_beginnings_of_epochs_are_told_of_these_steps(worst):
    table = np.zeros((60, 4))
    table[5::10] = 300 * MS
    finding = worst(slow := World().delayed(Phase.INPUT, table))
    assert finding.mode == "input_pipeline"
    assert finding.observation == "in 6 of 60 steps every rank waits 300 ms for its DataLoader"
    assert finding.when.steps[0] == (5, 5)
    assert finding.severity == pytest.approx(slow.injected_share(), rel=0.05)


@styles
@pytest.mark.parametrize(
    ("phase", "word"),
    [(Phase.CHECKPOINT, "writing a checkpoint"), (Phase.EVALUATION, "evaluating")],
)
def test_what_rank_0_does_alone_while_the_others_wait_is_a_checkpoint_stall(
    world, phase, word, worst
):
    table = world.everywhere()
    table[10::10, 0] = 300 * MS
    disturbed = world.delayed(phase, table)
    finding = worst(disturbed)
    assert (finding.mode, finding.where.ranks) == ("checkpoint_stall", [0])
    assert word in finding.cause
    assert finding.severity == pytest.approx(disturbed.injected_share(), rel=0.1)


@pytest.mark.parametrize("ranks", [slice(1), slice(4)])
def test_short_and_long_checkpoints_are_told_by_their_mean(ranks):
    """As one written in two parts, in a step and after it: the costs are those of all together."""
    table = np.zeros((60, 4))
    table[10::10, ranks], table[11::10, ranks], table[12::10, ranks] = 410 * MS, 20 * MS, 20 * MS
    found = diagnose(World().delayed(Phase.CHECKPOINT, table).trace()).findings
    assert found[0].mode == "checkpoint_stall"
    assert " 150 ms" in found[0].observation + found[0].cause


@pytest.mark.parametrize(
    ("phase", "words"),
    [(Phase.CHECKPOINT, "all ranks write a checkpoint"), (Phase.EVALUATION, "all ranks evaluate")],
)
def test_what_all_ranks_do_together_between_steps_has_no_culprit(phase, words):
    table = np.zeros((60, 4))
    table[10::10] = 300 * MS
    together = World().delayed(phase, table)
    found = diagnose(together.trace()).findings
    assert not any(finding.where.ranks for finding in found)
    assert found[0].mode == "checkpoint_stall"
    assert found[0].severity == pytest.approx(together.injected_share(), rel=0.02)
    assert f"{words} for 300 ms" in found[0].observation


def test_who_is_slow_at_an_evaluation_of_all_is_slow_at_it_as_at_other_work():
    table = np.zeros((60, 4))
    table[10::10] = 300 * MS
    together = World().delayed(Phase.EVALUATION, table)
    table = together.everywhere()
    table[10::10, 3] = 90 * MS
    slower = together.delayed(Phase.EVALUATION, table).slow([3], Phase.BACKWARD, 12 * MS)
    found = {one.mode: one for one in diagnose(slower.trace()).findings}
    assert found["straggler"].where.ranks == [3]
    assert found["straggler"].severity == pytest.approx(slower.lost_against(together), rel=0.05)
    assert not found["checkpoint_stall"].where.ranks


def test_who_evaluates_alone_does_so_though_the_others_look_whether_to():
    table = np.zeros((60, 4))
    table[10::10], table[10::10, 2] = 0.005 * MS, 300 * MS
    world = World().delayed(Phase.EVALUATION, table)
    (found,) = diagnose(world.trace()).findings
    assert (found.mode, found.where.ranks) == ("checkpoint_stall", [2])
    assert found.severity == pytest.approx(world.injected_share(), rel=0.01)


@pytest.mark.parametrize(("every", "first", "stops"), [(1, 0, False), (2, 0, True), (2, 1, True)])
def test_what_every_step_evaluates_is_part_of_its_work(every, first, stops):
    """Not so what every other step does, be it the first and last."""
    table = np.zeros((60, 4))
    table[first::every] = 30 * MS
    found = diagnose(World().delayed(Phase.EVALUATION, table).trace()).findings
    assert any(one.mode == "checkpoint_stall" for one in found) == stops


def test_waiting_at_a_barrier_within_a_checkpoint_is_no_writing():
    """The phase of the others covers the barrier, with nothing on record of what they do there."""

    def program(rank: int) -> list[Do]:
        saves = Do("work", (30 if rank == 2 else 0.01) * MS, Phase.CHECKPOINT)
        return [Do("work", 60 * MS), Do("call", group=0), saves, Do("call", group=0)]

    job = Job(ranks=4, groups=[("dp", (0, 1, 2, 3))], program=program)
    rows = (trace := job.run().trace()).events
    saving = (rows.kind == int(Kind.PHASE)) & (rows.op == int(Phase.CHECKPOINT))
    steps = rows.select(rows.kind == int(Kind.STEP)).sorted_by("rank", "step")
    over = rows.exit_ns.copy()
    over[saving] = steps.exit_ns[rows["rank"][saving] * job.steps + rows.step[saving]]
    length = np.where(saving, over - rows.enter_ns, rows.group_seq)
    rows = rows.with_column("exit_ns", over).with_column("group_seq", length)
    (stall,) = diagnose(replace(trace, events=rows)).findings
    assert (stall.mode, stall.where.ranks) == ("checkpoint_stall", [2])
    assert stall.severity == pytest.approx(30 / 91, rel=0.02)


@pytest.mark.parametrize("spread", [0.1, 0.25])
def test_checkpoints_of_unequal_lengths_are_one_finding_with_all_they_cost(spread):
    """Another rank writes longest each time: none of them is slower than the others."""
    table = World(ranks=8).everywhere()
    table[::5] = 150 * MS * np.random.default_rng(0).lognormal(0, spread, table[::5].shape)
    world = World(ranks=8, noise=0.02).delayed(Phase.CHECKPOINT, table)
    (stall,) = [one for one in diagnose(world.trace()).findings if one.mode == "checkpoint_stall"]
    assert stall.severity == pytest.approx(world.injected_share(), rel=0.03)
    assert not stall.where.ranks


def test_a_checkpoint_of_one_rank_is_told_beside_evaluations_of_unequal_lengths():
    """Another rank evaluates longest each time, the first one alone saves."""
    world = World(ranks=8, noise=0.02)
    table = world.everywhere()
    table[5::10] = 150 * MS * np.random.default_rng(0).lognormal(0, 0.25, table[5::10].shape)
    evaluated = world.delayed(Phase.EVALUATION, table)
    table = world.everywhere()
    table[9::10, 0] = 300 * MS
    world = evaluated.delayed(Phase.CHECKPOINT, table)
    found = [one for one in diagnose(world.trace()).findings if one.mode == "checkpoint_stall"]
    (saved,) = [one for one in found if one.where.ranks]
    assert saved.where.ranks == [0]
    assert saved.severity == pytest.approx(world.lost_against(evaluated), rel=0.1)
    assert len(found) == 2


def test_a_checkpoint_that_one_rank_has_no_part_in_is_not_told_of_every_rank():
    table = np.zeros((60, 4))
    table[10::10, 1:] = 300 * MS
    found = diagnose(World().delayed(Phase.CHECKPOINT, table).trace()).findings
    assert found[0].mode == "checkpoint_stall"
    assert "most ranks write a checkpoint" in found[0].observation


def test_the_slowest_of_those_who_write_together_is_counted_on_top():
    table = np.zeros((60, 4))
    table[10::10] = 200 * MS
    table[10::10, 3] = 300 * MS
    together = World().delayed(Phase.CHECKPOINT, table)
    found = diagnose(together.trace()).findings
    assert [(f.mode, list(f.where.ranks)) for f in found] == [
        ("checkpoint_stall", []),
        ("checkpoint_stall", [3]),
    ]
    assert sum(f.severity for f in found) == pytest.approx(together.injected_share(), rel=0.02)


def test_two_culprits_at_once_each_have_their_own_cause():
    world = World(ranks=8, noise=0.005).slow(1, Phase.BACKWARD, 30 * MS)
    both = world.slow(5, Phase.INPUT, 30 * MS)
    first, second = diagnose(both.trace()).findings[:2]
    named = {first.mode: first.where.ranks, second.mode: second.where.ranks}
    assert named == {"straggler": [1], "input_pipeline": [5]}
    assert first.severity + second.severity == pytest.approx(both.injected_share(), rel=0.1)


def test_a_whole_slow_node_is_the_nodes_matter(worst):
    world = World(ranks=8, ranks_per_node=4, noise=0.005).slow([4, 5, 6, 7], Phase.FORWARD, 30 * MS)
    finding = worst(world)
    assert sorted(finding.where.ranks) == [4, 5, 6, 7]
    assert (finding.layer, finding.where.nodes) == ("node", ["node1"])
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_lateness_hidden_behind_another_ranks_is_not_charged(worst):
    world = World(ranks=4).slow(1, Phase.BACKWARD, 50 * MS).slow(2, Phase.BACKWARD, 10 * MS)
    first = worst(world)
    assert first.severity == pytest.approx(world.injected_share(), rel=0.1)


@pytest.mark.parametrize("computing", [True, False])
def test_a_sleeping_process_is_told_from_a_busy_one(computing, worst):
    finding = worst(World().slow(1, Phase.BACKWARD, 50 * MS, computing=computing))
    assert ("is computing all the while" in finding.cause) is computing


def test_of_two_ranks_that_take_turns_both_wait(worst):
    turn = np.eye(2)[np.arange(60) % 2]
    finding = worst(World(ranks=2).delayed(Phase.BACKWARD, turn * 50 * MS))
    assert finding.observation.startswith("ranks 0 and 1 wait 50 ms in 100 % of the steps")


def test_a_pause_that_travels_from_group_to_group_leaves_nothing_unexplained():
    table = np.zeros((60, 16))
    table[[6, 12, 13, 30], 13] = 200 * MS
    world = World(ranks=16, style="grid", tensor_parallel=4).delayed(
        Phase.BACKWARD, table, bucket=2, collector=True
    )
    found = diagnose(world.trace()).findings
    assert [(finding.mode, finding.where.ranks) for finding in found] == [("runtime_jitter", [13])]
    assert found[0].severity == pytest.approx(world.injected_share(), rel=0.01)


def test_one_rank_that_is_late_in_two_of_three_steps_takes_no_turns_with_a_small_delay():
    late, now_and_then = np.arange(60) % 3 > 0, np.arange(60) % 3 == 0
    table = np.stack([8 * MS * now_and_then, 60 * MS * late], axis=1)
    finding = diagnose(World(ranks=2).delayed(Phase.INPUT, table).trace()).findings[0]
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", [1])
    assert finding.when.pattern != "rotating"


def test_who_is_hardly_slower_is_no_culprit_beside_one_who_is(worst):
    world = World(ranks=16, noise=0.03, steps=60).slow(2, Phase.BACKWARD, 30 * MS)
    assert worst(world.slow(5, Phase.BACKWARD, 2.5 * MS)).where.ranks == [2]
    assert set(worst(world.slow(5, Phase.BACKWARD, 25 * MS)).where.ranks) == {2, 5}


def test_stops_that_hit_all_ranks_alike_are_nobodys_and_those_of_one_are_its_own(worst):
    world = World(ranks=8, steps=80, noise=0.005)
    stops = np.where(np.random.default_rng(1).random((80, 8)) < 0.03, 200 * MS, 0.0)
    finding = worst(world.delayed(Phase.BACKWARD, stops))
    assert (finding.title, finding.where.ranks) == ("Random stops of single ranks", ())
    assert finding.layer == "runtime"
    one = np.zeros_like(stops)
    one[:, 5] = stops.sum(axis=1).clip(0, 200 * MS)
    assert worst(world.delayed(Phase.BACKWARD, one)).where.ranks == [5]


def test_a_first_stage_whose_ranks_all_load_slowly_is_named_though_the_last_loads_as_well():
    """Of three stages the first loads for 30 ms, and the last, its labels, for .2 ms."""
    plain = pipeline(stages=3, replicas=2, noise=0.01, steps=20)

    def loading(first_ms):
        def program(rank):
            ns = (first_ms, 0, 0.2)[rank // 2] * MS
            return [*[Do("work", ns, Phase.INPUT)] * (ns > 0), *plain.program(rank)]

        return replace(plain, program=program).run()

    slow, quick = loading(30), loading(0.2)
    finding = diagnose(slow.trace()).findings[0]
    assert (finding.mode, list(finding.where.ranks)) == ("input_pipeline", [0, 1])
    assert finding.severity == pytest.approx(1 - quick.length_ns / slow.length_ns, rel=0.05)


@pytest.mark.parametrize(
    ("place", "named"),
    [({"phase": Phase.FORWARD}, [[1], [0]]), ({"phase": Phase.BACKWARD, "bucket": 1}, [[1, 0]])],
)
def test_two_ranks_late_for_different_collectives_of_the_step_are_both_named(place, named):
    """Rank 1 by 30 ms before one, rank 0 by 28 ms before another: 2 ms apart in all, but each waits
    for the other, together for 58 ms. Ranks late in different phases are two findings."""
    world = World(ranks=2, noise=0.01, style="blocking").slow(1, ns=30 * MS, **place)
    apart = world.slow(0, Phase.BACKWARD, 28 * MS, bucket=3)
    found = [one for one in diagnose(apart.trace()).findings if one.mode == "straggler"]
    assert [one.where.ranks for one in found] == named
    assert sum(one.severity for one in found) == pytest.approx(apart.injected_share(), rel=0.02)
    more = [float(re.search(r"([\d.]+) ms more inside", one.cause)[1]) for one in found]
    assert more == pytest.approx([30, 28] if len(named) > 1 else [29], rel=0.02)
    assert place["phase"].name.lower() in found[0].cause
    assert "backward" in found[-1].cause


def test_ranks_late_in_all_phases_are_one_finding_whichever_is_a_little_more():
    """As slow devices are: one rank by a millisecond more in forward, one in backward."""
    world = World(ranks=8, noise=0.01).slow(1, Phase.FORWARD, 21 * MS)
    world = world.slow(1, Phase.BACKWARD, 20 * MS).slow(6, Phase.FORWARD, 20 * MS)
    slow = world.slow(6, Phase.BACKWARD, 21 * MS)
    (found,) = (f for f in diagnose(slow.trace()).findings if f.mode == "straggler")
    assert sorted(found.where.ranks) == [1, 6]
    assert found.severity == pytest.approx(slow.injected_share(), rel=0.05)


@pytest.mark.parametrize(
    ("every", "told"), [(1, "inside backward"), (2, "in every other step inside backward")]
)
def test_a_rank_that_is_late_in_half_of_the_steps_is_said_to_be(every, told):
    """Its lateness is that of these steps, the cost is spread over all."""
    world = World(noise=0.01, style="blocking")
    table = world.everywhere()
    table[1::every, 1] = 30 * MS
    (found,) = diagnose(world.delayed(Phase.BACKWARD, table).trace()).findings
    assert f" ms more {told} than" in found.cause


@pytest.mark.parametrize(("last", "told"), [(5, "step 5"), (7, "steps 5-7")])
def test_a_rank_that_was_late_once_is_told_with_these_steps(last, told):
    """As in the first steps, while it warms up: "now and then" would be again."""
    world = World(noise=0.01, style="blocking")
    table = world.everywhere()
    table[5 : last + 1, 1] = 300 * MS
    (found,) = diagnose(world.delayed(Phase.FORWARD, table).trace()).findings
    assert f"ms more in {told} inside forward" in found.cause


@pytest.mark.parametrize(
    ("late", "told"), [(slice(25, None), "from step 25 on"), (slice(0, 30), "up to step 29")]
)
def test_lateness_that_begins_or_ends_within_the_run_is_told_with_that_step(late, told):
    world = World(noise=0.01, style="blocking")
    table = world.everywhere()
    table[late, 1] = 30 * MS
    (found,) = diagnose(world.delayed(Phase.BACKWARD, table).trace()).findings
    assert f"ms more {told} inside backward" in found.cause


def test_a_rank_that_is_late_by_more_and_less_in_all_steps_is_said_to_be_last_in_all():
    world = World(style="blocking")
    table = world.everywhere()
    table[:, 1] = np.random.default_rng(0).uniform(5, 60, 60) * MS
    (found,) = diagnose(world.delayed(Phase.BACKWARD, table).trace()).findings
    assert " ms more inside backward than" in found.cause


def test_a_late_rank_without_phases_is_compared_with_others_machine_and_program():
    """Where in the step it is late, and so whether by its program, nothing tells."""
    world = World(noise=0.01, phases=False, style="blocking")
    slow = world.slow(1, Phase.FORWARD, 20 * MS, computing=True)
    found = diagnose(slow.trace()).findings[0]
    assert "in the step (no phases tell where)" in found.cause
    assert found.options[0].action.startswith("compare rank 1 with another: its machine (clocks")


def test_a_long_delay_is_told_without_the_short_ones_of_other_steps():
    world = World()
    table = world.everywhere()
    table[[2, 7, 30], 2] = 12 * MS, 12 * MS, 5_000 * MS
    finding = diagnose(world.delayed(Phase.OTHER, table).trace()).findings[0]
    assert "enters last: 5 s more in step 30 " in finding.cause


def test_ranks_that_wait_only_now_and_then_are_not_counted_as_none():
    """They wait in a fifth of the steps in which a rank is called late, or in all of them."""
    world = World(noise=0.01, style="blocking")
    table = world.everywhere()
    table[::5, 2] = 60 * MS
    case = open_case(world.delayed(Phase.OTHER, table).trace())
    cells = np.zeros(case.grid.shape, bool)
    cells[:, 2] = True
    assert "waiters" not in case.waits(cells)
    assert case.waits(cells & (table[case.grid.steps] > 0))["waiters"] == 3


def test_rare_long_delays_of_a_rank_that_is_usually_a_little_late_are_told_with_their_steps():
    """As of a read of storage in every 20th step: its other lateness costs next to nothing."""
    world = World(noise=0.01, style="blocking")
    table = world.everywhere()
    table[:, 1] = 5 * MS
    table[7::20, 1] = 600 * MS
    finding = diagnose(world.delayed(Phase.OTHER, table).trace()).findings[0]
    assert "ms more in 5 % of the steps in your training loop" in finding.cause


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        (0, "inside forward"),
        (1, "inside forward"),  # as where a pipeline tries its stages before the first
        (20, "before backward"),
    ],
)
def test_where_a_rank_is_late_is_forward_unless_most_forwards_are_inferred(steps, place):
    trace = World(steps=20).slow(1, Phase.FORWARD, 30 * MS).trace()
    events = trace.events
    forwards = (events.kind == int(Kind.PHASE)) & (events.op == int(Phase.FORWARD))
    inferred = forwards & (events.step < steps)
    trace.events = events.with_column("flags", events.flags | inferred * int(Flag.INFERRED))
    assert place in diagnose(trace).findings[0].cause
