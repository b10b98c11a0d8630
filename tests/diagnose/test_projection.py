from math import sqrt

import pytest

from evenstep.diagnose.modes import intervention
from evenstep.statistics.interval import Share


def test_a_persistent_cause_costs_the_same_at_any_size():
    shares = intervention.constant(Share(0.2, 0.1, 0.3), 8)
    assert [(p.ranks, p.share, p.low, p.high) for p in shares] == [
        (16, 0.2, 0.1, 0.3),
        (32, 0.2, 0.1, 0.3),
    ]


def test_independent_delays_hit_more_steps_among_more_ranks():
    # every rank is delayed by c in a share p of its steps; a step of n ranks is hit in 1-(1-p)^n
    p, n, c = 0.02, 8, 0.5

    def share(ranks: int) -> float:
        lost = c * (1 - (1 - p) ** ranks)
        return lost / (1 + lost)

    hits = 1 - (1 - p) ** n
    found = intervention.by_chance(Share(share(n), *[share(n)] * 2), n, Share(hits, hits, hits))
    assert [entry.ranks for entry in found] == [16, 32]
    assert [entry.share for entry in found] == pytest.approx([share(16), share(32)])


def test_delays_that_hit_every_step_already_do_not_grow():
    found = intervention.by_chance(Share(0.3, 0.2, 0.4), 4, Share(1, 1, 1))
    assert [entry.share for entry in found] == pytest.approx([0.3, 0.3], rel=1e-3)


def test_nothing_lost_is_not_projected():
    assert intervention.by_chance(Share(0, 0, 0), 4, Share(0, 0, 0)) == []


@pytest.mark.parametrize(
    ("ranks", "exact"),
    # E[max] of n standard normals: 1/sqrt(pi), 1.5/sqrt(pi), Harter (1961) for 10 and 100
    [(2, 1 / sqrt(3.141592653589793)), (3, 0.846284), (10, 1.538753), (100, 2.507594)],
)
def test_the_expected_maximum_is_bloms_approximation(ranks, exact):
    assert intervention.expected_maximum(ranks) == pytest.approx(exact, rel=0.05)


def test_noise_grows_with_the_expected_maximum():
    near, far = intervention.by_noise(Share(0.1, 0.05, 0.2), 10)
    growth = intervention.expected_maximum(20) / intervention.expected_maximum(10)
    # .1 of 1 becomes .1 × growth of .9 + .1 × growth: a share stays below 1
    assert (near.ranks, near.share) == (20, pytest.approx(0.1 * growth / (0.9 + 0.1 * growth)))
    assert far.share > near.share
