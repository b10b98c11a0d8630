import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.trace.ranks import MOST_RANKS, format_missing, format_ranks, group_uid, parse_ranks

RANKS = st.sets(st.integers(0, 200))


@given(RANKS)
def test_ranks_come_back_ascending(ranks):
    assert parse_ranks(format_ranks(ranks)) == tuple(sorted(ranks))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((), ""), ((3,), "3"), ((0, 1, 2, 8), "0-2,8"), ((5, 4), "4-5"), ((1, 1, 3), "1,3")],
)
def test_neighbours_are_joined(ranks, text):
    assert format_ranks(ranks) == text


@pytest.mark.parametrize("text", ["a", "1-x", "-3", "5-2", "1 2", f"0-{MOST_RANKS}"])
def test_what_is_no_set_of_ranks_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_ranks(text)


@given(RANKS, RANKS)
def test_a_group_is_known_by_its_ranks_and_its_name(one, other):
    assert group_uid(sorted(one), "dp") == group_uid(sorted(one, reverse=True), "dp")
    assert (group_uid(one, "dp") == group_uid(other, "dp")) == (one == other)
    assert group_uid(one, "dp") != group_uid(one, "tp")


@given(st.sets(st.integers(0, 40)), st.integers(0, 30))
def test_missing_ranks_are_those_of_the_world_that_are_not_there(ranks, world):
    assert format_missing(ranks, world) == format_ranks(set(range(world)) - ranks)
