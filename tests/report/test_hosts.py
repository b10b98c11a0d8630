from dataclasses import replace

import numpy as np
import pytest

from evenstep.report.page.fabric import hosts
from evenstep.trace.clocks.bounds import OffsetLine
from evenstep.trace.clocks.clocks import Clocks, align
from evenstep.trace.trace import Trace

EXACT = OffsetLine(np.zeros(1), np.zeros(1), np.zeros(1))
HOUR_NS = 3.6e12


def two_clocks(trace: Trace) -> Trace:
    ranks = {
        rank: replace(info, identity={**info.identity, "boot_id": info.node})
        for rank, info in trace.ranks.items()
    }
    return replace(trace, ranks=ranks)


def test_ranks_of_one_clock_are_one_row(trace: Trace) -> None:
    (row,) = hosts(trace, align(trace))
    assert (row["ranks"], row["reference"], row["error_ns"]) == ("0-3", True, 0.0)


def test_a_clock_has_its_offset_error_bar_and_drift(trace: Trace) -> None:
    ends = np.array([0.0, HOUR_NS])
    drifting = OffsetLine(ends, np.array([5e6, 5e6 + 20e-6 * HOUR_NS]), np.array([9e3, 7e3]))
    clocks = Clocks("gpu011", {0: EXACT, 1: EXACT, 2: drifting, 3: drifting})
    reference, other = hosts(two_clocks(trace), clocks)
    assert reference["reference"] is True
    assert other["ranks"] == "2 and 3"
    assert other["error_ns"] == 9e3
    assert other["drift_ppm"] == pytest.approx(20)
    assert other["of_widest"] == 1.0


def test_a_clock_that_has_no_place_has_no_numbers(trace: Trace) -> None:
    clocks = Clocks("gpu011", {0: EXACT, 1: EXACT, 2: None, 3: None})
    assert hosts(two_clocks(trace), clocks)[1]["error_ns"] is None
