from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.lateness.case import open_case
from evenstep.report.page.fabric import ALGORITHMS, sizes
from evenstep.report.page.sheet import Chart
from evenstep.trace.trace import Trace
from tests.report.small_run import MS, RANKS

BYTES = 25_000_000
FLOOR_NS = 5 * MS  # the second bucket moves from 140 to 145 ms, when the first is out of the way


@pytest.fixture
def found(trace: Trace) -> Chart:
    result = sizes(open_case(trace))
    assert result is not None
    return result


def of(found: Chart, name: str) -> tuple[np.ndarray, np.ndarray]:
    curves = found.tables["curves"]
    mine = curves.algorithm == ALGORITHMS.index(name)
    return curves.size_bytes[mine], curves.time_us[mine]


def test_the_floor_is_the_undisturbed_transfer(found: Chart) -> None:
    assert found.tables["floors"].size_bytes.tolist() == [BYTES]
    assert found.tables["floors"].time_us.tolist() == [FLOOR_NS / 1e3]
    assert found.facts["sizes"][0]["name"] == f"all-reduce of {RANKS} ranks"


def test_a_ring_at_the_runs_own_bandwidth_goes_through_its_floor(found: Chart) -> None:
    size, time_us = of(found, "ring")  # without latency time is proportional to size
    assert time_us == pytest.approx(size / BYTES * FLOOR_NS / 1e3, rel=1e-5)


def test_a_tree_sends_everything_twice_where_a_ring_spares_a_part(found: Chart) -> None:
    ratio = of(found, "tree")[1] / of(found, "ring")[1]
    assert ratio == pytest.approx(RANKS / (RANKS - 1), rel=1e-5)  # 2 S/B against 2 S (n-1)/(n B)


def test_a_hierarchy_is_drawn_where_nodes_hold_several_ranks(found: Chart, trace: Trace) -> None:
    assert of(found, "hierarchical")[0].size
    alone = {
        rank: replace(info, identity={**info.identity, "hostname": f"n{rank}"})
        for rank, info in trace.ranks.items()
    }
    apart = sizes(open_case(replace(trace, ranks=alone)))
    assert apart is not None
    assert not of(apart, "hierarchical")[0].size


def test_without_all_ranks_transfer_is_not_drawn(trace: Trace) -> None:
    assert sizes(open_case(replace(trace, world=RANKS + 1))) is None
