"""`evenstep export` on a simulated run."""

import functools
import json
import re
import shutil
import signal
from urllib.request import urlopen

import pytest

from evenstep.cli import arguments
from evenstep.cli import export as export_command
from evenstep.cli.main import main
from evenstep.errors import UsageError
from evenstep.report.schema import schema
from tests.cli.simulated import simulate
from tests.report.perfetto_reader import Reader
from tests.report.receiver import receiving


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return simulate(tmp_path_factory.mktemp("runs") / "confidential", slow=True)


@pytest.fixture
def export(run, capsys):
    """Exit code, output and errors of an export of the run."""

    def call(*words):
        code = main(["export", str(run), *map(str, words)])
        return code, *capsys.readouterr()

    return call


def test_several_formats_are_written_at_once(export, tmp_path):
    pytest.importorskip("duckdb")
    code, out, err = export(
        "--perfetto", tmp_path / "a.pftrace", "--parquet", tmp_path / "tables",
        "--prometheus", tmp_path / "a.prom",
    )  # fmt: skip
    assert (code, out) == (0, "")
    names = re.findall(r"^Wrote (\S+)", err, re.M)
    assert all((tmp_path / name).stat().st_size for name in names)
    assert len(names) == 5
    assert "bytes each" in err
    assert not re.search(r"\de[+-]\d", err)


def test_files_of_a_run_that_are_no_spools_are_named(run, tmp_path, capsys):
    broken = tmp_path / "run"
    shutil.copytree(run, broken)
    (broken / "attempt-000" / "rank-00001.spool").write_text("something else")
    for command in (
        ["export", broken, "--perfetto", tmp_path / "a.pftrace"],
        ["compare", run, broken],
    ):
        main([str(word) for word in command])
        assert "3 of 4 ranks" in (told := capsys.readouterr().err)
        assert "rank-00001.spool is not a spool" in told


def test_the_timeline_shows_who_was_waited_for(export, tmp_path):
    export("--perfetto", tmp_path / "a.pftrace")
    read = Reader((tmp_path / "a.pftrace").read_bytes())
    sources = [read.rank(one) for one in read.begins.values()]
    assert max(set(sources), key=sources.count).startswith("rank 3")
    assert "straggler" in {one["name"] for one in read.instants}


def test_only_some_steps_can_be_written(export, tmp_path):
    told = export("--perfetto", tmp_path / "a", "--steps", "10-12")[2]
    assert "steps 10 to 12 of 0 to 59" in told
    assert " bytes)" in export("--perfetto", tmp_path / "b", "--steps", "0-99")[2]  # all of them
    names = {one["name"] for one in Reader((tmp_path / "a").read_bytes()).slices}
    assert {name for name in names if name.startswith("step")} == {"step 10", "step 11", "step 12"}


def test_anonymised_output_names_no_host_and_no_path(export, run, tmp_path):
    _, out, _ = export(
        "--json", "--anonymise", "--perfetto", tmp_path / "a", "--prometheus", tmp_path / "b"
    )
    texts = [out, *(str((tmp_path / name).read_bytes()) for name in ("a", "b"))]
    assert "node-1" in out
    for text in texts:
        assert not re.search(rf"node000\d|{run.name}|/tmp|simulated-", text)
    assert json.loads(out)["findings"][0]["where"]["nodes"] == ["node-1"]


def test_the_json_fits_the_schema_that_is_printed(export, capsys):
    validate = pytest.importorskip("jsonschema").validate
    diagnosis = json.loads(export("--json")[1])
    assert main(["export", "--json-schema"]) == 0
    validate(diagnosis, json.loads(capsys.readouterr().out))


def test_other_schemas_are_printed_by_name(capsys):
    assert main(["export", "--json-schema", "comparison"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("comparison-1")


def test_metrics_and_findings_are_sent_where_they_are_asked_to(export):
    with receiving() as server:
        code, _, err = export("--otlp", server.url, "--webhook", f"{server.url}/hook")
    assert code == 0
    assert [path for path, _, _ in server.got] == ["/v1/metrics", "/hook"]
    assert server.got[1][2]["finding"]["mode"] == "straggler"
    assert "Sent 1 findings" in err


@pytest.mark.parametrize("asked", ["wandb", "mlflow", "tensorboard"])
def test_only_the_tracker_that_is_asked_for_gets_the_steps_and_the_findings(
    export, monkeypatch, asked
):
    given = {}
    for name in ("wandb", "mlflow", "tensorboard"):
        to = functools.partial(lambda name, *what: given.setdefault(name, what), name)
        monkeypatch.setattr(f"evenstep.export.trackers.to_{name}", to)
    assert export(f"--{asked}", "place")[0] == 0
    assert list(given) == [asked]
    place, *_, each, total = given[asked]
    assert (place, len(list(each))) == ("place", 60)
    assert any("straggler" in name for name in total)


def test_a_webhook_may_be_told_of_less(export):
    with receiving() as server:
        export("--webhook", server.url, "--above", "0.9")
    assert server.got == []


def test_nothing_is_overwritten_without_force(export, tmp_path):
    (tmp_path / "a").write_text("mine")
    assert export("--perfetto", tmp_path / "a")[0] == 2
    assert (tmp_path / "a").read_text() == "mine"
    assert export("--perfetto", tmp_path / "a", "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a RUN and what to write"),
        (("--otlp", "collector:4318"), "--otlp needs a URL that begins with http"),
        (("--webhook", "nourl"), "http:// or https:// and has no spaces\n"),
        (("--perfetto", "x", "--steps", "1000-2000"), "1000 to 2000: the run has steps 0 to 59\n"),
        (("--json-schema", "x"), "there is no schema 'x'"),
        (("--serve", ":0", "--json"), "ask for files separately"),
        (("--json", "--steps", "1-3"), "--steps needs --perfetto"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(export, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = export(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["parquet", "store"])
def test_a_folder_that_is_taken_is_refused_before_the_run_is_read(name, tmp_path, capsys):
    (tmp_path / "events.parquet").touch()
    assert main(["export", str(tmp_path / "no run"), f"--{name}", str(tmp_path)]) == 2
    assert " exists" in capsys.readouterr().err


def test_an_address_is_checked_before_the_run_is_read(tmp_path, capsys):
    assert main(["export", str(tmp_path / "no run"), "--webhook", "nourl"]) == 2
    assert "--webhook needs a URL" in capsys.readouterr().err


def test_of_steps_of_which_some_are_missing_those_there_are_written(export, tmp_path):
    told = export("--perfetto", tmp_path / "a", "--steps", "58-2000")[2]
    assert "steps 58 to 59 of 0 to 59" in told


@pytest.mark.parametrize("words", [("--serve", "x"), ("--steps", "9-3"), ("--above", "2")])
def test_a_value_that_is_none_is_refused(export, words):
    with pytest.raises(SystemExit):
        export(*words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_endpoint_serves_until_it_is_stopped_which_is_no_failure(start, run, number):
    child = start("export", run, "--serve", "127.0.0.1:0")
    url = re.search(r"http://\S+", child.stderr.readline())[0]
    with urlopen(url, timeout=60) as answer:
        assert 'evenstep_steps_total{rank="3"' in answer.read().decode()
    child.send_signal(number)
    assert (child.wait(60), child.stderr.read()) == (0, "evenstep: stopped\n")


def test_a_port_alone_is_this_machines_own_and_others_need_a_token(monkeypatch):
    assert arguments.address(":9400") == ("127.0.0.1", 9400)
    assert [export_command._is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == (
        [True] * 3
    )
    assert not any(map(export_command._is_loopback, ("0.0.0.0", "10.0.0.1", "node7", "::")))
    assert len(export_command._token()) >= export_command.SHORTEST_TOKEN
    monkeypatch.setenv("EVENSTEP_METRICS_TOKEN", "t" * 16)
    assert export_command._token() == "t" * 16
    for wrong in ("t" * 15, "t" * 16 + "\n", "ä" * 16):
        monkeypatch.setenv("EVENSTEP_METRICS_TOKEN", wrong)
        with pytest.raises(UsageError, match="EVENSTEP_METRICS_TOKEN must have at least 16"):
            export_command._token()


def test_a_dash_is_standard_output_and_nothing_else_is_printed_there(export):
    code, out, _ = export("--prometheus", "-")
    assert code == 0
    assert out.startswith("# HELP evenstep_")
    for words in (["--json", "--prometheus", "-"], ["--perfetto", "-", "--prometheus", "-"]):
        assert export(*words)[0] == 2
