"""Groups of torch as they are met, counted and made again; no torch is needed."""

from types import SimpleNamespace

import pytest

from evenstep.hooks.torch.groups import Groups, watch_groups
from evenstep.trace.reader import read_spool


class Group:
    """A process group with a counter of its own; None: its backend has none."""

    def __init__(self, name, ranks, *, sequence=0, described="undefined"):
        self.group_name, self.group_desc = name, described
        self.ranks, self.sequence = ranks, sequence

    def _get_sequence_number_for_group(self):
        if self.sequence is None:
            raise RuntimeError("no counter")
        return self.sequence

    def name(self):
        return "gloo"

    def size(self):
        return len(self.ranks)


class Distributed:
    """torch.distributed as far as groups ask it; a group that it does not know raises."""

    def __init__(self):
        self.groups = {}
        self.distributed_c10d = SimpleNamespace(
            _resolve_process_group=self.groups.__getitem__,
            _world=SimpleNamespace(pg_names={}),
        )

    def add(self, name, ranks, **told):
        made = self.groups[name] = Group(name, ranks, **told)
        self.distributed_c10d._world.pg_names[made] = name
        return made

    def drop(self, name):
        del self.distributed_c10d._world.pg_names[self.groups.pop(name)]

    def get_process_group_ranks(self, group):
        if group.group_name not in self.groups:
            raise ValueError(group.group_name)
        return group.ranks


@pytest.fixture
def distributed():
    return Distributed()


@pytest.fixture
def groups(recorder, distributed):
    return Groups(recorder.spool, distributed)


def test_a_group_is_entered_once_with_its_members_and_where_its_counter_stands(
    groups, distributed, recorder
):
    named = distributed.add("1", [4, 6], sequence=7, described="tensor")
    state = groups.state(named)
    assert groups.state(named) is state
    assert (state.ranks, state.sequence) == ((4, 6), 7)
    plain = groups.state(distributed.add("0", [0, 1, 2], sequence=None))
    assert (plain.sequence, groups.widths()) == (0, {state.index: 2, plain.index: 3})
    unknown = groups.state(Group("x", [8, 9]))  # which torch does not know: numbered from 0
    assert unknown.ranks == (0, 1)
    told = read_spool(recorder.spool.path).groups
    assert [one["name"] for one in told.values()] == ["tensor", "0", "x"]
    assert {one["backend"] for one in told.values()} == {"gloo"}


def test_a_group_that_is_made_again_goes_on_counting_where_it_was(groups, distributed):
    state = groups.state(distributed.add("1", [0, 1], sequence=3))
    for _ in range(5):
        state.next_number()
    distributed.drop("1")
    groups.forget()
    again = groups.state(distributed.add("1", [0, 1], sequence=2))
    assert again is not state
    assert again.sequence == 3 + 5 + 2
    groups.renew("nobody's")
    other = groups.state(distributed.add("2", [0, 1]))
    assert other.sequence == 0
    groups.forget()
    assert groups.state(distributed.groups["2"]) is other  # it is there


def test_what_was_not_recorded_is_counted_by_torchs_own_counters(groups, distributed):
    first, second = (distributed.add(name, [0, 1], sequence=10) for name in ("1", "2"))
    states = [groups.state(group) for group in (first, second)]
    states[0].next_number()
    before = groups.counts()
    assert before == {"1": (11, 10), "2": (10, 10)}
    first.sequence, second.sequence = 14, 10
    late = groups.state(distributed.add("3", [0, 1], sequence=5))
    states[1].next_number()  # after the count, though torch has not counted it
    groups.skip(before)
    assert [state.sequence for state in (*states, late)] == [11 + 4, 10, 5]
    distributed.drop("1")
    assert set(groups.counts()) == {"2", "3"}


def test_each_group_that_is_made_is_told_until_nobody_asks_any_more():
    made = []
    c10d = SimpleNamespace(_register_process_group=lambda name, group: (name, group))
    original = c10d._register_process_group
    stop = watch_groups(c10d, made.append)
    assert c10d._register_process_group("7", "a group") == ("7", "a group")
    stop()
    assert c10d._register_process_group is original
    c10d._register_process_group("8", "another")
    assert made == ["7"]
