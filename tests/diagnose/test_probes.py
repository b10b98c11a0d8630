"""What the probe inside a job says of a late rank's machine."""

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.trace.spool.layout import Kind, Phase
from tests.diagnose.synthetic import MS, World, with_rows

LATE = World(ranks=8, ranks_per_node=4).slow(2, Phase.BACKWARD, 50 * MS)


def probed(trace, slow, *, factor=1.18, probes=12, noise=0.01):
    """The trace with a product of 3 ms in each probe, `factor` times that on the slow ranks."""
    trace.names = (*trace.names, "probe.compute_ns")
    random = np.random.default_rng(7)
    steps = np.linspace(5, 55, probes).astype(int)
    for rank in trace.ranks:
        values = 3.0 * MS * (factor if rank in slow else 1.0)
        values = values * (1 + noise * random.standard_normal(probes))
        trace = with_rows(
            trace, kind=int(Kind.SAMPLE), rank=rank, name=len(trace.names) - 1, step=steps,
            enter_ns=trace.events.enter_ns.min() + steps, bytes_in=values.view(np.uint64),
        )  # fmt: skip
    return trace


def evidence(finding):
    found = (one for one in finding.evidence if one.metric.startswith("probe_"))
    return {one.metric: (one.measured, one.expected) for one in found}


def test_a_late_rank_whose_machine_computes_slower_is_named_with_its_host():
    trace = probed(LATE.trace(), {2})
    finding = diagnose(trace).findings[0]
    node = trace.ranks[2].node
    assert finding.where.ranks == [2]
    assert f"its own machine ({node}) computes 18 % slower than its peers" in finding.cause
    ((name, (measured, expected)),) = evidence(finding).items()
    assert name == "probe_compute_of_rank_2"
    assert measured / expected == pytest.approx(1.18, abs=0.02)


def test_a_host_whose_ranks_are_all_slow_is_named_as_a_whole():
    trace = probed(World(ranks=8, ranks_per_node=2).slow([2, 3], Phase.FORWARD, 50 * MS).trace(),
                   {2, 3})  # fmt: skip
    finding = diagnose(trace).findings[0]
    assert f"(as all 2 ranks of {trace.ranks[2].node})" in finding.cause
    assert set(evidence(finding)) == {"probe_compute_of_rank_2", "probe_compute_of_rank_3"}


@pytest.mark.parametrize(
    "trace",
    [
        probed(LATE.trace(), set()),
        probed(LATE.trace(), {5}),  # slow, but not late
        probed(LATE.trace(), {2}, probes=2),  # too few
        probed(LATE.trace(), {2}, noise=0.5),
    ],
    ids=["alike", "another", "few", "noisy"],
)
def test_of_a_machine_that_does_not_stand_out_nothing_is_said(trace):
    finding = diagnose(trace).findings[0]
    assert not evidence(finding)
    assert "probe" not in finding.cause


def test_where_nobody_is_late_a_slow_machine_is_no_finding():
    assert not diagnose(probed(World(ranks=8, ranks_per_node=4).trace(), {2})).findings
