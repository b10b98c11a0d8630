"""Clocks placed through other clocks, over messages, past the last collective, and set by hand."""

import numpy as np
import pytest

from evenstep.trace.clocks import bounds
from evenstep.trace.clocks.clocks import align, sharpen
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Op
from evenstep.trace.trace import Group, RankInfo, Trace
from tests.trace.synthetic import table

FLOOR_NS = 2e5  # of every operation, to which each exit adds a delay of half of it on average
COUNT = 300


class Job:
    """Ranks with a clock each: reading = (1 + rate) t + offset, offset to 3 s, rate to 100 ppm."""

    def __init__(self, ranks, seed):
        self.random = np.random.default_rng(seed)
        self.offset = self.random.uniform(-3e9, 3e9, ranks)
        self.rate = self.random.uniform(-100e-6, 100e-6, ranks)
        self.set_at, self.set_by = np.full(ranks, np.inf), np.zeros(ranks)
        self.tables, self.groups = [], []

    def reads(self, rank, true):
        jump = np.where(true >= self.set_at[rank], self.set_by[rank], 0)
        return true * (1 + self.rate[rank]) + self.offset[rank] + jump

    def rows(self, rank, enter, leave, **columns):
        count = len(enter)
        every = {"rank": rank, "group_seq": np.arange(count), "peer_or_root": -1, **columns}
        times = {"enter_ns": self.reads(rank, enter), "exit_ns": self.reads(rank, leave)}
        every |= {name: np.rint(values) for name, values in times.items()}
        spread = {name: np.broadcast_to(values, count) for name, values in every.items()}
        self.tables.append(table(spread))

    def together(self, members, op=Op.ALL_REDUCE, start=1e12, count=COUNT):
        """A group's operations: everybody is late by turns, and leaves after the last."""
        begin = start + np.cumsum(self.random.uniform(0.5, 1.5, count) * 20e6)
        enter = {rank: begin + self.random.exponential(5e6, count) for rank in members}
        last = np.max(list(enter.values()), axis=0)
        self.groups.append(Group(f"g{len(self.groups)}", "", tuple(members)))
        for rank in members:
            leave = last + FLOOR_NS + self.random.exponential(FLOOR_NS / 2, count)
            kinds = {"kind": int(Kind.COLLECTIVE), "op": int(op)}
            self.rows(rank, enter[rank], leave, group=len(self.groups) - 1, **kinds)

    def messages(self, source, destination, floor_ns=FLOOR_NS, pause_ns=0.0):
        begin = 1e12 + np.cumsum(self.random.uniform(0.5, 1.5, COUNT) * 20e6)
        begin[COUNT // 2 :] += pause_ns
        early = self.random.exponential(5e6, COUNT) * (self.random.random(COUNT) < 0.5)
        leave = begin + floor_ns + self.random.exponential(FLOOR_NS / 2, COUNT)
        kind = {"kind": int(Kind.POINT_TO_POINT), "group": 0}
        ends = (
            (source, destination, Op.SEND, begin),
            (destination, source, Op.RECV, begin - early),
        )
        for own, peer, op, enter in ends:
            self.rows(own, enter, leave, peer_or_root=peer, op=int(op), **kind)

    def trace(self, missing=()):
        events = Columns.concatenate(self.tables)
        present = [rank for rank in range(len(self.offset)) if rank not in missing]
        ranks = {rank: RankInfo(rank, {"boot_id": f"b{rank}"}) for rank in present}
        events = events.select(np.isin(events["rank"], present)).sorted_by("rank", "enter_ns")
        return Trace({}, len(self.offset), 0, ranks, events, tuple(self.groups))

    def error(self, clocks, rank, true):
        """(distance from the truth, error bar) at some true times, against the reference."""
        own, found = self.reads(rank, true), clocks.by_rank[rank]
        reference = int(clocks.reference.removeprefix("b"))
        placed = own + found.offset_at(own)
        return np.abs(placed - self.reads(reference, true)), found.error_at(own)


TRUE = np.linspace(1.05e12, 1.055e12, 50)  # while all of them have collectives


@pytest.mark.parametrize("length", [2, 4, 8])
def test_a_chain_of_pairs_is_placed_and_its_error_bars_hold(length):
    inside, errors = [], []
    for seed in range(12):
        job = Job(length, seed)
        for rank in range(length - 1):
            job.together([rank, rank + 1])
        clocks = align(job.trace())
        assert clocks.unplaced == ()
        for rank in range(1, length):
            error, bar = job.error(clocks, rank, TRUE - 49e9)
            inside.append(np.mean(error <= bar + 2))
            errors.append(np.median(error))
    assert np.mean(inside) >= 0.95
    assert np.median(errors) < FLOOR_NS


def test_many_hosts_in_one_group_with_some_missing():
    inside, errors = [], []
    for seed in range(6):
        job = Job(40, seed)
        job.together(range(40))
        clocks = align(job.trace(missing=(3, 17)))
        for rank in (1, 20, 39):
            error, bar = job.error(clocks, rank, TRUE - 49e9)
            inside.append(np.mean(error <= bar + 2))
            errors.append(np.median(error))
    assert np.mean(inside) >= 0.95
    assert np.median(errors) < FLOOR_NS


def test_messages_both_ways_place_a_clock_and_one_way_does_not():
    both, one_way = Job(2, 1), Job(2, 1)
    for job in (both, one_way):
        job.groups.append(Group("g", "", (0, 1)))
        job.messages(0, 1)
    both.messages(1, 0)
    assert align(one_way.trace()).unplaced == (1,)
    error, bar = both.error(align(both.trace()), 1, TRUE - 49e9)
    assert (error <= bar + 2).all()
    assert np.median(error) < FLOOR_NS
    placed = align(both.trace())
    assert sharpen(both.trace(), placed) == placed  # by collectives, of which there are none


@pytest.mark.parametrize(("set_by", "pause_ns"), [(0.0, 0.0), (0.5e9, 0.0), (0.0, 1e9)])
def test_a_ring_of_messages_that_go_one_way_places_all_its_clocks_and_none_behind_it(
    set_by, pause_ns
):
    """Also where one of them is set in the middle of the run, or all pause there."""
    for seed in range(6):
        job = Job(6, seed)
        job.groups.append(Group("g", "", tuple(range(6))))
        job.set_at[2], job.set_by[2] = 1.003e12, set_by
        for rank in range(5):
            job.messages(rank, (rank + 1) % 5, pause_ns=pause_ns)
        job.messages(4, 5, pause_ns=pause_ns)
        clocks = align(job.trace())
        assert clocks.unplaced == (5,)
        for rank in range(1, 5):
            for true in (np.linspace(1.0005e12, 1.0025e12, 50), TRUE - 49.6e9):
                error, bar = job.error(clocks, rank, true)
                assert (error <= bar + 2).all()
                assert np.median(error) < FLOOR_NS / 2


def test_a_broadcast_and_a_reduce_bound_a_clock_from_both_sides():
    job = Job(2, 2)
    job.together([0, 1], Op.BROADCAST)
    job.together([0, 1], Op.REDUCE)
    for number, events in enumerate(job.tables):  # of both operations rank 0 is the root
        job.tables[number] = events.with_column("peer_or_root", np.zeros(len(events), np.int32))
    error, bar = job.error(align(job.trace()), 1, TRUE - 49e9)
    assert (error <= bar + 2).all()


def test_past_the_last_collective_the_drift_goes_on_and_the_bar_grows():
    rate_known_to = 2 * FLOOR_NS / 6e9  # bounds that far apart, over the time of the collectives
    far = TRUE + 600e9  # ten minutes later, when an offset held constant is 60 ms off at 100 ppm
    for seed in range(20):
        job = Job(2, seed)
        job.together([0, 1])
        clocks = align(job.trace())
        error, bar = job.error(clocks, 1, far)
        assert (error <= bar + 2).all()
        assert (bar > 10 * clocks.error_ns).all()
        assert bar.max() < 3 * rate_known_to * (far[-1] - 1.006e12)


@pytest.mark.parametrize("seconds", [-2.0, 0.5, 30.0])
def test_a_clock_that_was_set_is_followed_on_both_sides(seconds):
    job = Job(2, 5)
    job.set_at[1], job.set_by[1] = 1.003e12, seconds * 1e9
    job.together([0, 1])
    clocks = align(job.trace())
    assert len(clocks.by_rank[1].breaks_ns) == 1
    before, after = np.linspace(1.0002e12, 1.0009e12, 20), np.linspace(1.0055e12, 1.006e12, 20)
    for true in (before, after):
        error, bar = job.error(clocks, 1, true)
        assert (error <= bar + 2).all()
        assert np.median(error) < FLOOR_NS


def test_of_many_messages_some_are_looked_at_all_along(monkeypatch):
    monkeypatch.setattr(bounds, "MOST_ROWS", COUNT // 3)
    job = Job(2, 0)
    job.messages(0, 1)
    trace = job.trace()
    rows = bounds._messages(trace, after=0)
    received = trace.events.select(trace.events.op == int(Op.RECV)).sorted_by("group_seq")
    looked_at = np.sort(rows.exit[rows.rank == 1])
    assert looked_at.tolist() == received.exit_ns[::6].tolist()  # of 600 ends for 100 rows


def test_a_clock_behind_a_slow_link_is_placed_by_quick_messages_of_another():
    """A stage of a pipeline: its messages with the reference take 20 ms there and 6 ms back, of
    which the middle is 7 ms off; those with a rank that shares collectives with it take .2."""
    job = Job(3, 1)
    job.together([0, 2])
    for source, destination, floor_ns in ((0, 1, 20e6), (1, 0, 6e6), (1, 2, 2e5), (2, 1, 2e5)):
        job.messages(source, destination, floor_ns)
    trace = job.trace()
    rough = align(trace)
    off = [job.error(one, 1, TRUE)[0].max() for one in (rough, sharpen(trace, rough))]
    assert off[0] > 6e6
    assert off[1] < 1e6
