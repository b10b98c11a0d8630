"""Window messages through a store that punishes whatever could block."""

import pytest

from evenstep.agent.exchange.messages import Orders, StepRow, WindowReport, summarize
from evenstep.agent.exchange.sharing import PATIENCE, Sharing
from evenstep.pacing import Plan, Slowest

MS = 1_000_000


class FakeStore:
    """A store in memory; anything that waits for somebody is an error."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = bytes(value)

    def check(self, keys):
        return all(key in self.values for key in keys)

    def multi_get(self, keys):
        assert self.check(keys), f"would block on {keys}"
        return [self.values[key] for key in keys]

    def delete_key(self, key):
        return self.values.pop(key, None) is not None

    def get(self, *_):
        raise AssertionError("get blocks")

    wait = get


class Job:
    """`world` ranks that share one store; `seen` is what rank 0 is told."""

    def __init__(self, world, local_world=1, period_s=0.0, *, together=False):
        self.store = FakeStore()
        self.seen = []
        self.heard = [[] for _ in range(world)]
        self.ranks = [
            Sharing(
                self.store, prefix="evenstep/r/0", rank=rank, world=world,
                local_rank=rank % local_world, local_world=local_world, threshold=0.1,
                period_s=period_s, on_window=lambda *told: self.seen.append(told),
                on_orders=self.heard[rank].append if together else None,
            )
            for rank in range(world)
        ]  # fmt: skip

    def post(self, end, *, late=None, step_ms=100, ranks=None):
        for rank in range(len(self.ranks)) if ranks is None else ranks:
            self.ranks[rank].post(report(rank, end, rank == late, step_ms))

    def exchange(self, ranks=None):
        for rank in range(len(self.ranks)) if ranks is None else ranks:
            self.ranks[rank].exchange()


def report(rank, end, late=False, step_ms=100):
    step = step_ms * MS
    work = step * 9 // 10 if late else step // 2
    rows = [StepRow(step, work, step - work, 0, work)] * min(max(end, 1), 16)
    return summarize(rows, rank=rank, end=end)


def test_rank_0_learns_of_every_window_who_is_late():
    job = Job(4)
    for window in range(3):
        job.post(window, late=2)
        job.exchange([3, 2, 1, 0])
    assert [[r.end for r in reports] for reports, _ in job.seen] == [[w] * 4 for w in range(3)]
    assert {late.rank for _, late in job.seen} == {2}


def test_a_window_is_judged_when_its_last_message_is_there_and_once():
    job = Job(3)
    job.post(0)
    job.exchange([0, 1])
    assert job.seen == []
    job.exchange([2, 0, 0])
    assert len(job.seen) == 1


def test_keys_carry_run_attempt_and_window_and_are_deleted_after_two_windows():
    job = Job(2)
    for window in range(5):
        job.post(window)
        job.exchange()
    assert set(job.store.values) == {
        f"evenstep/r/0/{2 * end}/r{rank}" for end in (3, 4) for rank in (0, 1)
    }


@pytest.mark.parametrize("local_world", [8, 1])
def test_a_large_job_is_judged_whole(local_world):
    job = Job(128, local_world)
    job.post(0, late=77)
    job.exchange(range(127, -1, -1))
    job.exchange(range(127, -1, -1))
    reports, late = job.seen[0]
    assert late.rank == 77
    assert len(reports) == (32 if local_world > 1 else 128)  # two of each of 16 nodes


def test_above_64_ranks_rank_0_reads_two_messages_a_node():
    job = Job(128, 8)
    asked = []
    job.store.check = lambda keys: asked.append(len(keys)) or False
    job.post(0)
    job.exchange([0])
    assert asked == [8, 32]  # its own node's ranks, then 16 nodes


def test_keys_of_a_node_leader_are_deleted_too():
    job = Job(128, 8)
    for window in range(5):
        job.post(window)
        for _ in range(2):
            job.exchange()
    leaders = [key for key in job.store.values if "/n" in key]
    assert len(leaders) <= 2 * 2 * 16
    assert len(job.store.values) <= 2 * (128 + 2 * 16)


@pytest.mark.parametrize(("world", "local_world"), [(4, 1), (128, 8)])
def test_a_dead_peer_blocks_nobody_and_what_it_leaves_behind_is_bounded(world, local_world):
    job = Job(world, local_world)
    alive = range(world - 1)
    for window in range(20):
        job.post(window, ranks=alive)
        job.exchange(alive)
    assert job.seen == []
    assert len(job.store.values) <= world * 2 * 3
    assert len(job.ranks[0]._root_windows) <= PATIENCE


def test_messages_nobody_has_sent_yet_do_not_pile_up():
    job = Job(2)
    for window in range(1000):
        job.post(window)
    job.exchange()
    assert [reports[0].end for reports, _ in job.seen] == []  # the others' are gone already
    assert len(job.store.values) == 4


@pytest.mark.parametrize("step_ms", [1, 5, 20, 60, 100, 300, 1000, 4000])
def test_windows_of_any_steps_are_judged_twice_a_period_at_most(step_ms):
    """Ranks exchange once a second at moments of their own, ranks 0 to 3 a quarter apart."""
    job = Job(4, period_s=1.0)
    posted = 0
    for quarter in range(4 * 40):
        every = job.ranks[0].window_steps(step_ms * MS)
        windows = int(quarter * 250 / step_ms) // every
        for window in range(posted, windows):
            job.post((window + 1) * every, step_ms=step_ms)
        posted = windows
        job.exchange([quarter % 4])
    shared = {reports[0].end for reports, _ in job.seen}
    assert len(shared) >= 40 / max(2 * 2, 2 * step_ms / 1000) - 2


def test_ranks_whose_steps_differ_meet_where_the_longer_windows_end():
    job = Job(2)
    for end in range(1, 9):
        job.post(end, ranks=[0])
        job.post(end, ranks=[1] if end % 2 == 0 else [])
        job.exchange([1, 0])
    assert [reports[0].end for reports, _ in job.seen] == [2, 4, 6, 8]


def test_ranks_that_pace_together_learn_from_sixteen_steps_at_least():
    assert Job(2, period_s=0.25, together=True).ranks[1].window_steps(10**9) == 16
    assert Job(2, period_s=0.25, together=True).ranks[1].window_steps(10**6) == 512


def test_a_message_of_another_program_is_not_taken_for_a_report():
    job = Job(2)
    job.post(0)
    job.exchange([0])
    job.store.set("evenstep/r/0/0/r1", b"not ours")
    job.exchange([0])
    assert [r.rank for r in job.seen[0][0]] == [0]


def test_a_store_that_fails_is_the_callers_to_handle():
    job = Job(2)
    job.post(0)
    job.store.set = lambda *_: (_ for _ in ()).throw(RuntimeError("connection reset"))
    with pytest.raises(RuntimeError, match="connection reset"):
        job.exchange([1])


def test_posting_touches_no_store():
    job = Job(1)
    job.store.set = None
    job.ranks[0].post(WindowReport(*[0] * len(WindowReport._fields)))


# -- pacing together -------------------------------------------------------------------------------

PLAN = Plan(64, 95, 0, 4, 2)


def test_a_plan_of_rank_0_reaches_every_rank_once():
    job = Job(4, together=True)
    job.ranks[0].publish(PLAN)
    for _ in range(3):
        job.exchange()
    assert job.heard == [[Orders(plan=PLAN)]] * 4


def test_a_rank_that_missed_a_plan_hears_the_next():
    job = Job(2, together=True)
    for first in (64, 96):
        job.ranks[0].publish(PLAN._replace(first_step=first, last_step=first + 31))
        job.exchange([0])
    job.exchange([1])
    assert [orders.plan.first_step for orders in job.heard[1]] == [96]


@pytest.mark.parametrize(("world", "local_world"), [(4, 1), (128, 8)])
def test_every_rank_hears_how_long_the_slowest_rank_works_before_it_enters(world, local_world):
    job = Job(world, local_world, together=True)
    job.post(64, late=world - 1, step_ms=100)
    for _ in range(3):
        job.exchange(range(world - 1, -1, -1))
    told = Slowest(48, 63, 90 * MS)
    assert job.heard == [[Orders(slowest=told)]] * world


def test_without_pacing_together_nobody_writes_or_reads_orders():
    job = Job(2)
    job.ranks[0].publish(PLAN)
    job.post(0)
    job.exchange()
    assert not [key for key in job.store.values if "orders" in key]


def test_rank_0_knows_whether_messages_are_missing():
    job = Job(2)
    assert [each.due_ns for each in job.ranks] == [0, 0]
    job.post(16, ranks=[0])
    job.exchange([0])
    assert job.ranks[0].due_ns > 0
    job.post(16, ranks=[1])
    job.exchange([1, 0])
    assert job.ranks[0].due_ns == 0
