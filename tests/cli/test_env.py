import json
import os
import subprocess

from evenstep.cli.env import BOOTSTRAP, variables


def test_export_lines_do_in_a_shell_what_they_say(command, environ):
    lines = command("env", "--out", "a dir", "--pace", "off").stdout
    shown = 'printf "%s\\n" "$EVENSTEP" "$EVENSTEP_OUT" "$EVENSTEP_PACE_MODE" "$PYTHONPATH"'
    done = subprocess.run(
        ["sh", "-c", lines + shown], capture_output=True, text=True, check=True, cwd="/tmp",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/mine"},
    )  # fmt: skip
    switch, out, mode, path = done.stdout.splitlines()
    assert (switch, mode, path) == ("1", "off", f"{BOOTSTRAP}:/mine")
    assert (BOOTSTRAP / "sitecustomize.py").exists()
    assert out.endswith("/a dir")


def test_json_gives_the_variables_and_the_settings_in_force(command):
    shown = json.loads(command("env", "--json", "--pace", "on").stdout)
    assert shown["variables"]["EVENSTEP"] == "1"
    rows = {row["name"]: row for row in shown["settings"]}
    assert rows["pace.mode"]["value"] == "on"


def test_a_wrong_setting_is_found_before_the_job_starts(command, tmp_path):
    (tmp_path / "evenstep.toml").write_text("[pace]\nmax_delay = 2\n")
    done = command("env")
    assert done.returncode == 2
    assert "pace.max_delay in" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_path_is_entered_once_and_has_no_empty_entry():
    nested = variables({"PYTHONPATH": f"{BOOTSTRAP}:/mine:"}, {})
    assert nested["PYTHONPATH"] == f"{BOOTSTRAP}:/mine"
    assert variables({}, {})["PYTHONPATH"] == str(BOOTSTRAP)


def test_a_part_of_the_job_is_chosen_on_the_command_line(command):
    done = command("env", "--pace-ranks", "0-3,8", "--record-first-nodes", "2")
    assert "export EVENSTEP_PACE_RANKS=0-3,8\n" in done.stdout
    assert "export EVENSTEP_RECORD_FIRST_NODES=2\n" in done.stdout


def test_a_part_that_cannot_be_is_refused(command):
    done = command("env", "--pace-nodes", "gpu[16-01]")
    assert done.returncode == 2
    assert "pace.nodes given as an argument must be nodes such as" in done.stderr
