"""Metrics, parsed by Prometheus' own client; and the dashboard that shows them."""

import json
import re
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest

from evenstep.agent.exchange.messages import WindowReport
from evenstep.cli import files
from evenstep.errors import UsageError
from evenstep.export.prometheus import (
    MEANINGS,
    Families,
    Live,
    exposition,
    of_diagnosis,
    of_live,
    running,
    server,
)
from tests.report.small_run import HOSTILE
from tests.trace.small_run import STEPS, WORLD, write_run

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "evenstep.json"


@pytest.fixture
def run(tmp_path):
    """Three ranks on two hosts, h0 and h1."""
    return write_run(tmp_path / "run")


def parsed(text):
    """Samples by (name, labels), by the ecosystem's parser."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_diagnosis_reads_back_as_it_was(diagnosis):
    samples = parsed(exposition(of_diagnosis(diagnosis)))
    summary = diagnosis.summary
    assert samples["evenstep_throughput", (("unit", "samples/s"),)] == 213.3
    assert samples["evenstep_step_time_seconds", (("statistic", "p99"),)] == pytest.approx(0.1512)
    for part, value in summary["shares"].items():
        assert samples["evenstep_time_share", (("part", part),)] == value
    labels = (("layer", "runtime"), ("mode", "straggler"), ("number", "1"))
    assert samples["evenstep_finding_severity", labels] == 0.2667
    assert samples["evenstep_finding_culprit", tuple(sorted((*labels, ("rank", "3"))))] == 1


def test_hostile_labels_stay_text():
    found = Families()
    found.add("evenstep_run_info", 1, run=HOSTILE + "\\", attempt=0)
    labels = (("attempt", "0"), ("run", HOSTILE + "\\"))
    assert parsed(exposition(found)) == {("evenstep_run_info", labels): 1}


def test_each_family_says_once_what_it_means(diagnosis):
    text = exposition(of_diagnosis(diagnosis))
    names = re.findall(r"# TYPE (\w+) (?:gauge|counter)", text)
    assert len(names) == len(set(names)) == text.count("# HELP ")


def test_counters_are_named_as_counters():
    assert all(
        name.endswith("_total") == (kind == "counter") for name, (kind, *_) in MEANINGS.items()
    )


def test_the_live_window_names_the_late_rank():
    report = WindowReport(*range(len(WindowReport._fields)))
    live = {
        "schema": "evenstep.live/1",
        "ranks": [report._asdict()],
        "late": {"rank": 7, "share": 0.2},
        "late_windows": {"7": 3},
    }
    samples = parsed(exposition(of_live(msgspec.convert(live, Live, str_keys=True))))
    assert samples["evenstep_late_rank", ()] == 7
    assert samples["evenstep_late_windows_total", (("rank", "7"),)] == 3
    seconds = samples["evenstep_window_step_seconds", (("rank", "0"),)]
    assert seconds == pytest.approx(report.step_ns / 1e9)


def test_a_run_is_counted_from_its_spools(run):
    samples = parsed(exposition(running(run)))
    steps = {
        labels: value for (name, labels), value in samples.items() if name == "evenstep_steps_total"
    }
    assert set(steps.values()) == {STEPS}
    assert {dict(labels)["rank"] for labels in steps} == {str(rank) for rank in range(WORLD)}


def test_an_endpoint_answers_for_its_own_node(run):
    ranks = running(run, node="h1")["evenstep_steps_total"].samples
    assert [labels["rank"] for labels, _ in ranks] == ["2"]


def test_anonymous_metrics_name_no_host(run):
    assert 'node="h0"' in exposition(running(run))
    hidden = exposition(running(run, anonymous=True))
    assert set(re.findall(r'node="([^"]*)"', hidden)) == {"node-0", "node-1"}


def test_a_run_that_has_not_begun_has_no_ranks(tmp_path):
    assert parsed(exposition(running(tmp_path)))["evenstep_ranks", ()] == 0


def test_a_damaged_live_file_is_passed_over(run):
    (run / "live").mkdir()
    (run / "live" / "window.json").write_text('{"schema": "evenst')
    assert "evenstep_late_rank" not in running(run)


def test_the_endpoint_answers_with_what_is_there_now(diagnosis):
    endpoint = server(("127.0.0.1", 0), lambda: of_diagnosis(diagnosis))
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{endpoint.server_address[1]}"
    try:
        with urlopen(f"{url}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode() == exposition(of_diagnosis(diagnosis))
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{url}/other", timeout=10)
    finally:
        endpoint.shutdown()
        endpoint.server_close()


def test_with_a_token_only_who_sends_it_is_answered(diagnosis):
    endpoint = server(("127.0.0.1", 0), lambda: of_diagnosis(diagnosis), token="0123456789abcdef")
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{endpoint.server_address[1]}/metrics"
    try:
        for sent in ({}, {"Authorization": "Bearer other"}):
            with pytest.raises(HTTPError, match="401"):
                urlopen(Request(url, headers=sent), timeout=10)
        sent = {"Authorization": "Bearer 0123456789abcdef"}
        assert urlopen(Request(url, headers=sent), timeout=10).status == 200
    finally:
        endpoint.shutdown()
        endpoint.server_close()


def test_a_taken_port_is_one_sentence(diagnosis):
    with server(("127.0.0.1", 0), Families) as first:
        taken = first.server_address[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{taken}: .*--serve"):
            server(("127.0.0.1", taken), Families)


def test_a_textfile_appears_whole_or_not_at_all(tmp_path, diagnosis):
    files.write(tmp_path / "a.prom", exposition(of_diagnosis(diagnosis)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.prom"]
    with pytest.raises(UsageError, match="cannot write"):
        files.write(tmp_path / "no folder" / "a.prom", exposition(Families()))


# -- the dashboard ---------------------------------------------------------------------------------


@pytest.fixture
def dashboard():
    return json.loads(DASHBOARD.read_text())


def test_every_metric_of_the_dashboard_exists(dashboard):
    text = json.dumps([target["expr"] for p in dashboard["panels"] for target in p["targets"]])
    assert set(re.findall(r"evenstep_\w+", text)) <= set(MEANINGS)


def test_panels_have_their_own_place_and_number(dashboard):
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24  # columns of Grafana's grid


def test_variables_that_are_used_are_defined(dashboard):
    defined = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard["panels"])))
    assert used <= defined
    assert dashboard["schemaVersion"] >= 36  # datasources are objects since
