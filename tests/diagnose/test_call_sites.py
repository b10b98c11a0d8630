"""Where ranks wait longest, by the names of their collectives."""

import pytest

from evenstep.diagnose.modes import straggler
from evenstep.diagnose.modes.straggler import waited_at
from evenstep.importers.draft import Draft
from evenstep.trace.spool.layout import Kind, Op

#: Of each step: rank, op, call site, how long it takes (0: not over).
CALLS = (
    (0, Op.ALL_REDUCE, "train.py:31 statistics", 4), (0, Op.BROADCAST, "train.py:8 seed", 3),
    (1, Op.BROADCAST, "train.py:8 seed", 9), (0, Op.ALL_GATHER, "", 50),
    (0, Op.REDUCE_SCATTER, "train.py:40 gradients", 0),
)  # fmt: skip


def trace(steps=40, early=10):
    """Steps of these calls; in the first `early` all take ten times as long as of another op."""
    draft = Draft()
    for rank in range(2):
        draft.rank(rank)
    group = draft.group("dp", (0, 1))
    for step in range(steps):
        for turn, (rank, op, name, took) in enumerate(CALLS):
            if step < early:
                took *= 10 if name.endswith("seed") else 1
            begun = 10_000 * (1 + step) + 100 * turn
            draft.rows(rank, **{
                "kind": int(Kind.COLLECTIVE), "op": int(op), "group": group, "step": step,
                "group_seq": step * len(CALLS) + turn, "enter_ns": begun,
                "exit_ns": begun + took if took else 0, "name": draft.name(name) if name else 0,
            })  # fmt: skip
    return draft.trace({})


@pytest.mark.parametrize(
    ("ranks", "early", "said"),
    [
        ([0], 0, ", longest in the all_reduce of train.py:31 statistics"),
        ([0, 1], 0, ", longest in the broadcast of train.py:8 seed"),
        ([0], 10, ", longest in the broadcast of train.py:8 seed"),
        ([], 0, ""),
        ([7], 0, ""),
    ],
)
def test_the_call_is_named_that_ranks_spend_most_time_in(ranks, early, said):
    assert waited_at(trace(early=early), ranks) == said


def test_of_a_long_trace_the_steps_in_its_middle_tell(monkeypatch):
    monkeypatch.setattr(straggler, "MOST_RECORDS", 20 * len(CALLS))
    assert waited_at(trace(early=10), [0]).endswith("statistics")
    assert waited_at(trace(early=12), [0]).endswith("seed")
    assert waited_at(trace(early=30), [0]).endswith("seed")


@pytest.mark.parametrize(("early", "said"), [(20, "statistics"), (21, "seed")])
def test_of_a_trace_of_long_steps_one_step_in_its_middle_tells(monkeypatch, early, said):
    """There are fewer records to be looked at than a step has: the middle one of 41 is taken."""
    monkeypatch.setattr(straggler, "MOST_RECORDS", len(CALLS) - 1)
    assert waited_at(trace(steps=41, early=early), [0]).endswith(said)
