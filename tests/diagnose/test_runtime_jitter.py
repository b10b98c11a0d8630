"""Pauses that could be aligned, and an allocator that retries."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.graph.peers import Peers
from evenstep.diagnose.modes.runtime_jitter import _work_when_late
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Phase
from tests.diagnose.programs import data_parallel
from tests.diagnose.synthetic import BOOT_NS, MS, World, with_rows

WORLD = World(steps=120, noise=0.005)


def test_aligning_saves_what_a_world_with_aligned_pauses_saves(worst):
    apart, together = WORLD.everywhere(), WORLD.everywhere()
    for rank in range(4):
        apart[10 + 3 * rank :: 20, rank] = 60 * MS
        together[10::20, rank] = 60 * MS
    scattered = WORLD.delayed(Phase.BACKWARD, apart, collector=True)
    aligned = WORLD.delayed(Phase.BACKWARD, together, collector=True)
    found = worst(scattered)
    aligning = next(o for o in found.options if "same step on every rank" in o.action)
    assert found.options[0].gain == found.severity  # without the pauses all of it comes back
    assert aligning.gain == pytest.approx(scattered.lost_against(aligned), rel=0.1)


def test_one_rank_that_collects_has_nothing_to_align(worst):
    table = WORLD.everywhere()
    table[10::20, 1] = 60 * MS
    options = worst(WORLD.delayed(Phase.BACKWARD, table, collector=True)).options
    assert "gc.freeze()" in options[0].action
    assert not any("same step on every rank" in option.action for option in options)


def retrying(world: World, steps):
    """A sample at the end of every step; the counter of rank 1 grows in these steps."""
    trace = world.trace()
    rows = trace.of_kind(Kind.STEP)
    ends = rows.exit_ns[rows["rank"] == 1]
    count = np.cumsum(np.isin(np.arange(len(ends)), steps)).astype(float)
    trace.names = ("", "allocator.retries_count")
    return with_rows(
        trace, kind=int(Kind.SAMPLE), rank=1, name=1, enter_ns=ends, bytes_in=count.view(np.uint64)
    )


def test_late_steps_with_allocator_retries_are_the_allocators():
    table, steps = WORLD.everywhere(), np.arange(10, 120, 12)
    table[steps, 1] = 80 * MS
    world = WORLD.delayed(Phase.FORWARD, table)
    finding = diagnose(retrying(world, steps)).findings[0]
    assert (finding.mode, finding.where.ranks) == ("runtime_jitter", [1])
    assert finding.cause.startswith("allocator: rank 1")
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_retries_in_other_steps_are_bystanders():
    table = WORLD.everywhere()
    table[10:120:12, 1] = 80 * MS
    world = WORLD.delayed(Phase.FORWARD, table)
    finding = diagnose(retrying(world, np.arange(13, 120, 12))).findings[0]
    assert finding.mode == "straggler"


def test_a_late_device_that_begins_at_once_what_is_issued_has_a_late_host():
    """Hosts issue .3 ms ahead or more; that of the slow rank, in a second trace, 10 µs ahead."""
    trace = data_parallel(device=True, noise=0.01, slow={2: 1.4}).run().trace()
    events = trace.events
    mine = (events["rank"] == 2) & (events.kind == int(Kind.COLLECTIVE))
    began = events.device_enter_ns / (1 + 2e-6) + BOOT_NS - 3 * 10**9  # on the host's clock
    issued = np.where(mine, began - 10_000, events.enter_ns).astype(np.int64)
    behind = replace(trace, events=events.with_column("enter_ns", issued))
    slow, late = (diagnose(one).findings[0] for one in (trace, behind))
    assert (slow.mode, slow.where.ranks) == ("straggler", [2])
    assert (late.mode, late.where.ranks) == ("runtime_jitter", [2])
    assert late.severity == pytest.approx(slow.severity, rel=0.02)


def worked(own, late):
    """`_work_when_late` of rows at two places, four of the one and then four of the other."""
    rows = Columns({"lane": np.zeros(8, int), "slack_ns": np.zeros(8, int)})
    graph = SimpleNamespace(own_ns=own, rows=rows, host=np.arange(8), took_ns=own)
    places = np.arange(8).reshape(2, 1, 4).transpose(2, 1, 0)  # (segments, lanes, places)
    part = Peers(np.zeros(1, int), np.arange(4), places, np.ones(places.shape, bool))
    case = SimpleNamespace(costs=SimpleNamespace(graph=graph, parts=[part]))
    return _work_when_late(case, late, np.zeros(8, bool), 0.0 * own)


def test_work_that_late_hosts_hide_is_that_of_few_steps_where_they_were_ahead():
    """At the first place late rows last 10 ms, and 6 ms in the one step with the host ahead; at the
    second all are late, and nothing tells what they work."""
    late = np.array([False, True, True, False, True, True, True, True])
    work = worked(np.array([9, 10, 10, 6, 30, 20, 20, 10.0]), late)
    assert work[late][:2].tolist() == [6, 6]
    assert np.isnan(work[late][2:]).all()


def stopped(*stops, slow=()):
    """Four ranks; of each (step, rank, s) the process stood still in that step, for so long; the
    `slow` ones are as late without."""
    held = np.zeros((120, 4))
    for step, rank, lasted in (*stops, *slow):
        held[step, rank] = lasted * 1e9
    trace = World(ranks=4, steps=120, noise=0.01).delayed(Phase.OTHER, held).trace()
    steps = trace.of_kind(Kind.STEP)
    for step, rank, _ in stops:
        end = int(steps.exit_ns[(steps["rank"] == rank) & (steps.step == step)][0])
        beat = int(steps.enter_ns[(steps["rank"] == rank) & (steps.step == step)][0]) - 50 * MS
        trace = with_rows(
            trace, rank=rank, kind=int(Kind.STOP), step=step, enter_ns=beat, exit_ns=end
        )
    return trace


def test_a_stopped_process_is_named_with_how_long_it_stood():
    finding = diagnose(stopped((60, 2, 2))).findings[0]
    assert (finding.mode, finding.where.ranks) == ("runtime_jitter", [2])
    assert finding.title == "Stopped process on rank 2"
    assert finding.cause.startswith("rank 2 (node node0) was stopped once, for 2 s")
    assert "SIGSTOP" in finding.options[0].action
    assert finding.when.steps == [(60, 60)]


def test_stops_are_counted_and_other_delays_of_the_same_rank_stay_its_own():
    trace = stopped((40, 2, 2), (80, 2, 4), slow=[(20, 2, 1), (60, 2, 1), (90, 2, 1)])
    first, second, *_ = diagnose(trace).findings
    assert "was stopped 2 times, in the mean for 3 s" in first.cause
    assert (second.mode, second.where.ranks) == ("straggler", [2])
    assert second.when.steps == [(20, 20), (60, 60), (90, 90)]


def test_a_stop_whose_last_beat_was_in_the_step_before_is_one():
    finding = diagnose(stopped((60, 2, 2), slow=[(59, 2, 0.01)])).findings[0]
    assert "was stopped once, for 2.0" in finding.cause


def test_a_stop_before_the_judged_steps_is_not_counted():
    finding = diagnose(stopped((0, 2, 5), (60, 2, 2))).findings[0]
    assert finding.cause.startswith("rank 2 (node node0) was stopped once, for 2 s")


def test_a_stop_of_a_rank_that_has_entered_holds_up_what_is_in_flight():
    """As gloo's threads are stopped, too: all ranks leave the all-reduce when it goes on."""
    trace = World(ranks=4, steps=120, noise=0.01).trace()
    step, rank, stood = 60, 2, 2000 * MS
    calls = trace.of_kind(Kind.COLLECTIVE)
    calls = calls.select(calls.step == step)
    last = int(calls.enter_ns.max())
    events = trace.events
    later = {name: events[name] + stood * (events[name] > last) for name in ("enter_ns", "exit_ns")}
    waits = (events.kind == int(Kind.PHASE)) & (events.op == int(Phase.SYNC))
    waits &= (events["rank"] == rank) & (events.step == step) & (events.exit_ns > last)
    later["enter_ns"] = np.where(waits, last + stood, later["enter_ns"])  # it computes until then
    trace.events = events.with_columns(**later)
    trace = with_rows(
        trace, rank=rank, kind=int(Kind.STOP), step=step, enter_ns=last, exit_ns=last + stood
    )
    found = diagnose(trace)
    finding, judged = found.findings[0], found.summary["steps"]
    assert (finding.title, finding.where.ranks) == ("Stopped process on rank 2", [rank])
    lost = finding.severity * found.summary["step_time"]["mean_ns"] * judged
    assert lost == pytest.approx(stood, rel=0.01)


def test_ranks_that_are_stopped_together_wait_for_nobody():
    together = diagnose(stopped(*((60, rank, 2) for rank in range(4))))
    assert not any("stopped" in finding.cause for finding in together.findings)
