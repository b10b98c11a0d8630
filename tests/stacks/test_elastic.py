"""A rank crashes, torchrun starts the job again: two attempts of one run."""

from __future__ import annotations

import json

import pytest

import evenstep
from evenstep.trace.spool.layout import Kind
from tests.stacks.conftest import launch, read

STEPS, CRASH_AT, CHECKPOINT_EVERY = 32, 20, 8
RESUMED_AT = CRASH_AT // CHECKPOINT_EVERY * CHECKPOINT_EVERY


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """The run's folder, and what rank 0 printed when it began and after each step."""
    folder = tmp_path_factory.mktemp("elastic")
    (folder / "elastic-none.pt").write_text("of another job without a name")
    options = ("--steps", STEPS, "--crash-at", CRASH_AT, "--slow-rank", 0, "--delay-ms", 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        output = launch(folder / "run", 2, "elastic", *options, restarts=1)
    return folder / "run", [
        json.loads(line) for line in output.splitlines() if line.startswith("{")
    ]


@pytest.fixture(scope="module")
def diagnosed(restarted):
    return read(restarted[0], "")


def test_the_run_holds_both_attempts(restarted):
    folder, _ = restarted
    for attempt in (0, 1):
        assert sorted(evenstep.load(folder, attempt=attempt).ranks) == [0, 1]


def test_what_the_crashed_rank_did_is_readable(restarted):
    steps = evenstep.load(restarted[0], attempt=0).of_kind(Kind.STEP)
    assert (steps["rank"] == 1).sum() == CRASH_AT + 1


def test_steps_since_the_last_checkpoint_are_counted_as_done_again(diagnosed):
    evidence = diagnosed.evidence("restart_amplification")
    assert evidence["attempts"] == 2
    assert evidence["steps_done_again"] == CRASH_AT + 1 - RESUMED_AT


def test_the_restart_took_as_long_as_the_script_saw(restarted, diagnosed):
    _, said = restarted
    again = next(at for at, line in enumerate(said) if at and "began" in line)
    gap_s = said[again]["began"] - said[again - 1]["ended"]
    assert said[again + 1]["step"] == RESUMED_AT
    found = diagnosed.evidence("restart_amplification")["time_to_restart"] / 1e9
    assert found == pytest.approx(gap_s, rel=0.1)
