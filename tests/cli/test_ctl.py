"""Pacing switched on and off while a job of two real ranks runs."""

import json
import time
from pathlib import Path

import pytest

from evenstep.agent.settings import request
from evenstep.cli.ctl import status_lines
from evenstep.cli.main import main
from evenstep.trace.spool.layout import Flag, Kind
from evenstep.watch.run import LiveRun
from tests.agent.conftest import finish
from tests.forks import start
from tests.report.live_ranks import job as live_job
from tests.trace.small_run import write_run

PATIENCE_S = 120.0


def until(condition, what):
    """Wait for something the job does; a job that does not do it fails the test."""
    due = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < due, f"{what} never happened"
        time.sleep(0.05)


class Job:
    """A run in a folder, from outside."""

    def __init__(self, folder: Path, main) -> None:
        self.folder = folder
        self.run = LiveRun(folder)
        self.main = main

    def facts(self):
        self.run.refresh()
        return [state.facts.get("pace", {}) for state in self.run.states]

    def has_steps(self, count):
        self.run.refresh()
        seen = self.run.window.last_step
        return len(seen) == 2 and bool(min(seen) >= count)

    def ask(self, *arguments):
        """`evenstep ctl`, and the steps at which both ranks followed it."""
        number = 1 + max((fact.get("request", 0) for fact in self.facts()), default=0)
        assert self.main(["ctl", str(self.folder), "pace", *arguments]) == 0
        until(lambda: [f.get("request") for f in self.facts()] == [number] * 2, arguments)
        return [fact["since_step"] for fact in self.facts()]

    def holds(self):
        self.run.refresh()
        return bool(self.run.window.held_ns.any())

    def seen_late(self, rank):
        """What `evenstep watch` shows once it sees this rank alone be late."""
        due = time.monotonic() + PATIENCE_S
        while True:
            child = start("evenstep", "watch", self.folder, "--once", "--json")
            shown = json.loads(child.communicate(timeout=PATIENCE_S)[0])
            late = [f["ranks"] for f in shown["findings"] if f["mode"] == "straggler"]
            if late == [[rank]] and shown["rows"][0]["rank"] == rank:
                return shown
            assert time.monotonic() < due, shown

    def goes_on(self, steps):
        self.run.refresh()
        target = steps + max(self.run.window.last_step)
        until(lambda: self.has_steps(target), f"{steps} more steps")


@pytest.fixture(scope="module")
def controlled(tmp_path_factory):
    """Both scenes of the job, and at which steps each rank followed what."""
    folder = tmp_path_factory.mktemp("controlled")
    child = start("tests.cli.controlled_job", folder)
    followed = {}
    try:
        for scene in ("alone", "together"):
            job = Job(folder / scene, main)
            until(lambda job=job: job.has_steps(16), f"{scene} begins")
            on = job.ask("on", "--threshold", "2%", "--max-delay", "0.2")
            until(job.holds, "a delay")
            followed["seen"] = job.seen_late(1)
            job.ask("on", "--ranks", "0")
            part = job.facts()
            off = job.ask("off")
            job.goes_on(24)
            followed[scene] = {"on": on, "off": off, "part": part, "facts": job.facts()}
            (folder / f"{scene}.stop").touch()
        return finish(child, folder), followed
    finally:
        child.kill()


def held(trace):
    rows = trace.events.select(trace.events.kind == int(Kind.PACING))
    return rows.select((rows.flags & int(Flag.APPLIED)) != 0)


@pytest.mark.parametrize("scene", ["alone", "together"])
def test_ranks_are_held_only_between_on_and_off(controlled, scene):
    job, followed = controlled
    steps = held(job.trace(scene)).step
    assert len(steps)
    assert min(steps) >= min(followed[scene]["on"])
    assert max(steps) <= max(followed[scene]["off"])


def test_ranks_that_pace_together_follow_from_the_same_step(controlled):
    _, followed = controlled
    for change in ("on", "off"):
        assert len(set(followed["together"][change])) == 1


@pytest.mark.parametrize("scene", ["alone", "together"])
def test_a_part_of_the_job_may_be_held_and_the_rest_only_decides(controlled, scene):
    part = controlled[1][scene]["part"]
    assert [fact["mode"] for fact in part] == ["on", "observe"]
    assert {(fact["asked"], fact["part"]) for fact in part} == {("on", "ranks 0")}


def test_what_is_not_given_stays_as_it_was(controlled):
    _, followed = controlled
    for fact in followed["alone"]["facts"]:
        assert (fact["mode"], fact["threshold"], fact["max_delay"]) == ("off", 0.02, 0.2)


def test_a_change_never_changes_a_result(controlled):
    job, _ = controlled
    assert job["alone"] == job["without"]


def test_watching_the_job_shows_the_slow_rank_and_the_pacing(controlled):
    seen = controlled[1]["seen"]
    assert seen["world"] == 2
    assert seen["pacing"]["modes"] == {"on": 2}


def test_every_change_is_recorded_in_the_trace(controlled):
    job, _ = controlled
    trace = job.trace("alone")
    rows = trace.events.select(trace.events.kind == int(Kind.PACING))
    named = {trace.names[name] for name in rows.name}
    assert "asked to: on (threshold 0.02, max delay 0.2)" in named
    assert "asked to: off (threshold 0.02, max delay 0.2)" in named


def test_the_account_at_the_end_says_the_mode_in_force(controlled):
    job, _ = controlled
    assert job.trace("alone").ranks[0].facts["pacing_account"]["mode"] == "off"


def test_status_says_who_follows(controlled, command):
    job, _ = controlled
    done = command("ctl", job.folder / "together", "pace", "status")
    assert done.returncode == 0
    assert "pacing is off: 2 ranks (0-1) since step" in done.stdout
    state = json.loads(command("ctl", job.folder / "together", "pace", "status", "--json").stdout)
    assert state["followed_by"] == [0, 1]


def test_a_run_that_has_ended_is_not_controlled(command, tmp_path):
    done = command("ctl", write_run(tmp_path / "run"), "pace", "on")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has ended" in done.stderr


def test_a_folder_without_a_run_is_refused(command, tmp_path):
    done = command("ctl", tmp_path, "pace", "on")
    assert done.returncode == 2
    assert "no rank has started" in done.stderr


GIVEN = [["--threshold", "2"], ["--max-delay", "0.7"], ["--nodes", "gpu["], ["--first-nodes", "0"]]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: given[0])
def test_a_value_out_of_range_is_named(command, tmp_path, given):
    run = write_run(tmp_path / "run", range(2))  # one of its three ranks has not come
    done = command("ctl", run, "pace", "on", *given)
    assert done.returncode == 2
    assert f"pace.{given[0].strip('-').replace('-', '_')}" in done.stderr
    assert not (run / "control.json").exists()


def test_what_an_action_may_be_is_told_with_status(command, tmp_path):
    done = command("ctl", write_run(tmp_path / "run", range(2)), "act", "nonsense")
    assert done.returncode == 2
    assert "act takes status, some of gc,token" in done.stderr
    assert "or off, found 'nonsense'" in done.stderr


def test_status_is_told_before_all_ranks_follow(tmp_path, capsys):
    first, second, *_ = live_job(tmp_path, world=3)
    first.spool.add_fact("pace", {"mode": "on"})  # as the job was started
    limits = {"threshold": 0.03, "max_delay": 0.1, "request": 1, "since_step": 12}
    second.spool.add_fact("pace", {"mode": "on", **limits})
    assert main(["ctl", str(tmp_path), "pace", "status"]) == 0
    assert "since step 12, threshold 3 %, max delay 10 %" in capsys.readouterr().out


def test_status_changes_nothing(command, tmp_path):
    done = command("ctl", write_run(tmp_path / "run"), "pace", "status", "--ranks", "0")
    assert done.returncode == 2
    assert "status changes nothing; give --ranks with on, off or observe" in done.stderr


def test_a_node_without_rank_zero_is_told_that_it_asks_for_itself(command, tmp_path):
    run = write_run(tmp_path / "run", range(1, 3))  # rank 0 has not come
    done = command("ctl", run, "pace", "off")
    assert done.returncode == 0
    assert "rank 0 records in another folder" in done.stderr


@pytest.mark.parametrize(
    ("words", "mode", "act"),
    [
        ([("act", "gc,pace"), ("pace", "off")], "off", "gc"),
        ([("act", "pace"), ("pace", "off")], "off", "off"),
        ([("act", "gc"), ("pace", "on")], "on", "gc,pace"),
        ([("pace", "on"), ("act", "gc")], "observe", "gc"),
        ([("pace", "off"), ("act", "gc")], "off", "gc"),
        ([("act", "gc"), ("pace", "observe")], "observe", "gc"),
    ],
)
def test_what_is_asked_last_holds_of_pacing_and_of_actions(tmp_path, words, mode, act):

    write_run(tmp_path, range(2))  # one of its three ranks has not come
    for what, action in words:
        assert main(["ctl", str(tmp_path), what, action]) == 0
    run = LiveRun(tmp_path)
    run.refresh()
    asked = request.read(tmp_path, run.run_id)
    assert (asked.act, asked.mode) == (act, mode)


LIMITS = {"threshold": 0.03, "max_delay": 0.1}
ON = {"mode": "on", **LIMITS, "since_step": 12, "asked": "on", "part": "ranks 0-1"}


@pytest.mark.parametrize(
    ("ranks", "acts", "asked", "followed", "notes", "said"),
    [
        ({}, {}, None, None, (), ["no rank reports a pacing state"]),
        ({}, {}, None, None, ("no link",), ["no link"]),
        ({"0": {"mode": "off"}, "2": {"mode": "off"}, "1": {"mode": "on"}}, {}, None, None, (),
         ["pacing is off: 2 ranks (0,2)", "pacing is on: 1 rank (1)"]),
        ({"0": ON, "1": ON}, {}, {"mode": "on"}, (0, 1), (),
         ["pacing is on: 2 ranks (0-1) since step 12, threshold 3 %, max delay 10 %"]),
        ({"0": ON, "1": ON | {"since_step": 9}}, {}, {"mode": "on"}, (0,), (),
         ["pacing is on: 2 ranks (0-1) since step 9 to 12, threshold 3 %, max delay 10 %",
          "requested: on; 1 of 2 ranks follow so far"]),
        ({"0": ON | {"mode": "observe"}}, {}, {"act": "gc", "mode": "on"}, (), (),
         ["pacing is observe: 1 rank (0) since step 12, threshold 3 %, max delay 10 %; "
          "only ranks 0-1 may be paced",
          "requested: act gc; 0 of 1 ranks follow so far"]),
        ({"0": {"mode": "off"}}, {"0": "gc,pace", "1": "gc,pace", "2": "gc"}, None, None, (),
         ["pacing is off: 1 rank (0)", "actions: gc (ranks 2)", "actions: gc, pace (ranks 0-1)"]),
    ],
)  # fmt: skip
def test_a_line_tells_each_mode_each_set_of_actions_and_who_has_yet_to_follow(
    ranks, acts, asked, followed, notes, said
):
    state = {
        "ranks": ranks, "acts": acts, "asked": asked, "followed_by": followed, "notes": notes,
    }  # fmt: skip
    assert status_lines(state) == said


def test_a_request_has_the_number_after_all_that_were_given_or_are_followed(tmp_path):
    first, *_ = live_job(tmp_path, world=2)
    first.spool.add_fact("pace", {"mode": "on", "request": 4})
    run = LiveRun(tmp_path)
    for number, damaged in ((5, False), (6, False), (5, True)):
        if damaged:
            (tmp_path / request.FILE).write_text("{")
        assert main(["ctl", str(tmp_path), "pace", "on"]) == 0
        run.refresh()
        assert request.read(tmp_path, run.run_id).number == number
