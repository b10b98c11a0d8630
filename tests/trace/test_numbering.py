"""One numbering for ranks that began to count at different moments."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.trace.columns import Columns
from evenstep.trace.loading import renumber, step_shifts
from evenstep.trace.spool.layout import Kind
from tests.trace.synthetic import table

COUNT = 20


def rank_events(rank, first, *, group=0, per_step=3, kind=Kind.COLLECTIVE):
    """Collectives of one rank that attached at (common) step `first` and counts from 0."""
    sequence = np.arange(first * per_step, COUNT * per_step)
    same = {name: np.full(len(sequence), value) for name, value in [("rank", rank), ("kind", kind)]}
    columns = table({**same, "group_seq": sequence, "step": sequence // per_step - first})
    return columns.with_column("group", np.full(len(sequence), group, np.int32))


def events(*parts):
    return Columns.concatenate(list(parts))


@settings(deadline=None)
@given(st.lists(st.integers(0, COUNT - 2), min_size=1, max_size=6))
def test_ranks_that_attached_at_different_steps_agree_afterwards(firsts):
    found, shifts = renumber(events(*(rank_events(r, first) for r, first in enumerate(firsts))))
    assert (found.step == found.group_seq // 3 - min(firsts)).all()
    assert shifts == {r: f - min(firsts) for r, f in enumerate(firsts) if f > min(firsts)}


def test_ranks_that_agree_are_left_alone():
    both = events(rank_events(0, 0), rank_events(1, 0))
    found, shifts = renumber(both)
    assert found is both
    assert shifts == {}


def test_one_collective_on_the_edge_of_a_step_does_no_harm():
    late = rank_events(1, 4)
    late.step[0] += 1  # its counter saw the step end before this one
    assert step_shifts(events(rank_events(0, 0), late)) == {0: 0, 1: 4}


def test_evidence_may_come_through_a_third_rank():
    chain = events(
        rank_events(0, 2, group=0), rank_events(1, 0, group=0), rank_events(1, 0, group=1),
        rank_events(2, 5, group=1),
    )  # fmt: skip
    assert step_shifts(chain) == {0: 2, 1: 0, 2: 5}


def test_ranks_without_common_collectives_keep_their_count():
    apart = events(
        rank_events(0, 3, group=0), rank_events(1, 0, group=0), rank_events(2, 0, group=1)
    )
    assert step_shifts(apart) == {0: 3, 1: 0, 2: 0}


def test_point_to_point_and_unknown_groups_say_nothing():
    silent = events(
        rank_events(0, 0, kind=Kind.POINT_TO_POINT), rank_events(1, 2, kind=Kind.POINT_TO_POINT),
        rank_events(0, 0, group=-1), rank_events(1, 2, group=-1),
    )  # fmt: skip
    assert step_shifts(silent) == {0: 0, 1: 0}
