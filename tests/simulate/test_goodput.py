import math
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep import checkpoints
from evenstep.simulate.formulas import (
    DAY_NS,
    HOUR_NS,
    OperatingConditions,
    erlang_b,
    expected_goodput,
)
from tests.simulate.goodput_events import simulate

PLAIN = OperatingConditions(
    interval_ns=0.3 * HOUR_NS, write_ns=60e9, mtbf_ns=3.0 * HOUR_NS, restart_ns=300e9
)
SPARES = replace(PLAIN, node_share=0.7, repair_ns=2.0 * DAY_NS, spares=14)
NOTICED = replace(PLAIN, detect_ns=600e9)
SLOW = replace(PLAIN, slow_every_ns=40.0 * HOUR_NS, slowdown=1.3, notice_ns=6.0 * HOUR_NS)
BOTH = replace(SPARES, slow_every_ns=40.0 * HOUR_NS, slowdown=1.3, notice_ns=6.0 * HOUR_NS)


@pytest.mark.parametrize(
    "job", [PLAIN, NOTICED, SPARES, SLOW, BOTH], ids=["plain", "noticed", "spares", "slow", "both"]
)
def test_the_closed_form_is_within_two_percent_of_the_events(job):
    found = simulate(job, horizon_ns=50.0 * DAY_NS, repeats=256).mean
    assert expected_goodput(job).useful == pytest.approx(found.useful, rel=0.02)


def test_each_share_agrees_with_the_events():
    found = simulate(BOTH, horizon_ns=100.0 * DAY_NS, repeats=512)
    for closed, mean, error in zip(
        expected_goodput(BOTH), found.mean, found.standard_error, strict=True
    ):
        assert abs(closed - mean) <= max(0.05 * closed, 4 * error)


@pytest.mark.parametrize("share", [0.002, 0.01, 0.05])
def test_dalys_interval_is_within_two_percent_of_the_best_that_events_find(share):
    write = share * HOUR_NS
    best = checkpoints.daly(write, HOUR_NS)

    @cache
    def useful(interval):
        job = OperatingConditions(interval_ns=interval, write_ns=write, mtbf_ns=HOUR_NS)
        return simulate(job, horizon_ns=10.0 * DAY_NS, repeats=240, seed=1).mean.useful

    most = max(useful(best * factor) for factor in (0.6, 0.8, 1.0, 1.25, 1.6))
    assert useful(best) == pytest.approx(most, rel=0.02)
    assert useful(best) > useful(best * 3)


def test_youngs_interval_wastes_within_two_percent_of_what_events_say():
    write = 0.001 * HOUR_NS
    interval = checkpoints.young(write, HOUR_NS)
    job = OperatingConditions(interval_ns=interval, write_ns=write, mtbf_ns=HOUR_NS)
    found = simulate(job, horizon_ns=50.0 * DAY_NS, repeats=384).mean.useful
    assert 1 - checkpoints.waste(write, HOUR_NS, interval=interval) == pytest.approx(
        found, rel=0.02
    )


JOBS = st.builds(
    OperatingConditions,
    interval_ns=st.floats(0.01, 2).map(lambda hours: hours * HOUR_NS),
    write_ns=st.floats(1e9, 600e9),
    mtbf_ns=st.floats(0.2, 50).map(lambda hours: hours * HOUR_NS),
    restart_ns=st.floats(0, 900e9),
    node_share=st.floats(0, 1),
    repair_ns=st.floats(0, 3).map(lambda days: days * DAY_NS),
    spares=st.integers(0, 20),
    slow_every_ns=st.floats(1, 1000).map(lambda hours: hours * HOUR_NS),
    slowdown=st.floats(1, 3),
    notice_ns=st.floats(0, 24).map(lambda hours: hours * HOUR_NS),
)


@settings(max_examples=10)
@given(JOBS)
def test_all_time_is_accounted_for(job):
    found = simulate(job, horizon_ns=20.0 * DAY_NS, repeats=4).mean
    assert math.fsum(found[:6]) == pytest.approx(1)
    assert min(found) > -1e-9
    assert math.fsum(expected_goodput(job)[:6]) == pytest.approx(1)


def test_a_seed_gives_the_same_numbers_again():
    assert simulate(BOTH, seed=3) == simulate(BOTH, seed=3)
    assert simulate(BOTH, seed=3) != simulate(BOTH, seed=4)


def test_a_job_without_failures_only_writes():
    calm = OperatingConditions(interval_ns=9e9, write_ns=1e9, mtbf_ns=1e30)
    found = simulate(calm, horizon_ns=1000e9, repeats=2).mean
    assert (found.useful, found.writing) == pytest.approx((0.9, 0.1))


def test_more_spares_are_never_worse():
    shares = [expected_goodput(replace(SPARES, spares=spares)).useful for spares in range(0, 30, 3)]
    assert shares == sorted(shares)


def test_erlangs_formula_gives_the_published_table():
    # Erlang B tables: 10 servers at 5 erlang lose 1.84 %, 1 server at 1 erlang half
    assert erlang_b(10, 5.0) == pytest.approx(0.0184, abs=5e-5)
    assert erlang_b(1, 1.0) == 0.5
    assert erlang_b(3, 0.0) == 0
