"""Own work in a pipeline of messages, against what its made steps do."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.graph import gaps
from evenstep.diagnose.graph.peers import work_by_direction
from evenstep.diagnose.graph.structure import by_step_and_lane
from evenstep.diagnose.lateness.case import _in_phases, _more
from evenstep.diagnose.measure.grid import step_grid
from evenstep.trace.spool.layout import Kind, Phase
from tests.diagnose.pipelines import Pipeline
from tests.diagnose.programs import Do, pipeline, ring
from tests.diagnose.synthetic import MS


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("stage", range(4))
def test_waits_that_end_together_take_nothing_of_the_work_after_them(stage, early):
    world = Pipeline(stages=4, micro_batches=4, transfer_ms=0.1, posted_early=early)
    grid = step_grid(world.slow(stage, 3.0).trace())
    expected = np.full(4, 4 * (world.forward_ms + world.backward_ms))
    expected[stage] += 4 * 3.0
    assert np.median(grid.work_ns, axis=0) / 1e6 == pytest.approx(expected, abs=0.5)
    whole = grid.work_ns + grid.blocked_ns
    assert np.median(whole - grid.step_ns[:, None], axis=0) == pytest.approx(0, abs=0.1e6)


@pytest.mark.parametrize("device", [False, True])
def test_a_stage_slow_with_backward_alone_has_more_of_that_alone(device):
    """Stage 1 of 4 takes 11 ms for each of 8 backwards, the others 8, and 4 for a forward."""
    job = pipeline(steps=12, device=device)

    def slow(rank):
        longer = rank // 2 == 1
        return [
            do._replace(ns=11 * MS) if longer and do.phase is Phase.BACKWARD else do
            for do in job.program(rank)
        ]

    graph = step_grid(replace(job, program=slow).run().trace()).graph
    more = sum(_more(graph, part, in_turn=True) for part in work_by_direction(graph))
    expected = np.where(np.arange(8) // 2 == 1, 8 * 3.0, 0.0)
    assert np.median(by_step_and_lane(graph, more), axis=0) / MS == pytest.approx(expected, abs=0.5)
    assert more[np.abs(graph.own_ns / MS - 11) < 0.5].sum() > 0.99 * more.sum()


def test_a_stage_that_is_slow_with_one_of_its_chunks_has_more_of_that_alone():
    """Stage 1 of 4 takes 12 ms for every other backward, as of a chunk of the model that
    follows another in turn, the others 8: on average 10 for what costs as much as 12."""
    job = pipeline(steps=12)

    def slow(rank):
        found, backwards = [], 0
        for do in job.program(rank):
            backwards += do.phase is Phase.BACKWARD and do.what == "work"
            longer = rank // 2 == 1 and backwards % 2 and do.phase is Phase.BACKWARD
            found.append(do._replace(ns=12 * MS) if longer and do.what == "work" else do)
        return found

    grid = step_grid(replace(job, program=slow).run().trace())
    more, graph = _in_phases(grid), grid.graph
    expected = np.where(np.arange(8) // 2 == 1, 4 * 4.0, 0.0)
    assert np.median(by_step_and_lane(graph, more), axis=0) / MS == pytest.approx(expected, abs=0.5)
    assert more[np.abs(graph.own_ns / MS - 12) < 0.5].sum() > 0.99 * more.sum()


def test_the_only_stage_between_two_has_nobody_whose_backward_is_usual():
    slow = pipeline(stages=3, replicas=1, steps=8, slow={1: 1.5}).run()
    graph = step_grid(slow.trace()).graph
    assert not any(_more(graph, part).any() for part in work_by_direction(graph))


@pytest.mark.parametrize("stage", [0, 3])
def test_a_slow_stage_whose_forward_is_no_phase_costs_what_the_run_without_it_saves(stage):
    """As in a loop written by hand, whose only phases are those of the autograd engine. All
    forwards come first, so that a stage is waited for in both."""
    how = {"replicas": 1, "steps": 20, "noise": 0.02, "forwards_first": True}
    slow, calm = (pipeline(**how, slow=factors).run() for factors in ({stage: 1.6}, {}))
    trace = slow.trace()
    forward = (trace.events.kind == Kind.PHASE) & (trace.events.op == Phase.FORWARD)
    found = diagnose(replace(trace, events=trace.events.select(~forward))).findings[0]
    assert (found.mode, found.where.ranks) == ("workload_imbalance", [stage])
    assert found.severity == pytest.approx(1 - calm.length_ns / slow.length_ns, rel=0.06)


def test_a_rank_of_the_stage_that_loads_is_late_by_what_its_peer_does_not_load():
    """Of stage 0 both ranks load for 5 ms, rank 0 for 25; it costs what the run with 5 saves."""
    job = pipeline(steps=30)

    def loading(lengths_ns):
        def program(rank):
            load = [Do("work", ns, Phase.INPUT) for ns in lengths_ns[rank : rank + 1]]
            return load + job.program(rank)

        return replace(job, program=program).run()

    slow = loading([25 * MS, 5 * MS])
    finding = diagnose(slow.trace()).findings[0]
    assert (finding.mode, finding.where.ranks) == ("input_pipeline", [0])
    saved = 1 - loading([5 * MS, 5 * MS]).length_ns / slow.length_ns
    assert finding.severity == pytest.approx(saved, rel=0.1)


def test_a_stage_whose_node_writes_slowly_is_late_by_what_other_stages_do_not_write():
    """All write for 5 ms a step, both ranks of stage 1 for 40: that costs what 5 would save."""
    job = pipeline(steps=30)

    def writing(slow_ns):
        def program(rank):
            length = slow_ns if rank in (2, 3) else 5 * MS
            return [Do("work", length, Phase.CHECKPOINT), *job.program(rank)]

        return replace(job, program=program).run()

    slow = writing(40 * MS)
    finding = diagnose(slow.trace()).findings[0]
    assert (finding.mode, set(finding.where.ranks)) == ("checkpoint_stall", {2, 3})
    saved = 1 - writing(5 * MS).length_ns / slow.length_ns
    assert finding.severity == pytest.approx(saved, rel=0.1)


def test_a_stage_whose_node_is_short_of_cores_waits_for_them_and_has_no_more_work():
    """Both ranks of stage 1 take 125 ms instead of 96 for its work."""
    slow, alike = (pipeline(steps=30, slow=slow).run() for slow in ({2: 1.3, 3: 1.3}, {}))
    trace = slow.trace()
    waits = (trace.events.kind == int(Kind.STEP)) & np.isin(trace.events["rank"], (2, 3))
    parent = np.where(waits, 29_000, trace.events.parent).astype(np.uint32)  # µs
    short = replace(trace, events=trace.events.with_column("parent", parent))
    finding = diagnose(short).findings[0]
    assert (finding.mode, set(finding.where.ranks)) == ("runtime_jitter", {2, 3})
    assert finding.severity == pytest.approx(1 - alike.length_ns / slow.length_ns, rel=0.1)


def test_a_kind_that_no_sampled_step_has_keeps_what_was_known_of_it(monkeypatch):
    """Of two steps one is looked at; the gap that only the other has is not searched for."""
    monkeypatch.setattr(gaps, "MOST_GAPS", 2)
    some = gaps.Gaps(
        row=np.arange(4), kind=np.array([0, 0, 0, 1]), pair=np.zeros(4, int),
        cell=np.array([0, 0, 1, 1]), opens=np.zeros(4, bool), idle=np.zeros(4, bool),
        lasted=np.full(4, 1e6), computed=np.full(4, np.nan),
        over=np.full((gaps.FURTHEST, 4), -np.inf),
    )  # fmt: skip
    share = np.full((2, gaps.FURTHEST), np.nan)
    share[1, 0] = 1.0
    found = gaps.best_shares(some, share, np.zeros(2, bool), share)
    np.testing.assert_array_equal(found[1], share[1])


def test_hosts_that_run_ahead_of_a_slow_device_do_not_tell_where_in_the_step_it_is_slow():
    """Steps of hosts last 2 ms each: no phase of them is longer on the rank that is waited for."""
    trace = pipeline(device=True, noise=0.01, slow={3: 1.4}).run().trace()
    rows = trace.events
    ends = np.where(rows.kind == int(Kind.STEP), rows.enter_ns + 2 * MS, rows.exit_ns)
    found = diagnose(replace(trace, events=rows.with_column("exit_ns", ends))).findings[0]
    assert (found.mode, list(found.where.ranks)) == ("straggler", [3])
    assert found.title.startswith("Slow steps")
    assert "no phases tell where" in found.cause


@pytest.mark.parametrize("forwards_first", [True, False])
def test_that_a_pipeline_of_equal_stages_fills_and_drains_is_what_its_ranks_wait_for(
    forwards_first,
):
    """Stages idle for 3 of the 11 turns that 8 micro-batches take; those of a ring have none."""
    said = diagnose(pipeline(noise=0.01, forwards_first=forwards_first).run().trace()).verdict
    assert said.startswith("Stages of the pipeline wait 2")
    assert "none of its 4 stages stands out as slow. Do: more micro-batches" in said
    assert diagnose(ring(steps=20).run().trace()).summary["stages"] is None
