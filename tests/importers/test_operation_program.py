"""Where operations of a table are placed, against the program that ran."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.jobs.pipeline import NAMES, Pipeline
from evenstep.importers.operations.program import (
    GAP_NS,
    ORIGIN_NS,
    PLACES,
    WAITS,
    place_operations,
    program,
)
from evenstep.trace.operation_messages import messages
from evenstep.trace.operations import MESSAGES, RECVS, Role

PIPELINES = st.builds(
    Pipeline, dp=st.integers(1, 2), pp=st.integers(1, 3), micro=st.integers(1, 3),
    steps=st.integers(1, 3), following=st.booleans(), seed=st.integers(0, 10**6),
)  # fmt: skip


@settings(max_examples=30)
@given(PIPELINES, st.randoms(use_true_random=False))
def test_operations_lie_on_one_line_as_far_apart_as_they_were(pipeline, random):
    table = pipeline.table()
    order = list(range(len(table)))
    random.shuffle(order)
    ops, apart = place_operations(table.select(np.array(order)))
    assert len(ops) == len(table)
    took_ns = ops.exit_ns - ops.enter_ns
    assert np.abs(took_ns - ops.duration_s * 1e9).max() <= 1
    key = list(zip(ops["rank"], ops.step, ops.enter_ns, strict=True))
    assert key == sorted(key)
    cells = sorted({cell[:2] for cell in key})
    assert ops.worker.tolist() == [cells.index(cell[:2]) for cell in key]
    assert set(ops.lane.tolist()) == {0}
    times = np.stack([ops.enter_ns, ops.exit_ns]) - ORIGIN_NS
    assert np.abs(np.stack([ops.start_s, ops.end_s]) * 1e9 - times).max() < 1
    ends = np.cumsum(pipeline.lengths(pipeline.durations())) * 1e9
    for step in range(pipeline.steps):
        rows = ops.select(ops.step == step)
        gaps = 0 if pipeline.following else step * GAP_NS
        last = ORIGIN_NS + ends[step] + gaps
        assert abs(int(rows.exit_ns.max()) - last) <= 2 * pipeline.steps
        if apart:
            assert set(rows.begin_ns.tolist()) == {int(rows.enter_ns.min())}
            assert set(rows.end_ns.tolist()) == {int(rows.exit_ns.max())}
    if not apart:  # a worker begins a step when it has ended the one before
        for rank in range(pipeline.dp * pipeline.pp):
            mine = ops.select(ops["rank"] == rank)
            for step in range(1, pipeline.steps):
                before = mine.exit_ns[mine.step == step - 1].max()
                assert set(mine.begin_ns[mine.step == step].tolist()) == {int(before)}


def rows_of(ops):
    """The row of each operation of a step, as the program names it."""
    places = zip(ops.step, ops.optype, ops.dp_rank, ops.stage, ops.seq_id, strict=True)
    return {(int(step), (NAMES[kind], *map(int, rest))): row
            for row, (step, kind, *rest) in enumerate(places)}  # fmt: skip


def thread_of(ops, worker, *, overlapping):
    """The rows of a worker's operations in a step that are not beside its thread."""
    beside = [*MESSAGES, Role.PARAMS, *[Role.GRADS] * overlapping]
    return np.flatnonzero((ops.worker == worker) & ~np.isin(ops.role, beside)).tolist()


@settings(max_examples=40)
@given(PIPELINES, st.booleans())
def test_a_thread_waits_for_what_its_computes_need_and_for_nothing_else(pipeline, overlapping):
    """By the program that ran: between two operations a thread does nothing but wait for messages,
    parameters and gradients that the later one follows, until the last of them has arrived."""
    pipeline.overlapping = overlapping
    after, _, _ = pipeline.program()
    ops, _ = place_operations(pipeline.table())
    made, waits = program(ops, messages(ops))
    row_of = rows_of(ops)
    op_of = {row: op for op, row in row_of.items()}
    order = PLACES * np.arange(len(ops))
    for worker in range(int(ops.worker.max()) + 1):
        rows = thread_of(ops, worker, overlapping=overlapping)
        for before, row in pairwise(rows):
            step, op = op_of[row]
            needed = {row_of[step, each] for each in after[op]} - set(rows)
            mine = np.flatnonzero(waits.order == order[row] + WAITS)
            mine = mine[np.argsort(waits.enter_ns[mine], kind="stable")]
            assert set(waits.awaited[mine].tolist()) <= needed
            free, begin = made.exit_ns[before], made.enter_ns[row]
            if not needed:
                assert abs(begin - free) <= 3
                continue
            edges = [free, *waits.exit_ns[mine].tolist()]
            assert waits.enter_ns[mine].tolist() == edges[:-1]
            assert abs(edges[-1] - begin) <= 3


@settings(max_examples=40)
@given(PIPELINES, st.booleans())
def test_what_runs_beside_a_thread_is_issued_when_its_data_are_there(pipeline, overlapping):
    """A send with the end of the compute that makes its data, a reduction with that of the last
    backward, however long they queue; a gather with the step; a receive between the compute that
    it is posted after and when it began."""
    pipeline.overlapping = overlapping
    after, _, _ = pipeline.program()
    ops, _ = place_operations(pipeline.table())
    made, _ = program(ops, messages(ops))
    row_of = rows_of(ops)
    for (step, op), row in row_of.items():
        before = [row_of[step, each] for each in after[op] if "compute" in each[0]]
        issued, ended = made.enter_ns[row], max(ops.exit_ns[before], default=0)
        if ops.role[row] in RECVS:
            assert ended - 2 <= issued <= ops.enter_ns[row] + 2
        elif "send" in op[0] or (overlapping and ops.role[row] == Role.GRADS):
            assert issued == ended
        elif ops.role[row] == Role.PARAMS:
            assert issued == ops.enter_ns[ops.worker == ops.worker[row]].min()
        assert made.exit_ns[row] == max(ops.exit_ns[row], issued)


@settings(max_examples=40)
@given(PIPELINES, st.booleans())
def test_the_order_at_one_moment_is_that_of_time_at_any_other(pipeline, overlapping):
    pipeline.overlapping = overlapping
    ops, _ = place_operations(pipeline.table())
    made, _ = program(ops, messages(ops))
    for worker in range(int(ops.worker.max()) + 1):
        mine = np.flatnonzero(made.worker == worker)
        thread = thread_of(ops, worker, overlapping=overlapping)
        in_order = mine[np.argsort(made.order[mine], kind="stable")]
        assert np.diff(made.enter_ns[in_order]).min(initial=0) >= -3
        assert [row for row in in_order if row in thread] == thread
