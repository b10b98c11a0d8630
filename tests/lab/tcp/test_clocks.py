"""Two hosts, one trace: waits are right although the clocks are a day apart, and drift."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import evenstep
from evenstep.diagnose.engine import diagnose
from evenstep.trace.clocks.clocks import align
from evenstep.trace.spool.layout import Kind
from evenstep.trace.trace import Trace
from lab.tcp import network
from tests.lab.tcp import two_clocks
from tests.lab.tcp.two_clocks import DELAY_MS

LACKING = network.missing()
pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING or "nothing is lacking")
pytest.importorskip("torch", reason="the ranks train with torch")

RATE = 200e-6  # two crystals at 100 ppm each, drifting apart


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_clocks.run(tmp_path_factory.mktemp("clocks"))


@pytest.fixture(scope="module", params=[0.0, RATE], ids=["offset", "offset and drift"])
def world(request, run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, float]:
    """The trace, and how much faster rank 1's clock is."""
    folder = two_clocks.drifting(run, tmp_path_factory.mktemp("copy") / "run", request.param)
    return evenstep.load(folder), request.param


def test_the_ranks_are_on_two_clocks(world):
    trace, _ = world
    assert len({info.clock for info in trace.ranks.values()}) == 2
    start_ns = [trace.of_kind(Kind.STEP).select(trace.of_kind(Kind.STEP).rank == r).enter_ns[0]
                for r in (0, 1)]  # fmt: skip
    assert start_ns[1] - start_ns[0] > 0.9 * two_clocks.OFFSET_S * 1e9


def test_rank_1_is_placed_as_true_as_its_error_bar_says(world):
    trace, rate = world
    steps = trace.of_kind(Kind.STEP)
    own_ns = steps.exit_ns[steps.rank == 1]
    zero_ns = trace.ranks[1].identity["anchor_monotonic_ns"]
    offset = align(trace).by_rank[1]
    assert offset is not None
    truth_ns = two_clocks.truth_ns(own_ns.astype(float), zero_ns, rate)
    missed_ns = np.abs(own_ns + offset.offset_at(own_ns) - truth_ns)
    assert (missed_ns <= offset.error_at(own_ns) + 1_000).all()  # a day in float64: 15 ns
    assert np.median(missed_ns) < 0.1 * DELAY_MS * 1e6


def test_the_wait_is_the_injected_delay(world):
    trace, _ = world
    (finding,) = (one for one in diagnose(trace).findings if one.mode == "straggler")
    wait = next(e for e in finding.evidence if e.metric == "wait_of_the_others")
    assert list(finding.where.ranks) == [1]
    assert wait.measured == pytest.approx(DELAY_MS * 1e6, rel=0.5)  # clocks are a day apart
