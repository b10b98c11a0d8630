"""What operations say of clocks, against a count that looks at one operation after the other."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.trace.clocks import bounds as module
from evenstep.trace.clocks.bounds import crossings
from evenstep.trace.spool.layout import Flag, Kind, Op
from tests.trace.synthetic import table, trace_of

CLOCKS = {0: 0, 1: 0, 2: 1, 3: 2}  # ranks 0 and 1 share one
OPS = [Op.ALL_REDUCE, Op.BARRIER, Op.BROADCAST, Op.SCATTER, Op.REDUCE, Op.GATHER, Op.OTHER]
DEVICE, SEEN, FAILED = int(Flag.ON_DEVICE), int(Flag.EXIT_UPPER_BOUND), int(Flag.FAILED)


@st.composite
def operations(draw):
    """Rows of collectives of four ranks: each with its times, flags and the root of all."""
    rows = []
    for number in range(draw(st.integers(1, 4))):
        op, root = draw(st.sampled_from(OPS)), draw(st.integers(0, 3))
        for rank in draw(st.sets(st.integers(0, 3), min_size=1)):
            enter = draw(st.integers(1, 50))
            leave = draw(st.just(0) | st.integers(1, 20).map(lambda took, at=enter: at + took))
            flags = draw(st.sampled_from([0, 0, 0, FAILED, DEVICE, DEVICE | SEEN]))
            there = draw(st.integers(0, 20))  # how long on the device, 0: not known
            rows.append((rank, number // 2, number % 2, int(op), root, enter, leave, flags, there))
    return rows


def trace_from(rows):
    names = ("rank", "group", "group_seq", "op", "peer_or_root", "enter_ns", "exit_ns", "flags")
    names = (*names, "device_exit_ns")
    columns = dict(zip(names, np.array(rows).T, strict=True))
    events = table({**columns, "kind": np.full(len(rows), int(Kind.COLLECTIVE))})
    return trace_of(events, {0: "a", 1: "a", 2: "b", 3: "c"})


def counted(rows, together):
    """Of each operation and clock (base, latest entry, earliest exit, shortest), by the rules."""
    found, begun = {}, {}
    for rank, group, number, op, root, enter, leave, flags, there in rows:
        everybody = op in (Op.ALL_REDUCE, Op.BARRIER)
        rooted = op in (Op.BROADCAST, Op.SCATTER, Op.REDUCE, Op.GATHER)
        seen = bool(flags & SEEN) and there <= leave - enter  # else when it was issued
        stamped = not flags & DEVICE or (seen and not together)
        if not leave or flags & FAILED or not stamped or not (everybody or rooted > together):
            continue
        down = op in (Op.BROADCAST, Op.SCATTER)
        sends = everybody or (rank == root) == down or not down
        waits = everybody or (rank != root if down else rank == root)
        clock = CLOCKS[rank]
        begun[clock] = min(begun.get(clock, enter), enter)
        each = found.setdefault((group, number, clock), [[], [], []])
        each[0] += [enter] * sends
        each[1] += [leave] * waits
        each[2].append(leave - enter)
    return {
        place: (max(entries, default=-np.inf), min(exits, default=np.inf), min(took))
        for place, (entries, exits, took) in found.items()
    }, begun


@given(operations(), st.booleans())
def test_each_clock_is_bounded_by_its_latest_entry_and_earliest_exit(rows, together):
    expected, begun = counted(rows, together)
    found = crossings(trace_from(rows), CLOCKS, together=together)
    base = [begun.get(clock, 0) for clock in range(3)]
    assert found.base.tolist() == base
    columns = found.clock, found.entry, found.exit, found.shortest
    absolute = [
        (clock, entry + base[clock], leave + base[clock], took)
        for clock, entry, leave, took in zip(*map(np.ndarray.tolist, columns), strict=True)
    ]
    assert absolute == [(clock, *expected[g, n, clock]) for g, n, clock in sorted(expected)]
    same = [one[:2] == two[:2] for one in sorted(expected) for two in sorted(expected)]
    assert (found.operation[:, None] == found.operation).reshape(-1).tolist() == same


def test_a_message_bounds_its_receiver_by_when_it_was_sent():
    """Its sender need not have ended; a receive must have."""
    events = table({
        "rank": np.array([0, 2, 0, 2]), "peer_or_root": np.array([2, 0, 2, 0]),
        "op": np.array([Op.SEND, Op.RECV] * 2), "group_seq": np.array([0, 0, 1, 1]),
        "enter_ns": np.array([10, 5, 30, 25]), "exit_ns": np.array([0, 18, 33, 0]),
        "kind": np.full(4, int(Kind.POINT_TO_POINT)),
    })  # fmt: skip
    found = crossings(trace_of(events, {0: "a", 1: "a", 2: "b", 3: "c"}), CLOCKS)
    assert found.base.tolist() == [10, 5, 0]
    assert found.clock.tolist() == [0, 1, 0]
    assert found.entry.tolist() == [0, -np.inf, 20]
    assert found.exit.tolist() == [np.inf, 13, np.inf]
    assert found.operation.tolist() == [0, 0, 1]


def test_an_end_sooner_than_on_the_device_is_when_the_receive_was_issued():
    """Rank 2 is issued a receive at 5 and goes on at 8; its device has it for 10. A sender's entry
    is that of issuing it, before which nothing is received."""
    columns = {
        "rank": np.array([0, 2]), "peer_or_root": np.array([2, 0]), "group_seq": np.zeros(2, int),
        "op": np.array([Op.SEND, Op.RECV]), "flags": np.full(2, DEVICE | SEEN),
        "enter_ns": np.array([10, 5]), "device_enter_ns": np.array([0, 1]),
        "kind": np.full(2, int(Kind.POINT_TO_POINT)),
    }  # fmt: skip
    for leave, clocks in [(8, [0]), (18, [0, 1])]:
        ends = {"exit_ns": np.array([0, leave]), "device_exit_ns": np.array([0, 11])}
        events = table({**columns, **ends})
        found = crossings(trace_of(events, {0: "a", 1: "a", 2: "b", 3: "c"}), CLOCKS)
        assert found.clock.tolist() == clocks


def test_a_device_whose_stamps_are_the_hosts_tells_by_them():
    rows = [(0, 0, 0, int(Op.ALL_REDUCE), 0, 10, 20, DEVICE, 0)]
    trace = trace_from(rows)
    columns = {"device_enter_ns": [14], "device_exit_ns": [19]}
    events = trace.events
    for name, values in columns.items():
        events = events.with_column(name, np.array(values))
    trace = replace(trace, events=events)
    assert not len(crossings(trace, CLOCKS, together=True).clock)
    trace.ranks[0].facts["device_clock"] = "host"
    found = crossings(trace, CLOCKS, together=True)
    assert (found.base[0], found.exit.tolist(), found.shortest.tolist()) == (14, [5.0], [5.0])


def test_of_a_trace_too_large_every_so_manieth_place_is_looked_at(monkeypatch):
    rows = [(rank, 0, number, int(Op.ALL_REDUCE), 0, 10 * number + 1, 10 * number + 5, 0, 0)
            for number in range(12) for rank in (0, 2)]  # fmt: skip
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    found = crossings(trace_from(rows), CLOCKS)
    assert found.entry.tolist() == [0, 0, 30, 30, 60, 60, 90, 90]  # 24 rows: every third of 12
