"""`evenstep link` serves until it is interrupted."""

import signal
import subprocess
import sys

import pytest

from evenstep.cli.main import main
from tests.agent.actions.test_served import known


@pytest.mark.parametrize("group", ["team", "team@host", "team@:1", "@host:1", "a@h:70000"])
def test_without_a_place_it_says_what_it_expects(group, capsys):
    assert main(["link", group]) == 2
    assert "NAME@HOST:PORT" in capsys.readouterr().err


def test_it_serves_jobs_until_it_is_interrupted():
    command = [sys.executable, "-m", "evenstep", "link", "team@127.0.0.1:0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    port = server.stderr.readline().split("port ")[1].split(":")[0]
    place = f"team@127.0.0.1:{port}"
    board = known(place)
    assert ": 1 job on the link, 0 ranks on storage" in server.stderr.readline()
    stored = [known(place, topic) for topic in ("input", "save", "input")]
    told = [server.stderr.readline() for _ in range(2)]
    assert ": 1 job on the link, 1 rank on storage" in told[0]
    assert ": 1 job on the link, 2 ranks on storage" in told[1]
    for each in (board, *stored):
        each.close()
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 0
    assert server.stderr.read().endswith("evenstep: stopped\n")
    server.stderr.close()
