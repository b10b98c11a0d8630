"""Hosts that issue what devices do: a step has one all-reduce, over at once on both devices."""

import numpy as np
import pytest

from evenstep.diagnose.graph.replay import Change, replay, step_lengths
from evenstep.diagnose.graph.streams import FASTEST_DRIFT
from evenstep.diagnose.graph.structure import by_step_and_lane, overlap, overlap_of_entries
from evenstep.diagnose.lateness.cost import Costs
from evenstep.diagnose.measure.grid import during, step_grid
from evenstep.trace.spool.layout import Flag, Kind, Phase
from tests.diagnose.graph.by_hand import BOOT_NS, MS, Run
from tests.diagnose.programs import Do, Job, pipeline

STEPS = 24
TOOK = 3 + 2.0 * (np.arange(STEPS) % 2)  # ms: an all-reduce
WORK, PACE, READS = 6.0, 10.0, 2.0  # ms: of a device; of a host alone; of one after its device
WRITES = 100.0 * (np.arange(STEPS) % 6 == 1)  # ms: after steps with the shorter all-reduce


def issued(waits, writes=0 * WRITES):
    """A job whose hosts issue every `PACE`, or `READS` and `writes` after their devices are
    done."""
    run, over, issue = Run(2), 4.0, 10.0
    flags = Flag.ASYNC | Flag.ON_DEVICE
    for step, took in enumerate(TOOK):
        issue = over + READS + writes[step] if waits and step else issue + PACE * (step > 0)
        begin = max(over + WORK, issue)
        for rank in range(2):
            run.step(rank, step, issue - 1, issue + 0.5)
            if writes[step]:
                times = issue - writes[step], issue
                run.record(rank, Kind.PHASE, step, *times, op=int(Phase.CHECKPOINT))
            now = BOOT_NS - 10**9 * (1 + rank)  # clocks of devices begin elsewhere
            moments = (
                round(begin * MS) + BOOT_NS - now,
                round((begin + took) * MS) + BOOT_NS - now,
            )
            run.collective(
                rank, step, step, issue, begin + took, flags=flags, device=0,
                device_enter_ns=moments[0], device_exit_ns=moments[1],
            )  # fmt: skip
        over = begin + took
    return run.graph()


def saved(graph, change):
    lengths = step_lengths(graph, replay(graph, [Change.none(), change])).sum(axis=1)
    return (lengths[0] - lengths[1]) / MS


def without_transfers(graph):
    """The change to all-reduces that take no time."""
    moves = np.flatnonzero(graph.operations.members == 2)
    return Change.of_transfers(moves, np.zeros(len(moves)))


def test_what_hosts_issue_at_their_own_pace_is_no_sooner_over():
    """The device is behind by 1 ms in every other step at most: what is gained is its lead at the
    end, the last 5 ms."""
    assert saved(issued(False), without_transfers(issued(False))) == pytest.approx(5.0)


def test_hosts_that_wait_for_their_devices_issue_sooner_when_these_are_done():
    """A step is 6 ms of work and the transfer: without it all of the transfers are gained, within
    what the clocks may drift by."""
    gained = saved(issued(True), without_transfers(issued(True)))
    assert gained == pytest.approx(TOOK.sum(), rel=FASTEST_DRIFT)


def test_hosts_that_write_checkpoints_meanwhile_still_wait_for_their_devices():
    """Between issues most passes where the wait is shorter; the transfers are gained as ever, to
    the µs to which the clocks of the devices are known."""
    graph = issued(True, WRITES)
    assert saved(graph, without_transfers(graph)) == pytest.approx(TOOK.sum(), abs=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_hosts_that_load_batches_of_any_length_still_wait_for_their_devices(seed):
    """A step has ten all-reduces, the first of about 50 ms. Then hosts load for 100, give or take
    30; the wait varies by .5, and only what of their time is not loading tells of it."""
    random = np.random.default_rng(seed)
    lasted, loads = random.normal(50, 0.5, STEPS), 100 * np.exp(random.normal(0, 0.3, STEPS))
    run, over = Run(2), 0.0
    for step, load in enumerate(loads):
        issue = over + load + READS
        for turn in range(10):
            begin = max(over + 1, issue + 0.01 * turn)
            over = begin + (0.1 if turn else lasted[step])
            for rank in range(2):
                times = (round((one + 10**3 * rank) * MS) + BOOT_NS for one in (begin, over))
                run.collective(
                    rank, step, 10 * step + turn, issue + 0.01 * turn, over, device=0,
                    flags=Flag.ASYNC | Flag.ON_DEVICE,
                    **dict(zip(("device_enter_ns", "device_exit_ns"), times, strict=True)),
                )  # fmt: skip
        for rank in range(2):
            run.record(rank, Kind.PHASE, step, issue - load, issue, op=int(Phase.INPUT))
            run.step(rank, step, issue - load, issue + 0.5)
    graph = run.graph()
    gained = saved(graph, without_transfers(graph))
    assert gained == pytest.approx(lasted.sum() + 0.9 * STEPS, rel=0.02)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_last_stage_that_reads_its_loss_issues_sooner_where_the_first_never_waits(stages):
    """The first stage issues as much as the last. What both ranks of it being half as slow again
    costs is told by the same run without that."""
    slow, runs = {0: 1.5, 1: 1.5}, []
    for one in (slow, {}):
        how = {"steps": 30, "noise": 0.2, "device": True, "issue_ns": lambda *_: MS / 2}
        runs.append(pipeline(stages, 2, 4, reads=True, slow=one, ahead=True, **how).run())
    graph = step_grid(runs[0].trace()).graph
    rows = np.flatnonzero(np.isin(graph.rows.lane, list(slow)))
    gained = saved(graph, Change.of_work(rows, graph.own_ns[rows] / 1.5))
    lost = (runs[0].length_ns - runs[1].length_ns) / MS
    assert gained == pytest.approx(lost, rel=0.05)


def test_devices_with_less_to_do_wait_for_no_host_that_is_ahead():
    """With 3 of 6 ms less they are ready 1 ms after their hosts have issued."""
    graph = issued(True)
    rows = np.flatnonzero(graph.rows.slack_ns >= 0)[2:]  # but for the first step
    gained = saved(graph, Change.of_work(rows, graph.own_ns[rows] - 3 * MS))
    assert gained == pytest.approx(3.0 * (STEPS - 1))


def test_a_host_that_reads_every_sum_has_no_work_of_its_device_to_issue_meanwhile():
    """Two sums of a number follow 20 ms of work, of rank 3 30, and hosts read both: so they issue
    the second as the first is over, and the device waits for that at once."""
    program = [
        Do("work", 20 * MS),
        *(one for _ in range(2) for one in (Do("call", group=0, size=4), Do("read"))),
        Do("work", 3 * MS, Phase.OPTIMIZER),
    ]
    job = Job(
        ranks=4, groups=[("world", (0, 1, 2, 3))], program=lambda _: program, steps=24, noise=0.02,
        device=True, issue_ns=lambda *_: 0.1 * MS, slow={3: 1.5},
    )  # fmt: skip
    work = np.median(step_grid(job.run().trace()).work_ns, axis=0) / MS
    assert work == pytest.approx([23, 23, 23, 34.5], rel=0.03)


@pytest.mark.parametrize("seen", [1.0, 0.0])
def test_a_pause_that_another_rank_s_hides_goes_with_it(seen):
    """Hosts issue every `PACE`, a step of work and an all-reduce of 2 ms. In step 10 one is stopped
    for 20 ms; the other for 1 ms in step 5, if at all, and for 12, while its device waits, before
    step 11."""
    run, over = Run(2), 0.0
    issue = np.array([1.0, 1.0])
    pauses = {(5, 1): seen, (10, 0): 20.0, (11, 1): 12.0}
    for step in range(STEPS):
        issue = issue + PACE + np.array([pauses.get((step, rank), 0.0) for rank in range(2)])
        begin = np.maximum(over + WORK, issue)
        over = begin.max() + 2
        for rank in range(2):
            run.step(rank, step, issue[rank] - 1, issue[rank] + 0.5)
            times = [round(moment * MS) + BOOT_NS for moment in (begin[rank], over)]
            run.collective(
                rank, step, step, issue[rank], over, flags=Flag.ASYNC | Flag.ON_DEVICE, device=0,
                device_enter_ns=times[0], device_exit_ns=times[1],
            )  # fmt: skip
            if lasted := pauses.get((step, rank)):
                run.record(rank, Kind.PAUSE, step, issue[rank] - lasted - 1, issue[rank] - 1)
    grid = step_grid(run.trace())
    stops = [
        during(grid, grid.records.of_kind(Kind.PAUSE), of) for of in (overlap, overlap_of_entries)
    ]
    costs = Costs(grid.graph, {1: (*stops, not seen)})
    late = by_step_and_lane(grid.graph, stops[0]) * 1.0
    assert (late / MS).sum(axis=0) == pytest.approx([20, seen], abs=0.1)
    assert saved(grid.graph, costs.relieved(1, late, np.zeros(2, bool), 0 * late)) == pytest.approx(
        20, abs=0.1
    )


@pytest.mark.parametrize("waits", [False, True])
def test_a_replay_of_issues_gives_what_happened(waits):
    graph = issued(waits)
    ends = replay(graph, [Change.none()])[0]
    rows = graph.rows
    last = rows.ends
    assert ends[rows["index"][last], rows.lane[last]].tolist() == rows.at_ns[last].tolist()


def test_what_devices_do_of_an_evaluation_is_what_was_issued_in_it():
    """Hosts issue a step in .02 ms, every fourth with three all-reduces of an evaluation, and their
    devices come to one every 5.5 ms, and wait for none: twice that between those three."""
    run, over = Run(2), 10.0
    for step, number in ((step, 4 * step) for step in range(12)):
        begun, evaluates = 0.02 * step, step % 4 == 3
        for rank in range(2):
            run.step(rank, step, begun, begun + 0.019)
            times = begun + 0.004, begun + 0.018
            if evaluates:
                run.record(rank, Kind.PHASE, step, *times, op=int(Phase.EVALUATION))
            seq = run.rows[-1]["seq"] * evaluates
            for turn in range(4):
                entered = over + 5.5 * turn + 5
                stamps = {"device_enter_ns": entered, "device_exit_ns": entered + 0.5}
                run.collective(
                    rank, step, number + turn, begun + 0.003 + 0.004 * turn, entered + 0.5,
                    flags=Flag.ASYNC | Flag.ON_DEVICE, device=0, parent=seq * (turn > 0),
                    **{name: round((ms + 1000 * (rank + 1)) * MS) for name, ms in stamps.items()},
                )  # fmt: skip
        over += 22.0
    found = step_grid(run.trace()).phase_ns[Phase.EVALUATION][:, 0] / MS
    assert found == pytest.approx([0, 0, 0, 11] * 3, abs=0.1)


def test_what_devices_do_behind_an_evaluation_is_what_its_step_has_more():
    """Hosts issue a step in .02 ms, every fourth with an evaluation without calls and an all-reduce
    of its results, to which devices come 25 ms after the one before and not 5 ms."""
    run, over = Run(2), 10.0
    for step, first in ((step, 3 * step + step // 4) for step in range(12)):
        begun, evaluates = 0.02 * step, step % 4 == 3
        for rank in range(2):
            run.step(rank, step, begun, begun + 0.019)
            if evaluates:
                times = begun + 0.013, begun + 0.015
                run.record(rank, Kind.PHASE, step, *times, op=int(Phase.EVALUATION))
            for turn in range(3 + evaluates):
                entered = over + 5.5 * turn + 5 + 20 * (turn == 3)
                stamps = {"device_enter_ns": entered, "device_exit_ns": entered + 0.5}
                run.collective(
                    rank, step, first + turn, begun + 0.003 + 0.004 * turn, entered + 0.5,
                    flags=Flag.ASYNC | Flag.ON_DEVICE, device=0,
                    **{name: round((ms + 1000 * (rank + 1)) * MS) for name, ms in stamps.items()},
                )  # fmt: skip
        over += 16.5 + 25.5 * evaluates
    found = step_grid(run.trace()).phase_ns[Phase.EVALUATION][:, 0] / MS
    assert found == pytest.approx([0, 0, 0, 25] * 3, abs=0.6)


@pytest.mark.parametrize("alone", [False, True])
def test_what_devices_have_yet_to_do_as_an_evaluation_begins_is_no_part_of_it(alone):
    """Hosts issue a step, 20 ms of a device, as the one before begins there; every fourth then
    evaluates for 2 ms, or rank 0 `alone` does, and its host first waits for both, as the other."""
    run, over, before, evaluated = Run(2), 40.0, 20.0, 0.0
    for step in range(12):
        issued = over + evaluated + 0.5 if evaluated else before
        before, over, evaluates = over, over + evaluated + 20, step % 4 == 3
        for rank in range(2):
            own = not (alone and rank)
            run.step(rank, step, issued - 0.2, issued + 0.2)
            if evaluates:
                run.record(
                    rank, Kind.PHASE, step, issued + 0.1, over + 2 * own, op=int(Phase.EVALUATION)
                )
            stamps = {"device_enter_ns": over - 1 - evaluated * (not own), "device_exit_ns": over}
            run.collective(
                rank, step, step, issued, over, flags=Flag.ASYNC | Flag.ON_DEVICE, device=0,
                **{name: round((ms + 1000 * (rank + 1)) * MS) for name, ms in stamps.items()},
            )  # fmt: skip
        evaluated = 2.0 * evaluates
    found = step_grid(run.trace()).phase_ns[Phase.EVALUATION] / MS
    expected = np.array([0, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0])
    assert found == pytest.approx(np.stack([expected, expected * (not alone)], axis=1), abs=0.1)
