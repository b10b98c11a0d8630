"""A rank the laboratory drives: arms in turn, each with a pacer of its own."""

import time

import pytest

from evenstep.agent.exchange.messages import Orders
from evenstep.pacing import Pacer, Slowest
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.layout import Kind, Phase
from lab.arms import arm
from lab.rank_host import RankHost, open_spool

MS = 1_000_000


@pytest.fixture
def host(tmp_path):
    """Two arms by turns of four steps: baseline, then slack with sharing."""
    folder = RunFolder(tmp_path)
    spool = open_spool(folder, {"rank": 0, "world": 2, "attempt": 0}, records=2000)
    chosen = [arm(name).settings(world=2) for name in ("baseline", "slack+sharing")]
    made = RankHost(spool, rank=0, world=2, settings=chosen, arm_of=lambda block: block % 2)
    yield made
    made.close("test")


def step(host, block, orders=None):
    with host.phase(Phase.BACKWARD):
        host.bucket(1000, lambda: None)
    return host.end_step(block, orders)


def test_each_arm_counts_its_own_steps(host):
    for number in range(20):
        step(host, (number + 1) // 4)
    assert [one["steps"] for one in host.account()] == [12, 8]


def test_the_trace_counts_all_steps(host):
    for number in range(20):
        step(host, (number + 1) // 4)
    found = read_spool(host.spool.path).records
    assert found[found["kind"] == Kind.STEP]["step"].tolist() == list(range(20))
    collectives = found[found["kind"] == Kind.COLLECTIVE]
    assert collectives["group_seq"].tolist() == list(range(20))
    assert (collectives["exit_ns"] >= collectives["enter_ns"]).all()


def test_an_exchange_that_fails_has_an_end(host):
    with pytest.raises(ZeroDivisionError):
        host.bucket(1000, lambda: 1 // 0)
    found = read_spool(host.spool.path).records
    assert found[found["kind"] == Kind.COLLECTIVE]["exit_ns"].all()


def test_orders_are_for_arms_that_share(host, monkeypatch):
    heard = []
    monkeypatch.setattr(Pacer, "observe", lambda self, seen: heard.append(seen.slowest))
    slowest = Slowest(0, 0, 5 * MS)
    step(host, 1, Orders(slowest=slowest))  # of the baseline, the next is of the other
    step(host, 0, Orders(slowest=slowest))
    assert heard == [None, slowest]


def test_what_was_held_is_returned(host, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert step(host, 0) == 0
