"""A job watched through its nodes: the picture is the one that its spools give."""

import json
import os

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cli.main import main
from evenstep.trace.spool.identity import boot_id, hostname
from evenstep.watch import tree as live_tree
from evenstep.watch.findings import live_findings
from evenstep.watch.frame import frame
from evenstep.watch.run import LiveRun, StepTable, merge_steps, step_table
from evenstep.watch.spool import LIVE
from evenstep.watch.tree import TreeRun, decode, encode, follow, summary_path, write_summary
from tests.report.live_ranks import LiveRank

NODES, PER_NODE, WORLD, LATE = 3, 2, 6, 4


class Job:
    """Six ranks on three nodes with disks of their own, and the folder they all see."""

    def __init__(self, folder):
        self.folder, self.now = folder, 1000.0
        self.shared = folder / "run"
        self.nodes = {f"n{node}": LiveRun(folder / f"n{node}", self.clock) for node in range(NODES)}
        self.ranks = [
            LiveRank(self.nodes[f"n{rank // PER_NODE}"].path, rank, world=WORLD,
                     hostname=f"n{rank // PER_NODE}", boot_id=f"b{rank // PER_NODE}")
            for rank in range(WORLD)
        ]  # fmt: skip

    def clock(self):
        return self.now

    def steps(self, count, late=LATE, **counted):
        for rank, live in enumerate(self.ranks):
            live.steps(count, own_ms=90 if rank == late else 60, **counted)

    def tell(self, *names):
        """These nodes, or all, sum up what they have."""
        for name in names or self.nodes:
            self.nodes[name].refresh()
            write_summary(summary_path(self.shared, name), encode(self.nodes[name], name))


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def picture(run):
    return frame(run, live_findings(run))


def whole(job):
    """The same ranks, all of whose spools lie in one place."""
    place = job.folder / "whole" / "attempt-000"
    place.mkdir(parents=True)
    for live in job.nodes.values():
        for spool in (live.path / "attempt-000").iterdir():
            os.link(spool, place / spool.name)
    run = LiveRun(job.folder / "whole", job.clock)
    run.refresh()
    return run


def test_the_picture_is_that_of_the_spools(job):
    job.steps(40)
    job.tell()
    tree = TreeRun(job.shared, job.clock)
    tree.refresh()
    one, other = picture(tree).to_json(), picture(whole(job)).to_json()
    assert one["findings"][0]["ranks"] == [LATE]
    assert [one.pop("run"), other.pop("run")]
    assert one == other


def test_a_picture_without_a_step_is_that_of_a_job_that_starts(job):
    job.tell()
    tree = TreeRun(job.shared, job.clock)
    tree.refresh()
    assert (picture(tree).state, picture(tree).ranks_seen) == ("starting", WORLD)


def test_a_rank_that_hangs_is_told_with_what_it_is_in(job):
    job.steps(20)
    job.tell()
    job.ranks[0].enters()
    job.now += 60
    job.tell()
    tree = TreeRun(job.shared, job.clock)
    tree.refresh()
    state = tree.states[0]
    assert (state.inside.op, state.inside.group_seq, state.silent_s) == ("all_reduce", 7, 60)


def test_a_node_that_nothing_is_heard_of_is_named(job):
    job.steps(20)
    job.tell()
    tree = TreeRun(job.shared, job.clock)
    tree.refresh()
    job.now += live_tree.LOST_S + 1
    job.steps(20)
    job.tell("n0", "n2")
    tree.refresh()
    assert tree.lost_nodes == {"n1": pytest.approx(live_tree.LOST_S + 1)}
    assert any("no summary of n1" in found.text for found in picture(tree).findings)


def test_facts_of_the_ranks_come_along(job):
    pace = {"mode": "on", "threshold": 0.03, "max_delay": 0.1, "request": 1}
    job.ranks[3].ends(pace=pace, failure="it broke")
    job.tell()
    tree = TreeRun(job.shared, job.clock)
    tree.refresh()
    assert tree.states[3].facts == {"pace": pace, "failure": "it broke"}
    assert [state.closed for state in tree.states] == [rank == 3 for rank in range(WORLD)]


def test_a_run_has_ended_when_every_rank_has(job):
    tree = TreeRun(job.shared, job.clock)
    for live in job.ranks:
        tree.refresh()
        assert not tree.ended
        live.steps(1).ends()
        job.tell()
    tree.refresh()
    assert tree.ended
    assert tree.lost_nodes == {}


def test_only_the_latest_attempt_is_followed(job):
    job.steps(5)
    job.tell()
    LiveRank(job.nodes["n0"].path, 0, attempt=1, world=1, hostname="n0").steps(9)
    job.tell("n0")
    tree = TreeRun(job.shared, job.clock)
    tree.refresh()
    assert (tree.attempt, tree.attempts, len(tree.states)) == (1, 2, 1)


def test_what_is_no_news_is_passed_over(job):
    job.tell("n0")
    for name, data in (("node-x.bin", b"{}"), ("node-y.bin", b"\0" * 9999), ("other", b"")):
        (job.shared / "live" / name).write_bytes(data)
    tree = TreeRun(job.shared, job.clock)
    tree.refresh()
    assert len(tree.states) == PER_NODE


def test_spools_are_followed_where_they_tell_as_much(job, monkeypatch):
    run = whole(job)
    follower = follow(run.path, job.clock)
    for name, live in job.nodes.items():
        live.refresh()
        write_summary(summary_path(run.path, name), encode(live, name))
    assert isinstance(next(follower), LiveRun)
    monkeypatch.setattr(live_tree, "MOST_SPOOLS", WORLD - 1)
    assert isinstance(next(follower), TreeRun)


def test_nodes_are_followed_where_the_spools_are_elsewhere(job):
    follower = follow(job.shared, job.clock)
    assert isinstance(next(follower), LiveRun)
    job.tell()
    assert isinstance(next(follower), TreeRun)


def test_only_ranks_of_this_machine_are_summed_up(tmp_path):
    LiveRank(tmp_path, 0).steps(3)
    LiveRank(tmp_path, 1, hostname="elsewhere", boot_id="other").steps(3)
    run = LiveRun(tmp_path, here=True)
    for _ in range(2):
        run.refresh()
        assert [state.rank for state in run.states] == [0]


def test_the_command_sums_up_and_another_shows(job, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("evenstep.cli.progress.RESTART_GRACE_S", 0.0)
    for rank in range(2):
        LiveRank(tmp_path / "disk", rank, world=2).steps(12, own_ms=90 if rank else 60).ends()
    disk, shared = str(tmp_path / "disk"), str(tmp_path / "shared")
    assert main(["watch", disk, "--aggregate", "--into", shared, "--every", "0.1"]) == 0
    assert main(["watch", shared, "--once", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["ranks_seen"], shown["state"]) == (2, "ended")


def test_an_aggregator_outlives_no_rank_that_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("evenstep.cli.progress.DEATH_GRACE_S", -1.0)
    monkeypatch.setattr("evenstep.watch.run.GONE_S", -120.0)
    naps = iter([None])
    monkeypatch.setattr("time.sleep", lambda _: next(naps))
    LiveRank(tmp_path, 0, world=2).steps(3).ends()
    LiveRank(tmp_path, 1, world=2, pid=1 << 30).steps(3)
    assert main(["watch", str(tmp_path), "--aggregate"]) == 0


def test_a_watcher_outlives_no_run_whose_ranks_and_launcher_are_gone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("evenstep.watch.run.GONE_S", -120.0)
    gone = {"pid": 1 << 30, "hostname": hostname(), "boot_id": boot_id(), "started_ticks": 1}
    LiveRank(tmp_path, 0, world=1, pid=gone["pid"]).steps(3)
    (tmp_path / "run.json").write_text(json.dumps({"written_by": "launcher", **gone}))
    assert main(["watch", str(tmp_path), "--every", "0.1"]) == 0
    assert "Rank 0 has died: no such process now\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "lacking"), [(("--into", "x"), "--aggregate"), (("--port", "8000"), "--web")]
)
def test_what_would_do_nothing_is_refused(tmp_path, capsys, options, lacking):
    assert main(["watch", str(tmp_path), *options]) == 2
    assert f"needs {lacking}" in capsys.readouterr().err


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_nodes_of_one_rank_make_the_median_of_the_ranks(columns):
    tables = [
        StepTable(np.arange(len(times)), np.ones(len(times), int), *(np.array(times, float),) * 3)
        for times in columns
    ]
    found = merge_steps(tables)
    for step, ranks, time, most in zip(
        found.step, found.ranks, found.time_ns, found.most_work_ns, strict=True
    ):
        values = sorted(times[step] for times in columns if len(times) > step)
        assert (ranks, most) == (len(values), values[-1])
        assert time == np.median(values)


def test_a_step_of_two_ranks_is_as_long_as_in_a_diagnosis():
    ranks = np.zeros((2, 4), LIVE)
    ranks["first_step"], ranks["step_sum_ns"] = np.arange(1, 5), [[90, 110] * 2, [110, 90] * 2]
    together = step_table(list(ranks))
    apart = merge_steps([step_table([rank]) for rank in ranks])
    assert together.time_ns.tolist() == apart.time_ns.tolist() == [100.0] * 4


@pytest.mark.parametrize(
    ("name", "value"),
    [("phase_ns", -1e300), ("step_ns", 1e30), ("counts", 0), ("step_ns", "late"),
     ("phase_ns", 1.0), ("ranks", [1.0])],
)  # fmt: skip
def test_a_summary_with_damaged_numbers_is_none_of_ours(job, name, value):
    job.steps(9)
    job.tell("n0")
    summary = msgspec.msgpack.decode(summary_path(job.shared, "n0").read_bytes())
    summary["window"][name][0] = value
    with pytest.raises(ValueError, match=r"damaged|numbers|inhomogeneous|dimension"):
        decode(msgspec.msgpack.encode(summary))


def test_a_summary_of_a_later_layout_is_none_of_ours(job):
    job.tell("n0")
    data = summary_path(job.shared, "n0").read_bytes()
    with pytest.raises(ValueError, match="schema"):
        decode(data.replace(b"evenstep.node/3", b"evenstep.node/4"))
