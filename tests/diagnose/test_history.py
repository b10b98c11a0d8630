"""Past runs: what they tell together, on folders whose numbers are known by arithmetic."""

import json

import numpy as np
import pytest

from evenstep.diagnose.compare.history import PastRun, find, history, workloads
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.attempts import with_attempts
from evenstep.errors import TraceError
from evenstep.trace.loading import load
from evenstep.trace.spool.layout import Kind
from evenstep.trace.spool.spool import Spool
from tests.diagnose.attempts_run import STEP_NS, Start, write

S = 1e9


@pytest.fixture
def folder(tmp_path):
    """Three runs of 20 steps on 2 ranks; the last one fails at step 12 of its first attempt."""
    write(tmp_path / "first", [Start(1000, 20)])
    write(tmp_path / "team/second", [Start(2000, 20, uneven_ns=STEP_NS // 2)])
    write(tmp_path / "third", [Start(3000, 12, (7,)), Start(3100, 12)])
    return tmp_path


def run_of(name, **changes):
    known = {
        "name": name, "script": "train.py", "ranks": 8, "started_s": 0.0, "elapsed_s": 10.0,
        "attempts": 1, "steps": 10, "steps_again": 0, "unit": "step", "progress": 10.0,
        "step_ns": 1e9, "cv": 0.1, "rank_hours_per_unit": 0.01, "joules_per_unit": None,
        "cost_per_unit": None,
    }  # fmt: skip
    return PastRun(**{**known, **changes})


def test_runs_are_found_in_folders_of_folders(folder):
    names = [str(path.relative_to(folder)) for path in find(folder)]
    assert names == ["first", "team/second", "third"]


def test_a_folder_that_is_a_run_is_its_own_history(folder):
    assert [run.name for run in history(folder / "first").runs] == ["first"]


def test_runs_stand_in_order_of_their_start(folder):
    assert [run.name for run in history(folder).runs] == ["first", "team/second", "third"]


def test_rank_hours_per_step_are_elapsed_time_times_ranks(folder):
    first = history(folder).runs[0]
    assert first.rank_hours_per_unit == pytest.approx(2 * 20 * STEP_NS / S / 3600 / 20)
    assert (first.unit, first.progress, first.step_ns) == ("step", 20.0, STEP_NS)


def test_a_rank_whose_summaries_are_cut_has_had_as_many_samples_as_its_steps(tmp_path):
    write(tmp_path, [Start(1000, 20, samples=8, lost={1: 15})])
    first = history(tmp_path).runs[0]
    assert (first.unit, first.progress) == ("sample", 2 * 20 * 8)


def test_a_simulation_is_of_its_scenario_and_of_no_script(folder):
    facts = folder / "first" / "run.json"
    known = json.loads(facts.read_text()) if facts.exists() else {}
    told = {"command": ["evenstep", "simulate"], "scenario": {"name": "one slow GPU"}}
    facts.write_text(json.dumps(known | told))
    found = history(folder)
    assert found.runs[0].script == "one slow GPU (simulated)"
    assert "1 run of one slow GPU (simulated) with 2 ranks" in found.workloads[0].sentence


def test_the_cv_is_that_of_the_steps(folder):
    lengths = [STEP_NS * (1 + (step % 2) / 2) for step in range(20)]
    assert history(folder).runs[1].cv == pytest.approx(np.std(lengths) / np.mean(lengths))


def test_the_step_time_is_that_of_the_diagnosis(folder):
    second = history(folder).runs[1]
    lengths = [STEP_NS * (1 + (step % 2) / 2) for step in range(20)]
    assert second.step_ns == pytest.approx(np.mean(lengths))


def test_goodput_step_time_and_cv_are_those_of_the_diagnosis(folder):
    for run in history(folder).runs:
        place = folder / run.name
        found = diagnose(with_attempts(load(place), place)).summary
        step = found["step_time"]
        assert (run.goodput, run.step_ns, run.cv) == (found["goodput"], step["mean_ns"], step["cv"])
        assert 0 < run.goodput["share"] <= 1


def test_work_done_again_is_no_progress(folder):
    third = history(folder).runs[2]
    # the last checkpoint was after step 7: steps 8 to 11 are done again
    assert (third.attempts, third.steps_again, third.steps) == (2, 4, 20)
    elapsed = 100 + 12 * STEP_NS / S  # from the first attempt's first step to the second's last
    assert third.rank_hours_per_unit == pytest.approx(2 * elapsed / 3600 / 20)


def test_a_price_makes_rank_hours_money(folder):
    first = history(folder, price_per_rank_hour=3.0).runs[0]
    assert first.cost_per_unit == pytest.approx(3.0 * first.rank_hours_per_unit)


def test_energy_is_that_of_the_counters(tmp_path):
    write(tmp_path / "a", [Start(0, 20, joules=500.0)])
    assert history(tmp_path).runs[0].joules_per_unit == pytest.approx(2 * 500.0 / 20)


def test_a_folder_without_runs_is_one_sentence(tmp_path):
    with pytest.raises(TraceError, match=r"there is no run in .*; give a folder"):
        history(tmp_path)


def test_a_run_without_a_step_is_named_among_the_limits(folder):
    (folder / "empty/attempt-000").mkdir(parents=True)
    assert history(folder).limits == ["left out: empty has no finished step, or marks none"]


def test_a_run_whose_last_attempt_hung_before_its_first_step_has_the_step_time_of_its_steps(
    tmp_path,
):
    write(tmp_path, [Start(1000, 20), Start(1100, 0)])
    (run,) = history(tmp_path).runs
    assert (run.step_ns, run.cv) == (STEP_NS, None)


def test_a_run_whose_steps_nothing_marked_has_those_of_its_calls(tmp_path):
    """20 calls, a second apart: the first ends what came before the first step."""
    for rank in range(2):
        path = tmp_path / f"attempt-000/rank-{rank:05d}.spool"
        path.parent.mkdir(exist_ok=True)
        identity = {"run_id": "r", "rank": rank, "world": 2, "hostname": "h", "boot_id": "b"}
        spool = Spool.create(path, identity, ring_bytes=1 << 18, summary_bytes=1 << 18)
        group = spool.add_group({"uid": "world", "name": "world", "ranks": "0-1"})
        for call in range(20):
            at = STEP_NS * (call + 1)
            spool.put(at, at + 1000, Kind.COLLECTIVE, group=group, group_seq=call, bytes_in=8)
        spool.add_fact("closed", {"reason": "exit"})
        spool.shut()
    found = history(tmp_path)
    (run,) = found.runs
    assert (run.steps, run.step_ns) == (19, pytest.approx(STEP_NS))
    assert run.elapsed_s == pytest.approx(19)
    assert found.limits == []


def test_a_steady_rise_is_told_with_its_size():
    runs = [run_of(str(i), step_ns=1e9 * 1.03**i) for i in range(6)]
    trend = next(t for t in workloads(runs)[0].trends if t.metric == "step_ns")
    assert trend.change_per_run == pytest.approx(0.03)
    assert "the step time rises by 3 % a run" in workloads(runs)[0].sentence


@pytest.mark.parametrize("seed", range(4))
def test_noise_is_no_trend(seed):
    noise = np.random.default_rng(seed).normal(1, 0.05, 8)
    noise = np.concatenate([noise, noise[::-1]])  # the same there and back: its slope is zero
    runs = [run_of(str(i), step_ns=1e9 * value) for i, value in enumerate(noise)]
    assert "no evidence of a trend" in workloads(runs)[0].sentence


def test_equal_runs_have_no_trend_and_no_spread():
    found = workloads([run_of(str(i)) for i in range(5)])[0]
    assert found.spread["step_ns"] == 0
    assert "no evidence of a trend" in found.sentence


def test_two_runs_are_too_few_for_a_trend():
    found = workloads([run_of("a"), run_of("b", step_ns=2e9)])[0]
    assert not found.trends
    assert found.sentence.endswith("a trend needs at least 3")


def test_other_scripts_and_sizes_are_other_workloads():
    runs = [run_of("a"), run_of("b", ranks=16), run_of("c", script="other.py"), run_of("d")]
    assert [list(each.runs) for each in workloads(runs)] == [["a", "d"], ["b"], ["c"]]
