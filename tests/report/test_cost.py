from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.finding import Diagnosis
from evenstep.report.page.html import waiting_cost
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace
from tests.report.small_run import RANKS, STEPS, events, record

HOURS = RANKS * STEPS * 0.150 / 3600  # steps of 150 ms


def joules(rank: int, value: float) -> dict[str, int]:
    bits = int(np.float64(value).view(np.uint64))
    return record(rank=rank, kind=Kind.SAMPLE, name=2, bytes_in=bits)


def test_rank_hours_are_ranks_times_steps_times_their_length(
    diagnosis: Diagnosis, trace: Trace
) -> None:
    found = waiting_cost(diagnosis, trace)
    assert found.rank_hours == pytest.approx(HOURS)
    assert found.lost_rank_hours == diagnosis.summary["rank_hours_wasted"]
    assert found.lost_a_day == pytest.approx(0.0021 / HOURS * RANKS * 24)


def test_money_is_rank_hours_times_their_price(diagnosis: Diagnosis, trace: Trace) -> None:
    assert waiting_cost(diagnosis, trace, 2.5).money(4.0) == 10.0
    assert waiting_cost(diagnosis, trace, 2.5).money_a_day(0.25) == 0.25 * RANKS * 24 * 2.5
    assert waiting_cost(diagnosis, trace).money(4.0) is None


def test_a_price_in_the_run_itself_counts_unless_another_is_given(
    diagnosis: Diagnosis, trace: Trace
) -> None:
    priced = replace(trace, run={**trace.run, "price_per_rank_hour": 3.0})
    assert waiting_cost(diagnosis, priced).price == 3.0
    assert waiting_cost(diagnosis, priced, 2.0).price == 2.0


def test_energy_is_what_each_ranks_counter_advanced(diagnosis: Diagnosis, trace: Trace) -> None:
    samples = events([joules(0, 100.0), joules(0, 700.0), joules(1, 50.0), joules(1, 90.0)])
    names = (*trace.names, "gpu.energy_joules")
    measured = replace(trace, events=Columns.concatenate([trace.events, samples]), names=names)
    assert waiting_cost(diagnosis, measured).energy_joules == pytest.approx(600.0 + 40.0)
    assert waiting_cost(diagnosis, trace).energy_joules is None
