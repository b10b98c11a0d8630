"""Where operations of a table are placed, against the program that ran."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.jobs.pipeline import Pipeline
from evenstep.importers.operations.program import GAP_NS, ORIGIN_NS, place_operations

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
