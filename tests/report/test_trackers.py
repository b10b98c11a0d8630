"""Experiment trackers, at the seam of their own APIs."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from evenstep.errors import UsageError
from evenstep.export import trackers
from evenstep.trace.columns import Columns
from tests.report.small_run import LATE_NS, STEP_NS

EACH = [(4, {"evenstep/wait_s": 0.5}), (5, {"evenstep/wait_s": 0.25})]
TOTAL = {"evenstep/cv": 0.1}


@pytest.fixture
def module(monkeypatch):
    """Put a stand-in for a package where it would be imported from."""

    def install(name, **functions):
        found = ModuleType(name)
        vars(found).update(functions)
        monkeypatch.setitem(sys.modules, name, found)

    return install


class Recorded:
    """Remembers calls by name."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args, **options: self.calls.append((name, args, options))


def test_points_are_seconds_of_every_step(trace):
    points = trackers.points(trace)
    assert {round(numbers["evenstep/step_time_s"] * 1e9) for _, numbers in points} == {STEP_NS}
    assert {round(numbers["evenstep/latest_s"] * 1e9) for _, numbers in points} == {LATE_NS}


def test_long_runs_are_thinned_by_means(trace, monkeypatch):
    monkeypatch.setattr(trackers, "MOST_POINTS", 7)
    points = trackers.points(trace)
    assert len(points) <= 7
    assert points[0][1]["evenstep/step_time_s"] == pytest.approx(STEP_NS / 1e9)


def test_values_that_are_not_known_are_left_out(trace, monkeypatch):
    table = trackers.step_table(trace)
    first = table.step == table.step.min()
    one = first & (table.rank == table.rank.min())
    wait, late = np.array(table.wait_ns, float), np.array(table.lateness_ns, float)
    wait[first], late[one] = np.nan, np.nan
    known = {name: table[name] for name in table}
    unknown = Columns(known | {"wait_ns": wait, "lateness_ns": late})
    monkeypatch.setattr(trackers, "step_table", lambda _: unknown)
    (_, start), (_, after), *_ = trackers.points(trace)
    assert "evenstep/wait_s" not in start
    assert np.isfinite(after["evenstep/wait_s"])
    assert start["evenstep/latest_s"] == LATE_NS / 1e9


def test_totals_hold_the_summary_and_the_findings(diagnosis):
    found = trackers.totals(diagnosis)
    assert found["evenstep/throughput"] == 213.3
    assert found["evenstep/finding_straggler"] == 0.2667
    assert None not in found.values()


def test_weights_and_biases_gets_a_run_of_its_own(module):
    run = Recorded()
    run.summary = {}
    module("wandb", init=lambda **options: run.calls.append(("init", (), options)) or run)
    trackers.to_wandb("project", "name", EACH, TOTAL)
    assert run.calls[0][2] | {"project": "project", "name": "name"} == run.calls[0][2]
    assert run.calls[1:] == [
        ("log", (EACH[0][1],), {"step": 4}), ("log", (EACH[1][1],), {"step": 5}), ("finish", (), {})
    ]  # fmt: skip
    assert run.summary == TOTAL


def test_mlflow_gets_a_run_of_its_own(module):
    seen = []

    class Run:
        def __enter__(self):
            seen.append("begun")

        def __exit__(self, *_):
            seen.append("ended")

    module(
        "mlflow",
        set_experiment=seen.append,
        start_run=lambda run_name: Run(),
        log_metrics=lambda numbers, step=None: seen.append((numbers, step)),
    )
    trackers.to_mlflow("experiment", "name", EACH, TOTAL)
    assert seen == ["experiment", "begun", (EACH[0][1], 4), (EACH[1][1], 5), (TOTAL, None), "ended"]


def test_tensorboard_gets_scalars_by_step(module):
    writer = Recorded()
    module("torch.utils.tensorboard", SummaryWriter=lambda folder: writer)
    trackers.to_tensorboard("folder", EACH, TOTAL)
    tags = [args for name, args, _ in writer.calls if name == "add_scalar"]
    assert tags == [
        ("evenstep/wait_s", 0.5, 4),
        ("evenstep/wait_s", 0.25, 5),
        ("evenstep/cv", 0.1, 5),
    ]
    assert writer.calls[-1][0] == "close"


def test_a_tracker_that_is_not_installed_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"needs wandb, .* pip install wandb"):
        trackers.to_wandb("project", "name", [], {})


def test_no_step_is_no_point(trace):
    empty = replace(trace, events=trace.events.select(np.zeros(len(trace.events), bool)))
    assert trackers.points(empty) == []
