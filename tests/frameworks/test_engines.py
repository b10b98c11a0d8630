"""Work carried out by processes of this machine and by a Ray cluster: the same, whoever dies."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks import corpus
from evenstep import workers
from evenstep.cli.arguments import Parser
from evenstep.cli.main import main
from evenstep.errors import ConfigError, EvenstepError, MissingExtra, UsageError
from evenstep.workers import MOST_KILLS, Local, RayEngine, run_piece
from tests.diagnose.attempts_run import Start, write

SCENARIO = """
[cluster]
nodes = 2

[work]
forward_ms = 10
gradient_bytes = "10MB"

[[noise]]
sigma = 0.1

[run]
steps = 5
"""


@pytest.fixture(params=["local", "ray"])
def engine(request):
    if request.param == "local":
        return Local(2)
    request.getfixturevalue("cluster")
    return RayEngine(workers=2)


def squared(number):
    return number * number


def killed_once(piece):
    """The second piece takes its first worker with it."""
    folder, number = piece
    marker = Path(folder) / "died"
    if number == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def killed_always(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refused(number):
    raise ConfigError(f"field {number} is wrong")


def test_every_piece_is_carried_out_once(engine):
    assert sorted(engine.carried(range(9), squared)) == [n * n for n in range(9)]


def test_nothing_to_do_needs_nobody(engine):
    assert list(engine.carried([], squared)) == []


def test_a_killed_worker_loses_nothing(engine, tmp_path):
    pieces = [(str(tmp_path), number) for number in range(6)]
    assert sorted(engine.carried(pieces, killed_once)) == list(range(6))
    assert (tmp_path / "died").exists()


def test_a_piece_that_no_worker_survives_is_named(engine):
    with pytest.raises(EvenstepError, match=rf"killed {MOST_KILLS} times .*\(3\)"):
        list(engine.carried(range(6), killed_always))


def test_an_error_of_the_work_is_raised_as_it_is(engine):
    with pytest.raises(ConfigError, match=r"^field [01] is wrong$"):
        list(engine.carried(range(2), refused))


def test_workers_end_with_the_iterator(engine):
    finished = engine.carried(range(100), squared)
    next(finished)
    finished.close()
    assert list(finished) == []


def test_an_error_that_cannot_be_sent_becomes_one_that_can():
    def missing(_):
        raise MissingExtra("numpy", extra="analyze", purpose="a sweep")

    error = run_piece(missing, 0).error
    assert type(error) is EvenstepError
    assert "evenstep[analyze]" in str(error)


def test_a_worker_of_another_version_is_refused():
    answer = workers._check_and_work("0.0", squared, 2)
    with pytest.raises(UsageError, match=r"this machine 0\.0: install the same version"):
        answer.unwrap()


def test_a_worker_without_evenstep_is_one_sentence():
    told = workers._unable("…\nModuleNotFoundError: No module named 'evenstep.simulate'")
    assert 'pip install "evenstep[ray]' in told


@pytest.fixture
def sweep(tmp_path, capsys):
    """Runs a sweep with an engine; the bytes of its table."""
    (tmp_path / "two.toml").write_text(SCENARIO)

    def run(name, *options):
        command = ["sweep", str(tmp_path / "two.toml"), "--vary", "nodes=2,4", "--repeats", "3"]
        assert main([*command, "--out", str(tmp_path / name), "--json", *options]) == 0
        assert json.loads(capsys.readouterr().out)["finished"] == 6
        return next((tmp_path / name).glob("results.*")).read_bytes()

    return run


def test_a_sweep_is_the_same_to_the_byte(sweep, cluster):
    ours = sweep("local", "--workers", "2")
    assert sweep("ray", "--engine", "ray") == ours


def test_a_sweep_goes_on_with_another_engine(sweep, cluster, tmp_path):
    whole = sweep("ray", "--engine", "ray")
    journal = tmp_path / "ray" / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    assert sweep("ray", "--workers", "1") == whole


def test_ray_that_is_not_installed_is_one_sentence(sweep, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "two.toml").write_text(SCENARIO)
    command = ["sweep", str(tmp_path / "two.toml"), "--vary", "nodes=2", "--engine", "ray"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert 'pip install "evenstep[ray]"' in told
    assert len(told.splitlines()) == 1


def test_an_address_without_ray_is_refused(sweep, tmp_path, capsys):
    (tmp_path / "two.toml").write_text(SCENARIO)
    command = ["sweep", str(tmp_path / "two.toml"), "--vary", "nodes=2", "--address", "head:6379"]
    assert main(command) == 2
    assert "--address needs --engine ray" in capsys.readouterr().err


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of two sizes."""
    folder = tmp_path_factory.mktemp("runs")
    return [str(write(folder / f"run{n}", [Start(0, 40)], world=n)) for n in (2, 4)]


@pytest.mark.parametrize("options", [["--workers", "2"], ["--engine", "ray"]], ids=" ".join)
def test_several_traces_are_diagnosed_the_same_elsewhere(runs, options, capsys, cluster):
    told = []
    for more in ([], options):
        assert main(["diagnose", *runs, "--json", "--what-if", "rank:0=median", *more]) in (0, 1)
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert len(json.loads(told[0])) == 3  # each, and together


def test_relative_paths_mean_the_same_to_a_worker(runs, monkeypatch, capsys, cluster):
    monkeypatch.chdir(Path(runs[0]).parent)
    assert main(["diagnose", "run2", "run4", "--engine", "ray"]) in (0, 1)
    assert "4 ranks" in capsys.readouterr().out


def test_the_corpus_is_judged_the_same_by_more_workers(capsys):
    options = ["--seeds", "1", "--only", "heating", "--workers"]
    rows = []
    for number in ("1", "2"):
        parser = Parser()
        corpus.add_arguments(parser)
        rows.append(corpus.run(parser.parse_args([*options, number])))
    assert rows[0] == rows[1]
    assert all(row.what for row in rows[0])
