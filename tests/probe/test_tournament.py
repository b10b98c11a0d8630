from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from evenstep.probe.tournament import opponent, rounds, some

TEAMS = st.lists(st.integers(0, 10_000), unique=True, max_size=40)


@given(TEAMS)
def test_every_team_meets_every_other_exactly_once(teams):
    played = [pair for pairs in rounds(teams) for pair in pairs]
    assert sorted(played) == sorted(combinations(sorted(teams), 2))


@given(TEAMS)
def test_nobody_plays_twice_in_a_round(teams):
    for pairs in rounds(teams):
        playing = [team for pair in pairs for team in pair]
        assert len(set(playing)) == len(playing)


@given(TEAMS.filter(lambda teams: len(teams) > 1))
def test_there_are_no_more_rounds_than_needed(teams):
    # n - 1 rounds, n where n is odd: the circle method
    assert len(rounds(teams)) == len(teams) - 1 + len(teams) % 2


@given(TEAMS, st.integers(1, 50))
def test_of_some_rounds_none_is_played_twice(teams, most):
    chosen = some(rounds(teams), most)
    assert len(chosen) == min(most, len(rounds(teams)))
    assert len({pair for pairs in chosen for pair in pairs}) == sum(map(len, chosen))


def test_the_opponent_is_the_other_one():
    assert [opponent([(0, 3), (1, 2)], team) for team in (0, 2, 9)] == [3, 1, None]
