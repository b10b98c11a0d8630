"""The laws of the replay, against jobs run by an interpreter that knows nothing of graphs."""

import os
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.graph.awaited import infer_waits
from evenstep.diagnose.graph.build import graph
from evenstep.diagnose.graph.dependency import _ranks_by_time
from evenstep.diagnose.graph.peers import peers
from evenstep.diagnose.graph.replay import Change, combine, replay, step_lengths
from evenstep.diagnose.graph.streams import with_stream_order
from evenstep.diagnose.graph.structure import row_hash, times
from evenstep.diagnose.lateness.cost import Costs
from evenstep.diagnose.measure.grid import _common_steps, step_grid
from evenstep.trace.clocks.clocks import align, sharpen
from evenstep.trace.columns import Columns
from evenstep.trace.operations import Role
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from tests.diagnose.programs import (
    Do,
    Job,
    data_parallel,
    handed_over,
    pipeline,
    prefetched,
    ring,
    ring_attention,
    sharded,
)
from tests.diagnose.synthetic import BOOT_NS, MS, World

#: Few seeds: every law holds of the same jobs, each run once.
JOBS = st.tuples(
    st.sampled_from([data_parallel, sharded, pipeline]),
    st.booleans(),
    st.sampled_from([0.0, 0.03, 0.1]),
    st.integers(0, 10**6 if os.environ.get("EVENSTEP_FUZZ") else 1),
)


def ran(job, **slow):
    make, device, noise, seed = job
    return make(device=device, noise=noise, seed=seed, steps=16, **slow).run()


@lru_cache(64)
def known(job):
    """A job's run and graph."""
    run = ran(job)
    return run, graph_of(run.trace())


def graph_of(trace):
    steps, ranks = _common_steps(trace)
    return graph(trace, sharpen(trace, align(trace)), steps, ranks)


def lengths(found, *changes):
    return step_lengths(found, replay(found, [Change.none(), *changes])).sum(axis=1)


@pytest.mark.parametrize("make", [data_parallel, sharded, pipeline])
def test_hosts_of_these_jobs_issue_in_order_what_their_devices_come_to_later(make):
    events = make(device=True, noise=0.1, steps=3).run().trace().events
    events = events.select(events.device_enter_ns > 0)
    for rank in range(8):  # whose device's clock began so long before the run, and drifts
        mine = events.select(events["rank"] == rank).sorted_by("device_enter_ns", "enter_ns")
        came = mine.device_enter_ns / (1 + 1e-6 * rank) + BOOT_NS - 10**9 * (1 + rank)
        ahead = came - mine.enter_ns
        assert len(np.unique(mine.step)) == 3
        assert (np.diff(mine.enter_ns) >= 0).all()
        assert ahead.min() >= -2
        assert ahead.max() > 5 * MS  # of steps of 6


@settings(max_examples=20, deadline=None)
@given(JOBS)
def test_a_replay_of_what_happened_gives_what_happened(job):
    run, found = known(job)
    assert lengths(found)[0] == pytest.approx(run.length_ns, rel=0.005)


@settings(max_examples=20, deadline=None)
@given(JOBS, st.integers(0, 7), st.floats(1.1, 1.6))
def test_what_a_slow_rank_costs_is_what_the_run_without_it_saves(job, rank, factor):
    faulty, (well, _) = ran(job, slow={rank: factor}), known(job)
    found = graph_of(faulty.trace())
    mine = np.flatnonzero(found.rows.lane == rank)
    was, now = lengths(found, Change.of_work(mine, found.own_ns[mine] / factor))
    assert was - now == pytest.approx(
        faulty.length_ns - well.length_ns, rel=0.05, abs=0.003 * faulty.length_ns
    )


@settings(max_examples=20, deadline=None)
@given(JOBS, st.integers(0, 7), st.floats(0, 1))
def test_nothing_gains_more_than_the_work_it_removes(job, rank, share):
    _, found = known(job)
    mine = np.flatnonzero(found.rows.lane == rank)
    was, now = lengths(found, Change.of_work(mine, found.own_ns[mine] * share))
    assert -1000 <= was - now <= found.own_ns[mine].sum() * (1 - share) + 1000


@settings(max_examples=6, deadline=None)
@given(JOBS, st.integers(0, 7), st.lists(st.integers(0, 9), min_size=1))
def test_steps_whose_end_nobody_saw_change_neither_length_nor_gain(job, rank, unseen):
    _, found = known(job)
    mine = np.flatnonzero(found.rows.lane == rank)
    change = Change.of_work(mine, found.own_ns[mine] / 2)
    ends = replay(found, [Change.none(), change])
    whole = step_lengths(found, ends)
    ends[:, unseen] = np.nan
    parts = step_lengths(found, ends)
    assert parts.sum(axis=1) == pytest.approx(whole.sum(axis=1))
    assert (parts >= 0).all()


@settings(max_examples=20, deadline=None)
@given(JOBS, st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_more_removed_never_gains_less(job, shares):
    _, found = known(job)
    mine = np.flatnonzero(found.rows.lane % 2 == 0)
    less, more = max(shares), min(shares)
    changes = [Change.of_work(mine, found.own_ns[mine] * share) for share in (less, more)]
    _, first, second = lengths(found, *changes)
    assert second <= first + 1000


@settings(max_examples=20, deadline=None)
@given(JOBS)
def test_what_everybody_does_less_in_the_same_place_adds_up(job):
    _, found = known(job)
    first, second = (np.flatnonzero(found.rows.index == step) for step in (4, 9))
    parts = [Change.of_work(rows, found.own_ns[rows] / 2) for rows in (first, second)]
    was, one, other, both = lengths(found, *parts, combine(found, parts))
    assert was - both == pytest.approx((was - one) + (was - other), rel=0.02)


@settings(max_examples=20, deadline=None)
@given(JOBS, st.floats(1, 3))
def test_everything_slower_takes_that_many_times_as_long(job, factor):
    _, found = known(job)
    rows, moves = np.arange(len(found.rows)), np.arange(len(found.operations))
    slower = Change(rows, found.own_ns * factor, moves, found.took_ns * factor)
    was, now = lengths(found, slower)
    assert now == pytest.approx(was * factor, rel=0.01)


@settings(max_examples=12, deadline=None)
@given(JOBS, st.floats(0.2, 8), st.floats(0.3, 1.5))
def test_later_steps_alone_are_replayed_as_they_are_in_the_whole_run(job, moved, worked):
    run, whole = known(job)
    trace, first = run.trace(), 5
    later = graph(trace, sharpen(trace, align(trace)), whole.steps[first:], whole.ranks)
    found = []
    for one in (whole, later):
        rows = np.flatnonzero((one.rows.step >= whole.steps[first + 2]) & (one.rows.lane == 0))
        moves = np.flatnonzero(one.operations.step >= whole.steps[first + 2])
        change = Change(rows, one.own_ns[rows] * worked, moves, one.took_ns[moves] * moved)
        found.append(step_lengths(one, replay(one, [Change.none(), change])))
    assert found[1].sum(axis=1) == pytest.approx(found[0][:, first:].sum(axis=1), rel=0.005)


def of_steps(rows, found):
    """How long records took, by step of a graph and rank: (steps, lanes), ns."""
    rows = rows.select(np.isin(rows.step, found.steps))
    cell = np.searchsorted(found.steps, rows.step) * len(found.ranks) + rows["rank"]
    shape = len(found.steps), len(found.ranks)
    return np.bincount(cell, rows.exit_ns - rows.enter_ns, shape[0] * shape[1]).reshape(shape)


@pytest.mark.parametrize("slow", [{}, {1: 1.4}])
@pytest.mark.parametrize(
    ("make", "device"),
    [*product([data_parallel, sharded, pipeline, ring], [False, True]), (handed_over, False)],
)
def test_of_each_step_each_rank_has_its_own_work_and_was_blocked_in_the_rest(make, device, slow):
    """To the ns on hosts; on devices, of which the last waits are not on record, as far as clocks
    are placed."""
    noise = 0.0 if device or make is ring else 0.05
    trace = make(device=device, noise=noise, slow=slow, steps=16, fabric_noise=0.0).run().trace()
    found, exact = graph_of(trace), 50_000 if device else 10
    phases, steps = trace.of_kind(Kind.PHASE), trace.of_kind(Kind.STEP)
    work = of_steps(phases.select(phases.op != int(Phase.SYNC)), found)
    seen = times(found)
    assert np.abs(seen.work_ns - work).max() <= exact
    assert np.abs(seen.work_ns + seen.blocked_ns - of_steps(steps, found)).max() <= exact
    if not device:
        steps = steps.select(np.isin(steps.step, found.steps)).sorted_by("step", "rank")
        (ends,) = replay(found, [Change.none()])
        assert np.abs(ends.reshape(-1) - steps.exit_ns).max() <= exact


@pytest.mark.parametrize("make", [data_parallel, sharded, pipeline])
@pytest.mark.parametrize("device", [False, True])
def test_shorter_transfers_gain_what_the_run_with_them_saves(make, device):
    how = {"device": device, "steps": 16, "fabric_noise": 0.0}
    long, short = (make(transfer=lambda *_, ms=ms: ms * MS, **how).run() for ms in (1.5, 0.5))
    found = graph_of(long.trace())
    moves = np.arange(len(found.operations))
    was, now = lengths(found, Change.of_transfers(moves, found.took_ns / 3))
    assert was - now == pytest.approx(long.length_ns - short.length_ns, rel=0.01)


@pytest.mark.parametrize(("steps", "profiled"), [(24, False), (5, True)])
def test_work_is_seen_that_ends_before_a_wait_in_the_middle_of_a_stretch(steps, profiled):
    """Ranks that wait for a slow one show what they do, and the run without it is no shorter than
    their work."""
    how = {"noise": 0.01, "steps": steps, "profiled": profiled}
    faulty, well = (prefetched(slow=slow, **how).run() for slow in ({1: 1.3}, {}))
    found = graph_of(faulty.trace())
    own = times(found).work_ns.mean(axis=0)
    assert np.delete(own, 1) == pytest.approx(75 * MS, rel=0.02)
    mine = np.flatnonzero(found.rows.lane == 1)
    was, now = lengths(found, Change.of_work(mine, found.own_ns[mine] / 1.3))
    gain = (faulty.length_ns - well.length_ns) / steps
    assert (was - now) / len(found.steps) == pytest.approx(gain, rel=0.05)


def gathered_ahead(layers=5):
    """Each layer's parameters gathered while the layer before computes; gathers take longer, so
    that no forward but the last layer's shows how long it takes. Scatters share their queue."""
    gather = Do("enter", group=0, op=Op.ALL_GATHER, size=10_000_000)
    scatter = Do("enter", group=0, op=Op.REDUCE_SCATTER, size=10_000_000)
    made = [gather]
    for _ in range(layers - 1):
        made += [Do("next"), gather, Do("work", 6 * MS)]
    made += [Do("next"), Do("work", 6 * MS)]
    for layer in range(layers - 1):
        made += [gather, Do("work", 12 * MS, Phase.BACKWARD), scatter]
        made += [Do("next")] * (1 + (layer > 0))  # for the gather, and the scatter before it
    made += [Do("work", 12 * MS, Phase.BACKWARD), scatter, Do("wait")]
    made += [Do("work", 3 * MS, Phase.OPTIMIZER)]
    return replace(
        prefetched(noise=0.01, issue_ns=lambda *_: 1 * MS),
        program=lambda rank: made, transfer=lambda do, step: 9 * MS,
    )  # fmt: skip


def test_work_that_gathers_always_hide_is_as_long_as_where_it_shows():
    job = gathered_ahead()
    run, without = job.run(), replace(job, transfer=lambda *_: 0.0).run()
    (finding,) = diagnose(run.trace()).findings
    assert finding.mode == "bandwidth_bound"
    truth = 1 - without.length_ns / run.length_ns
    one_layer = 6 * MS * job.steps / run.length_ns  # of five: it hides where the last one shows
    assert finding.severity == pytest.approx(truth + one_layer, abs=0.01)


def test_in_a_ring_of_messages_the_slow_rank_is_named_and_not_those_it_holds_up():
    faulty, well = (ring(noise=0.02, slow=slow).run() for slow in ({4: 1.5}, {}))
    finding = diagnose(faulty.trace()).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [4])
    assert finding.severity == pytest.approx(1 - well.length_ns / faulty.length_ns, rel=0.05)


def test_messages_hidden_behind_compute_do_not_hide_a_slow_rank():
    faulty, well = (ring_attention(noise=0.02, slow=slow).run() for slow in ({4: 1.3}, {}))
    finding = diagnose(faulty.trace()).findings[0]
    assert (finding.mode, finding.where.ranks) == ("straggler", [4])
    assert finding.severity == pytest.approx(1 - well.length_ns / faulty.length_ns, rel=0.05)


def test_messages_that_nobody_was_blocked_for_take_as_long_as_others():
    table = graph_of(ring_attention(noise=0.02, slow={4: 1.3}).run().trace()).operations
    took = table.took_ns[table.message]  # most are over 7.5 ms before anybody waits for them
    assert np.quantile(took, [0.1, 0.9]) == pytest.approx(0.5 * MS, rel=0.05)


def test_lanes_that_wait_for_the_same_in_another_order_keep_their_work_each():
    rows = {"lane": [0, 0, 0, 1, 1, 1], "wait": [0, 1, -1, 1, 0, -1], "enter": [-1] * 6}
    rows |= {"ends": np.array([0, 0, 1] * 2, bool), "segment": [0] * 6, "index": [0] * 6}
    rows |= {"at_ns": [0] * 6}
    table = {
        "op": [1, 4],
        "group": [-1, -1],
        "members": [2, 2],
        "root": [-1, -1],
        "message": np.zeros(2, bool),
        "step": [0, 0],
        "last_ns": [0, 0],
        "over_ns": [0, 0],
    }
    batch = SimpleNamespace(links=SimpleNamespace(previous=np.zeros(6)), first_row=[0])
    found = SimpleNamespace(
        ranks=np.arange(2), steps=np.arange(1), batches=[batch], batch_of=np.zeros(1, int),
        rows=Columns({name: np.array(of) for name, of in rows.items()}),
        operations=Columns({name: np.array(of) for name, of in table.items()}),
    )  # fmt: skip
    own = np.array([5.0, 0.0, 1.0, 7.0, 2.0, 1.0])
    (both,) = peers(found)
    again = own.copy()
    both.assign(again, both.by_place(own))
    assert again.tolist() == own.tolist()


def test_who_waits_for_what_it_sends_is_held_up_by_a_late_receiver():
    faulty, well = (handed_over(noise=0.03, slow=slow).run() for slow in ({0: 1.5}, {}))
    found = graph_of(faulty.trace())
    mine = np.flatnonzero(found.rows.lane == 0)
    was, now = lengths(found, Change.of_work(mine, found.own_ns[mine] / 1.5))
    assert was - now == pytest.approx(faulty.length_ns - well.length_ns, rel=0.05)


def test_clocks_of_hosts_and_late_callbacks_change_nothing():
    world = World(ranks=16, ranks_per_node=4, noise=0.05, exit_lag_ns=MS / 5)
    world = replace(world, clocks={1: (1e9, 1e-6), 2: (-3e9, 4e-6)})
    assert lengths(graph_of(world.trace()))[0] == pytest.approx(world.length_ns(), rel=0.005)


def test_steps_of_two_kinds_are_laid_out_once_each():
    found = graph_of(data_parallel(steps=20).run().trace())
    assert len(found.batches) <= 2
    assert sum(len(batch.first_row) for batch in found.batches) == len(found.steps)


def test_an_end_stamped_late_by_another_thread_hides_no_wait():
    trace = data_parallel(noise=0.03, slow={2: 1.3}).run().trace()
    events = trace.events
    behind = (events.flags & int(Flag.ASYNC)) != 0
    late_ns = np.random.default_rng(0).exponential(MS, len(events)).astype(np.int64) * behind
    late = replace(trace, events=events.with_column("exit_ns", events.exit_ns + late_ns))
    was = times(graph_of(trace)).wait_ns.sum(axis=0)
    assert times(graph_of(late)).wait_ns.sum(axis=0) == pytest.approx(was, rel=0.02, abs=MS)


def test_a_neighbour_that_waits_for_a_slow_stage_does_not_seem_to_work():
    """Stages take turns in orders of their own, and wait at the end for what they sent last."""
    found = step_grid(pipeline(replicas=1, noise=0.02, slow={1: 1.4}, steps=20).run().trace())
    work = np.median(found.work_ns, axis=0)
    assert work[[0, 2, 3]] == pytest.approx(np.full(3, work[0]), rel=0.03)
    assert work[1] == pytest.approx(1.38 * work[0], rel=0.05)


def test_work_is_evened_over_all_steps_though_who_need_not_wait_leaves_no_record():
    """The last of each step does not wait: steps of another last one are of another structure."""
    job = data_parallel(noise=0.2, seed=4, steps=40, transfer=lambda do, step: 1000.0)
    run, trace = job.run(), job.run().trace()
    events = trace.events
    waits = (events.kind == int(Kind.PHASE)) & (events.op == int(Phase.SYNC))
    short = waits & (events.exit_ns - events.enter_ns < 100_000)
    found = graph_of(replace(trace, events=events.select(~short)))
    assert len(found.batches) > 4
    was, now = lengths(found, Costs(found).even())
    gain = run.length_ns - replace(job, noise=0.0).run().length_ns
    assert was - now == pytest.approx(gain, rel=0.1)


def of_pairs(count, op):
    """So many operations of two members."""
    nothing = np.zeros(count, np.int64)
    return Columns(
        {"op": nothing + int(op), "members": nothing + 2, "message": nothing > 0,
         "root": nothing, "size_bytes": nothing}
    )  # fmt: skip


def test_what_a_device_computed_tells_what_it_waited_for():
    """Both lanes take 18 ms a step: one computes all the while, one waits 6 ms before it does."""
    steps, lanes = np.arange(12).repeat(2), np.tile([0, 1], 12)
    order = np.argsort(lanes, kind="stable")
    steps, lanes = steps[order], lanes[order]
    enter = steps * 18 * MS
    rows = Columns(
        {
            "lane": lanes, "step": steps, "enter_ns": enter, "operation": np.arange(24),
            "leave_ns": enter + np.where(lanes == 0, 6 * MS, MS // 2), "sends": lanes >= 0,
            "on_device": lanes >= 0, "computed_ns": steps * np.where(lanes == 0, 12.0, 17.5) * MS,
            "idled_ns": np.zeros(24), "freed_ns": np.zeros(24), "kernel": np.arange(24),
        }
    )  # fmt: skip
    found = infer_waits(rows, of_pairs(24, Op.SEND), rows.leave_ns)
    assert (found.ahead == 1).all()
    assert not found.worked.any()


def test_who_waits_on_a_real_device_for_a_late_loader_does_not_pass_for_a_slow_one():
    """Two ranks of DDP on an H200, whose compute waits for NCCL's kernels. The second loads for
    20 ms; the first has the same work in backward, which begins when the first reduction is over.
    """
    path = Path(__file__).with_name("h200-late-loader.csv")
    table = np.loadtxt(path, int, delimiter=",", skiprows=1)
    lane, step, operation, enter, leave, slack = table.T
    rows = Columns(
        {
            "lane": lane, "step": step, "operation": operation, "on_device": lane >= 0,
            "sends": lane >= 0, "enter_ns": enter * 1000, "leave_ns": leave * 1000,
            "slack_ns": slack * 1000, "computed_ns": np.full(len(lane), np.nan),
            "kernel": np.arange(len(lane)),
            **{name: np.zeros(len(lane)) for name in ("idled_ns", "freed_ns")},
        }
    )  # fmt: skip
    found = infer_waits(rows, of_pairs(operation.max() + 1, Op.ALL_REDUCE), rows.leave_ns)
    first = operation % 2 == 0
    assert (found.ahead[first] == 1).mean() > 0.9
    assert not found.worked[first].any()


def test_a_device_that_was_idle_until_an_operation_was_over_waited_for_it():
    """Steps of 20 ms: 3 of compute, idle until a message is over at 8, 4 more, and another one."""
    lane, step, second = (each.ravel() for each in np.indices((2, 12, 2)))
    done = 7 * MS * step
    rows = Columns(
        {
            "lane": lane, "step": step, "enter_ns": 20 * MS * step + 12 * MS * second,
            "operation": 2 * step + second, "on_device": lane >= 0, "sends": lane >= 0,
            "leave_ns": 20 * MS * step + np.where(second, 13, 8) * MS,
            "computed_ns": (done + 7 * MS * second).astype(float),
            "idled_ns": np.where(second, 0.0, 5 * MS), "kernel": np.arange(48),
            "freed_ns": np.where(second, 0.0, done + 3 * MS),
        }
    )  # fmt: skip
    found = infer_waits(rows, of_pairs(24, Op.SEND), rows.leave_ns)
    first = second == 0
    assert (found.ahead[first] == 1).all()
    assert found.worked[first].all()
    assert (found.since_ns - 20 * MS * step)[first].tolist() == [3 * MS] * 24


def test_what_does_not_mark_its_place_comes_after_what_began_before_it():
    role, worker, start = zip(
        (Role.GC, 0, 1.0), (Role.GRADS, 0, 3.0), (Role.OPTIMIZER, 1, 2.0),
        (Role.MEETING, 0, 0.5), (Role.MEETING, 0, 1.0), (Role.MEETING, 0, 2.5),
        (Role.MEETING, 0, 3.5), (Role.MEETING, 1, 1.5), (Role.MEETING, 1, 2.5), strict=True,
    )  # fmt: skip
    ops = Columns(
        {"role": np.array(role), "worker": np.array(worker), "start_s": np.array(start),
         "end_s": np.array(start) + 0.1}
    )  # fmt: skip
    late = ops.role == Role.MEETING
    none = Role.GC - 0.5  # before all whose place is known
    places = [none, Role.GC + 0.5, Role.GC + 0.5, Role.GRADS + 0.5, none, Role.OPTIMIZER + 0.5]
    assert _ranks_by_time(ops, late, ~late).tolist() == places
    assert _ranks_by_time(ops, late, late & ~late).tolist() == [none] * 6


def test_a_reduction_between_replicas_waits_for_the_one_that_scatters():
    """Its stream begins it as that one ends, after compute has come to what was issued later."""
    turn, lane = np.tile(np.arange(6), 2), np.arange(2).repeat(6)
    scatter, reduce = (turn % 3 == one for one in range(2))
    came = turn // 3 * 20 * MS
    left = came + np.select([scatter, reduce], [5 * MS, 7 * MS], 15 * MS)
    rows = Columns(
        {
            "operation": np.arange(12), "lane": lane, "seq": turn, "step": turn // 3,
            "on_device": turn >= 0, "held_ns": np.zeros(12, np.int64), "leave_ns": left,
            "enter_ns": np.select([scatter, reduce], [came, came + 5 * MS], came + MS),
            "stream": np.zeros(12, np.int64), "sends": turn < 0,
            "calls": turn < 0,
        }
    )  # fmt: skip
    operations = Columns(
        {
            "op": np.select([scatter, reduce], [5, 1], 4), "size_bytes": np.ones(12, np.int64),
            "members": np.full(12, 2), "message": turn < 0, "queue": reduce.astype(np.int64),
        }
    )  # fmt: skip
    found = with_stream_order(rows, operations)
    assert found.after.tolist() == np.where(reduce, np.arange(12) - 1, -1).tolist()
    assert (found.enter_ns[reduce] == came[reduce]).all()


def test_a_sum_of_hashes_tells_whether_the_first_lane_is_in_a_set():
    lanes = row_hash([np.arange(4)])
    assert len({int(lanes[:4].sum()), int(lanes[1:4].sum()), 0, int(lanes[0])}) == 4


def test_a_wait_inside_a_span_is_a_wait_for_what_it_would_be_outside():
    trace = World(ranks=4, steps=20).slow(1, Phase.BACKWARD, 30 * MS).trace()
    plain = diagnose(trace).findings[0]
    inside = trace.events.parent.copy()
    inside[trace.events.kind == int(Kind.PHASE)] = 2**31  # the span's own number
    found = diagnose(replace(trace, events=trace.events.with_column("parent", inside))).findings[0]
    assert (found.mode, found.where.ranks, found.severity) == (
        plain.mode, plain.where.ranks, plain.severity,
    )  # fmt: skip


def test_a_step_without_rows_after_the_last_segment_costs_nothing():
    """Three steps in two segments, the last step without any row."""
    rows = Columns(
        {
            "index": np.array([0, 1]), "lane": np.array([0, 0]),
            "segment": np.array([0, 0]), "own_ns": np.array([5, 7]),
        }
    )  # fmt: skip
    costs = Costs(SimpleNamespace(rows=rows, batch_of=np.zeros(2, np.int64)))
    found = costs._by_segment(np.array([[5.0], [7.0], [0.0]]))
    assert found.tolist() == [[12.0], [0.0]]


def test_what_a_thread_waits_for_after_a_call_takes_all_of_its_time():
    """60 ms of it lie in the way of 26 ms of work in three of eight steps, else 20 ms."""
    layer = [Do("work", 12 * MS), Do("call", group=1, size=1000)]
    after = [*layer * 2, Do("wait"), Do("work", 3 * MS)]
    program = [*layer * 4, Do("enter", group=0), *after]

    def transfer(do, step):
        return (1 if do.group else 60 if step % 8 < 3 else 20) * MS

    groups = [("dp", (0, 1)), ("tp", (0, 1))]
    job = Job(
        ranks=2, groups=groups, program=lambda _: program, transfer=transfer, fabric_noise=0.0
    )
    trace = replace(job, noise=0.01).run().trace()
    calls = trace.events.select(trace.events.kind != int(Kind.PHASE))
    found = graph_of(replace(trace, events=calls)).operations
    took_ns = found.took_ns[found.group == 0]
    assert took_ns == pytest.approx(np.where(np.arange(40) % 8 < 3, 60, 20) * MS, rel=0.001)
