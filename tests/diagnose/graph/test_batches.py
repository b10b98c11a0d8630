"""Batches of messages on streams of devices: a pipeline by a recursion of its own."""

import numpy as np
import pytest

from evenstep.diagnose.graph.replay import Change, replay, step_lengths
from evenstep.diagnose.measure.grid import step_grid
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.spooled import EVENT_COLUMNS
from evenstep.trace.trace import Group, RankInfo, Trace
from tests.diagnose.synthetic import BOOT_NS, MS, TYPES

STEPS, BATCHES, STAGES = 30, 8, 3
ROUNDS = 12  # of a ring
MESSAGE = {"kind": Kind.POINT_TO_POINT, "bytes_in": 1_000_000, "device": 0}
FLAGS = int(Flag.ON_DEVICE | Flag.ASYNC | Flag.EXIT_UPPER_BOUND)


def recorder(rows):
    """What adds records of a stream to `rows`: `record(rank, number, step, enter, end, …)`, ms."""

    def record(rank, number, step, enter, end, **more):
        own = BOOT_NS + np.array([enter, max(end, enter)]) * MS
        rows.append(
            MESSAGE | {"group_seq": number, "step": step, "flags": FLAGS, "rank": rank}
            | {"enter_ns": own[0] - 0.3 * MS, "exit_ns": own[1] + MS} | more
            | {"device_enter_ns": own[0], "device_exit_ns": own[1]}
        )  # fmt: skip

    return record


def pipeline(transfer_ms):
    """Forward of three stages, 5 ms each; every receive and send is a batch, in one stream a stage.
    A stage waits for what it receives, and for all it sent at the end of the step, which is a
    barrier of .1 ms. Each message from the second stage to the third takes `transfer_ms`, of those
    to the second .2 ms. Records, and how long all steps take."""
    draws = 1 + 0.05 * np.random.default_rng(3).standard_normal((STEPS * BATCHES, STAGES))
    compute, stream, ready = (np.zeros(STAGES) for _ in range(3))
    rows = []
    record = recorder(rows)

    for step in range(STEPS):
        begun = compute.copy()
        for batch in range(step * BATCHES, (step + 1) * BATCHES):
            for stage in range(STAGES):
                if stage:
                    came, took = compute[stage], (0.2, transfer_ms)[stage - 1]
                    end = max(ready[stage - 1], came, stream[stage]) + took
                    message = {"op": Op.RECV, "peer_or_root": stage - 1}
                    record(stage, batch, step, came, end, **message)
                    stream[stage - 1 : stage + 1] = end
                    compute[stage] = max(came, end)
                compute[stage] += 5.0 * draws[batch, stage]
                ready[stage] = max(compute[stage], stream[stage])
                if stage < STAGES - 1:
                    message = {"op": Op.SEND, "peer_or_root": stage + 1}
                    record(stage, batch, step, compute[stage], 0.0, **message)
        last = np.maximum(compute, stream)
        compute[:] = last.max() + 0.1
        for rank in range(STAGES):
            barrier = {"kind": Kind.COLLECTIVE, "op": Op.ALL_REDUCE}
            record(rank, step, step, last[rank], compute[rank], **barrier)
            times = BOOT_NS + np.array([begun[rank], compute[rank]]) * MS
            rows.append({"kind": Kind.STEP, "step": step, "rank": rank, "exit_ns": times[1]})
            rows[-1]["enter_ns"] = times[0]
    return rows, float(compute.max())


def trace_of(rows):
    usual = {"peer_or_root": -1, "device": -1}
    columns = {
        name: np.rint([float(row.get(name, usual.get(name, 0))) for row in rows]).astype(
            TYPES[name]
        )
        for name in EVENT_COLUMNS
    }
    ranks = {
        rank: RankInfo(rank, {"rank": rank, "hostname": f"node{rank}", "boot_id": "boot"}, {})
        for rank in range(STAGES)
    }
    group = Group("pipeline", "pp", tuple(range(STAGES)), "nccl")
    events = Columns(columns).sorted_by("rank", "enter_ns")
    events = events.with_column("seq", np.arange(1, len(rows) + 1, dtype=TYPES["seq"]))
    return Trace({"run_id": "batches"}, STAGES, 0, ranks, events, (group,), ("",))


def test_a_message_held_up_by_the_send_before_it_on_its_stream_is_short_itself():
    """The second stage's slow sends hold up what it receives: they alone are long."""
    graph = step_grid(trace_of(pipeline(6.0)[0])).graph
    slow = np.flatnonzero(graph.operations.message & (graph.operations.root == 1))
    others = np.flatnonzero(graph.operations.message & (graph.operations.root == 0))
    assert np.median(graph.took_ns[slow]) == pytest.approx(6 * MS, rel=0.05)
    assert np.median(graph.took_ns[others]) == pytest.approx(0.2 * MS, rel=0.05)
    quick = Change.of_transfers(slow, np.full(len(slow), 0.6 * MS))
    before, after = step_lengths(graph, replay(graph, [Change.none(), quick])).sum(axis=1)
    truth = (pipeline(6.0)[1] - pipeline(0.6)[1]) * len(graph.steps) / STEPS
    assert (before - after) / MS == pytest.approx(truth, rel=0.03)


def ring():
    """Rounds of attention of .5 ms in a ring: a round's batch sends to the next rank and receives
    from the one before, takes .05 ms from the last entry of each pair, and is waited for when the
    round's work is done: nearly always it is over by then. In one step of three the first rank
    begins 20 ms late. A step ends in a barrier. Records, and the work of ranks (steps, ranks)."""
    draws = np.random.default_rng(5).uniform(0.985, 1.015, (STEPS, STAGES))
    compute, rows = np.zeros(STAGES), []
    record = recorder(rows)
    for step in range(STEPS):
        begun, late = compute.copy(), 20.0 * (step % 3 == 1)
        compute += 2.0 * draws[step] + late * (np.arange(STAGES) == 0)
        for number in range(step * ROUNDS, (step + 1) * ROUNDS):
            met = [max(compute[one], compute[one - 1]) + 0.05 for one in range(STAGES)]
            over = [max(met[one], met[(one + 1) % STAGES]) for one in range(STAGES)]
            done = compute + 0.5 * draws[step]
            for rank in range(STAGES):
                end = over[rank] if over[rank] - done[rank] > 0.02 else compute[rank]
                for op, peer in ((Op.SEND, rank + 1), (Op.RECV, rank - 1)):
                    message = {"op": op, "peer_or_root": peer % STAGES}
                    record(rank, number, step, compute[rank], end, **message)
            compute = np.maximum(done, over)
        for rank in range(STAGES):
            barrier = {"kind": Kind.COLLECTIVE, "op": Op.ALL_REDUCE}
            record(rank, step, step, compute[rank], compute.max() + 0.1, **barrier)
            times = BOOT_NS + np.array([begun[rank], compute.max() + 0.1]) * MS
            rows.append({"kind": Kind.STEP, "step": step, "rank": rank, "exit_ns": times[1]})
            rows[-1]["enter_ns"] = times[0]
        compute[:] = compute.max() + 0.1
    return rows, draws * (2.0 + 0.5 * ROUNDS)


def test_a_batch_that_is_over_before_it_is_waited_for_delays_nobody():
    """Its end is not seen, and that it was waited for at once is not what the others show."""
    rows, work = ring()
    grid = step_grid(trace_of(rows))
    usual = grid.steps % 3 != 1
    assert grid.work_ns[usual] / MS == pytest.approx(work[grid.steps][usual], rel=0.02)


def test_all_to_alls_that_bring_all_as_much_tell_clocks_as_well_as_a_barrier():
    """A minute of steps of .1 s, each with an all-to-all of 3 ms that all enter and leave at once,
    after one barrier in the first. Clocks of devices drift by 3 in a million."""
    rows = []
    record = recorder(rows)
    for step in range(600):
        for rank in range(STAGES):
            begun, clock = 100.0 * step, 1 + 3e-6 * rank
            exchange = {"kind": Kind.COLLECTIVE, "op": Op.ALL_TO_ALL, "bytes_out": 1_000_000}
            record(rank, 1 + step, step, (begun + 95) * clock, (begun + 98) * clock, **exchange)
            if not step:
                barrier = {"kind": Kind.COLLECTIVE, "op": Op.BARRIER}
                record(rank, 0, step, 50 * clock, 50.1 * clock, **barrier)
            times = BOOT_NS + np.array([begun, begun + 100]) * MS
            rows.append({"kind": Kind.STEP, "step": step, "rank": rank, "exit_ns": times[1]})
            rows[-1]["enter_ns"] = times[0]
    graph = step_grid(trace_of(rows)).graph
    entries = graph.rows.select(graph.rows.enter >= 0)
    skew = graph.operations.last_ns[entries.enter] - entries.at_ns
    assert skew.max() <= 1000  # after the barrier alone 360,000 in the last step
