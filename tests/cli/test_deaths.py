"""How processes end that somebody else started and waits for."""

import os
import signal
import subprocess
import sys
import time

import pytest

from evenstep.cli import deaths
from evenstep.cli.deaths import RankExits, _death_message, _exit_status, _Rank, nccl_warnings
from evenstep.trace.reader import read_spool
from evenstep.trace.spool.folder import RunFolder, started_ticks
from evenstep.trace.spool.identity import boot_id, hostname
from evenstep.trace.spool.layout import Flag, Kind, Op
from evenstep.trace.spool.spool import Spool, add_last_fact

#: Starts a process and prints its number; asks for its end when told to, not before it was seen.
PARENT = """
import signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
signal.sigwait([signal.SIGUSR1])
child.wait()
"""
PATIENCE_S = 60.0
INF = float("inf")


@pytest.fixture
def ends(tmp_path):
    """(watch, said): ranks as they are found in a run's folder, and what was said of them."""
    said = []
    return RankExits(RunFolder(tmp_path), said.append), said


def rank(folder, code, number=0):
    """The parent of a rank that runs this code; its spool is what a rank would have made."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    pid = int(parent.stdout.readline())
    path = RunFolder(folder).spool_path(0, number)
    identity = {"rank": number, "pid": pid, "started_ticks": started_ticks(pid)}
    identity |= {"boot_id": boot_id(), "hostname": hostname()}
    Spool.create(path, identity, ring_bytes=1, summary_bytes=1).shut()
    return parent, pid, path


def until(condition):
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def how(watch, folder, code, act=lambda pid: None):
    """The fact `ended` of a rank that waits for a line, then runs this code, while watched."""
    parent, pid, path = rank(folder, f"input()\n{code}")
    watch.start()
    until(lambda: watch._ranks)
    act(pid)
    parent.stdin.write("\n")
    parent.stdin.flush()
    until(lambda: "ended" in read_spool(path).facts)
    parent.send_signal(signal.SIGUSR1)
    parent.wait(PATIENCE_S)
    watch.finish()
    return read_spool(path).facts["ended"]


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN + 6, "SIGRTMIN+6")]
)
def test_a_signal_is_known_by_its_name(ends, tmp_path, number, name):
    watch, said = ends
    fact = how(watch, tmp_path, "", lambda pid: os.kill(pid, number))
    assert fact["signal"] == name
    assert len(said) == 1
    assert said[0].endswith(f"died: {name}")


@pytest.mark.parametrize("kills", [0, 2])
def test_kills_for_memory_since_the_launcher_began_are_told(ends, tmp_path, monkeypatch, kills):
    watch, said = ends
    monkeypatch.setattr(deaths, "_out_of_memory_kills", lambda before=watch._kills: before + kills)
    fact = how(watch, tmp_path, "", lambda pid: os.kill(pid, signal.SIGKILL))
    assert fact.get("out_of_memory_kills") == (kills or None)
    assert said[0].endswith("died: SIGKILL" + ": the kernel was out of memory" * (kills > 0))


def test_an_exit_code_is_known(ends, tmp_path):
    watch, said = ends
    assert how(watch, tmp_path, "import os; os._exit(3)")["exit_code"] == 3
    assert said[0].endswith("exit code 3")


def test_a_rank_that_was_gone_before_it_was_found_has_died(ends, tmp_path):
    watch, said = ends
    parent, _, path = rank(tmp_path, "input()")
    parent.stdin.close()
    parent.send_signal(signal.SIGUSR1)
    parent.wait(PATIENCE_S)
    watch.start()
    watch.finish()
    assert "ended" in read_spool(path).facts
    assert len(said) == 1
    assert "died" in said[0]


@pytest.mark.parametrize(("first", "recorded"), [(1, False), (0, True)])
def test_of_earlier_attempts_and_of_recorded_ends_nothing_is_said(tmp_path, first, recorded):
    parent, _, path = rank(tmp_path, "input()")
    parent.stdin.close()
    parent.send_signal(signal.SIGUSR1)
    parent.wait(PATIENCE_S)
    if recorded:  # by another launcher on this machine
        add_last_fact(path, "ended", {"signal": "SIGKILL"})
    before, said = read_spool(path).facts, []
    watch = RankExits(RunFolder(tmp_path), said.append, first)
    watch.start()
    watch.finish()
    assert said == []
    assert read_spool(path).facts == before


@pytest.mark.parametrize(
    ("code", "fact"),
    [
        ("import os; os._exit(3)", {"exit_code": 3}),
        ("import os; os.abort()", {"signal": "SIGABRT"}),
    ],
)
def test_how_it_ended_is_known_though_its_parent_has_asked_before(code, fact):
    child = subprocess.Popen([sys.executable, "-c", f"import os; {code}"])
    descriptor = os.pidfd_open(child.pid)
    child.wait()
    told = _exit_status(child.pid, descriptor)
    os.close(descriptor)
    assert told in (fact, {})  # {} before Linux 6.15, which forgets


@pytest.mark.parametrize("observed", [True, False])
def test_the_one_that_had_left_is_told_of_before_the_one_that_waited_for_it(tmp_path, observed):
    """Also where the last steps were not observed, to cost little: it lost its peer."""
    paths = [RunFolder(tmp_path).spool_path(0, number) for number in (0, 1)]
    waiting = Spool.create(paths[0], {"rank": 0}, ring_bytes=1000, summary_bytes=1)
    failed = int(Flag.FAILED) * observed
    waiting.put(5, 6, Kind.COLLECTIVE, Op.ALL_REDUCE, 3, flags=failed, group_seq=7)
    if not observed:
        lost = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:28573"
        waiting.add_fact("raised", {"type": "RuntimeError", "message": lost})
    waiting.shut()
    victim, left = (_Rank(path, number, 10 + number, 0) for number, path in enumerate(paths))
    told = _death_message(victim, {"exit_code": 1}, left)
    assert told.startswith("rank 1 (process 11) ended first: exit code 0; rank 0 (process 10) died")
    assert "died in step 3" in told
    assert _death_message(victim, {"exit_code": 1}, None).startswith("rank 0 (process 10) died")
    gone = Spool.create(paths[1], {"rank": 1}, ring_bytes=1, summary_bytes=1)
    gone.add_fact("left", {"by": "sys.exit", "frames": ["train.py:31 check"]})
    gone.shut()
    told = _death_message(victim, {"exit_code": 1}, left)
    assert "rank 1 (process 11) ended first: exit code 0 by sys.exit at train.py:31 check; " in told


def test_who_has_ended_a_step_died_in_the_next(tmp_path):
    path = RunFolder(tmp_path).spool_path(0, 0)
    spool = Spool.create(path, {"rank": 0}, ring_bytes=1000, summary_bytes=1)
    spool.put(5, 6, Kind.STEP, 0, 29)
    spool.shut()
    assert "died in step 30" in _death_message(_Rank(path, 0, 10, 0), {"exit_code": 1}, None)


def test_who_was_in_no_collective_is_told_of_before_the_one_that_gave_up_waiting(tmp_path):
    ranks = []
    for number, flags in enumerate((Flag.FAILED, 0, Flag.FAILED)):
        spool = Spool.create(
            RunFolder(tmp_path).spool_path(0, number), {"rank": number},
            ring_bytes=1000, summary_bytes=1,
        )  # fmt: skip
        spool.put(5, 6, Kind.COLLECTIVE, Op.ALL_REDUCE, 3, flags=int(flags), group_seq=7)
        if number == 0:
            spool.add_fact(
                "raised", {"type": "RuntimeError", "message": "Timed out waiting 8000ms"}
            )
        spool.shut()
        ranks.append(_Rank(spool.path, number, 10 + number, 0))
    told = _death_message(ranks[0], {"exit_code": 1}, None, ranks[1:])
    assert told.startswith("rank 1 did not come, in no collective; rank 0 (process 10) died")


FIRST = "rank 1 (process 11) ended first: the end of its script"


@pytest.mark.parametrize(
    ("at_ns", "reason", "first"),
    [
        (7, "exit", f"{FIRST} by sys.exit at train.py:31 check; "),
        (9, "exit", ""),
        (7, "detached", ""),
    ],
)
def test_who_has_left_its_script_is_told_of_before_the_one_that_waited(
    tmp_path, at_ns, reason, first
):
    """As by `sys.exit`: the others have lost it long before its process has ended."""
    ranks = []
    for number, (fact, fact_ns) in enumerate([("raised", 8), ("closed", at_ns)]):
        path = RunFolder(tmp_path).spool_path(0, number)
        spool = Spool.create(path, {"rank": number}, ring_bytes=1000, summary_bytes=1)
        spool.put(5, 6, Kind.COLLECTIVE, Op.ALL_REDUCE, 3, flags=int(Flag.FAILED), group_seq=7)
        spool.add_fact(fact, {"type": "RuntimeError", "monotonic_ns": fact_ns, "reason": reason})
        if fact == "closed":
            spool.add_fact("left", {"by": "sys.exit", "frames": ["train.py:31 check"]})
        spool.shut()
        ranks.append(_Rank(path, number, 10 + number, 0))
    told = _death_message(ranks[0], {"exit_code": 1}, None, ranks[1:])
    assert told.startswith(f"{first}rank 0 (process 10) died")


@pytest.mark.parametrize(("raised_ns", "first"), [((9, 7), 1), ((7, 9), 0)])
def test_who_raised_first_is_told_of_first_though_it_ends_later(tmp_path, raised_ns, first):
    """An interpreter with a thousand modules takes seconds to end."""
    ranks = []
    for number, at_ns in enumerate(raised_ns):
        path = RunFolder(tmp_path).spool_path(0, number)
        spool = Spool.create(path, {"rank": number}, ring_bytes=1000, summary_bytes=1)
        spool.add_fact("raised", {"type": f"Error{number}", "monotonic_ns": at_ns})
        spool.shut()
        ranks.append(_Rank(path, number, 10 + number, 0))
    told = _death_message(ranks[0], {"exit_code": 1}, None, ranks[1:])
    begins = "rank 1 (process 11) raised first: Error1; rank 0 (process 10) died"
    assert told.startswith(begins if first else "rank 0 (process 10) died")


def test_who_raised_first_is_told_of_though_another_that_was_not_awaited_had_ended(tmp_path):
    ranks = []
    for number, (fact, at_ns) in enumerate([("raised", 9), ("raised", 8), ("closed", 7)]):
        path = RunFolder(tmp_path).spool_path(0, number)
        spool = Spool.create(path, {"rank": number}, ring_bytes=1000, summary_bytes=1)
        spool.add_fact(fact, {"type": f"Error{number}", "monotonic_ns": at_ns, "reason": "exit"})
        spool.shut()
        ranks.append(_Rank(path, number, 10 + number, 0))
    told = _death_message(ranks[0], {"exit_code": 1}, None, ranks[1:])
    assert told.startswith("rank 1 (process 11) raised first: Error1; rank 0 (process 10) died")


def test_who_lost_a_peer_that_timed_out_raised_no_first_error(tmp_path):
    """Gloo closes a connection before its rank raises that it has waited for too long."""
    messages = "Timed out waiting 12000ms for recv", "[/gloo/pair.cc:553] Connection closed by peer"
    ranks = []
    for number, message in enumerate(messages):
        path = RunFolder(tmp_path).spool_path(0, number)
        spool = Spool.create(path, {"rank": number}, ring_bytes=1000, summary_bytes=1)
        spool.put(5, 6, Kind.COLLECTIVE, Op.ALL_REDUCE, 3, flags=int(Flag.FAILED), group_seq=7)
        raised = {"type": "RuntimeError", "monotonic_ns": 9 - number, "message": message}
        spool.add_fact("raised", raised)
        spool.shut()
        ranks.append(_Rank(path, number, 10 + number, 0))
    told = _death_message(ranks[0], {"exit_code": 1}, None, ranks[1:])
    assert told == f"rank 0 (process 10) died in step 3: RuntimeError: {messages[0]}"


def test_of_an_end_in_good_order_nothing_is_said(ends, tmp_path):
    watch, said = ends
    assert how(watch, tmp_path, "")["exit_code"] == 0
    assert said == []


def test_who_was_asked_to_end_did_not_fail(ends, tmp_path):
    watch, said = ends

    def ask(pid):
        watch.on_signal(signal.SIGTERM)
        os.kill(pid, signal.SIGTERM)

    assert how(watch, tmp_path, "", ask)["asked"] == "SIGTERM"
    assert said == ["attempt 0 is preempted (SIGTERM); forwarding the signal"]  # and nobody died


def test_what_nccl_warned_of_is_found_in_the_processs_own_log(tmp_path):
    (tmp_path / "nccl.7").write_text("x NCCL INFO fine\nx NCCL WARN the link is down\n")
    environ = {"NCCL_DEBUG_FILE": str(tmp_path / "nccl.%p")}
    assert nccl_warnings(environ, 7) == ["x NCCL WARN the link is down"]
    assert nccl_warnings(environ, 8) == nccl_warnings({}, 7) == []


@pytest.mark.parametrize(
    ("waited_s", "why"),
    [(2, "its interpreter does not run"), (5, "it waited for a core for 5 s of that")],
)
def test_a_silent_rank_that_waits_for_a_core_is_not_called_blocked(
    ends, tmp_path, monkeypatch, waited_s, why
):
    watch, said = ends
    watch._ranks[0] = _Rank(tmp_path / "rank-00001.spool", 1, os.getpid(), 0)
    beat_ns, clock, waits = (
        10**9,
        iter((2 * 10**9, 7 * 10**9)),
        iter((10**9, (1 + waited_s) * 10**9)),
    )
    monkeypatch.setattr(deaths, "_heartbeat_ns", lambda path: beat_ns)
    monkeypatch.setattr(deaths, "core_wait_ns", lambda pid: next(waits))
    monkeypatch.setattr(deaths.time, "monotonic_ns", lambda: next(clock))
    watch._report_silent_ranks()
    assert said == []
    watch._report_silent_ranks()
    assert said == [f"no heartbeat of rank 1 (process {os.getpid()}) for 6 s: {why}"]


@pytest.mark.parametrize(
    ("raised", "reason"), [(True, "exit"), (True, "detached"), (False, "exit")]
)
def test_a_rank_that_raised_is_reported_once_though_its_process_takes_long_to_end(
    ends, tmp_path, monkeypatch, raised, reason
):
    watch, said = ends
    path = RunFolder(tmp_path).spool_path(0, 1)
    spool = Spool.create(path, {"rank": 1}, ring_bytes=1, summary_bytes=1)
    if raised:
        spool.add_fact("raised", {"type": "ValueError", "message": "no labels", "monotonic_ns": 1})
    spool.add_fact("closed", {"monotonic_ns": 2, "reason": reason})
    spool.shut()
    watch._ranks[0] = _Rank(path, 1, os.getpid(), 0)
    monkeypatch.setattr(deaths, "_heartbeat_ns", lambda path: time.monotonic_ns() - 1_500_000_000)
    for _ in range(2):
        watch._report_silent_ranks()
    died = f"rank 1 (process {os.getpid()}) died: ValueError: no labels"
    assert said == [died] * (raised and reason == "exit")


@pytest.mark.parametrize(
    ("facts", "raised_ns", "ending_ns"),
    [
        ({}, INF, INF),
        ({"raised": {"monotonic_ns": 5}}, 5, 5),
        ({"raised": {}}, INF, INF),
        ({"closed": {"monotonic_ns": 3, "reason": "exit"}}, INF, 3),
        ({"closed": {"monotonic_ns": 3, "reason": "detached"}}, INF, INF),
        ({"closed": {"reason": "exit"}, "raised": {"monotonic_ns": 5}}, 5, 5),
        ({"closed": {"monotonic_ns": 3, "reason": "exit"}, "raised": {"monotonic_ns": 5}}, 5, 3),
    ],
)
def test_a_rank_left_when_it_raised_or_where_that_counts_when_its_script_ended(
    facts, raised_ns, ending_ns
):
    assert deaths._left_ns(facts) == raised_ns
    assert deaths._left_ns(facts, ending=True) == ending_ns


@pytest.mark.parametrize(
    ("text", "kills"), [("nr_free 7\noom_kill 3\noom_kill_x 9\n", 3), ("nr_free 7\n", 0), (None, 0)]
)
def test_kills_for_memory_are_counted_by_the_kernel(monkeypatch, text, kills):
    monkeypatch.setattr(deaths, "read_text", lambda path: text if path == "/proc/vmstat" else "")
    assert deaths._out_of_memory_kills() == kills


def test_of_a_long_log_of_nccl_the_end_is_read_and_of_a_long_line_the_beginning(tmp_path):
    last = "  h7 NCCL WARN " + "x" * deaths.LINE_LENGTH
    fill = "y" * deaths.LOG_BYTES
    (tmp_path / f"{hostname()}.7").write_text(f"h7 NCCL WARN first\n{fill}\n{last}\n")
    found = nccl_warnings({"NCCL_DEBUG_FILE": str(tmp_path / "%h.%p")}, 7)
    assert found == [last.strip()[: deaths.LINE_LENGTH]]
    (tmp_path / "nccl").write_text("NCCL WARN of whom\n")
    assert nccl_warnings({"NCCL_DEBUG_FILE": str(tmp_path / "nccl")}, 7) == []


def test_a_file_that_is_no_spool_has_no_heartbeat_and_no_frames(tmp_path):
    assert deaths._heartbeat_ns(tmp_path / "none") == 0
    (tmp_path / "short").write_bytes(b"EVNSTEP")
    assert deaths._heartbeat_ns(tmp_path / "short") == 0
    assert deaths._struck_at(tmp_path / "short") == []
    path = RunFolder(tmp_path).spool_path(0, 0)
    spool = Spool.create(path, {"rank": 0}, ring_bytes=1, summary_bytes=1)
    spool.beat(77)
    spool.shut()
    assert deaths._heartbeat_ns(path) == 77


def test_a_launcher_notes_who_ended_well_and_tells_only_of_the_first_who_did_not(ends, tmp_path):
    watch, said = ends
    for number, ended in enumerate(({"exit_code": 0}, {"exit_code": 0}, {"exit_code": 3}, {})):
        path = RunFolder(tmp_path).spool_path(0, number)
        spool = Spool.create(path, {"rank": number}, ring_bytes=1, summary_bytes=1)
        spool.shut()
        watch._record(_Rank(path, number, 100 + number, 0), dict(ended))
    assert watch._clean_exit[0].rank == 0
    assert said == ["rank 2 (process 102) died: exit code 3"]
    assert [read_spool(RunFolder(tmp_path).spool_path(0, n)).facts["ended"] for n in range(4)] == [
        {"exit_code": 0}, {"exit_code": 0}, {"exit_code": 3}, {},
    ]  # fmt: skip
