"""Hosts whose clocks disagree by seconds and drift."""

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.trace.clocks.clocks import align, sharpen
from evenstep.trace.spool.layout import Kind, Phase
from tests.diagnose.synthetic import BOOT_NS, MS, World

CLOCKS = {1: (1e9, 2e-5), 2: (-3e8, 0.0), 3: (0.0, -5e-5)}
FOUR_HOSTS = World(ranks_per_node=1, noise=0.01, exit_lag_ns=0.2 * MS, clocks=CLOCKS)


@pytest.mark.parametrize("rank", range(4))
def test_a_host_that_is_always_late_is_still_charged_in_full(rank, worst):
    world = FOUR_HOSTS.slow(rank, Phase.BACKWARD, 50 * MS)
    finding = worst(world)
    assert finding.where.ranks == [rank]
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


@pytest.mark.parametrize("rank", range(4))
def test_clocks_are_placed_within_their_error_where_one_host_is_always_late(rank):
    trace = FOUR_HOSTS.slow(rank, Phase.BACKWARD, 50 * MS).trace()
    clocks = sharpen(trace, align(trace))
    for node, (offset, drift) in CLOCKS.items():
        placed = clocks.by_rank[node]
        true = -(offset + drift * (placed.at_ns - offset - BOOT_NS) / (1 + drift))
        assert np.all(np.abs(placed.offset_ns - true) <= placed.error_ns)
        assert placed.error_ns.max() < 2 * MS


def test_one_host_needs_no_alignment():
    trace = World().trace()
    clocks = align(trace)
    assert sharpen(trace, clocks) is clocks
    assert not any("clock" in limit for limit in diagnose(trace).limits)


def test_the_error_of_the_clocks_is_stated():
    limits = diagnose(FOUR_HOSTS.trace()).limits
    assert any(limit.startswith("clocks of 4 hosts were aligned") for limit in limits)


def unplaced(trace, *ranks):
    """Ranks on a host of their own, with no collective that could place its clock."""
    for rank in ranks:
        trace.ranks[rank].identity["boot_id"] = "another"
    events = trace.events
    cut = np.isin(events["rank"], ranks) & (events.kind == int(Kind.COLLECTIVE))
    trace.events = events.with_column("exit_ns", np.where(cut, 0, events.exit_ns))
    return trace


def test_what_cannot_be_compared_is_not_blamed_but_stated():
    diagnosis = diagnose(unplaced(World(noise=0.01).slow(1, Phase.BACKWARD, 50 * MS).trace(), 3))
    assert not any(3 in finding.where.ranks for finding in diagnosis.findings)
    assert "left out, as its clock could not be aligned: rank 3" in diagnosis.limits
    assert "not at fault" not in diagnosis.verdict


def test_what_waits_nobody_knows_how_long_is_not_late():
    """Ranks that cannot be compared seem to work while they wait."""
    world = World(style="blocking", ranks=8, noise=0.01, transfer_ns=20 * MS)
    assert not diagnose(unplaced(world.trace(), 4, 5, 6, 7)).findings


def test_where_nothing_of_the_common_clock_is_left_the_ranks_of_another_are_compared():
    """Most ranks are on the first host, of which no record was kept."""
    trace = World(ranks=5, noise=0.01, style="blocking").slow(4, Phase.BACKWARD, 50 * MS).trace()
    trace.ranks[3].identity["boot_id"] = trace.ranks[4].identity["boot_id"] = "another"
    trace.events = trace.events.select(trace.events["rank"] >= 3)
    assert diagnose(trace).findings[0].where.ranks == [4]


def test_on_a_device_times_in_flight_name_the_late_rank(worst, evidence):
    world = World(on_device=True, style="blocking", noise=0.005).slow(1, Phase.BACKWARD, 50 * MS)
    finding = worst(world)
    assert finding.where.ranks == [1]
    assert evidence(finding)["wait_of_the_others"] == pytest.approx(50 * MS, rel=0.1)
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_exposure_on_a_device_is_a_guess_and_said_to_be_one():
    limits = diagnose(World(on_device=True).trace()).limits
    assert any("ran on a device" in limit for limit in limits)
