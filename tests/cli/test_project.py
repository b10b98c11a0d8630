"""`evenstep project` on runs written to disk."""

import json

import numpy as np
import pytest

from evenstep.cli import project
from evenstep.cli.main import main
from evenstep.diagnose.predict import forecast
from evenstep.diagnose.predict import project as projecting
from tests.diagnose.attempts_run import Start, write
from tests.diagnose.synthetic import World


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / "run", [Start(0, 60)])


@pytest.fixture
def projected(run, capsys):
    def of(*arguments):
        code = main(["project", str(run), *arguments])
        return code, capsys.readouterr().out

    return of


def test_json_is_one_object_with_an_entry_for_each_size(projected):
    code, text = projected("--ranks", "64,8,8", "--json")
    document = json.loads(text)
    assert (code, document["schema"]) == (0, "evenstep.projection/1")
    assert [point["ranks"] for point in document["projected"]] == [8, 64]
    assert set(document["projected"][0]) == {
        "ranks", "throughput", "step_time_ns", "cv", "p99_ns", "efficiency",
    }  # fmt: skip


def test_steps_that_never_vary_take_as_long_at_any_size(projected):
    point = json.loads(projected("--ranks", "64", "--json")[1])["projected"][0]
    assert point["step_time_ns"]["value"] == pytest.approx(1e9, rel=1e-3)
    assert point["cv"]["value"] == pytest.approx(0, abs=1e-3)
    assert point["throughput"]["unit"] == "steps/s"


def test_the_table_fits_80_columns_and_says_what_it_cannot_tell(projected, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, text = projected("--ranks", "8,1024")
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert "What this cannot tell" in text
    assert "\x1b" not in text


def test_colour_only_makes_lines_bold(run, capsys, monkeypatch):
    monkeypatch.setattr("evenstep.report.terminal.style.wants_color", lambda: True)
    main(["project", str(run), "--ranks", "8"])
    assert "\x1b[1m" in capsys.readouterr().out


@pytest.mark.parametrize("sizes", ["", "0", "8,x", "-4", "2.5", "10000000"])
def test_sizes_that_are_none_are_refused(run, sizes, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["project", str(run), "--ranks", sizes])
    assert "must be numbers of ranks" in capsys.readouterr().err


def test_a_run_that_is_too_short_is_refused_in_a_sentence(tmp_path, capsys):
    run = write(tmp_path / "short", [Start(0, 5)])
    assert main(["project", str(run), "--ranks", "8"]) == 2
    assert capsys.readouterr().err.startswith("evenstep: a projection needs 12 steps")


def test_a_path_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["project", str(tmp_path / "none"), "--ranks", "8"]) == 2
    assert "there is no" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(3))
def test_the_page_of_any_world_is_at_most_80_wide(seed, monkeypatch):
    monkeypatch.setattr(forecast, "RESAMPLES", 20)
    random = np.random.default_rng(seed)
    world = World(ranks=4, steps=40, noise=0.1 * random.random(), samples=512, seed=seed)
    document = projecting.projection(world.trace(), [4, 4096, 100_000])
    assert max(map(len, project._page(document))) <= 80
