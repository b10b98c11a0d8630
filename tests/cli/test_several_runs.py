"""`evenstep diagnose` on a run that was restarted, and on runs of several sizes."""

import json

import pytest

from evenstep.cli import diagnose
from evenstep.cli.main import main
from tests.diagnose.attempts_run import Start, write


@pytest.fixture
def told(capsys):
    """What the command prints as JSON."""

    def of(*arguments):
        main(["diagnose", *map(str, arguments), "--json"])
        return json.loads(capsys.readouterr().out)

    return of


def test_a_run_with_several_attempts_says_what_its_restarts_cost(tmp_path, told):
    run = write(tmp_path / "run", [Start(0, 50, [39]), Start(100, 40)])
    first = told(run, "--price-per-rank-hour", "3.6")["findings"][0]
    measured = {item["metric"]: item["measured"] for item in first["evidence"]}
    assert (first["mode"], measured["steps_done_again"]) == ("restart_amplification", 10)
    # two ranks, 140 s for 80 steps that count, 3.6 an hour
    assert measured["cost_per_1000_steps"] == pytest.approx(1000 * 2 * 140 / 80 * 0.001)


def test_one_attempt_by_itself_has_no_restarts(tmp_path, told):
    run = write(tmp_path / "run", [Start(0, 50), Start(100, 40)])
    assert told(run / "attempt-000")["findings"] == []


def test_runs_of_several_sizes_are_also_diagnosed_together(tmp_path, told):
    runs = [write(tmp_path / f"run{n}", [Start(0, 40)], world=n) for n in (2, 4, 8)]
    *each, together = told(*runs)
    assert [one["run"]["world"] for one in each] == [2, 4, 8]
    assert [point["ranks"] for point in together["summary"]["scaling"]["points"]] == [2, 4, 8]
    assert "grows 4-fold" in together["summary"]["verdict"]


def test_a_price_that_is_none_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["diagnose", str(tmp_path), "--price-per-rank-hour", "-1"])
    assert "must be a price" in capsys.readouterr().err


def test_a_page_of_runs_of_one_size_is_refused_before_they_are_diagnosed(
    tmp_path, capsys, monkeypatch
):
    runs = [str(write(tmp_path / f"run{n}", [Start(0, 40)])) for n in (1, 2)]
    monkeypatch.setattr("evenstep.cli.traces.judge", lambda _: pytest.fail("diagnosed"))
    assert main(["diagnose", *runs, "--html", str(tmp_path / "page.html")]) == 2
    assert "give one trace, or runs of different sizes" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "mark"), [([], ""), (["--markdown"], "## ")])
def test_each_of_several_runs_is_told_by_its_name(tmp_path, capsys, options, mark):
    runs = [str(write(tmp_path / f"run\x1b{n}", [Start(0, 40)], world=n)) for n in (2, 4)]
    main(["diagnose", *runs, *options])
    told = capsys.readouterr().out
    names = [f"{n}. {run.replace(chr(27), chr(0xFFFD))}" for n, run in enumerate(runs, start=1)]
    heads = [mark + name for name in (*names, "Together")]
    assert [line for line in told.splitlines() if line in heads] == heads
    assert "\x1b" not in told


def test_what_ifs_of_runs_of_several_sizes_are_those_of_the_largest(tmp_path, capsys):
    runs = [str(write(tmp_path / f"run{n}", [Start(0, 40)], world=n)) for n in (2, 4)]
    main(["diagnose", *runs, "--json", "--what-if", "rank:0=x0.5"])
    *_, largest, together = json.loads(capsys.readouterr().out)
    assert together["what_if"] == largest["what_if"]


@pytest.mark.parametrize("html", [False, True])
def test_runs_of_several_sizes_are_read_once_here_or_by_workers(tmp_path, monkeypatch, html):
    runs = [str(write(tmp_path / f"run{n}", [Start(0, 40)], world=n)) for n in (2, 4)]
    opened, read = [], diagnose._open
    monkeypatch.setattr(
        diagnose,
        "_open",
        lambda given, bundle, task: opened.append(bundle) or read(given, bundle, task),
    )
    page = ["--html", str(tmp_path / "page.html")] if html else []
    main(["diagnose", *runs, "--workers", "2", *page])
    assert len(opened) == len(runs) * html
