"""What ranks tell each other in one all-reduce of maxima."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing import Plan, Slowest
from lab.mpi.news import Heard, News

TIMES = st.integers(0, 10**12)
PLANS = st.tuples(
    st.integers(0, 10**6), st.integers(10**6, 10**7), st.integers(0, 9), st.integers(1, 64),
    st.sampled_from([0, 1, 2, 16]), st.integers(0, 4),
).map(lambda fields: Plan(*fields))  # fmt: skip


@given(st.lists(TIMES, min_size=1, max_size=8), st.none() | PLANS)
def test_all_hear_the_slowest_and_what_rank_0_says(works, plan):
    said = [
        News(7 if rank == 0 else None, 40, work, plan if rank == 0 else None).pack()
        for rank, work in enumerate(works)
    ]
    heard = Heard.of(np.max(said, axis=0))
    assert (heard.block, heard.orders.plan) == (7, plan)
    assert heard.orders.slowest == Slowest(40, 40, max(works))


def test_before_the_first_step_there_is_nothing_to_tell():
    assert Heard.of(News(-1, -1, 0, None).pack()).orders.slowest is None
