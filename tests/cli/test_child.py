"""Commands that run others: how they end, what they forward, what they say of what cannot run."""

import errno
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from evenstep.cli import child, deaths, run, terminal
from evenstep.cli.main import SYSTEM_ERRORS, exit_code_of, main
from evenstep.errors import UsageError
from evenstep.trace.spool.folder import RunFolder

#: Alone in its process: another thread there might take a signal that is awaited.
ALONE = """
import json, os, signal, sys
from evenstep.cli import child

def look():
    seen.append(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT).si_status)

seen, signals, before = [], [], signal.pthread_sigmask(signal.SIG_BLOCK, [])
environ = json.loads(sys.argv[2])
code = child.run(["/bin/sh", "-c", sys.argv[1]], environ, signals.append, look)
same = signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
print(json.dumps([code, signals, seen, same]))
"""


def ended(script, environ=None):
    """The exit code, the signals that were told, what was seen at the end, whether all signals
    are blocked as before."""
    arguments = [script, json.dumps(dict(os.environ) if environ is None else environ)]
    alone = [sys.executable, "-c", ALONE, *arguments]
    return json.loads(subprocess.check_output(alone, timeout=60))


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 128 + signal.SIGTERM)]
)
def test_a_command_ends_as_its_child_does(script, code):
    assert ended(script)[::3] == [code, True]


def test_a_signal_of_another_process_is_told_and_forwarded():
    script = "trap 'exit 7' USR1; kill -USR1 $PPID; while true; do sleep 0.01; done"
    assert ended(script)[:2] == [7, [signal.SIGUSR1]]


def test_what_runs_at_the_end_sees_the_child_once():
    assert ended("exit 5")[2] == [5]


def test_a_child_has_its_own_environment_and_the_default_of_a_closed_pipe():
    script = 'test "$ONLY" = it && test -z "$HOME" && kill -PIPE $$'
    assert ended(script, {"ONLY": "it"})[0] == 128 + signal.SIGPIPE


def test_what_cannot_run_is_said_with_the_code_of_a_shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    assert child.refusal(["sh"]) is None
    for command, code, said in (
        ("nowhere", 127, "there is no command 'nowhere' on PATH; check its spelling"),
        ("script.py", 127, "there is no command 'script.py' on PATH; name what starts it"),
        ("./script.py", 126, "cannot run './script.py': Permission denied"),
        (str(tmp_path), 126, f"cannot run '{tmp_path}': Permission denied"),
    ):
        assert child.refusal([command]) == code
        assert capsys.readouterr().err == f"evenstep: {said}\n"
    with pytest.raises(FileNotFoundError):
        child.run(["/nowhere"], {}, lambda _: None)


def raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(UsageError("name a file"), 2, "name a file"), (KeyboardInterrupt(), 130, "interrupted"),
     (MemoryError(), 2, "not enough memory; use a smaller input or fewer steps"),
     (OSError(errno.EACCES, "Permission denied", "/x"), 2,
      "/x cannot be read or written: Permission denied; name another path"),
     (OSError(errno.ENOSPC, "No space left"), 2,
      "the output cannot be written: No space left; redirect it to another path"),
     (OSError(errno.EMFILE, "Too many files"), 2,
      "the system refused an operation: Too many files")],
)  # fmt: skip
def test_what_a_command_ends_with_is_a_sentence_and_a_code(error, code, said, capsys):
    assert isinstance(error, OSError) is (getattr(error, "errno", None) in SYSTEM_ERRORS)
    assert exit_code_of(raising(error)) == code
    assert capsys.readouterr().err == f"evenstep: {said}\n"


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.EDOM, "x")])
def test_what_nobody_expects_is_a_defect_with_its_traceback(error, capsys):
    assert exit_code_of(raising(error)) not in (0, 2)
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert told.endswith(
        "evenstep: this is a defect in evenstep; please report the traceback above\n"
    )


def test_a_command_that_ends_well_has_its_own_code():
    assert (exit_code_of(lambda: 0), exit_code_of(lambda: 1)) == (0, 1)


@pytest.mark.parametrize(
    ("argv", "said"),
    [(["diagnos"], "there is no command 'diagnos'; did you mean 'diagnose'?"),
     (["--versio"], "there is no option '--versio'; `evenstep --help` lists them"),
     (["qqqqqqqq"], "there is no command 'qqqqqqqq'; `evenstep --help` lists them")],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_told_with_the_nearest(argv, said, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err == f"evenstep: {said}\n"


def test_a_result_is_text_or_json(capsys):
    terminal.show({"a": 1}, lambda: "text\n\n", as_json=False)
    assert capsys.readouterr().out == "text\n"
    terminal.show({"a": 1}, lambda: "text", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    terminal.tell_written("page.html", " (2 runs)")
    assert capsys.readouterr().err == "Wrote page.html (2 runs)\n"


def test_an_interruption_ends_a_command_with_its_code():
    with pytest.raises(SystemExit) as ended_by, terminal.until_interrupted():
        raise KeyboardInterrupt
    assert ended_by.value.code == 130


@pytest.mark.parametrize(
    ("environ", "reports"),
    [({}, True), ({"RANK": "0", "WORLD_SIZE": "2"}, True),
     ({"RANK": "1", "WORLD_SIZE": "2"}, False)],
)  # fmt: skip
def test_a_launcher_of_rank_0_or_of_all_reports_for_its_job(environ, reports):
    assert run.reports_for_job(environ) is reports


@pytest.mark.parametrize(("known", "status"), [(deaths._INFO_EXIT, 0x300), (0, None)])
def test_the_end_of_a_reaped_process_is_known_where_the_kernel_tells(monkeypatch, known, status):
    def told(descriptor, request, asked):
        assert (descriptor, request) == (7, deaths._GET_INFO)
        asked[:] = deaths._INFO.pack(known, *[0] * 12, 0x300)

    monkeypatch.setattr(deaths.fcntl, "ioctl", told)
    assert deaths._reaped_status(7) == status


def test_of_a_death_the_living_are_the_others_of_the_attempt_and_it_is_told_once(
    monkeypatch, tmp_path
):
    told = []
    watch = deaths.RankExits(RunFolder(tmp_path), told.append)
    ranks = [SimpleNamespace(attempt=attempt, pid=n) for n, attempt in enumerate((1, 1, 0, 1))]
    watch._ranks = dict(enumerate(ranks))
    monkeypatch.setattr(deaths, "_death_message", lambda rank, ended, clean, living: living)
    watch._report_death(ranks[1], {})
    watch._report_death(ranks[0], {})
    assert told == [[ranks[0], ranks[3]]]
