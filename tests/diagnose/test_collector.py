"""Garbage collection with a bucket in flight: the rank that collects looks like the victim."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.case import open_case
from evenstep.diagnose.lateness.delays import Cause
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.words import shorten
from tests.diagnose.synthetic import MS, World

PAUSE_NS = 200 * MS


def collecting(world: World) -> World:
    """Rank 1 collects in every fifth step, with its first bucket in flight."""
    table = world.everywhere()
    table[5::5, 1] = PAUSE_NS
    return world.delayed(Phase.BACKWARD, table, bucket=1, collector=True)


@pytest.mark.parametrize("style", ["overlapped", "blocking", "gathered"])
def test_the_rank_that_collects_is_the_culprit(style, worst):
    world = collecting(World(style=style, noise=0.005))
    finding = worst(world)
    assert (finding.mode, finding.where.ranks) == ("runtime_jitter", [1])
    assert "garbage collection" in finding.cause
    assert "inside backward" in finding.cause
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def held_up_everywhere():
    """All ranks leave the bucket that is in flight in the pause as late as the one that collects,
    in the trace of `collecting`, and what the pauses cost."""
    world = collecting(World(noise=0.005))
    trace = world.trace()
    events = trace.events
    collectives = events.kind == int(Kind.COLLECTIVE)
    latest = np.zeros(int(events.group_seq[collectives].max()) + 1, np.int64)
    np.maximum.at(latest, events.group_seq[collectives].astype(int), events.exit_ns[collectives])
    events.exit_ns[collectives] = latest[events.group_seq[collectives].astype(int)]
    return trace, world.injected_share()


def test_a_bucket_that_the_pause_held_up_everywhere_is_no_slow_transfer():
    trace, cost = held_up_everywhere()
    finding = diagnose(trace).findings[0]
    assert (finding.mode, finding.where.ranks) == ("runtime_jitter", [1])
    assert finding.severity == pytest.approx(cost, rel=0.1)


def test_what_a_pause_holds_up_in_flight_counts_wherever_the_run_is_replayed_without_it():
    trace, cost = held_up_everywhere()
    case = open_case(trace)
    told = case.loss(case.delays.cells(Cause.COLLECTOR), Cause.COLLECTOR)
    asked = case.saved(case.without(case.grid.pause_ns, Cause.COLLECTOR))
    assert [case.share(each).value for each in (told, asked)] == pytest.approx([cost] * 2, rel=0.1)


def crowded(move):
    """In every third step data moves for 12 ms."""
    return (12 if move.step % 3 == 1 else 2) * MS


def test_slow_transfers_that_begin_after_a_pause_are_not_the_collectors():
    """In every step one rank collects for 10 ms in forward, before its first bucket."""
    world = World(style="blocking", noise=0.005, fabric=crowded)
    table = world.everywhere()
    table[np.arange(60), np.arange(60) % 4] = 10 * MS
    paused = world.delayed(Phase.FORWARD, table, collector=True)
    quiet = replace(paused, fabric=None, transfer_ns=2 * MS)
    found = {finding.mode: finding.severity for finding in diagnose(paused.trace()).findings}
    assert found["runtime_jitter"] == pytest.approx(paused.injected_share(), rel=0.1)
    assert found["fabric_contention"] == pytest.approx(paused.lost_against(quiet), rel=0.1)


def test_its_own_wait_does_not_rise_although_its_callback_comes_late():
    calm, disturbed = (
        open_case(world.trace()).grid.wait_ns[:, 1].mean()
        for world in (World(noise=0.005), collecting(World(noise=0.005)))
    )
    assert disturbed - calm < 5 * MS


def test_the_others_wait_for_the_whole_pause(worst, evidence):
    finding = worst(collecting(World()))
    assert evidence(finding)["wait_of_the_others"] == pytest.approx(PAUSE_NS, rel=0.1)
    assert evidence(finding)["collector_pause_longest"] == PAUSE_NS


def test_collecting_at_the_same_step_everywhere_has_no_culprit():
    table = np.zeros((60, 4))
    table[5::5] = PAUSE_NS
    world = World().delayed(Phase.BACKWARD, table, collector=True)
    assert not any(finding.where.ranks for finding in diagnose(world.trace()).findings)


def test_long_collections_in_turns_are_not_aligned_though_short_ones_are(worst):
    """A young collection of all ranks in every step, and a full one of each rank in its turn."""
    table = World().everywhere()
    table[3:] = 2 * MS
    for rank in range(4):
        table[4 + 3 * rank :: 12, rank] = PAUSE_NS
    finding = worst(World(noise=0.005).delayed(Phase.BACKWARD, table, collector=True))
    assert "aligned" not in finding.cause
    assert sorted(finding.where.ranks) == [0, 1, 2, 3]


@pytest.mark.parametrize("called", [False, True])
def test_what_the_script_calls_itself_is_not_advised_away_by_switching_the_collector_off(
    called, worst
):
    table = World().everywhere()
    table[5::5, 1] = PAUSE_NS
    world = World(noise=0.005)
    finding = worst(world.delayed(Phase.BACKWARD, table, collector=True, called=called))
    assert "garbage collection" in finding.cause
    actions = " ".join(option.action for option in finding.options)
    assert ("--act gc" in actions, "call gc.collect() less often" in actions) == (
        not called, called,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "note", "advice", "brief"),
    [
        ("pays", "", "on, as steps in which it acts are 40 % shorter", "keep --act gc"),
        ("on trial", "", "on trial: it has compared 3 pairs of blocks", "keep --act gc on trial"),
        ("does not pay", "", "gc.disable(); --act gc has ended: does not pay", "keep collections"),
        ("on trial", "memory grew", "gc.disable(); --act gc has ended: memory", "keep collections"),
    ],
)
def test_an_action_that_acts_already_is_not_advised_as_if_it_did_not(word, note, advice, brief):
    trace = collecting(World(noise=0.005)).trace()
    told = {"action": "gc", "word": word, "pairs": 3, "gain": 0.4, "acted_steps": 30, "note": note}
    trace.ranks[0].facts["actions"] = [{"action": "gc", "word": "untested", "pairs": 3}]
    trace.ranks[1].facts["actions"] = [told]
    action = diagnose(trace).findings[0].options[0].action
    assert advice in action
    assert shorten(action, 5).startswith(brief)


@pytest.mark.parametrize("together", [[0, 1, 2], [0, 1, 2, 3]])
def test_pauses_that_most_ranks_make_at_once_cost_what_the_job_would_gain(together):
    table = np.zeros((60, 4))
    table[np.ix_(range(5, 60, 5), together)] = PAUSE_NS
    world = World(noise=0.005).delayed(Phase.BACKWARD, table, collector=True)
    found = diagnose(world.trace()).findings
    assert [finding.mode for finding in found] == ["runtime_jitter"]
    assert found[0].severity == pytest.approx(world.injected_share(), rel=0.1)


def test_a_rank_that_pauses_once_is_no_culprit_beside_one_that_always_does(worst):
    world = World(noise=0.005)
    table = world.everywhere()
    table[3:, 2] = PAUSE_NS
    table[30] = [0, 0, 0, PAUSE_NS / 2]
    finding = worst(world.delayed(Phase.BACKWARD, table, collector=True))
    assert (finding.where.ranks, finding.title) == ([2], "Garbage collection on rank 2")


def test_pauses_of_which_few_are_long_are_told_by_what_they_add_up_to(worst):
    table = World().everywhere()
    table[3:, 1] = 2 * MS
    table[4::4, 1] = PAUSE_NS
    world = World(noise=0.005).delayed(Phase.BACKWARD, table, collector=True)
    mean_ms = table[3:, 1].mean() / MS
    assert f"collects for {mean_ms:.1f} ms inside backward" in worst(world).cause


def test_collections_inside_loading_are_not_loading():
    """Each rank collects in another fifth of the steps, while it fetches its batch."""
    world = World(noise=0.005)
    table = world.everywhere()
    for rank in range(world.ranks):
        table[5 + rank :: 5, rank] = 40 * MS
    world = world.delayed(Phase.INPUT, table, collector=True)
    findings = {each.mode: each.severity for each in diagnose(world.trace()).findings}
    assert findings["runtime_jitter"] == pytest.approx(world.injected_share(), rel=0.1)
    assert "input_pipeline" not in findings
