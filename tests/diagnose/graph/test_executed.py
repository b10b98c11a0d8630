"""Graphs and replays of random jobs, against what an executor of longest paths has of them."""

import numpy as np
import pytest

from evenstep.diagnose.graph.peers import beginning, message_ends, peers
from evenstep.diagnose.graph.replay import Change, replay, step_lengths
from evenstep.diagnose.graph.structure import times
from evenstep.trace.spool.layout import Kind, Op
from tests.diagnose.graph.executed import (
    TO_ALL,
    draw,
    draw_of_devices,
    durations,
    execute,
    numbers,
    recorded,
    recorded_by_devices,
    tells,
)
from tests.diagnose.synthetic import BOOT_NS, MS


def told(seed, count=12):
    """Jobs whose records tell what was waited for, their durations, and what was done."""
    random, found = np.random.default_rng(seed), []
    while len(found) < count:
        job = draw(random)
        work, took = durations(job, random)
        if tells(job, done := execute(job, work, took)):
            found.append((job, work, took, done))
    return random, found


@pytest.mark.parametrize("seed", range(10))
def test_what_hosts_recorded_is_what_they_did(seed):
    """All operations are entered and end, and all ranks work and wait and end their steps, when and
    as long as they did."""
    for job, work, _, done in told(seed)[1]:
        found = recorded(job, done).graph()
        place = numbers(job, found)
        there = place >= 0
        for seen, was in (("last_ns", done.entered), ("over_ns", done.over)):
            at = found.operations[seen][place[there]] - BOOT_NS
            assert at == pytest.approx(was[there], abs=1), (job, seen)
        (ends,) = replay(found, [Change.none()])
        assert ends - BOOT_NS == pytest.approx(done.ends, abs=1), job
        sums = times(found)
        here = np.isfinite(done.came)
        worked = (work[:, :-1] * here).sum(axis=1) + work[:, -1]
        assert sums.work_ns == pytest.approx(worked, abs=1), job
        blocked = np.nansum(done.went - done.came, axis=1)
        assert sums.blocked_ns == pytest.approx(blocked, abs=1), job


@pytest.mark.parametrize("seed", range(10, 20))
def test_what_hosts_would_have_done_is_what_a_replay_has_them_do(seed):
    """With other work of a rank in a step, and with one longer or shorter operation; of every
    other run from the second step on."""
    random, jobs = told(seed)
    for turn, (job, work, took, done) in enumerate(jobs):
        first = turn % 2
        found = recorded(job, done).graph(first)
        place = numbers(job, found, first)
        rank, step = int(random.integers(job.ranks)), int(random.integers(first, job.steps))
        number = int(random.choice(np.flatnonzero(place[-1] >= 0)))
        factor = random.uniform(0.2, 1.8)
        other, moved = work.copy(), took.copy()
        other[step, :, rank] *= factor
        moved[step, number] *= factor
        mine = np.flatnonzero((found.rows.lane == rank) & (found.rows.step == step))
        of = place[[step], number]
        changes = (
            Change.of_work(mine, found.own_ns[mine] * factor),
            Change.of_transfers(of, found.took_ns[of] * factor),
        )
        worked, lasted = replay(found, changes) - BOOT_NS
        ends = [execute(job, *one).ends[first:] for one in ((other, took), (work, moved))]
        assert worked == pytest.approx(ends[0], abs=1), (job, rank, step)
        assert lasted == pytest.approx(ends[1], abs=1), (job, step, number)


def changed(job, found, random):
    """The numbers of a graph's operations from the second step on, and two changes of all of these
    steps: a rank and the factor on its work; and an act and the factor on its transfers."""
    numbered = numbers(job, found, first=1)
    rank, factor = int(random.integers(job.ranks)), random.uniform(0.4, 1.8)
    number = int(random.choice(np.flatnonzero(numbered[-1] >= 0)))
    mine, of = np.flatnonzero(found.rows.lane == rank), numbered[1:, number]
    changes = (
        Change.none(),
        Change.of_work(mine, found.own_ns[mine] * factor),
        Change.of_transfers(of, found.took_ns[of] * factor),
    )
    return changes, rank, number, factor


def runs(job, work, took, issues, rank, number, factor):
    """What the executor has of these changes."""
    other, moved = work.copy(), took.copy()
    other[1:, :, rank] *= factor
    moved[1:, number] *= factor
    durations = ((work, took), (other, took), (work, moved))
    return np.stack([execute(job, *each, issues).ends for each in durations])


@pytest.mark.parametrize("seed", range(5))
def test_what_hosts_waited_for_of_which_nothing_is_recorded_is_told_by_when_they_went_on(seed):
    """They wait for all of a program in one way. Mostly to the ns."""
    random, off = np.random.default_rng(seed), []
    for _ in range(8):
        job, work, took = draw_of_devices(random)
        run = recorded(job, execute(job, work, took))
        run.rows = [row for row in run.rows if row["kind"] != int(Kind.PHASE)]
        found = run.graph(first=1)
        changes, *change = changed(job, found, random)
        ends = replay(found, changes) - BOOT_NS
        off.append(np.abs(ends - runs(job, work, took, None, *change)[:, 1:]).max(axis=(1, 2)))
    assert np.quantile(off, 0.8) < 2


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_what_devices_would_have_done_is_what_a_replay_has_them_do(seed, loads):
    """With other work of a rank and with another length of one operation in all steps but the
    first: mostly to 1 % of the run, and what other work costs to .5 %, and what transfers cost to
    .01 %. Compute that comes to a wait records nothing of it.
    `loads`: hosts wait for their devices at the end of a step, and begin the next after 4 ms."""
    random, off, costs = np.random.default_rng(seed), [], []
    for _ in range(8):
        job, work, took = draw_of_devices(random)
        issues = np.full((job.steps, len(job.acts), job.ranks), 0.2 * MS) if loads else None
        if loads:
            issues[:, 0] = 4 * MS * (1 + 0.2 * random.standard_normal((job.steps, job.ranks)))
        done = execute(job, work, took, issues)
        found = recorded_by_devices(job, done, random).graph(first=1)
        changes, *change = changed(job, found, random)
        lengths = step_lengths(found, replay(found, changes))[:, :-1].sum(axis=1)
        ends = runs(job, work, took, issues, *change)
        was = np.median(ends[:, -2] - ends[:, 0], axis=1)
        off.append(lengths / was - 1)
        costs.append((lengths[1:] - lengths[0] - (was[1:] - was[0])) / was[0])
    assert np.quantile(np.abs(off), 0.8) < 0.01
    assert (np.quantile(np.abs(costs), 0.6, axis=0) < [0.005, 0.0001]).all()


@pytest.mark.parametrize("seed", range(20, 26))
def test_messages_go_from_and_to_the_lanes_that_exchange_them(seed):
    """And who sends first in most steps begins the way of what is passed on."""
    for job, _, _, done in told(seed, 6)[1]:
        found = recorded(job, done).graph()
        place, ends = numbers(job, found), message_ends(found)
        sent, came = np.full((2, job.steps, job.ranks), np.inf)
        messages = np.zeros(ends.shape[1], bool)
        for number, act in enumerate(job.acts):
            if act.what == "wait" or act.op != Op.SEND:
                continue
            (other,) = (one for one in job.members(act) if one != act.root)
            messages[place[:, number]] = True
            assert (ends[0, place[:, number]] == act.root).all()
            assert (ends[1, place[:, number]] == other).all()
            sent[:, act.root] = np.minimum(sent[:, act.root], done.came[:, number, act.root])
            came[:, other] = np.minimum(came[:, other], done.over[:, number])
        assert (ends[:, ~messages] == -1).all()
        assert beginning(found).tolist() == ((sent < came).mean(axis=0) > 0.5).tolist()


@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize("seed", range(30, 34))
def test_every_lanes_work_is_at_one_place_of_its_program(seed, devices):
    """Peers share out all lanes, and work by place is all of it, wherever it is written back."""
    random, jobs = told(seed, 6)
    for job, work, took, done in jobs:
        if devices:
            job, work, took = draw_of_devices(random)
            done = execute(job, work, took)
            found = recorded_by_devices(job, done, random).graph(first=1)
        else:
            found = recorded(job, done).graph()
        parts, rows = peers(found), found.rows
        seen = np.zeros((len(found.batch_of), len(found.ranks)), int)
        written = np.full(len(rows), np.nan)
        for part in parts:
            seen[np.ix_(part.segments, part.lanes)] += 1
            here = part.by_place(found.own_ns)
            inside = np.isin(rows.segment, part.segments) & np.isin(rows.lane, part.lanes)
            total = np.zeros(seen.shape)
            np.add.at(total, (rows.segment[inside], rows.lane[inside]), found.own_ns[inside])
            assert here.sum(axis=2) == pytest.approx(total[np.ix_(part.segments, part.lanes)])
            assert (rows.segment[part.rows] == part.segments[:, None, None]).all()
            assert (rows.lane[part.rows] == part.lanes[None, :, None]).all()
            enters = np.where(part.there, rows.enter[part.rows], -1)
            kinds = np.where(enters >= 0, np.append(found.operations.op, 0)[enters], -1)
            for one in kinds.reshape(-1, kinds.shape[2]).T:  # of one place
                assert len({*one.tolist()} - {-1}) <= 1
            part.assign(written, here)
        assert (seen == 1).all()
        assert written == pytest.approx(found.own_ns)


@pytest.mark.parametrize("seed", range(3))
def test_lanes_that_do_the_same_are_peers(seed):
    """Ranks of one group in a job of nothing but that group's collectives."""
    random = np.random.default_rng(seed)
    found = 0
    while found < 4:
        job = draw(random)
        calls = (act for act in job.acts if act.what == "call" and not act.group)
        whole = job._replace(acts=tuple(act for act in calls if act.op in TO_ALL))
        if not whole.acts:
            continue
        work, took = durations(whole, random)
        done = execute(whole, work, took)
        if tells(whole, done):
            (part,) = peers(recorded(whole, done).graph())
            assert part.lanes.tolist() == list(range(whole.ranks))
            found += 1
