"""Waits between hosts: every wait lies between two places, few or many hosts to each."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.lateness.cost import Blame
from evenstep.report.page import overview as module
from evenstep.report.page.overview import host_waits
from evenstep.report.page.sheet import Chart
from evenstep.trace.trace import Trace
from tests.report.small_run import NODES, STEPS, WAIT_NS


def found(trace: Trace) -> Chart | None:
    case = open_case(trace)
    return host_waits(trace, case)


def test_each_pair_has_what_its_ranks_waited(trace: Trace) -> None:
    result = found(trace)
    assert result is not None
    pairs, facts = result.tables["host_waits"], result.facts["host_waits"]
    # ranks 0 and 1 of the first host and rank 2 of the second wait for rank 3 of the second
    assert list(zip(pairs.waiting, pairs.awaited, strict=True)) == [(0, 1), (1, 1)]
    assert pairs.lost_us == pytest.approx([2 * STEPS * WAIT_NS / 1e3, STEPS * WAIT_NS / 1e3])
    assert (facts["worst"][0]["waiting"], facts["worst"][0]["awaited"]) == NODES
    assert sum(pair["share"] for pair in facts["worst"]) == pytest.approx(1.0)
    assert [place["groups"] for place in facts["places"]] == ["default_pg", "default_pg"]


def test_a_run_on_one_host_or_on_hosts_without_names_has_no_map(trace: Trace) -> None:
    for name in ("gpu011", ""):
        for info in trace.ranks.values():
            info.identity["hostname"] = name
        assert found(trace) is None


def test_a_run_in_which_nobody_waited_has_no_map(trace: Trace) -> None:
    case = open_case(trace)
    case.__dict__["blame"] = Blame(
        *(np.zeros(0, int) for _ in range(3)), np.zeros(0), case.grid.shape
    )
    assert host_waits(trace, case) is None


def test_of_many_hosts_neighbours_share_a_place(trace: Trace, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_PLACES", 2)
    trace.ranks = {
        rank: replace(info, identity={**info.identity, "hostname": f"h{rank}"})
        for rank, info in trace.ranks.items()
    }
    result = found(trace)
    assert result is not None
    pairs, facts = result.tables["host_waits"], result.facts["host_waits"]
    assert [place["name"] for place in facts["places"]] == ["h0 to h1", "h2 to h3"]
    assert [place["ranks"] for place in facts["places"]] == ["0 and 1", "2 and 3"]
    assert list(zip(pairs.waiting, pairs.awaited, strict=True)) == [(0, 1), (1, 1)]
    assert pairs.lost_us == pytest.approx([2 * STEPS * WAIT_NS / 1e3, STEPS * WAIT_NS / 1e3])
