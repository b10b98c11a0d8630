"""Traces that lack something: what is there is used, what is not is said."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.overview import step_table
from evenstep.trace.spool.layout import Kind, Phase
from tests.diagnose.programs import data_parallel
from tests.diagnose.synthetic import MS, World, with_missing

SLOW = World(noise=0.005).slow(1, Phase.BACKWARD, 50 * MS)


def without(trace, *kinds):
    return replace(trace, events=trace.events.select(~np.isin(trace.events.kind, kinds)))


def test_no_finished_step_is_nothing_to_judge():
    diagnosis = diagnose(without(World(steps=2).trace(), int(Kind.STEP)))
    assert diagnosis.verdict.startswith("No step was finished by every rank")
    assert diagnosis.findings == []
    assert diagnosis.summary["shares"] is None


def test_a_trace_without_a_record_is_nothing_to_judge():
    trace = World(steps=1).trace()
    empty = replace(trace, events=trace.events.select(slice(0)))
    assert diagnose(empty).verdict.startswith("No step was finished by every rank")
    assert len(step_table(empty)) == 0


def test_the_lateness_of_a_step_is_the_most_at_any_of_its_collectives():
    """Behind the first collective of a blocking step all ranks begin alike."""
    late = World(style="blocking").slow(1, Phase.BACKWARD, 50 * MS, bucket=2)
    table = step_table(late.trace())
    lateness = table.lateness_ns[table["rank"] == 1]
    assert np.median(lateness) == pytest.approx(50 * MS, rel=0.01)


def test_one_step_names_a_rank_but_not_how_it_recurs():
    diagnosis = diagnose(World(steps=1).slow(1, Phase.BACKWARD, 50 * MS).trace())
    finding = diagnosis.findings[0]
    assert (finding.where.ranks, finding.when.pattern) == ([1], None)
    assert finding.confidence < 0.75
    assert "only 1 step: shares and intervals are rough" in diagnosis.limits


def test_the_noise_of_one_step_is_not_taken_for_a_culprit():
    found = [diagnose(World(steps=1, noise=0.02, seed=s).trace()).findings for s in range(20)]
    assert not any(item.where.ranks for findings in found for item in findings)


def test_one_rank_alone_waits_for_nobody():
    diagnosis = diagnose(World(ranks=1, noise=0.05).trace())
    assert diagnosis.findings == []
    assert "only one rank: no rank waits for another" in diagnosis.limits


def test_a_missing_victim_does_not_hide_the_culprit():
    finding = diagnose(with_missing(SLOW.trace(), 2, 3)).findings[0]
    assert finding.where.ranks == [1]


def test_a_rank_whose_file_lost_its_records_is_missing():
    trace, without = SLOW.trace(), with_missing(SLOW.trace(), 1)
    cut = replace(without, ranks=trace.ranks)
    assert diagnose(cut).summary["ranks"] == 3
    assert diagnose(cut).verdict.startswith("Who is waited for cannot be told: 1 of 4 ranks")


def test_waiting_for_a_missing_culprit_is_not_blamed_on_the_fabric_or_on_a_victim():
    diagnosis = diagnose(with_missing(SLOW.trace(), 1))
    assert not any(finding.where.ranks for finding in diagnosis.findings)
    assert "waits for them lie in communication: 44 %" in diagnosis.verdict.lower()


def untimed(trace, *ranks):
    """The trace without the times of these ranks' devices: their hosts' of issuing are left."""
    theirs, events = np.isin(trace.events["rank"], ranks), trace.events
    names = ("device_enter_ns", "device_exit_ns")
    left = {name: np.where(theirs, 0, events[name]) for name in names}
    return replace(trace, events=events.with_columns(**left))


@pytest.mark.parametrize("slow", [{}, {1: 1.5}])
def test_ranks_without_times_of_their_devices_are_as_missing(slow):
    """Their hosts issue calls long before a device comes to them: that is no early entry."""
    how = {"issue_ns": lambda step, rank: 2 * MS, "noise": 0.01, "slow": slow}
    trace = data_parallel(ranks=4, device=True, **how).run().trace()
    found, whole = diagnose(untimed(trace, 2, 3)), diagnose(trace)
    named = [(finding.mode, finding.where.ranks) for finding in found.findings]
    assert named == [("straggler", [1])] * len(slow)
    if slow:
        assert found.findings[0].severity == pytest.approx(whole.findings[0].severity, abs=0.01)
    assert "left out, as their devices have no times: ranks 2 and 3" in found.limits
    culprit = diagnose(untimed(trace, 1))
    assert not any(finding.where.ranks for finding in culprit.findings)
    if slow:
        assert "this trace cannot tell" in culprit.verdict


def test_where_no_device_has_times_its_hosts_tell_nothing_of_waits():
    """They issue calls that end on their devices, and block where the script reads a result, in
    every fourth step: until then they are ahead."""
    how = {"issue_ns": lambda step, rank: 2 * MS, "noise": 0.01}
    trace = untimed(data_parallel(ranks=4, device=True, **how).run().trace(), *range(4))
    events = trace.events
    issued = (events.kind == int(Kind.COLLECTIVE)) & (events["rank"] < 2)
    soon = np.where(issued, events.enter_ns + 20_000, events.exit_ns)
    found = diagnose(replace(trace, events=events.with_columns(exit_ns=soon)))
    assert not found.findings
    assert "left out, as their devices have no times: all collectives" in found.limits
    assert found.summary["shares"] is None  # hosts that issue neither compute nor wait
    assert "who is slow cannot be told" in found.verdict.lower()


def test_without_phases_the_rank_is_named_and_the_place_is_not():
    world = replace(SLOW, phases=False, style="blocking")
    diagnosis = diagnose(world.trace())
    finding = diagnosis.findings[0]
    assert finding.where.ranks == [1]
    assert "no phases tell where" in finding.cause
    assert finding.severity == pytest.approx(world.injected_share(), rel=0.1)


def test_without_collectives_nobody_is_accused_and_nothing_called_healthy():
    diagnosis = diagnose(replace(SLOW, collectives=False).trace())
    assert not any(finding.where.ranks for finding in diagnosis.findings)
    assert "healthy" not in diagnosis.verdict
    assert any("no collective" in limit for limit in diagnosis.limits)


def test_a_rank_killed_in_the_middle_leaves_the_steps_before_to_judge():
    trace = SLOW.trace()
    events = trace.events
    alive = (events["rank"] != 2) | (events.step < 30)
    diagnosis = diagnose(replace(trace, events=events.select(alive)))
    assert diagnosis.summary["steps"] == 30
    assert diagnosis.findings[0].where.ranks == [1]


def test_the_step_table_adds_up_to_the_step():
    table = step_table(SLOW.trace())
    parts = [table[name] for name in table if name.startswith("phase_")]
    assert np.allclose(sum(parts), table.end_ns - table.start_ns, atol=10)
    assert np.nanmax(table.lateness_ns) == pytest.approx(50 * MS, rel=0.1)


def test_collectives_without_steps_are_told_how_to_mark_them():
    unmarked = without(World().trace(), int(Kind.STEP))
    assert any("evenstep.step()" in limit for limit in diagnose(unmarked).limits)


def test_who_went_on_alone_is_told_of():
    """Batches that ran out on ranks 0 and 2: of sixty steps they ended forty."""
    trace = World(steps=60, ranks=3).trace()
    ends = trace.events.kind == Kind.STEP
    alone = ends & (trace.events["rank"] != 1) & (trace.events.step >= 40)
    trace.events = trace.events.select(~alone)
    told = "rank 1 went on for 20 steps after another had ended its last"
    assert any(line.startswith(told) for line in diagnose(trace).limits)
    trace.ranks[0].closed = False  # it is only behind
    assert not any(line.startswith(told) for line in diagnose(trace).limits)
