"""Who comes after whom in the graph, and what is in it at all."""

import numpy as np
import pytest

from evenstep.diagnose.graph.entries import collectives
from evenstep.diagnose.graph.schedule import depths
from evenstep.trace.clocks.clocks import align
from evenstep.trace.spool.layout import Flag, Kind
from tests.diagnose.synthetic import World


@pytest.mark.parametrize(
    ("edges", "time_ns", "found"),
    [
        ([(0, 1), (1, 2), (0, 2)], [0, 0, 0, 0], [0, 1, 2, 0]),  # the longest way; one alone
        ([(0, 1), (1, 0), (1, 2)], [5, 1, 9, 0], [2, 1, 2, 0]),  # a circle: last, from the earliest
        ([(3, 0), (3, 1), (0, 2), (1, 2)], [0, 0, 0, 0], [1, 1, 2, 0]),
    ],
)
def test_a_node_lies_as_deep_as_the_longest_way_to_it(edges, time_ns, found):
    source, target = np.array(edges).T
    assert depths(source, target, 4, np.array(time_ns)).tolist() == found


@pytest.mark.parametrize("left_ns", [0, 1])
@pytest.mark.parametrize("flags", [Flag(0), Flag.FAILED])
def test_who_did_not_leave_a_collective_or_saw_it_fail_is_in_no_operation(left_ns, flags):
    trace = World(steps=4).trace()
    events = trace.events
    row = np.flatnonzero((events.kind == int(Kind.COLLECTIVE)) & (events["rank"] == 1))[0]
    one = np.arange(len(events)) == row
    ended = np.where(one & (left_ns == 0), 0, events.exit_ns)
    flagged = np.where(one, int(flags), events.flags)
    trace.events = events.with_column("exit_ns", ended).with_column("flags", flagged)
    rows = collectives(trace, align(trace), np.array(sorted(trace.ranks))).rows
    every = np.count_nonzero(events.kind == int(Kind.COLLECTIVE))
    assert len(rows) == every - (left_ns == 0 or bool(flags))
