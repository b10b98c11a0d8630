"""The history as text of 80 columns."""

from evenstep.diagnose.compare.history import History, PastRun, workloads
from evenstep.report.terminal.comparison import render_history
from tests.report.small_run import HOSTILE


def run_of(name, **changes):
    return PastRun(
        **{
            "name": name, "script": "train.py", "ranks": 16_384, "started_s": 1.7e9,
            "elapsed_s": 10.0, "attempts": 12, "steps": 10, "steps_again": 2, "unit": "step",
            "progress": 10.0, "step_ns": 1.2345e8, "cv": 0.1234, "rank_hours_per_unit": 12.3456,
            "joules_per_unit": 123_456.0, "cost_per_unit": None, **changes,
        }
    )  # fmt: skip


def shown(runs):
    return render_history(History(runs, workloads(runs), ["left out: " + "a long reason " * 9]))


def test_every_line_fits_80_columns():
    text = shown([run_of("a/very/long/name/of/a/run"), run_of(HOSTILE), run_of("c", cv=None)])
    assert max(map(len, text.splitlines())) <= 80
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_a_row_says_when_a_run_was_and_what_it_took():
    row = shown([run_of("one")]).splitlines()[1].split()
    # 1.7e9 s after the epoch is 2023-11-14 22:13:20 UTC
    assert row == [
        "one",
        "231114-221320",
        "16384",
        "12",
        "123",
        "ms",
        "12",
        "%",
        "12,300",
        "123,000",
    ]


def test_a_price_replaces_rank_hours():
    assert "cost/1000" in shown([run_of("one", cost_per_unit=2.5)])
    assert "2,500" in shown([run_of("one", cost_per_unit=2.5)])


def test_columns_are_explained_with_what_they_count():
    text = " ".join(shown([run_of("one", unit="sample")]).split())
    assert "rank-h/1000: rank-hours per 1,000 samples; J: joules per sample" in text
    mixed = shown([run_of("one"), run_of("two", unit="sample", progress=80.0)])
    assert "rank-h/1000: rank-hours per 1,000 steps" in mixed
    assert [line.split()[-2] for line in mixed.splitlines()[1:3]] == ["12,300", "98,800"]
    assert "cost/1000: cost per 1,000 steps" in shown([run_of("one", cost_per_unit=2.5)])


def test_what_runs_tell_together_is_a_sentence():
    text = " ".join(shown([run_of(str(i), step_ns=1e8 * 1.1**i) for i in range(4)]).split())
    assert "4 runs of train.py with 16,384 ranks: the step time rises by 10 % a run" in text
