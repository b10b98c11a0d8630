import json
import os
import signal
import sys

import pytest

from evenstep.cli import run
from evenstep.compiled import Library
from evenstep.trace.spool.folder import RunFolder

#: A stand-in for a rank: claims its spool and names this machine in it, as a header would.
RANK = (
    "import os\n"
    "from evenstep.trace.spool.folder import RunFolder\n"
    "from evenstep.trace.spool.identity import boot_id, from_environment\n"
    "place = from_environment(os.environ)\n"
    "fd = RunFolder(os.environ['EVENSTEP_OUT']).claim(place.attempt, place.rank)\n"
    "os.write(fd, boot_id().encode())\n"
)
#: Says when it is ready, then what it was sent.
LISTEN = (
    "import signal, sys, time\n"
    "def heard(number, frame): print(number, flush=True); sys.exit(7)\n"
    "for name in ('TERM', 'INT', 'HUP', 'USR1', 'USR2', 'QUIT'):\n"
    "    signal.signal(getattr(signal, 'SIG' + name), heard)\n"
    "print('ready', flush=True)\n"
    "time.sleep(30)\n"
)


def python(script, *arguments):
    return [sys.executable, "-c", script, *arguments]


def test_arguments_input_and_output_are_the_commands_own(command):
    script = "import sys; print(sys.argv[1:], input()); print('err', file=sys.stderr)"
    done = command("run", "--", *python(script, "--lr", "-1", "--", "x y"), input="typed\n")
    assert done.stdout == "['--lr', '-1', '--', 'x y'] typed\n"
    where, own, *_ = done.stderr.splitlines()
    assert where.startswith("evenstep: recording in evenstep-runs/run-")
    assert own == "err"


def test_a_command_may_stand_without_the_dashes(command):
    done = command("run", "--out", "r", *python("import sys; print(sys.argv[1:])", "--", "-h"))
    assert done.stdout == "['--', '-h']\n"


@pytest.mark.parametrize("code", [0, 1, 3, 77])
def test_the_exit_code_is_the_commands_own(command, code):
    assert command("run", "--", *python(f"raise SystemExit({code})")).returncode == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_death_by_a_signal_is_told_as_a_shell_tells_it(command, name):
    number = getattr(signal, name)
    script = f"import os; os.kill(os.getpid(), {int(number)})"
    assert command("run", "--", *python(script)).returncode == 128 + number


def test_a_command_that_does_not_exist_exits_127(command):
    done = command("run", "--", "no-such-command")
    assert done.returncode == 127
    assert done.stderr == (
        "evenstep: there is no command 'no-such-command' on PATH; check its spelling\n"
    )


def test_a_script_without_its_launcher_is_no_misspelt_command(command, tmp_path):
    (tmp_path / "train.py").touch()
    done = command("run", "train.py")
    assert done.returncode == 127
    assert done.stderr == (
        "evenstep: there is no command 'train.py' on PATH; name what starts it\n"
    )


def test_a_command_that_does_not_exist_leaves_no_folder_and_clears_none(command, tmp_path):
    (tmp_path / "old" / "attempt-000").mkdir(parents=True)
    for name in ("new", "old"):
        assert command("run", "--out", name, "--force", "--", "nosuchcommand").returncode == 127
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old" / "attempt-000").exists()


def test_a_file_that_no_kernel_runs_leaves_no_folder(command, tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF, as it says")
    broken.chmod(0o755)
    done = command("run", "--out", "new", "--", broken)
    assert (done.returncode, (tmp_path / "new").exists()) == (126, False)
    assert "Exec format error" in done.stderr


def test_a_node_that_cannot_start_leaves_the_run_that_another_has_begun(command, environ, tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF, as it says")
    broken.chmod(0o755)
    facts = tmp_path / "shared" / "run.json"
    facts.parent.mkdir()
    known = {"run_id": "7", "command": [str(broken)], "hostname": "another"}
    facts.write_text(json.dumps(known))
    asked = ("run", "--out", "shared", "--", broken)
    done = command(*asked, env=environ | {"EVENSTEP_RUN_ID": "7"})
    assert done.returncode == 126
    assert json.loads(facts.read_text()) == known


def test_a_command_that_cannot_be_executed_exits_126(command, tmp_path):
    assert command("run", "--", str(tmp_path)).returncode == 126


def test_nothing_to_run_is_wrong_usage(command):
    done = command("run")
    assert done.returncode == 2
    assert "nothing to run" in done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"])
def test_a_signal_sent_to_the_launcher_reaches_the_command(start, name):
    child = start("run", "--", *python(LISTEN))
    assert child.stdout.readline() == "ready\n"
    child.send_signal(getattr(signal, name))
    assert child.stdout.readline() == f"{int(getattr(signal, name))}\n"
    assert child.wait() == 7


def test_ctrl_c_at_a_terminal_reaches_the_command_once(environ, tmp_path):
    count = (
        "import signal, time\nseen = []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "while not seen: time.sleep(.01)\n"
        "time.sleep(.3); print('seen', len(seen), flush=True)\n"
    )
    main, line = [sys.executable, "-m", "evenstep"], ["run", "--", *python(count)]
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(sys.executable, [*main, *line], environ)
    shown = read_until(terminal, "ready")
    os.write(terminal, b"\x03")
    shown += read_until(terminal, "seen")
    os.waitpid(pid, 0)
    os.close(terminal)
    assert "seen 1" in shown


def read_until(descriptor, word):
    text = ""
    while f"{word}" not in text or not text.endswith("\n"):
        text += os.read(descriptor, 1000).decode()
    return text


def test_default_dispositions_are_given_back_to_the_command(command):
    done = command("run", "--", "sh", "-c", "yes | head -n 1; echo done")
    assert (done.stdout, "Broken pipe" in done.stderr) == ("y\ndone\n", False)


def test_signals_are_not_blocked_in_the_command(command):
    script = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    assert command("run", "--", *python(script)).stdout == "set()\n"


def test_the_run_is_described_before_the_command_starts(command, tmp_path):
    script = "import os; print(open(os.environ['EVENSTEP_OUT'] + '/run.json').read())"
    done = command("run", "--out", "r", "--pace", "off", "--", *python(script))
    facts = json.loads(done.stdout)
    assert facts["command"] == python(script)
    assert (facts["run_id"], facts["world"]) == ("r", None)


def test_the_ranks_are_given_folder_name_and_mode(command, tmp_path):
    script = (
        "import os; e = os.environ; print(e['EVENSTEP'], e['EVENSTEP_OUT'], e['EVENSTEP_RUN_ID'],"
        " e['EVENSTEP_PACE_MODE'], e['EVENSTEP_PROBE_EVERY'])"
    )
    asked = ("--pace", "on", "--probe-every", "50")
    done = command("run", "--out", "r", *asked, "--", *python(script))
    assert done.stdout.split() == ["1", str(tmp_path / "r"), "r", "on", "50"]


def test_without_out_a_folder_is_made_for_each_run(command, tmp_path):
    for _ in range(2):
        command("run", "--", *python("pass"))
    assert len(list((tmp_path / "evenstep-runs").glob("run-*/run.json"))) == 2


def test_a_run_without_ranks_says_why_there_is_no_verdict(command):
    done = command("run", "--", *python("pass"))
    where, why = done.stderr.splitlines()
    assert why.startswith("evenstep: no rank attached: ")
    assert "its PYTHONPATH is set anew by a script" in why
    assert where.startswith("evenstep: recording in ")


def test_a_command_that_fails_before_its_ranks_attach_is_not_told_to_call_torch(command):
    done = command("run", "--", *python("import no_such_module"))
    assert "the command ended with 1 before any of its ranks had attached" in done.stderr


def test_a_rank_that_could_not_attach_has_said_why(command, tmp_path):
    done = command("run", "--out", "r", "--", *python("import os; os.mkdir('r/attempt-000')"))
    assert "no rank could attach, for the reason that it gave" in done.stderr


def test_the_node_of_rank_zero_runs_the_diagnosis(command):
    done = command("run", "--out", "r", "--", *python(RANK))
    assert done.returncode == 0
    assert "rank-00000.spool is not a spool" in done.stderr  # the stand-in wrote no trace
    assert done.stderr.splitlines()[-1] == "evenstep: next: evenstep diagnose r --html report.html"


def test_another_node_prints_its_folder(command, environ, tmp_path):
    rank = {"RANK": "1", "WORLD_SIZE": "2"}
    done = command("run", "--out", "r", "--", *python(RANK), env=environ | rank)
    assert done.stderr == f"evenstep: this node's traces are in {tmp_path / 'r'}\n"


def test_the_verdict_can_be_switched_off(command, environ, tmp_path):
    env = environ | {"EVENSTEP_VERDICT": "0"}
    done = command("run", "--out", "r", "--", *python(RANK), env=env)
    last = done.stderr.splitlines()[-1]
    assert last == f"evenstep: this node's traces are in {tmp_path / 'r'}"


def test_another_run_is_not_overwritten(command, tmp_path):
    command("run", "--out", "r", "--", *python(RANK))
    done = command("run", "--out", "r", "--", *python("print('ran')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "another run" in done.stderr
    assert "--force" in done.stderr
    assert RunFolder(tmp_path / "r").read()["command"] == python(RANK)


def test_force_replaces_another_run(command, tmp_path):
    command("run", "--out", "r", "--", *python(RANK))
    command("run", "--out", "r", "--force", "--", *python("print('ran')"))
    run = RunFolder(tmp_path / "r")
    assert (run.read()["command"], run.attempts()) == (python("print('ran')"), [])


def test_the_same_run_started_again_is_a_new_attempt(command, environ, tmp_path):
    env = environ | {"EVENSTEP_RUN_ID": "job7"}
    for _ in range(2):
        assert command("run", "--out", "r", "--", *python(RANK), env=env).returncode == 0
    assert RunFolder(tmp_path / "r").attempts() == [0, 1]


def test_a_folder_that_cannot_be_written_stops_before_the_command(command, tmp_path):
    (tmp_path / "file").write_text("")
    done = command("run", "--out", "file/r", "--", *python("print('ran')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "file is a file; name a folder" in done.stderr


def test_a_rank_under_the_launcher_is_armed(command):
    script = "import sys; print(type(sys.meta_path[0]).__module__)"
    assert command("run", "--", *python(script)).stdout == "evenstep_arming\n"


def test_a_command_runs_unobserved_where_evenstep_is_off(command, environ, tmp_path):
    script = "import os; print(os.environ['EVENSTEP'], os.environ.get('PYTHONPATH', ''))"
    done = command(
        "run", "--", *python(f"{script}; raise SystemExit(7)"), env=environ | {"EVENSTEP": "0"}
    )
    assert (done.returncode, done.stdout.split()[:1]) == (7, ["0"])
    assert "bootstrap" not in done.stdout
    assert "is not recorded" in done.stderr
    assert not list(tmp_path.glob("evenstep-runs"))


@pytest.mark.parametrize(
    ("torch", "built", "said"),
    [(None, None, ""), ("torch", "library.so", ""), ("torch", None, "compiling the recorder")],
)
def test_a_recorder_is_compiled_before_the_job_where_there_is_none(
    monkeypatch, capsys, torch, built, said
):
    library, compiled = "evenstep.hooks.torch.library", []
    monkeypatch.setattr(f"{library}.installed_folder", lambda: torch)
    monkeypatch.setattr(f"{library}.find_recorder", lambda _: Library(built, ""))
    make = lambda folder: compiled.append(folder) or Library(None, "no compiler")  # noqa: E731
    monkeypatch.setattr(f"{library}.build_recorder", make)
    run._compile_recorder()
    assert compiled == [torch] * bool(said)
    told = capsys.readouterr().err
    assert said in told
    assert ("the slower Python kernels: no compiler" in told) == bool(said)
