import json
import os
import shlex
import subprocess
import sys

import pytest

from evenstep.cli import explain, main
from evenstep.diagnose.modes.catalog import MODES
from evenstep.report.schema import schema
from evenstep.reproduce.published import training
from tests.cli.conftest import one_row


def run(*words):
    """What `evenstep explain …` returns, in this process."""
    try:
        return main.main(["explain", *words])
    except SystemExit as end:  # of the parser, as for every command
        return end.code


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Whole steps are simulated in `tests/simulate`, for seconds."""
    monkeypatch.setattr(training, "simulated_rows", one_row)


@pytest.fixture
def answer(capsys):
    """The answer as JSON."""

    def ask(*words):
        assert run(*words, "--json") == 0
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_mode_is_explained_from_symptom_to_confirmation(mode, capsys):
    assert run(mode.name) == 0
    lines = " ".join(capsys.readouterr().out.split())
    for part in (mode.symptom, *mode.look_at, *mode.remedy, mode.confirm):
        assert " ".join(part.split()) in lines


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_mode_as_json_is_the_catalogs(mode, answer):
    shown = answer(mode.name)
    assert shown["remedy"] == list(mode.remedy)
    assert (shown["kind"], shown["layer"]) == ("mode", mode.layer)


def test_alone_it_lists_every_mode_and_quantity(answer, capsys):
    shown = answer()
    assert list(shown["modes"]) == [mode.name for mode in MODES]
    assert {"allreduce", "efficiency", "checkpoint", "published"} <= shown["quantities"].keys()
    assert run() == 0
    assert "checkpoint_stall" in capsys.readouterr().out


def test_a_ring_of_512_ranks_is_explained_with_its_formula(answer):
    shown = answer("allreduce", "--bytes", "20GB", "--gBps", "50", "--ranks", "512")
    assert shown["results"]["time_ns"] == pytest.approx(2 * 20e9 * 511 / 512 / 50)
    assert shown["results"]["pass_ns"] == 400e6
    assert shown["inputs"]["bytes"] == 20e9
    assert shown["formulas"][0]["text"] == "T = 2(n−1)α + 2S(n−1)/(nB)"


def test_the_table_shows_what_json_does(capsys):
    assert run("allreduce", "--bytes", "20GB", "--gBps", "50", "--ranks", "512") == 0
    shown = capsys.readouterr().out
    assert "798.4 ms" in shown
    assert "Patarasuk and Yuan 2009" in shown


def test_json_may_stand_before_the_topic(capsys):
    assert run("--json", "busbw", "--preset", "nvswitch-a100") == 0
    assert json.loads(capsys.readouterr().out)["claim"]["high"] == 0.93


def test_a_straggler_with_ranks_gets_its_arithmetic_too(answer):
    shown = answer("straggler", "--ranks", "512", "--cv", "2%")
    assert shown["kind"] == "mode"
    assert shown["arithmetic"]["results"]["lost"] == pytest.approx(1 - 1 / 1.0609, rel=0.01)


def test_a_preset_prints_the_claim_and_the_error(capsys):
    assert run("efficiency", "--preset", "opt-175b") == 0
    shown = " ".join(capsys.readouterr().out.split())
    compute = 8 * 175e9 * 2114 / 312e12  # 8PD at the peak
    exchange = 3 * 2 * 175e9 / 8 * 123 / 124 / 24e9  # two gathers, one scatter over 124 replicas
    error = compute / (compute + exchange + 1.75) / 0.5 - 1
    assert "Claimed: communication limited scaling efficiency" in shown
    assert f"off by {100 * error:+.1f} %" in shown


def test_a_preset_with_other_options_claims_nothing(answer):
    shown = answer("efficiency", "--preset", "data-parallel-512", "--hidden", "100%")
    assert "claim" not in shown
    assert shown["results"]["efficiency"] == 1


def test_a_speed_in_bits_replaces_that_of_a_preset(answer):
    shown = answer("efficiency", "--preset", "opt-175b", "--gbps", "400")
    assert (shown["inputs"]["gbps"], "gBps" in shown["inputs"]) == (400, False)


def test_published_rows_come_with_errors_and_inputs(answer):
    shown = answer("published")
    errors = sorted(system["mean_error"] for system in shown["systems"])
    assert errors[-3] < 0.08 < errors[-2]  # two are missed, and say so
    for system in shown["systems"]:
        assert system["inputs"]
        assert len(system["fitted"]) <= 3
        assert {"measured", "predicted", "error", "fitted"} <= system["rows"][0].keys()


def test_the_table_of_published_rows_fits_a_page(capsys):
    assert run("published") == 0
    assert "Mean error of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["stragler"], "did you mean 'straggler'?"),
        (["input-pipelin"], "did you mean 'input_pipeline'?"),
        (["allreduc"], "did you mean 'allreduce'?"),
        (["hang", "--ranks", "3"], "explain hang takes no options, found '--ranks'"),
        (["published", "x"], "explain published takes no options, found 'x'"),
        (["allreduce"], "explain allreduce needs --bytes"),
        (["allreduce", "--bytes", "20gb", "--gBps", "5", "--ranks", "8"], "'gb' is no unit"),
        (["allreduce", "--bytes", "1GB", "--gBps", "5Gbps", "--ranks", "8"], "no plain number"),
        (["allreduce", "--bytes", "1GB", "--gBps", "0", "--ranks", "8"], "must be above 0"),
        (["allreduce", "--bytes=-1GB", "--gBps", "5", "--ranks", "8"], "must be above 0"),
        (["checkpoint", "--write=-60s", "--mtbf", "3h"], "--write: must be above 0"),
        (["slowest", "--frob", "1"], "unrecognized arguments: --frob 1"),
        (["slowest", "--preset", "p99"], "choose from "),
    ],
)
def test_a_mistake_gets_one_sentence_and_exits_2(words, sentence, capsys):
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_topic_explains_its_options(capsys):
    assert run("slowest", "--help") == 0
    assert "example: evenstep explain slowest --ranks 512 --cv 2%\n" in capsys.readouterr().out


def test_only_topics_with_known_cases_have_presets(capsys):
    for topic, times in (("checkpoint", 0), ("failures", 1)):
        assert run(topic, "--help") == 0
        assert capsys.readouterr().out.count("inputs of a known case") == times


@pytest.mark.parametrize("topic", explain.TOPICS, ids=lambda topic: topic.name)
def test_every_example_works_and_fits_the_schema(topic, answer):
    jsonschema = pytest.importorskip("jsonschema")
    found = answer(topic.name, *shlex.split(topic.example))
    jsonschema.Draft202012Validator(schema("explain")).validate(found)


def test_modes_with_arithmetic_name_a_quantity_that_exists():
    assert set(explain.ARITHMETIC.values()) <= set(explain.BY_NAME)


WITHOUT_NUMPY = """
import shlex, sys
sys.modules["numpy"] = None
from evenstep.cli.main import main
for line in sys.stdin.read().splitlines():
    main(shlex.split(line)) or print("answered", line, file=sys.stderr)
"""


def test_what_needs_no_numpy_works_without_and_the_rest_says_what_to_install(environ):
    works = (
        "explain allreduce --bytes 20GB --gBps 50 --ranks 512",
        "explain goodput --write 60s --mtbf 3h",
        "simulate --fields",
        "simulate --presets",
        "export --json-schema",
    )
    needs = "explain published", "explain straggler", "simulate job.toml"  # two simulate
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMPY], input="\n".join((*works, *needs)),
        env=os.environ | environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    answered = [line for line in done.stderr.splitlines() if line.startswith("answered")]
    assert answered == [f"answered {line}" for line in works]
    assert done.stderr.count("pip install") == len(needs)
