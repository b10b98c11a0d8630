import numpy as np
import pytest

from evenstep.pacing.blocks import BLOCK_STEPS, block_is_paced
from evenstep.trace.columns import Columns
from evenstep.trace.layout import Kind
from evenstep.trace.trace import RankInfo, Trace
from examples.pacing_effect import PacingEffect, describe, pacing_effect

RUN, WORLD = "a run", 2
UNPACED_NS, HELD_NS = 110_000_000, 5_000_000


def run(blocks, *, paced_ns=100_000_000, held_ns=HELD_NS, learning=0):
    """A run whose rank 0 is held in paced blocks after the first `learning` blocks."""
    rank = np.repeat(np.arange(WORLD), blocks * BLOCK_STEPS)
    step = np.tile(np.arange(blocks * BLOCK_STEPS), WORLD)
    paced = np.array([block_is_paced(RUN, 0, block) for block in step // BLOCK_STEPS])
    paced &= step >= learning * BLOCK_STEPS
    duration = np.where(paced, paced_ns, UNPACED_NS)
    columns = {"rank": rank, "step": step, "enter_ns": 0 * step, "exit_ns": duration}
    columns |= {"kind": np.full(len(step), int(Kind.STEP))}
    columns |= {"held_ns": np.where(paced & (rank == 0), held_ns, 0)}
    ranks = {number: RankInfo(number, {"run_id": RUN}) for number in range(WORLD)}
    return Trace({}, WORLD, 0, ranks, Columns(columns))


def test_the_effect_is_the_ratio_of_unpaced_to_paced_step_time():
    effect = pacing_effect(run(20))
    assert effect.gain == pytest.approx(110 / 100 - 1)
    assert (effect.pairs, effect.held_ranks) == (10, (0,))
    assert effect.held_ns == HELD_NS


def test_blocks_before_anybody_was_held_do_not_count():
    assert pacing_effect(run(20, learning=8)).pairs == 6


def test_a_pair_that_the_end_of_the_run_cuts_short_does_not_count():
    trace = run(20)
    trace.events = trace.events.select(trace.events.step < 20 * BLOCK_STEPS - 1)
    assert pacing_effect(trace).pairs == 9


def test_without_any_delay_there_is_no_effect():
    effect = pacing_effect(run(20, held_ns=0))
    assert effect.pairs == 0
    assert "held nobody" in describe(effect)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.01, 0.03, "gains"), (-0.03, -0.01, "costs"), (-0.01, 0.01, "no effect can be told")],
)
def test_the_words_follow_the_interval(low, high, words):
    assert words in describe(PacingEffect(9, (low + high) / 2, low, high, 1e7, (0, 1, 3)))


def test_too_few_pairs_get_no_interval():
    text = describe(pacing_effect(run(6)))
    assert "3 pairs" in text
    assert "interval" in text
    assert "%" not in text
