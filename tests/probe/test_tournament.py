from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from evenstep.probe.measurements import partner_of, rounds, run_rounds

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


class Clock:
    """Plays rounds; one in which `slow` has a part takes a second, any other a hundredth."""

    def __init__(self, slow=None):
        self.slow = slow
        self.now_ns = 0.0
        self.met = []

    def play(self, pairs):
        self.met.append(pairs)
        self.now_ns += 1e9 if any(self.slow in pair for pair in pairs) else 1e7


def partners(met, team):
    return {a + b - team for pairs in met for a, b in pairs if team in (a, b)}


@given(TEAMS.filter(lambda teams: len(teams) > 1), st.floats(1e6, 1e11))
def test_each_team_meets_as_many_others_within_the_time_that_was_given(teams, budget_ns):
    clock, schedule = Clock(slow=teams[0]), rounds(teams)
    left_out = run_rounds(schedule, budget_ns, lambda: clock.now_ns, clock.play)
    each = [len(partners(clock.met, team)) for team in teams]
    assert max(each) - min(each) <= len(teams) % 2
    assert left_out == len(schedule) - len({tuple(pairs) for pairs in clock.met})
    rested = 1e7 if len(teams) % 2 else 0  # a round in which the slow one rests
    assert clock.now_ns <= max(budget_ns + 2e9, 2e9 + 2 * rested)


def test_a_slow_first_round_leaves_none_out_that_there_is_time_for():
    clock = Clock(slow=0)
    # twice (0, 2) and (0, 1), a second each, and (1, 2) in between: 4.02 s
    assert run_rounds(rounds([0, 1, 2]), 4.1e9, lambda: clock.now_ns, clock.play) == 0
    assert partners(clock.met, 0) == {1, 2}


def test_the_partner_is_the_other_one():
    assert [partner_of([(0, 3), (1, 2)], team) for team in (0, 2, 9)] == [3, 1, None]
