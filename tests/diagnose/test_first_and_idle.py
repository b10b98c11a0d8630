"""Lateness that was brought into a trace, and devices that wait for their hosts."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.trace.spool.layout import Kind, Op, Phase
from tests.diagnose.programs import Do, Job, data_parallel, prefetched
from tests.diagnose.synthetic import BOOT_NS, MS, World, with_rows

LATE_MS = 300


@pytest.fixture(params=[2, 4])
def late_entry(request):
    """Rank 1 begins the first of eight steps late; of what held it nothing was recorded."""
    world = World(ranks=request.param, steps=8, noise=0.005)
    table = world.everywhere()
    table[0, 1] = LATE_MS * MS
    trace = world.delayed(Phase.FORWARD, table).trace()
    events = trace.events
    first = (events["rank"] == 1) & (events.step == 0)
    begun = events.enter_ns + np.where(first & (events.kind == int(Kind.STEP)), LATE_MS * MS, 0)
    early = first & (events.kind == int(Kind.PHASE))
    early &= (events.op == int(Phase.FORWARD)) | (events.op == int(Phase.INPUT))
    trace.events = events.with_column("enter_ns", begun).select(~early)
    return trace


def test_who_comes_late_into_the_first_step_is_the_first_finding(late_entry, evidence):
    finding = diagnose(late_entry).findings[0]
    late_ns = evidence(finding)["late_into_the_first_step"]
    assert late_ns == pytest.approx(LATE_MS * MS, rel=0.02)
    assert (finding.mode, finding.where.ranks) == ("straggler", [1])
    assert finding.title == "Late entry on rank 1"
    assert "late entry" in finding.cause


def test_a_late_entry_costs_its_part_of_the_time_since_the_others_were_there(late_entry):
    events = late_entry.events
    steps = events.select(events.kind == int(Kind.STEP))
    lasted_ns = steps.exit_ns.max() - steps.enter_ns.min()
    finding = diagnose(late_entry).findings[0]
    assert finding.severity == pytest.approx(LATE_MS * MS / lasted_ns, rel=0.02)


def test_a_device_that_begins_when_its_host_has_issued_is_launch_bound():
    trace = World(on_device=True, style="blocking", noise=0.01).trace()
    events = trace.events
    calls = (events.kind == int(Kind.COLLECTIVE)) & (events.op == int(Op.ALL_REDUCE))
    issued = events.device_enter_ns + (BOOT_NS - 10**9 * (1 + events["rank"].astype(np.int64)))
    issued -= np.random.default_rng(1).integers(2_000, 12_000, len(events))  # of a launch
    trace.events = events.with_column("enter_ns", np.where(calls, issued, events.enter_ns))
    found = {finding.title: finding for finding in diagnose(trace).findings}
    assert found["Launch-bound"].mode == "runtime_jitter"
    assert found["Launch-bound"].where.ranks == ()
    (remedy,) = found["Launch-bound"].options  # of what is unknown the interval is all there is
    assert remedy.low == 0.0
    assert remedy.high > 0.5
    assert "was not recorded" in found["Launch-bound"].cause


def test_a_device_whose_host_is_ahead_is_not():
    found = diagnose(World(on_device=True, style="blocking", noise=0.01).trace()).findings
    assert "Launch-bound" not in {finding.title for finding in found}


def launched(late_ns, slower_ns=0, late=0.5, ranks=4, shared=0.0, **how):
    """Six times a step 10 ms of work, then an all-reduce of 3 ms that is waited for at once. Hosts
    issue each work in 4 ms, in about half of the steps in `late_ns`, rank 3's in more. `shared`:
    the noise of each work that all ranks have in common."""
    late = np.random.default_rng(3).random(60) < late
    works = 10 * MS * (1 + shared * np.random.default_rng(5).standard_normal((60, 6)))
    step = [iter(works) for _ in range(ranks)]

    def program(rank):
        return [do for ns in next(step[rank]) for do in (Do("work", ns), Do("call", group=0))]

    return Job(
        ranks=ranks, groups=[("default_pg", tuple(range(ranks)))], program=program, steps=60,
        device=True, transfer=lambda *_: 3 * MS, noise=0.01,
        issue_ns=lambda step, rank: late_ns + slower_ns * (rank == 3) if late[step] else 4 * MS,
        **how,
    ).run()  # fmt: skip


def test_what_late_issue_costs_is_seen_where_hosts_were_ahead():
    """Of late steps each part lasts 16 ms instead of 13; the truth is the same job with hosts that
    are always ahead."""
    late, well = launched(16 * MS), launched(4 * MS)
    finding = diagnose(late.trace()).findings[0]
    assert (finding.title, finding.where.ranks) == ("Launch-bound", ())
    assert finding.severity == pytest.approx(1 - well.length_ns / late.length_ns, rel=0.05)
    assert "not recorded" not in finding.cause


def test_hosts_that_are_all_slow_are_launch_bound_though_one_is_the_slowest():
    """Of layers of 10 ms and a transfer of 3 ms, issued in 16 ms, by rank 3 in 17 ms: its device
    alone is seen to begin what has just been issued, and the others wait for it."""
    late = launched(16 * MS, slower_ns=MS, late=1.0, ahead=True)
    well = launched(4 * MS, late=1.0, ahead=True)
    found = {finding.title: finding for finding in diagnose(late.trace()).findings}
    assert found["Launch-bound"].where.ranks == ()
    lost = sum(finding.severity for finding in found.values())
    assert lost == pytest.approx(1 - well.length_ns / late.length_ns, rel=0.02)
    assert found["Launch-bound"].severity > lost / 2


def test_slow_hosts_of_half_of_the_ranks_are_mended_with_all_that_they_issue():
    """Each work is issued in 2 ms, by four of eight ranks in 12 ms: none of it is other noise."""
    slow, well = (
        data_parallel(
            device=True, noise=0.02, ahead=True,
            issue_ns=lambda _, rank, each=each: each if rank > 3 else 2 * MS,
        ).run()
        for each in (12 * MS, 2 * MS)
    )  # fmt: skip
    (found,) = diagnose(slow.trace()).findings
    assert sorted(found.where.ranks) == [4, 5, 6, 7]
    assert found.severity == pytest.approx(1 - well.length_ns / slow.length_ns, rel=0.02)


@pytest.mark.filterwarnings("error")
def test_calls_right_behind_others_do_not_tell_what_devices_compute_elsewhere():
    """Hosts issue work of 10 ms in 16 ms, and without more work a second call behind the first of
    3 ms: 30 µs before that has ended in about half of the steps, else 2 ms."""
    late, turn = np.random.default_rng(3).random(60) < 0.5, Counter()

    def issue_ns(step, rank):
        turn[step, rank] += 1
        return 16 * MS if turn[step, rank] % 2 else 2.98 * MS if late[step] else MS

    call = Do("call", group=0)
    job = Job(
        ranks=4, groups=[("default_pg", (0, 1, 2, 3))], steps=60, device=True, noise=0.01,
        program=lambda _: 6 * [Do("work", 10 * MS), call, Do("work"), call],
        transfer=lambda *_: 3 * MS, fabric_noise=0, issue_ns=issue_ns,
    )  # fmt: skip
    finding = diagnose(job.run().trace()).findings[0]
    assert finding.title == "Launch-bound"
    assert finding.options[0].low < 6 / 22 < finding.options[0].high


@pytest.mark.parametrize(("issue_ms", "work_ms"), [(12, 6), (9, 12)])
def test_behind_an_entry_that_was_issued_late_a_device_waits_for_its_next_kernel(issue_ms, work_ms):
    """A layer has two kernels, each with a call behind it. To the first call the device comes as
    soon as it is issued, to the second later by the length of its kernel, for which it waited."""

    def job(issue_ns):
        call = Do("call", group=0)
        layer = [Do("work", 0.02 * MS), call, Do("work", work_ms * MS), call]
        return Job(
            ranks=4, groups=[("default_pg", (0, 1, 2, 3))], program=lambda _: 6 * layer, steps=60,
            device=True, whole=True, noise=0.01, transfer=lambda *_: 3 * MS,
            issue_ns=lambda *_: issue_ns,
        ).run()  # fmt: skip

    late, well = job(issue_ms * MS), job(0.1 * MS)
    finding = diagnose(late.trace()).findings[0]
    assert finding.title == "Launch-bound"
    assert finding.options[0].high > 1 - well.length_ns / late.length_ns


@pytest.mark.parametrize(("ranks", "shared"), [(4, 0), (16, 0), (16, 0.02)])
def test_devices_that_are_each_idle_briefly_cost_what_a_replay_gains(ranks, shared):
    """Of half of the steps, the first among them, each layer lasts 13.5 ms instead of 13: 2 % of
    their own time. The all-reduce waits for the last rank: its noise of .1 ms makes that .1 or .18
    ms later than the mean, the noise that ranks share not at all."""
    late, well = (launched(each, ranks=ranks, shared=shared) for each in (13.5 * MS, 4 * MS))
    (finding,) = diagnose(late.trace()).findings
    assert finding.title == "Launch-bound"
    assert finding.severity == pytest.approx(1 - well.length_ns / late.length_ns, rel=0.03)


@pytest.mark.filterwarnings("error")
def test_devices_that_are_each_idle_too_briefly_to_be_named_are_not_launch_bound():
    """Of 60 steps about 6 last 14 ms a layer instead of 13: less than 1 % of the time."""
    late = launched(14 * MS, late=0.1)
    titles = {finding.title for finding in diagnose(late.trace()).findings}
    assert "Launch-bound" not in titles


def test_a_host_that_is_half_a_millisecond_ahead_after_long_work_is_no_launch():
    """It was asked for the loss in between: of the 60 ms before it, the device idled in none."""
    layer = [Do("work", 60 * MS), Do("call", group=0)]
    job = Job(
        ranks=4, groups=[("default_pg", (0, 1, 2, 3))], program=lambda _: 2 * layer, device=True,
        noise=0.002, issue_ns=lambda *_: 59.5 * MS,
    )  # fmt: skip
    assert "Launch-bound" not in {finding.title for finding in diagnose(job.run().trace()).findings}


def test_a_device_that_its_host_has_just_waited_for_is_no_launch():
    """Hosts issue work of 10 ms in 4 ms and read its loss: the all-reduce behind it is issued late,
    but the device had been busy until then."""
    layer = [Do("work", 10 * MS), Do("read"), Do("call", group=0)]
    job = Job(
        ranks=4, groups=[("default_pg", (0, 1, 2, 3))], program=lambda _: 6 * layer, device=True,
        noise=0.01, issue_ns=lambda *_: 4 * MS,
    )  # fmt: skip
    assert "Launch-bound" not in {finding.title for finding in diagnose(job.run().trace()).findings}


def test_where_hosts_are_ahead_in_a_small_part_only_the_cost_lies_between_nothing_and_all():
    """Layers of 6 and 12 ms are issued in 13 ms, each with a transfer of 2 ms beside it."""
    job = replace(prefetched(), transfer=lambda *_: 2 * MS, issue_ns=lambda *_: 13 * MS)
    late, well = job.run(), replace(job, issue_ns=lambda *_: MS).run()
    finding = diagnose(late.trace()).findings[0]
    assert finding.title == "Launch-bound"
    (remedy,) = finding.options
    assert remedy.low == 0.0 < 1 - well.length_ns / late.length_ns < remedy.high


@pytest.mark.parametrize("issue_ms", [16, 20])
def test_gathers_that_hosts_issue_late_but_one_ahead_would_be_hidden(issue_ms):
    """Layers of 6 and 12 ms whose parameters, of the next, come in 5 ms meanwhile: nothing shows
    that compute does not wait for them but that the first two are issued at once."""
    job = replace(
        prefetched(layers=5), transfer=lambda *_: 5 * MS, noise=0.01,
        issue_ns=lambda *_: issue_ms * MS,
    )  # fmt: skip
    late, well = job.run(), replace(job, issue_ns=lambda *_: MS).run()
    finding = diagnose(late.trace()).findings[0]
    assert finding.title == "Launch-bound"  # a guess, of at most .8 of what there may be
    assert finding.severity == pytest.approx(1 - well.length_ns / late.length_ns, rel=0.5)


def told_by_drivers(trace, busy):
    """The trace with a sample of how busy each rank's device is, in percent, in every step."""
    rows = trace.of_kind(Kind.STEP)
    trace.names = ("", "gpu.busy_percent")
    return with_rows(
        trace, kind=int(Kind.SAMPLE), name=1, rank=rows["rank"], step=rows.step,
        enter_ns=rows.exit_ns, bytes_in=np.full(len(rows), busy).view(np.uint64),
    )  # fmt: skip


def test_where_hosts_are_always_late_the_driver_tells_how_long_devices_are_idle():
    """Work of 10 ms is issued in 16 ms, before an all-reduce of 3 ms: of 19 ms kernels take 13.
    Without a driver's word the cost is anything from nothing to all that is issued."""
    late, well = (
        Job(
            ranks=4, groups=[("default_pg", (0, 1, 2, 3))], steps=60, device=True, noise=0.01,
            program=lambda _: [Do("work", 10 * MS), Do("call", group=0)],
            transfer=lambda *_: 3 * MS, issue_ns=lambda *_, each=each: each,
        ).run()
        for each in (16 * MS, 4 * MS)
    )  # fmt: skip
    cost = 1 - well.length_ns / late.length_ns
    finding = diagnose(told_by_drivers(late.trace(), 100 * 13 / 19)).findings[0]
    assert (finding.title, finding.where.ranks) == ("Launch-bound", ())
    assert finding.severity == pytest.approx(cost, rel=0.05)
    assert "not recorded" not in finding.cause
    unknown = diagnose(late.trace()).findings[0]
    assert "not recorded" in unknown.cause
    assert unknown.options[0].low < cost < unknown.options[0].high


def test_a_program_has_one_pace_wherever_its_hosts_are_late():
    """Six layers of 10 ms are issued in 16 ms, behind 40 ms of work that was issued in 10 ms: the
    host is ahead by less in each, and never in the last three."""
    layer = [Do("work", 10 * MS), Do("call", group=0)]
    issues = Counter()

    def issue_ns(late_ns):
        def issue(step, rank):
            issues[step, rank] += 1
            return 10 * MS if issues[step, rank] % 7 == 1 else late_ns

        return issue

    late, well = (
        Job(
            ranks=4, groups=[("default_pg", (0, 1, 2, 3))], steps=60, device=True, noise=0.05,
            program=lambda _: [Do("work", 25 * MS), *7 * layer][:-1], transfer=lambda *_: MS,
            issue_ns=issue_ns(each),
        ).run()
        for each in (16 * MS, 4 * MS)
    )  # fmt: skip
    finding = diagnose(late.trace()).findings[0]
    assert finding.title == "Launch-bound"
    assert finding.severity == pytest.approx(1 - well.length_ns / late.length_ns, rel=0.1)
