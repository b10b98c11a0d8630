"""Communicators by name, on groups that count who frees them; no MPI is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evenstep.hooks.mpi.groups import LONGEST_NAME, MpiGroups, shorten
from evenstep.trace.reader import read_spool

WORLD = 4


class Group:
    """A group of MPI's; `held` counts those that nobody has freed."""

    held = 0

    def __init__(self, ranks) -> None:
        self.ranks = ranks
        Group.held += 1

    def __bool__(self) -> bool:
        return self.ranks is not None

    def Get_size(self):  # noqa: N802
        return len(self.ranks)

    def Translate_ranks(self, ranks, _):  # noqa: N802
        if not self.ranks:
            raise RuntimeError("MPI_ERR_GROUP")
        return [self.ranks[rank] for rank in ranks]

    def Free(self):  # noqa: N802
        assert self, "freed twice"
        self.ranks = None
        Group.held -= 1


def communicator(handle, ranks=range(WORLD), name=""):
    return SimpleNamespace(
        handle=handle, Get_group=lambda: Group(list(ranks)), Is_inter=lambda: False,
        Get_name=lambda: name,
    )  # fmt: skip


@pytest.fixture
def groups(spool, monkeypatch):
    monkeypatch.setattr(Group, "held", 0)
    world = communicator(0, name="MPI_COMM_WORLD")
    mpi = SimpleNamespace(
        COMM_NULL=None, UNDEFINED=-1, COMM_WORLD=world, Is_finalized=lambda: False
    )  # fmt: skip
    return MpiGroups(spool, mpi)


def test_every_group_that_was_asked_for_is_freed(groups):
    groups.state(communicator(7))
    groups.release()
    groups.release()
    assert Group.held == 0


def test_a_group_that_mpi_does_not_translate_is_freed_as_well(groups):
    with pytest.raises(RuntimeError):
        groups.state(communicator(7, ranks=()))
    assert Group.held == 1  # the world's


def test_a_chain_of_copies_keeps_names_short_and_apart(groups):
    names, parent = [], communicator(1, name="MPI_COMM_WORLD")
    for handle in range(2, 200):
        child = communicator(handle)
        groups.made(parent, "Dup", child)
        names.append(groups.state(child).uid)
        parent = child
    assert len(set(names)) == len(names)
    assert max(map(len, groups._names.values())) < 2 * LONGEST_NAME


def test_a_short_name_stays_as_it_is():
    assert shorten("MPI_COMM_WORLD.Dup") == "MPI_COMM_WORLD.Dup"
    assert shorten("n" * LONGEST_NAME) == "n" * LONGEST_NAME
    assert len(shorten("n" * (LONGEST_NAME + 1))) < LONGEST_NAME


def test_an_intercommunicator_is_of_both_sides_and_what_mpi_does_not_make_is_none(groups, spool):
    other = communicator(5, ranks=[2, 3], name="between")
    other.Is_inter = lambda: True
    other.Get_remote_group = lambda: Group([0, -1])  # one is of no rank of this world
    state = groups.state(other)
    assert (state.ranks, groups.state(other)) == ((0, 2, 3), state)
    before = dict(groups._names)
    for child in (None, groups._null):
        groups.made(other, "Split", child)
    assert groups._names == before
    groups.made(communicator(9), "Split", child := communicator(5, ranks=[1, 3]))
    assert groups.state(child).ranks == (1, 3)  # the handle came back
    shown = [one["name"] for one in read_spool(spool.path).groups.values()]
    assert shown == ["between", "communicator.Split"]
    assert Group.held == 1
