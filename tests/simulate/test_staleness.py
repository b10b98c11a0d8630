import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.simulate.job.strategies import Unsynchronised, convergence, summed_up
from evenstep.simulate.simulation import simulate
from tests.simulate.worlds import scenario

JOB = ("cluster.nodes=16", "work.forward_ms=100", "work.gradient_bytes=1MB", "run.steps=200")


def convergence_of(*sets, noise=()):
    return simulate(scenario(*JOB, *sets, noise=list(noise))).convergence


def reference(read, applied):
    """Counting, update by update: others' that came after the reading and not after applying."""
    ages = []
    for step, rank in np.ndindex(read.shape):
        begin, end = read[step, rank], applied[step, rank]
        if begin >= applied[0].max() and end <= applied[-1].min():
            ages.append(int(((applied > begin) & (applied <= end)).sum()) - 1)
    return ages


@given(st.integers(2, 6), st.integers(3, 8), st.integers(0, 99))
def test_staleness_is_the_number_of_updates_between_reading_and_applying(ranks, steps, seed):
    lengths = np.random.default_rng(seed).uniform(1, 2, (steps, ranks))
    applied = np.cumsum(lengths, axis=0)
    read = applied - lengths
    updates = Unsynchronised(ranks)
    for begin, end in zip(read, applied, strict=True):
        updates.add(begin, end)
    found, ages = updates.staleness(), reference(read, applied)
    assert (found is None) == (not ages)
    if found is not None:
        assert (found.mean, found.max) == (pytest.approx(np.mean(ages)), max(ages))


def test_equal_ranks_are_as_stale_as_there_are_others():
    """n - 1, Mitliagkas et al. 2016."""
    found = convergence_of("strategy.kind=asynchronous")
    assert found.staleness.mean == pytest.approx(15)
    assert found.stable_step_share == pytest.approx(math.sin(math.pi / (4 * 15 + 2)))


def test_a_slow_ranks_gradients_are_the_stalest():
    """c_i Σ 1/c_j over the others is 22.5: in lockstep 15 and 30 in turn; n - 1 of all."""
    slow = [{"kind": "slow", "ranks": "5", "factor": 1.5}]
    found = convergence_of("strategy.kind=asynchronous", noise=slow)
    assert found.staleness.max == 30
    assert found.staleness.mean == pytest.approx(15, rel=0.01)


def test_the_distribution_adds_up():
    found = summed_up(np.arange(1000))
    assert sum(share for _, _, share in found.distribution) == pytest.approx(1)
    assert (found.distribution[0][0], found.max, len(found.distribution) <= 32) == (0, 999, True)


def test_a_bound_keeps_a_fast_rank_from_being_further_ahead():
    """At most bound + 1 updates of each of the other 15 while one rank works, in lockstep."""
    jitter = [{"kind": "normal", "sigma": 0.1}]
    found = convergence_of("strategy.kind=stale_synchronous", "strategy.bound=1", noise=jitter)
    assert found.staleness.max <= 2 * 2 * 15


def test_what_waits_for_every_gradient_says_nothing_of_convergence():
    assert convergence_of() is None
    assert convergence(None) is None


@pytest.mark.parametrize(
    ("sets", "field", "value"),
    [
        (("strategy.kind=local_sgd", "strategy.every=8"), "local_steps", 8),
        (("strategy.kind=diloco", "strategy.every=8"), "local_steps", 8),
        (("strategy.kind=backup_workers", "strategy.backups=4"), "discarded_share", 0.25),
    ],
)
def test_other_changes_of_the_optimisation_are_named(sets, field, value):
    found = convergence_of(*sets)
    assert getattr(found, field) == value
    assert "not of accuracy" in found.note
