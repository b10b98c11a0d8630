"""Which compute a message of an operation table belongs to, and which two are one: against programs
that say so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.jobs.pipeline import Pipeline
from evenstep.trace.columns import Columns
from evenstep.trace.operation_messages import STAMPS_S, lanes, messages
from evenstep.trace.operations import (
    Role,
    extent,
    gathered_ahead,
    join,
    on_one_line,
    reduces_behind,
)

WAYS = ("forward", "backward")
PIPELINES = st.builds(
    Pipeline, dp=st.integers(1, 2), pp=st.integers(2, 4), micro=st.integers(2, 4),
    steps=st.integers(1, 2), seed=st.integers(0, 10**6),
) | st.builds(
    Pipeline, dp=st.just(1), pp=st.just(2), micro=st.sampled_from([2, 4]), vpp=st.just(2),
    seed=st.integers(0, 10**6),
)  # fmt: skip


def told(pipeline):
    """Rows of a run: direction, type, step, dp, stage, start, end, number in its type, the virtual
    stage that makes or needs it, micro-batch, and towards which virtual stage it goes, if any."""
    _, together, where = pipeline.program()
    rows = []
    for (step, op), (start, end) in pipeline.run(pipeline.durations()).items():
        name, dp, stage, number = op
        kind = name.removesuffix("-compute")
        if kind in WAYS:
            _, gmc, mb = where[op]
            rows.append((kind, name, step, dp, stage, start, end, number, gmc, mb, None))
        elif name.endswith(("-send", "-recv")):
            _, direction, _, to, mb = together[op]
            ahead = 1 if direction == "forward" else -1
            own = to if name.endswith("recv") else to - ahead
            rows.append((direction, name, step, dp, stage, start, end, number, own, mb, to))
    return rows


def nowhere(rows, last, ends):
    """The same with messages at the model's ends that have no other: `ends` says which kinds."""
    found = list(rows)
    for kind, name, step, dp, stage, start, end, number, gmc, mb, _ in rows:
        if name.endswith("compute"):
            first = gmc == (0 if kind == "forward" else last)
            final = gmc == (last if kind == "forward" else 0)
            if first and f"{kind}-recv" in ends:
                row = f"{kind}-recv", step, dp, stage, start - 2e-3, start - 1e-3, number, gmc, mb
                found.append((kind, *row, None))
            if final and f"{kind}-send" in ends:
                row = f"{kind}-send", step, dp, stage, end + 1e-3, end + 2e-3, number, gmc, mb
                found.append((kind, *row, None))
    return found


def without_one(rows):
    """The same without each worker's first receive and last send at the model's ends."""
    at_ends = {}
    for row in rows:
        if not row[1].endswith("compute") and row[-1] is None:
            at_ends.setdefault((row[1], *row[2:5]), []).append(row)
    gone = [
        sorted(some, key=lambda row: row[5])[0 if key[0].endswith("recv") else -1]
        for key, some in at_ends.items()
    ]
    return [row for row in rows if row not in gone]


def table(rows, order):
    """Operations as the functions want them, in this order."""
    rows = [rows[at] for at in order]
    _, name, step, dp, stage, start, end, _, gmc, mb, _ = map(np.array, zip(*rows, strict=True))
    role = np.array([Role[one.replace("-compute", "").replace("-", "_").upper()] for one in name])
    compute = np.array([one.endswith("compute") for one in name])
    width = stage.max() + 1
    return Columns({
        "role": role, "dp_rank": dp, "stage": stage, "turn": step, "lane": 0 * step,
        "worker": (step * (dp.max() + 1) + dp) * width + stage, "start_s": start, "end_s": end,
        "seq_id": 0 * step, "gmc": np.where(compute, gmc, -1), "mb_id": np.where(compute, mb, -1),
    })  # fmt: skip


def posted(ops, compute, name):
    """What a message is asked for after: what makes it, or its worker's compute before its own."""
    if name.endswith("send"):
        return compute
    alike = (ops.role == ops.role[compute]) & (ops.worker == ops.worker[compute])
    before = np.flatnonzero(alike & (ops.start_s < ops.start_s[compute]))
    return before[np.argmax(ops.start_s[before])] if len(before) else -1


@settings(max_examples=40)
@given(
    PIPELINES,
    st.sets(st.sampled_from([f"{way}-{end}" for way in WAYS for end in ("send", "recv")])),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_every_message_is_of_the_compute_and_the_other_end_that_its_program_says(
    pipeline, ends, whole, random
):
    rows = nowhere(told(pipeline), pipeline.pp * pipeline.vpp - 1, ends)
    rows = rows if whole else without_one(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    ops = table(rows, order)
    found = messages(ops)
    rows = [rows[at] for at in order]
    computes = {
        (kind, step, dp, gmc, mb): at
        for at, (kind, name, step, dp, _, _, _, _, gmc, mb, _) in enumerate(rows)
        if name.endswith("compute")
    }
    partner = {}
    for at, (kind, name, step, dp, _, _, _, _, gmc, mb, to) in enumerate(rows):
        if name.endswith("compute"):
            assert (found.compute[at], found.after[at], found.pair[at]) == (-1, -1, -1)
            continue
        assert found.compute[at] == computes[kind, step, dp, gmc, mb]
        assert found.after[at] == posted(ops, found.compute[at], name)
        if to is None:
            assert found.pair[at] == -1
        else:
            partner.setdefault((kind, step, dp, to, mb), set()).add(int(found.pair[at]))
    assert all(len(numbers) == 1 for numbers in partner.values())
    assert len({*found.pair.tolist()} - {-1}) == len(partner)
    assert (found.unpaired, found.doubtful) == (0, False)


# -- by hand: two stages, two micro-batches -------------------------------------------------------

BY_HAND = [  # stage, what, begin, end, micro-batch
    (0, "forward-compute", 0.0, 1.0, 0), (0, "forward-send", 1.0, 1.1, 0),
    (0, "forward-compute", 1.0, 2.0, 1), (0, "forward-send", 2.0, 2.1, 1),
    (1, "forward-recv", 0.0, 1.1, 0), (1, "forward-compute", 1.2, 2.0, 0),
    (1, "forward-recv", 1.2, 2.1, 1), (1, "forward-compute", 2.2, 3.0, 1),
    (1, "backward-compute", 3.0, 4.0, 0), (1, "backward-send", 4.0, 4.1, 0),
    (1, "backward-compute", 4.0, 5.0, 1), (1, "backward-send", 5.0, 5.1, 1),
    (0, "backward-recv", 2.2, 4.1, 0), (0, "backward-compute", 4.2, 4.9, 0),
    (0, "backward-recv", 4.2, 5.1, 1), (0, "backward-compute", 5.2, 6.0, 1),
]  # fmt: skip
MESSAGES = [at for at, row in enumerate(BY_HAND) if "compute" not in row[1]]


def by_hand(rows):
    whole = [("", name, 0, 0, *row, 0, stage, mb, 0)
             for stage, name, *rest, mb in rows for row in [(stage, *rest)]]  # fmt: skip
    return table(whole, range(len(rows)))


def belongs(rows):
    """Of each message (what, stage, micro-batch) the micro-batch of its compute, None without."""
    found = messages(by_hand(rows)).compute
    return {(name, stage, mb): rows[at][-1] if at >= 0 else None
            for (stage, name, *_, mb), at in zip(rows, found.tolist(), strict=True)
            if "compute" not in name}  # fmt: skip


@pytest.mark.parametrize("left_out", MESSAGES)
def test_without_one_of_its_messages_the_others_are_still_of_their_computes(left_out):
    rows = [row for at, row in enumerate(BY_HAND) if at != left_out]
    assert all(own == mb for (_, _, own), mb in belongs(rows).items())
    found = messages(by_hand(rows))
    assert (found.unpaired, found.doubtful) == (1, True)
    assert np.count_nonzero(found.pair >= 0) == 2 * 3


@pytest.mark.parametrize(("compute", "message"), [(0, 1), (7, 6), (8, 9), (15, 14)])
def test_without_its_compute_a_message_at_either_end_of_the_step_is_of_none(compute, message):
    rows = [row for at, row in enumerate(BY_HAND) if at != compute]
    found = belongs(rows)
    stage, name, *_, mb = BY_HAND[message]
    assert found.pop((name, stage, mb)) is None
    assert all(own == mb for (_, _, own), mb in found.items())
    assert messages(by_hand(rows)).doubtful


@pytest.mark.parametrize(
    "outside", [(1, "forward-recv", 2.6, 2.7, 2), (0, "forward-send", 0.1, 0.2, 2)]
)
def test_a_message_beside_all_that_its_worker_computed_is_of_none(outside):
    """Received after the last compute began, or sent before the first ended: the rest agree in
    number, and none of them is guessed."""
    found = belongs([*BY_HAND, outside])
    stage, name, *_, mb = outside
    assert found.pop((name, stage, mb)) is None
    assert all(own == mb for (_, _, own), mb in found.items())
    assert not messages(by_hand([*BY_HAND, outside])).doubtful


@pytest.mark.parametrize("off_s", [-6e-5, -4e-5, 0.0, 4e-5, 6e-5])
@pytest.mark.parametrize("received", [True, False])
def test_a_message_may_be_stamped_within_a_compute_by_as_much_as_stamps_err(received, off_s):
    """One that may belong to the last compute, or to the first, makes the count doubtful."""
    late = (1, "forward-recv", 2.2 + off_s, 2.7, 2)
    early = (0, "forward-send", 0.1, 1.0 - off_s, 2)
    found = messages(by_hand([*BY_HAND, late if received else early]))
    assert found.doubtful == (off_s <= STAMPS_S)
    for compute in (found.compute, found.after):  # -1: none
        assert compute.min() == -1


def test_without_micro_batches_messages_arrive_in_the_order_they_were_sent():
    ops = by_hand(BY_HAND)
    found = messages(ops.with_column("mb_id", np.full(len(ops), -1)))
    pairs = [found.pair[[1, 3, 9, 11]].tolist(), found.pair[[4, 6, 12, 14]].tolist()]
    assert pairs[0] == pairs[1]
    assert (len(set(pairs[0])), found.unpaired, found.doubtful) == (4, 0, False)


@pytest.mark.parametrize(("early_s", "unpaired"), [(0.009, 0), (0.011, 2)])
def test_what_is_received_before_it_is_sent_by_more_than_clocks_err_is_another(early_s, unpaired):
    rows = [*BY_HAND]
    rows[4] = (1, "forward-recv", 0.0, 1.0 - early_s, 0)
    assert messages(by_hand(rows)).unpaired == unpaired


@pytest.mark.parametrize(("left_out", "unpaired"), [(None, 0), (11, 3)])
def test_what_is_received_after_it_was_sent_is_another_only_where_operations_are_missing(
    left_out, unpaired
):
    """A send may end before its receive begins; of a table with holes that is a wrong pair."""
    rows = [*BY_HAND]
    rows[1] = (0, "forward-send", 1.0, 1.05, 0)
    rows[4] = (1, "forward-recv", 1.07, 1.1, 0)
    found = messages(by_hand([row for at, row in enumerate(rows) if at != left_out]))
    assert (found.unpaired, found.doubtful) == (unpaired, left_out is not None)


@pytest.mark.parametrize(("late_s", "doubtful"), [(0.009, False), (0.011, True)])
def test_a_compute_that_begins_before_what_it_needs_has_come_makes_the_count_doubtful(
    late_s, doubtful
):
    rows = [*BY_HAND]
    rows[4] = (1, "forward-recv", 0.0, 1.2 + late_s, 0)
    assert messages(by_hand(rows)).doubtful == doubtful


# -- what the whole table tells --------------------------------------------------------------------


def operations(*rows):
    """Rows of (worker, role, start, end), each worker a rank of one step."""
    worker, role, start, end = map(np.array, zip(*rows, strict=True))
    return Columns({
        "worker": worker, "rank": worker, "role": role, "start_s": start, "end_s": end,
        "duration_s": end - start, "step": 0 * worker, "mc": 0 * worker,
    })  # fmt: skip


def test_workers_of_one_stage_and_data_parallel_rank_are_numbered():
    ops = Columns({"stage": np.array([0, 0, 1, 0, 1]), "dp_rank": np.array([0, 0, 0, 1, 0])})
    assert lanes(ops, np.arange(5)).tolist() == [0, 1, 0, 0, 1]
    assert lanes(ops.select(np.array([4, 4, 3])), np.array([1, 1, 0])).tolist() == [0, 0, 0]


def test_a_step_is_as_long_as_from_its_first_start_to_its_last_end():
    ops = operations((0, 1, 3.0, 4.0), (0, 1, 1.0, 6.0), (1, 1, 2.0, 3.0), (1, 1, 7.0, 9.0))
    turn, begin, end = extent(ops.with_column("step", np.array([8, 5, 5, 8])))
    assert (turn.tolist(), begin.tolist(), end.tolist()) == ([1, 0, 0, 1], [1.0, 3.0], [6.0, 9.0])


@pytest.mark.parametrize(("second", "line"), [((1, 2), True), ((0, 1), False), ((0.5, 2), False)])
def test_steps_lie_on_one_line_where_no_worker_computes_in_two_at_once(second, line):
    rows = [(0, Role.FORWARD, 0.0, 1.0), (0, Role.FORWARD, *second), (0, Role.GC, 0.0, 9.0)]
    assert on_one_line(operations(*rows).with_column("step", np.array([0, 1, 0]))) is line


def test_parameters_gathered_after_all_else_are_for_the_step_that_follows():
    ops = operations(
        (0, Role.PARAMS, 0.0, 1.0), (0, Role.BACKWARD, 1.0, 2.0), (0, Role.OPTIMIZER, 2.0, 3.0),
        (0, Role.PARAMS, 3.0, 4.0), (0, Role.FORWARD_SEND, 5.0, 6.0), (1, Role.PARAMS, 0.0, 1.0),
    )  # fmt: skip
    assert gathered_ahead(ops).tolist() == [False, False, False, True, False, False]


@pytest.mark.parametrize(("begins", "behind"), [((3.0, 3.5), False), ((1.0, 3.0), True)])
def test_reductions_overlap_where_the_first_begins_before_the_last_compute_ends(begins, behind):
    rows = [(0, Role.GRADS, begin, 4.0) for begin in begins]
    ops = operations((0, Role.BACKWARD, 0.0, 3.0), *rows, (1, Role.BACKWARD, 0.0, 1.5))
    assert reduces_behind(ops, ops.worker) is behind
    apart = operations((0, Role.BACKWARD, 0.0, 3.0), (0, Role.SEPARATE, 3.0, 4.0))
    assert reduces_behind(apart, apart.worker)


def test_the_first_of_each_key_is_joined_with_the_first_of_it():
    rows, keys = np.array([10, 11, 12, 13]), np.array([7, 7, 8, 9])
    others, their = np.array([20, 21, 22]), np.array([9, 7, 7])
    one, other = join((rows, keys), (others, their))
    assert (one.tolist(), other.tolist()) == ([10, 13], [21, 20])
