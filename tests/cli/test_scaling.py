import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenstep.cli import progress
from evenstep.cli import scaling as command
from evenstep.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "scenarios"
HYPERSCALE = (
    *("--ranks", "1024,4096", "--control", "strategy.kind=local_sgd"),
    *("--control", "strategy.every=8", "--control", "reliability.checkpoint_every_s=0"),
)
SCENARIO = """
name = "small"

[cluster]
nodes = 8

[work]
forward_ms = 10
gradient_bytes = "10MB"
samples_per_rank = 4

[run]
steps = 4
"""


@pytest.fixture
def scenario(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(SCENARIO)
    return str(file)


def rows(text):
    """Those of the tables, without the spaces that only set them."""
    lines = [line.split() for line in text.splitlines()]
    return [words for words in lines if len(words) > 8 and words[0].replace(",", "").isdigit()]


def test_the_collapse_at_scale_is_as_committed(capsys):
    """Its two smaller sizes of four: each is simulated by itself, the others take 30 s."""
    assert main(["scaling", str(EXAMPLES / "hyperscale.toml"), *HYPERSCALE]) == 0
    small, whole = rows(capsys.readouterr().out), rows((EXAMPLES / "hyperscale.txt").read_text())
    assert small == [*whole[:2], *whole[4:6]]
    assert len(whole) == 8


def test_the_page_fits_eighty_columns(scenario, capsys):
    main(["scaling", scenario, "--target", "1e9", "--deadline", "40", "--workers", "1"])
    page = capsys.readouterr().out
    assert page.startswith("small: weak scaling, throughput in samples/s\n")
    assert max(map(len, page.splitlines())) <= 80
    assert "Cheapest within 40 hours" in page


def test_an_algorithm_that_the_largest_size_has_not_is_told(scenario, capsys):
    sets = ("--set", "collectives={algorithm='nccl',nccl_algo='nvls_tree'}")
    assert main(["scaling", scenario, "--ranks", "2,4", "--workers", "1", *sets]) == 0
    told = capsys.readouterr().err
    assert "collectives.nccl_algo nvls_tree without effect: the step's go by" in told


def test_json_has_the_curve_and_the_cost(scenario, capsys):
    main(["scaling", scenario, "--ranks", "4,2", "--target", "1e6", "--price", "3", "--json",
          "--workers", "1", "--strong"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["scaling"]) == ("evenstep.scaling/1", "strong")
    assert [point["ranks"] for point in found["points"]] == [2, 4]
    assert found["points"][0]["control"]["throughput"] == pytest.approx(1, rel=0.2)
    assert found["outlay"]["sizes"][0]["cost"] > 0
    assert found["peak"]["ranks"] in (2, 4)


def test_the_control_can_be_left_out(scenario, capsys):
    main(["scaling", scenario, "--ranks", "2", "--control", "none", "--json", "--workers", "1"])
    found = json.loads(capsys.readouterr().out)
    assert found["control"] is found["points"][0]["control"] is None


def test_sizes_that_are_none_are_refused(scenario, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["scaling", scenario, "--ranks", "4,x"])
    assert "--ranks: must be numbers of ranks from 1 to 1,000,000" in capsys.readouterr().err


def test_a_target_is_above_zero(scenario, capsys):
    with pytest.raises(SystemExit):
        main(["scaling", scenario, "--target", "-1"])
    assert "--target: must be a number above 0, found '-1'" in capsys.readouterr().err


def test_one_size_claims_no_curve(scenario, capsys):
    assert main(["scaling", scenario, "--ranks", "8", "--set", "run.steps=2"]) == 0
    shown = capsys.readouterr().out
    assert "One size does not show how the job scales" in shown
    assert "Throughput still rises" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--deadline", "4"], "--deadline needs --target"),
        (["--price", "2"], "--price needs --target"),
        (["--set", "strategy.island_ranks=3", "--ranks", "8"], "does not divide 8 ranks"),
        (["--control", "strategy.knd=x"], "there is no strategy.knd; did you mean 'kind'?"),
    ],
)
def test_what_does_not_fit_is_one_sentence_and_exit_2(scenario, arguments, message, capsys):
    assert main(["scaling", scenario, *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


STRONG = "gradients and optimizer are assumed to cost the same at every size"
WEAK = "the batch grows with the ranks; its effect on convergence is not modelled"
NEIGHBOURS = "neighbours given by their number of nodes grow with the job"
FAILURES = "failures are not modelled: reliability.failures_per_1000_node_days is 0"
SEED = "one seed: use --repeats for intervals"


@pytest.mark.parametrize(
    ("strong", "neighbours", "failures", "repeats", "points", "said"),
    [
        (True, (), 0, 2, [1], [STRONG, FAILURES]),
        (False, (), 5.0, 2, [1], [WEAK]),
        (False, ("other",), 5.0, 2, [1], [WEAK, NEIGHBOURS]),
        (False, (), 5.0, 1, [1], [WEAK, SEED]),
        (False, (), 5.0, 1, [], [WEAK]),  # nothing has been simulated
    ],
)
def test_a_curve_says_what_it_leaves_out_and_nothing_else(
    strong, neighbours, failures, repeats, points, said
):
    reliability = SimpleNamespace(failures_per_1000_node_days=failures)
    scenario = SimpleNamespace(neighbours=neighbours, reliability=reliability)
    study = SimpleNamespace(strong=strong, scenario=scenario, repeats=repeats)
    assert list(command._limits(study, points)) == said


def test_a_curve_that_is_interrupted_before_its_first_point_has_no_peak(
    scenario, capsys, monkeypatch
):
    monkeypatch.setattr(command, "run_units", lambda *_: interrupted())
    words = ["--ranks", "2,4", "--target", "1e6", "--workers", "1", "--json"]
    assert main(["scaling", scenario, *words]) == progress.INTERRUPTED == 130
    found = json.loads(capsys.readouterr().out)
    assert (found["partial"], found["points"], found["peak"], found["outlay"]) == (
        True, [], None, None,
    )  # fmt: skip


def interrupted():
    raise KeyboardInterrupt
    yield
