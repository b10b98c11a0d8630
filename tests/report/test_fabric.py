"""What links carried: closed forms of counters that grow evenly."""

import numpy as np
import pytest

from evenstep.report.page.fabric import loads, simulated_load
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import RankInfo, Trace
from tests.report.small_run import MS

SECOND = 1000 * MS


def sample(rank, name, device, at_s, value):
    return {
        "rank": rank,
        "kind": int(Kind.SAMPLE),
        "name": name,
        "device": device,
        "enter_ns": at_s * SECOND,
        "bytes_in": int(np.float64(value).view(np.uint64)),
    }


@pytest.fixture
def trace(trace) -> Trace:
    """Two ranks of one node read its adapter: 1 GB in the first second, 3 GB in the second."""
    rows = [
        sample(rank, 1, 0, at, sent)
        for rank in (0, 1)
        for at, sent in enumerate((5e9, 6e9, 9e9)[: 3 - rank])
    ]
    rows += [sample(0, 1, 1, at, 7.0) for at in (0, 1)]  # an adapter that carries nothing
    table = {name: np.zeros(len(rows), trace.events[name].dtype) for name in trace.events}
    for at, row in enumerate(rows):
        for name, value in row.items():
            table[name][at] = value
    trace.events, trace.names = Columns(table), ("", "nic.sent_bytes")
    nics = [{"name": "eth0", "index": 0, "speed_gbps": 80.0}]
    facts = {"locality": {"nics": nics, "ib_ports": []}}
    for rank in (0, 1):
        trace.ranks[rank] = RankInfo(rank, trace.ranks[rank].identity, facts)
    return trace


def test_an_adapter_is_read_once_a_node_with_mean_and_highest(trace):
    [load] = loads(trace)
    assert (load.node, load.link) == ("gpu011", "eth0 sent")
    assert load.mean_gBps == pytest.approx(2.0)  # 4 GB in 2 s
    assert load.peak_gBps == pytest.approx(3.0)
    assert load.share == pytest.approx(0.2)  # of 80 Gbit/s, 10 GB/s


def test_a_counter_that_was_reset_did_not_grow(trace):
    trace.events["bytes_in"][2] = 0
    [load] = loads(trace)
    assert load.mean_gBps == pytest.approx(0.5)


def test_two_samples_at_one_time_tell_no_rate_and_beside_others_the_last_counts(trace):
    """Of the first rank 4 GB in 2 s, whatever was read twice."""
    mine = (trace.events["rank"] == 0) & (trace.events.device == 0)
    last = np.flatnonzero(mine)[-1]
    trace.events["enter_ns"][np.flatnonzero(mine)[1]] = trace.events.enter_ns[last]
    [load] = loads(trace)
    assert (load.mean_gBps, load.peak_gBps) == pytest.approx((2.0, 2.0))
    trace.events = trace.events.select(mine & (trace.events.enter_ns == 2 * SECOND))
    assert loads(trace) == []


def test_a_trace_without_counters_has_no_loads(trace):
    trace.names = ("", "something else")
    assert loads(trace) == []


def test_the_links_of_a_simulation_stand_worst_first():
    link = {"capacity_gBps": 50.0, "bytes": 4e9, "others_bytes": 1e9, "peak": 0.9}
    found = simulated_load(
        [link | {"link": "a", "utilisation": 0.1}, link | {"link": "b", "utilisation": 0.8}]
    )
    assert [(load.link, load.mean_gBps) for load in found] == [("b", 40.0), ("a", 5.0)]
    assert found[0].others_share == 0.25
    assert found[0].peak_gBps == 45.0
