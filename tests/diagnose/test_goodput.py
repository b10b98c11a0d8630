"""The share of a job's time in which it made progress, beside what is written down by hand."""

from dataclasses import asdict, replace

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.attempts import KEY, Attempt, with_attempts
from evenstep.importers.opening import load, open_trace
from tests.diagnose.attempts_run import Start, write


def attempt(number, started_s, ended_s, steps, since):
    """Steps of one second; so many were done since the last checkpoint."""
    return Attempt(
        number=number, ranks=2, started_s=started_s, ended_s=ended_s, steps=steps, step_ns=1e9,
        checkpoints=1, checkpoint_ns=1e9, steps_since_checkpoint=since,
        since_checkpoint_ns=since * 1e9, first_progress=None, last_progress=None,
        cv_at_start=None, cv_at_end=None, rate_at_start=None, rate_at_end=None,
        energy_joules=None,
    )  # fmt: skip


ATTEMPTS = [attempt(0, 0, 60, 60, 12), attempt(1, 80, 120, 40, 5)]  # 20 s to start again


def table(tmp_path, text):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    return open_trace([path])


def test_a_job_loses_what_its_ranks_wait_for_the_slowest(tmp_path):
    rows = "".join(f"0,{step},2\n1,{step},4\n" for step in range(40))
    found = diagnose(table(tmp_path, "rank,step,seconds\n" + rows)).summary["goodput"]
    assert found["share"] == pytest.approx(0.75, abs=1e-3)  # rank 0 waits for half of each step
    assert found["lost"]["wait"] == pytest.approx(0.25, abs=1e-3)


def test_steps_that_came_again_are_lost_work(tmp_path):
    rows = "".join(f"0,{step},1\n" for step in [*range(30), *range(20, 50)])
    found = diagnose(table(tmp_path, "rank,step,seconds\n" + rows)).summary["goodput"]
    assert found["lost"]["lost_work"] == pytest.approx(10 / 60, abs=1e-3)


def test_all_attempts_of_a_job_count(tmp_path):
    rows = "".join(f"{rank},{step},1\n" for step in range(40) for rank in (0, 1))
    trace = table(tmp_path, "rank,step,seconds\n" + rows)
    trace.run[KEY] = [asdict(one) for one in ATTEMPTS]
    found = diagnose(trace).summary["goodput"]
    assert found["elapsed_s"] == 120
    assert found["lost"]["restart"] == pytest.approx(20 / 120, abs=1e-6)
    assert found["share"] == pytest.approx(1 - 32 / 120, abs=1e-3)


def test_initialisation_is_lost_where_a_log_tells_of_it(tmp_path):
    trace = table(tmp_path, "rank,step,seconds\n" + "".join(f"0,{s},1\n" for s in range(30)))
    trace.run["init_s"] = 30.0
    found = diagnose(trace).summary["goodput"]
    assert found["lost"]["init"] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("ticks", "launcher", "lost_s"),
    [(700, "torchrun", 5 + 2), (1200, "torchrun", 2 + 2), (None, "torchrun", 2 + 2),
     (700, "single", 2 + 2)],
)  # fmt: skip
def test_a_rank_initialises_from_when_its_launcher_began_it(tmp_path, ticks, launcher, lost_s):
    """Imports and the wait for others in `init_process_group` are before it attaches; a notebook's
    kernel may have stood there for hours."""
    trace = load(write(tmp_path, [Start(0, 40, [0])]))
    for rank, info in trace.ranks.items():
        first_ns = int(trace.summaries["start_ns"][trace.summary_rank == rank].min())
        began = {"anchor_monotonic_ns": first_ns - 2 * 10**9, "launcher": launcher}
        if ticks is not None:  # 100 a second (proc(5)): 5 s before, or after a night of sleep
            began["started_ticks"] = (first_ns // 10**7 - 1200) + ticks
        trace.ranks[rank] = replace(info, identity=info.identity | began)
    found = diagnose(trace).summary["goodput"]
    assert found["lost"]["init"] * found["elapsed_s"] == pytest.approx(lost_s, abs=0.1)


def test_what_the_first_step_takes_longer_is_initialisation(tmp_path):
    run = write(tmp_path, [Start(0, 40, [0])])  # 2 s longer, as if it compiled
    found = diagnose(load(run)).summary["goodput"]
    assert found["lost"]["init"] == pytest.approx(2 / 42, abs=1e-3)


def test_steps_whose_numbers_go_on_begin_with_initialisation_too(tmp_path):
    trace = load(write(tmp_path, [Start(0, 40, [0])]))
    trace.summaries = trace.summaries.copy()
    trace.summaries["first_step"] += 1000
    assert diagnose(trace).summary["goodput"]["lost"]["init"] == pytest.approx(2 / 42, abs=1e-3)


def test_every_attempt_compiles_again(tmp_path):
    run = write(tmp_path, [Start(0, 40, [0]), Start(60, 40, [0])])  # until 42 s, and until 102 s
    found = diagnose(with_attempts(load(run), run)).summary["goodput"]
    assert found["lost"]["init"] == pytest.approx(4 / 102, abs=1e-3)


def test_an_attempt_that_ended_early_compiled_no_longer_than_it_ran(tmp_path):
    run = write(tmp_path, [Start(0, 40, [0]), Start(60, 40, [0])])
    trace = with_attempts(load(run), run)
    trace.run["attempts"][0] |= {"steps": 1, "step_ns": 0.5e9, "steps_since_checkpoint": 0}
    trace.run["attempts"][0] |= {"since_checkpoint_ns": 0.0}
    found = diagnose(trace).summary["goodput"]
    assert found["lost"]["init"] * found["elapsed_s"] == pytest.approx(0.5 + 2, abs=0.1)
