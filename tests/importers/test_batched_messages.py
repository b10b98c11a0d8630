"""A ring that exchanges blocks while it works on those it has: messages both ways in one kernel."""

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.importers.opening import open_trace
from tests.importers.profiles import Profile

RANKS, STEPS, LAYERS = 4, 10, 4
BLOCK_US, SENT_US, LAYER_US, OTHERS_US = 800, 600, 900, 500
LAUNCHED_US = 2_000  # of host time, for a whole step
AWAY = (np.arange(RANKS) + 1) % RANKS


def ring(tmp_path, block_us, sent_us, *, waits=True, named=True, late_us=0):
    """Every layer works on a block of each rank and hands on the last; a kernel begins when all
    work issued before it is done (`waits`), its stream is free and both neighbours have come.
    `block_us` of each rank, `sent_us` of each to the next; rank 2 begins each step `late_us` after
    the others; a kernel bears the id of a call, or none
    (`named`). Returns the trace and the length of a step."""
    profiles = [Profile(rank, RANKS) for rank in range(RANKS)]
    done, random = np.zeros(RANKS), np.random.default_rng(5)
    for step in range(STEPS):
        at = [LAUNCHED_US * step] * RANKS
        for rank, profile in enumerate(profiles):
            profile.step(step, at[rank], LAUNCHED_US - 1)
        done = done + late_us * (np.arange(RANKS) == 2)
        for _ in range(LAYERS):
            done = work(profiles, at, done, np.full(RANKS, LAYER_US))
            came, free = done, np.zeros(RANKS)
            for turn in range(RANKS):
                begun = np.maximum(free, done if waits else came)
                done = np.maximum(done, came)
                if turn < RANKS - 1:
                    over = np.maximum(begun, begun[AWAY]) + sent_us
                    free = came = np.maximum(over, over[AWAY - 2])
                    exchange(profiles, at, begun, free, named=named)
                done = work(profiles, at, done, block_us * random.normal(1, 0.01, RANKS))
        entered, done = done, np.full(RANKS, done.max() + OTHERS_US)
        for rank, profile in enumerate(profiles):
            lasts = float(done[rank] - entered[rank])
            profile.collective(at[rank] + 2, float(entered[rank]), lasts, stream=30)
    paths = [each.write(tmp_path / f"{rank}.json") for rank, each in enumerate(profiles)]
    return open_trace(paths), done[0] / STEPS


def work(profiles, at, begun, lasts):
    for rank, profile in enumerate(profiles):
        at[rank] += 10
        profile.kernel("gemm", at[rank], float(begun[rank]), float(lasts[rank]))
    return begun + lasts


def exchange(profiles, at, begun, over, *, named):
    for rank, profile in enumerate(profiles):
        said = {"dtype": "Float", "In msg nelems": 10, "Process Group Name": "1"}
        said |= {"Process Group Ranks": str(list(range(RANKS))), "Group size": RANKS}
        for turn, (what, peer) in enumerate(
            [("send", {"Dst Rank": int(AWAY[rank])}), ("recv", {"Src Rank": int(AWAY[rank - 2])})]
        ):
            ids = {"External id": 10 * (profile.launches + 1) + turn} if named else {}
            says = said | {"Collective name": what} | peer | ids
            profile.host("record_param_comms", at[rank] + 2 + 2 * turn, 1, **says)
        at[rank] += 10
        kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        lasts = float(over[rank] - begun[rank])
        profile.kernel(kernel, at[rank], float(begun[rank]), lasts, stream=21, **ids)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_a_slow_rank_of_a_ring_costs_what_it_costs(tmp_path, waits, named):
    equal = np.full(RANKS, BLOCK_US)
    slow = np.where(np.arange(RANKS) == 2, 1.3 * BLOCK_US, BLOCK_US)
    _, usual_us = ring(tmp_path, equal, SENT_US, waits=waits)
    trace, step_us = ring(tmp_path, slow, SENT_US, waits=waits, named=named)
    worst = diagnose(trace).findings[0]
    assert worst.where.ranks == [2]
    assert worst.severity == pytest.approx(1 - usual_us / step_us, rel=0.1)


@pytest.mark.parametrize("waits", [True, False])
def test_a_ring_whose_messages_are_hidden_is_healthy(tmp_path, waits):
    trace, _ = ring(tmp_path, np.full(RANKS, BLOCK_US), SENT_US, waits=waits)
    assert [each.mode for each in diagnose(trace).findings if each.severity >= 0.05] == []


def test_slow_messages_both_ways_are_their_ranks(tmp_path):
    blocks = np.full(RANKS, BLOCK_US)
    sent = np.where(np.isin(np.arange(RANKS), [1, 2]), 3 * SENT_US, SENT_US)
    _, usual_us = ring(tmp_path, blocks, SENT_US)
    trace, step_us = ring(tmp_path, blocks, sent)
    worst = diagnose(trace).findings[0]
    assert (worst.mode, worst.where.ranks) == ("fabric_contention", [2])
    assert worst.title == "Slow messages on rank 2"
    assert worst.severity == pytest.approx(1 - usual_us / step_us, rel=0.05)


def test_messages_slow_on_one_link_are_no_ranks(tmp_path):
    sent = np.where(np.arange(RANKS) == 1, 3 * SENT_US, SENT_US)
    worst = diagnose(ring(tmp_path, np.full(RANKS, BLOCK_US), sent)[0]).findings[0]
    assert worst.title == "Slow messages between ranks 1 and 2"
    assert not worst.where.ranks


def test_a_rank_of_a_ring_that_begins_its_steps_late_costs_what_it_costs(tmp_path):
    """All ranks do the same, though the last one's next is the first."""
    equal = np.full(RANKS, BLOCK_US)
    _, usual_us = ring(tmp_path, equal, SENT_US)
    trace, step_us = ring(tmp_path, equal, SENT_US, late_us=6_000)
    worst = diagnose(trace).findings[0]
    assert worst.where.ranks == [2]
    assert worst.severity == pytest.approx(1 - usual_us / step_us, rel=0.1)
