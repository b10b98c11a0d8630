from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.lateness.cost import Blame
from evenstep.report.page.overview import NO_RANK, waiting
from evenstep.report.page.sheet import Chart
from evenstep.trace.spool.layout import Phase
from evenstep.trace.trace import Trace
from tests.report.small_run import FIRST_STEP, LATE_RANK, RANKS, STEPS, WAIT_NS


@pytest.fixture
def found(trace: Trace) -> Chart:
    case = open_case(trace)
    result = waiting(case)
    assert result is not None
    return result


def test_every_wait_stands_in_the_column_of_the_late_rank(found: Chart) -> None:
    lost_us = found.tables["matrix"].lost_us.reshape(RANKS, RANKS)
    expected = np.zeros((RANKS, RANKS))
    expected[:LATE_RANK, LATE_RANK] = STEPS * WAIT_NS / 1e3
    assert lost_us == pytest.approx(expected)


def test_the_late_rank_bounds_every_step_in_backward(found: Chart) -> None:
    assert found.tables["bounds"].step.tolist() == list(range(FIRST_STEP, FIRST_STEP + STEPS))
    assert set(found.tables["bounds"].rank.tolist()) == {LATE_RANK}
    assert set(found.tables["bounds"].phase.tolist()) == {int(Phase.BACKWARD)}


def test_neighbouring_ranks_share_a_cell_and_nothing_is_lost() -> None:
    random = np.random.default_rng(1)
    rows = [random.integers(0, 10, 500) for _ in range(3)]
    found = Blame(*rows, random.uniform(0, 1e6, 500), (10, 10))
    table = found.between(np.arange(found.shape[1]) // 3)
    assert table.shape == (4, 4)  # 10 ranks, three to a cell
    assert table.sum() == pytest.approx(found.lost_ns.sum())
    assert table[0, 3] == pytest.approx(found.between(np.arange(10))[:3, 9:].sum())


def test_a_trace_with_a_missing_rank_tells_nothing_of_waits(trace: Trace) -> None:
    case = open_case(replace(trace, world=RANKS + 1))
    assert waiting(case) is None


def test_a_step_that_nobody_holds_up_has_no_rank(trace: Trace) -> None:
    case = open_case(trace)
    case.grid.wait_ns[:10] = 0
    found = waiting(case)
    assert found is not None
    assert found.tables["bounds"].rank[:10].tolist() == [NO_RANK] * 10
