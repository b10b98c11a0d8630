"""Micro-batches of different lengths in made pipelines: what they cost, and whose work is whose."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.graph.peers import micro_batches
from evenstep.diagnose.graph.replay import Change
from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.modes.workload_imbalance import _without_lengths
from evenstep.trace.spool.layout import Phase
from tests.diagnose.programs import Do, Job
from tests.diagnose.synthetic import MS

STAGES, MICRO, STEPS = 4, 6, 40


def pipeline(lengths, schedule):
    """A job whose micro-batches are so many times as long as usual: (steps, micro-batches)."""
    turns = Counter()

    def program(stage):
        step, turns[stage] = turns[stage], turns[stage] + 1
        ahead = MICRO if schedule == "gpipe" else min(STAGES - 1 - stage, MICRO)
        order = [("F", i) for i in range(ahead)]
        for i in range(MICRO - ahead):
            order += [("F", ahead + i), ("B", i)]
        order += [("B", i) for i in range(MICRO - ahead, MICRO)]
        said = []
        for way, i in order:
            before, after = (stage - 1, stage + 1) if way == "F" else (stage + 1, stage - 1)
            phase, ms = (Phase.FORWARD, 4.0) if way == "F" else (Phase.BACKWARD, 8.0)
            said += [Do("receive", peer=before)] if 0 <= before < STAGES else []
            said.append(Do("work", ms * MS * lengths[step, i], phase))
            said += [Do("send", peer=after)] if 0 <= after < STAGES else []
        return [*said, Do("wait"), Do("call", group=0), Do("work", 2 * MS, Phase.OPTIMIZER)]

    world = [("world", tuple(range(STAGES)))]
    return Job(
        ranks=STAGES, groups=world, program=program, steps=STEPS, transfer=lambda *_: 0.1 * MS
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_without_different_lengths_a_pipeline_is_as_long_as_one_of_the_mean_lengths(schedule):
    lengths = np.exp(0.3 * np.random.default_rng(5).standard_normal((STEPS, MICRO)))
    lengths /= lengths.mean(axis=1, keepdims=True)
    uneven, even = (pipeline(x, schedule).run() for x in (lengths, np.ones_like(lengths)))
    case = open_case(uneven.trace())
    batches = micro_batches(case.costs.graph)
    assert batches.correlation > 0.9
    saved = case.costs.saved([_without_lengths(case.costs, batches, Change.none())])[0].sum()
    true = uneven.length_ns - even.length_ns
    assert saved == pytest.approx(true, rel=0.1)


def test_a_first_micro_batch_that_warms_up_all_stages_makes_no_lengths_that_vary():
    """In a run of few steps, which are all looked at."""
    lengths = np.ones((8, MICRO))
    lengths[0, 0] = 40
    trace = replace(pipeline(lengths, "1f1b"), noise=0.02, steps=8).run().trace()
    assert micro_batches(open_case(trace).costs.graph).correlation < 0.5
    assert "workload_imbalance" not in {one.mode for one in diagnose(trace).findings}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_work_of_every_row_is_as_long_as_the_micro_batches_that_it_is_of(schedule):
    """To 2 % of the 4 ms of a forward, 8 of a backward or 12 of both, also where a row of the first
    stage is of two of them."""
    lengths = np.exp(0.3 * np.random.default_rng(5).standard_normal((STEPS, MICRO)))
    graph = open_case(pipeline(lengths, schedule).run().trace()).costs.graph
    batches = micro_batches(graph)
    rows, own = graph.rows.select(batches.rows), graph.own_ns[batches.rows] / MS
    lane = graph.rows.segment * STAGES + graph.rows.lane
    turn = batches.rows - np.searchsorted(lane, lane[batches.rows])
    place = rows.lane * len(lane) + turn
    usual = np.array([np.median(own[place == one]) for one in place])
    whole = 4 * np.maximum(np.rint(usual / 4), 1)
    apart = own / whole / batches.common
    assert apart / np.median(apart) == pytest.approx(1.0, abs=0.02)
    assert batches.deviation == pytest.approx(lengths.std() / lengths.mean(), rel=0.1)


def test_micro_batches_of_one_length_are_seen_to_be_so():
    batches = micro_batches(
        open_case(pipeline(np.ones((STEPS, MICRO)), "1f1b").run().trace()).costs.graph
    )
    assert batches.common == pytest.approx(1.0, abs=0.02)
