"""Answers to what-if questions, against worlds run again with what was asked for."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.jobs.pipeline import NAMES, Pipeline
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.predict.what_if import FORMS, answers, parse
from evenstep.errors import UsageError
from evenstep.importers.draft import Draft
from evenstep.importers.operations.operation_records import trace_of
from evenstep.report.terminal.terminal import render_answers
from evenstep.trace.spool.layout import Kind, Phase
from evenstep.words import percent
from tests.diagnose.programs import Do, Job
from tests.diagnose.synthetic import MS, World, with_rows

WORK = ("forward-compute", "backward-compute", "gc", "optimizer")
STYLES = ["overlapped", "blocking", "gathered"]


def gain(trace, *specs):
    return answers(trace, specs)[-1].gain


def given_back(world, other):
    """What it gives back to run `other` instead."""
    return 1 - other.length_ns() / world.length_ns()


def of_table(table):
    """The trace of an operation table."""
    draft = Draft()
    number = np.array([draft.name(name) for name in NAMES])
    return trace_of(table.with_column("optype", number[table.optype]), draft, {})


@pytest.fixture(params=STYLES)
def world(request):
    return World(style=request.param, noise=0.01)


@pytest.mark.parametrize(("change", "said"), [("x3", "costs"), ("median", "gives back")])
def test_of_one_step_a_gain_or_loss_is_said_without_an_interval(change, said):
    trace = World(ranks=4, steps=1).slow(1, Phase.BACKWARD, 20 * MS).trace()
    asked = answers(trace, [f"rank:1={change}"])
    assert (asked[0].low, asked[0].high) == (None, None)
    assert f"{said} {percent(abs(asked[0].gain))} of step time; " in render_answers(asked)


# -- ranks -----------------------------------------------------------------------------------------


def test_a_slow_rank_at_the_median_gives_back_what_it_has_cost(world):
    slow = world.slow(1, Phase.BACKWARD, 20 * MS)
    assert gain(slow.trace(), "rank:1=median") == pytest.approx(slow.injected_share(), abs=0.005)


def test_slow_ranks_at_the_median_keep_their_noise_and_give_back_what_their_finding_costs():
    slow = World(ranks=8, steps=120, noise=0.1).slow([1, 2], Phase.BACKWARD, 20 * MS)
    found = diagnose(slow.trace()).findings[0]
    assert sorted(found.where.ranks) == [1, 2]
    assert gain(slow.trace(), "rank:1,2=median") == pytest.approx(found.options[0].gain, abs=5e-4)


def test_a_slow_node_at_the_median_gives_back_what_it_has_cost(world):
    slow = replace(world, ranks_per_node=2, ranks=8).slow([2, 3], Phase.FORWARD, 20 * MS)
    assert gain(slow.trace(), "node:node1=median") == pytest.approx(
        slow.injected_share(), abs=0.005
    )


def test_a_rank_made_slower_costs_what_it_costs(world):
    calm = replace(world, noise=0.0)
    slow = calm
    for phase, length in (("FORWARD", 20), ("BACKWARD", 40), ("OPTIMIZER", 4), ("INPUT", 0.2)):
        slow = slow.slow(2, Phase[phase], length * MS / 2)
    assert gain(calm.trace(), "rank:2=x1.5") == pytest.approx(given_back(calm, slow), rel=0.01)


def test_a_rank_that_is_removed_is_waited_for_no_more(world):
    slow = world.slow(1, Phase.BACKWARD, 20 * MS)
    assert gain(slow.trace(), "remove:rank:1") == pytest.approx(slow.injected_share(), abs=0.005)


def test_work_dealt_out_evenly_takes_the_mean(world):
    calm = replace(world, noise=0.0)
    slow, even = (
        calm.slow(who, Phase.BACKWARD, ns * MS) for who, ns in ((1, 20), ([0, 1, 2, 3], 5))
    )
    assert gain(slow.trace(), "work=balanced") == pytest.approx(given_back(slow, even), rel=0.01)


def test_two_slow_ranks_give_back_more_together_than_each(world):
    slow = world.slow(1, Phase.FORWARD, 20 * MS).slow(2, Phase.FORWARD, 20 * MS)
    one, other, both = (
        answer.gain for answer in answers(slow.trace(), ["rank:1=median", "rank:2=median"])
    )
    assert both == pytest.approx(slow.injected_share(), abs=0.005)
    assert one == pytest.approx(0, abs=0.01)
    assert other == pytest.approx(0, abs=0.01)


# -- pauses and input ------------------------------------------------------------------------------


def test_without_its_pauses_the_job_takes_what_it_would_have(world):
    table = world.everywhere()
    table[np.arange(5, 60, 6), np.arange(10) % 4] = 30 * MS
    paused = world.delayed(Phase.FORWARD, table, collector=True)
    assert gain(paused.trace(), "gc=off") == pytest.approx(paused.injected_share(), abs=0.005)


def test_aligned_pauses_cost_one_each_instead_of_one_per_rank(world):
    table, together = world.everywhere(), world.everywhere()
    table[[10, 20, 30, 40], [0, 1, 2, 3]] = 30 * MS
    together[20] = 30 * MS
    apart, aligned = (world.delayed(Phase.FORWARD, ns, collector=True) for ns in (table, together))
    assert gain(apart.trace(), "gc=aligned") == pytest.approx(given_back(apart, aligned), abs=0.005)


def paused_hosts(pause_ns, *, together):
    """Hosts launch 32 ms of work in 1 ms, and each pauses in every fourth step, in the middle of
    it: the devices have 19 ms left to do. The job, and its trace with the pauses."""
    turn = Counter()

    def issue_ns(step, rank):
        turn[step, rank] += 1
        mine = step % 4 == (0 if together else rank)
        return 0.1 * MS + pause_ns * (mine and turn[step, rank] == 4)

    layers = [Do("work", 5 * MS, Phase.BACKWARD), Do("enter", group=0)]
    run = Job(
        ranks=4, groups=[("default_pg", (0, 1, 2, 3))], steps=48, device=True, noise=0.01,
        program=lambda _: [Do("work", 9 * MS), *4 * layers, Do("wait"), Do("work", 3 * MS)],
        issue_ns=issue_ns,
    ).run()  # fmt: skip
    trace = run.trace()
    rows = trace.of_kind(Kind.PHASE)
    rows = rows.select(rows.group_seq > pause_ns)
    where = {name: rows[name] for name in ("rank", "step", "exit_ns")}
    return run, with_rows(
        trace, kind=int(Kind.PAUSE), op=2, enter_ns=rows.exit_ns - int(pause_ns), **where
    )


@pytest.mark.parametrize("pause", [12, 40])
def test_aligned_pauses_of_hosts_cost_what_their_devices_do_not_hide(pause):
    (apart, trace), (aligned, _) = (paused_hosts(pause * MS, together=one) for one in (False, True))
    truth = 1 - aligned.length_ns / apart.length_ns
    assert gain(trace, "gc=aligned") == pytest.approx(truth, abs=0.01)
    calm, _ = paused_hosts(0, together=False)
    recoverable = sum(finding.severity for finding in diagnose(trace).findings)
    assert recoverable == pytest.approx(1 - calm.length_ns / apart.length_ns, abs=0.02)


def test_hidden_input_is_not_waited_for(world):
    hungry, fed = (replace(world, input_ns=ns * MS) for ns in (10, 0))
    assert gain(hungry.trace(), "input=hidden") == pytest.approx(given_back(hungry, fed), abs=0.005)


# -- transfers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_faster_or_slower_transfers_change_what_is_exposed_of_them(world, factor):
    now = replace(world, transfer_ns=5 * MS)
    other = replace(now, transfer_ns=5 * MS * factor)
    operations = {"gathered": ("all_gather", "reduce_scatter")}.get(now.style, ("all_reduce",))
    found = gain(now.trace(), *(f"op:{name}=x{factor}" for name in operations))
    assert found == pytest.approx(given_back(now, other), abs=0.005)


def test_transfers_that_are_all_alike_are_at_their_floor(world):
    assert gain(replace(world, style="blocking").trace(), "op:all_reduce=floor") == pytest.approx(
        0, abs=1e-3
    )


def lined_up(alpha_ns, ns_per_byte):
    """A blocking job of four all-reduces a step, of 1 and 25 MB, whose times are on a line."""
    trace = World(style="blocking", transfer_ns=0).trace()
    events = trace.events
    size = np.where(events.group_seq % 2 == 0, 1_000_000, 25_000_000)
    collective = events.kind == int(Kind.COLLECTIVE)
    taken = np.where(collective, alpha_ns + size * ns_per_byte, 0.0)
    began = np.sort(events.enter_ns[collective & (events["rank"] == 0)])
    total = np.concatenate([[0], np.cumsum(taken[collective & (events["rank"] == 0)])])

    def moved(times_ns, side):
        """Times when all transfers that began before them have taken theirs."""
        return np.rint(times_ns + total[np.searchsorted(began, times_ns, side)]).astype(np.int64)

    columns = {
        "bytes_in": np.where(collective, size, 0).astype(np.uint64),
        "enter_ns": moved(events.enter_ns, "left"),
        "exit_ns": moved(events.exit_ns, "left") + np.where(collective, taken, 0).astype(np.int64),
    }
    for name, values in columns.items():
        events = events.with_column(name, values)
    return replace(trace, events=events)


def test_larger_buckets_pay_the_latency_less_often():
    trace = lined_up(alpha_ns=2 * MS, ns_per_byte=0.04)
    answer = answers(trace, ["bucket=52MB"])[0]
    # 4 collectives become 1 of the same 52 MB: three latencies of 2 ms are saved
    assert answer.step_ns_before - answer.step_ns_after == pytest.approx(6 * MS, rel=0.02)


def test_a_tree_has_fewer_latencies_than_a_ring():
    trace = lined_up(alpha_ns=2 * MS, ns_per_byte=0.04)
    answer = answers(trace, ["algorithm=tree"])[0]
    # 4 ranks: a ring has 6 latencies and moves 1.5 S, a tree has 4 and moves 2 S
    total = 4 * 2 * MS + 52e6 * 0.04
    tree = 4 * 2 * MS * 4 / 6 + 52e6 * 0.04 * 2 / 1.5
    assert answer.step_ns_before - answer.step_ns_after == pytest.approx(total - tree, rel=0.02)
    assert gain(trace, "algorithm=ring") == pytest.approx(0, abs=1e-3)


# -- operation tables ------------------------------------------------------------------------------


def test_a_slower_rank_of_a_pipeline_is_the_pipeline_run_again():
    pipeline = Pipeline(steps=20)
    durations = pipeline.durations()
    mine = {
        key: value * (1.5 if key[1][1:3] == (1, 2) and key[1][0] in WORK else 1)
        for key, value in durations.items()
    }
    before, after = (np.mean(pipeline.lengths(which)) for which in (durations, mine))
    rank = 1 * pipeline.pp + 2
    found = gain(of_table(pipeline.table()), f"rank:{rank}=x1.5")
    assert found == pytest.approx(1 - after / before, abs=0.01)


def test_balanced_stages_take_what_equal_stages_take():
    seconds = dict.fromkeys(NAMES, 0.0) | {"forward-compute": 1.0, "backward-compute": 2.0}
    uneven = Pipeline(dp=1, pp=4, micro=8, steps=2, seconds=seconds, stage_factor={3: 2.0})
    even = replace(uneven, stage_factor=dict.fromkeys(range(4), 5 / 4))
    before, after = (np.mean(p.lengths(p.durations())) for p in (uneven, even))
    found = gain(of_table(uneven.table()), "stages=balanced")
    assert found == pytest.approx(1 - after / before, abs=1e-4)


def test_computes_of_a_type_as_long_as_usual_are_the_pipeline_run_again():
    seconds = dict.fromkeys(NAMES, 0.0) | {"forward-compute": 1.0, "backward-compute": 2.0}
    uneven = Pipeline(dp=1, pp=4, micro=8, steps=2, seconds=seconds, stage_factor={3: 2.0})
    was = uneven.durations()
    usual = np.mean([value for key, value in was.items() if key[1][0] == "backward-compute"])
    ideal = {key: usual if key[1][0] == "backward-compute" else value for key, value in was.items()}
    before, after = (np.mean(uneven.lengths(which)) for which in (was, ideal))
    found = gain(of_table(uneven.table()), "optype:backward-compute=ideal")
    assert found == pytest.approx(1 - after / before, abs=1e-4)


# -- what cannot be answered -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("gc=off", "no pause"),
        ("bucket=25MB", "too few different sizes"),
        ("algorithm=tree", "too few different sizes"),
        ("stage:1=ideal", "needs an operation table"),
        ("op:barrier=floor", "there are all_reduce"),
        ("rank:0-3=median", "no other ranks"),
        ("remove:rank:0-2", "fewer than two ranks"),
    ],
)
def test_what_a_trace_cannot_tell_has_a_reason_and_no_number(spec, reason):
    answer = answers(World(steps=20).trace(), [spec])[0]
    assert answer.gain is None
    assert reason in answer.reason


def test_without_collectives_nothing_can_be_replayed():
    answer = answers(World(steps=20, collectives=False).trace(), ["rank:1=median"])[0]
    assert "no collective" in answer.reason


def test_transfers_of_an_operation_table_are_asked_by_their_operation():
    answer = answers(of_table(Pipeline().table()), ["optype:forward-send=ideal"])[0]
    assert "no compute" in answer.reason


# -- specifications --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_every_form_that_a_message_names_is_understood(form):
    assert parse(form).text == form


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("rank:3=medain", "rank:3=median"),
        ("op:allreduce=floor", "op:all_reduce=floor"),
        ("bucket=25", "bucket=25MB"),
        ("gc=of", "gc=off"),
        ("rank:x=median", "rank:3=median"),
        ("rank:5-3=median", "rank:3=median"),
        ("remove:rank:9999999", "remove:rank:7"),
        ("rank:3=x-2", "rank:3=x1.5"),
        ("remove:node:1", "remove:rank:7"),
    ],
)
def test_what_is_misunderstood_is_answered_with_the_nearest_form(text, nearest):
    with pytest.raises(UsageError, match=f"nearest form is {nearest}"):
        parse(text)


def test_what_is_like_no_form_is_answered_with_all_of_them():
    with pytest.raises(UsageError, match=r"forms are .*op:all_reduce=x0\.5, .*input=hidden"):
        parse("noise=half")


def test_two_changes_of_the_same_part_are_not_answered_together(world):
    trace = world.trace()
    for specs in (["rank:1=x2", "rank:1=x1.5"], ["rank:1=median", "remove:rank:1"]):
        assert [one.spec for one in answers(trace, specs)] == specs
    assert len(answers(trace, ["rank:1=x2", "rank:2=x2"])) == 3


@given(st.text("rankodegc:=x1,-.MB ", max_size=20))
def test_any_text_is_understood_or_refused_in_a_sentence(text):
    try:
        assert parse(text).subject
    except UsageError:
        return


def test_a_rank_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(UsageError, match="there is no rank 9 in this trace; there are 0, 1, 2, 3"):
        answers(World(steps=5).trace(), ["rank:9=median"])


# -- as text ---------------------------------------------------------------------------------------


def test_the_table_says_what_is_gained_lost_and_unknown():
    slow = World(steps=40).slow(1, Phase.FORWARD, 20 * MS).trace()
    text = render_answers(answers(slow, ["rank:1=median", "rank:2=x3", "gc=off"]))
    assert "rank:1=median  gives back" in text
    assert "rank:2=x3      costs" in text
    assert "gc=off         cannot be told: no pause" in text


def test_what_leaves_no_room_beside_it_stands_on_lines_of_its_own():
    slow = World(steps=40).slow(1, Phase.FORWARD, 20 * MS).trace()
    lines = render_answers(answers(slow, ["rank:1=median", "rank:2=x3"]), width=40).splitlines()
    both = lines.index(" rank:1=median + rank:2=x3")
    assert "gives back" in lines[both + 1] or "costs" in lines[both + 1]
    assert all(len(line) <= 40 for line in lines)


def test_nothing_asked_is_nothing_said():
    assert render_answers([]) == ""
