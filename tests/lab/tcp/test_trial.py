"""A trial over real TCP: torch unmodified on shaped links, disturbed, paced, and taken down."""

from __future__ import annotations

import pytest

import evenstep
from evenstep.diagnose.engine import diagnose
from evenstep.errors import UsageError
from lab import run
from lab.arms import Schedule
from lab.scenario import parse
from lab.tcp import network, tier
from lab.tcp.rank import ACCOUNTS

SCENARIO = parse({
    "fabric": "tcp",
    "network": {"link_gBps": 0.02},
    "jobs": [{"name": "pair", "compute_ms": 10, "buckets": 2, "gradient_bytes": 20_000}],
    "faults": [
        {"kind": "slow_rank", "ranks": "1", "delay_ms": 40},
        {"kind": "throttled_link", "share": 0.8, "first_step": 5},
        {"kind": "bursty_neighbour", "on_ms": 5, "off_ms": 100},
        {"kind": "neighbour_job", "compute_ms": 50, "exchange_ms": 1},
    ],
    "run": {"rounds": 1, "warm_up_rounds": 0, "block_s": 0.7, "settle_s": 0.1},
})  # fmt: skip
LACKING = tier.missing(SCENARIO)
privileged = pytest.mark.skipif(bool(LACKING), reason=LACKING or "nothing is lacking")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a run of three arms."""
    made = tmp_path_factory.mktemp("tcp")
    arms = run.arms_for(["paper+sharing", "token+unguarded"], again=False)
    run.carry_out(SCENARIO, Schedule(arms, 1, 0, seed=0), made)
    return made


@privileged
def test_the_diagnosis_names_the_late_rank_and_its_host(folder):
    findings = diagnose(evenstep.load(folder / "pair")).findings
    assert [1] in [list(finding.where.ranks) for finding in findings]
    assert set(evenstep.load(folder / "pair").nodes) == {"host0", "host1"}


@privileged
def test_every_rank_closes_its_trace_and_tells_what_each_arm_did(folder):
    ranks = evenstep.load(folder / "pair").ranks
    assert all("closed" in info.facts for info in ranks.values())
    assert all(told["steps"] > 0 for info in ranks.values() for told in info.facts[ACCOUNTS])


@privileged
def test_no_namespace_and_no_order_is_left(folder):
    assert network.clean() == []
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_without_the_right_the_scenario_is_refused_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "_capable", lambda capability: False)
    with pytest.raises(UsageError, match=r"fabric tcp cannot be used here: .* takes root"):
        run.carry_out(SCENARIO, Schedule(run.arms_for([]), 1, 0, seed=0), tmp_path)
