import json
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evenstep.cli.calibrate import _apart, _is_overlapped, _step_ns, observe
from evenstep.cli.main import main
from evenstep.importers.opening import open_trace
from evenstep.simulate.calibrate.calibrate import calibrate
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Kind, Phase
from tests.diagnose.synthetic import MS, World
from tests.importers.profiles import Profile

EXAMPLE = Path(__file__).parents[2] / "examples" / "scenarios" / "straggler.toml"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate") / "run"
    assert main(["simulate", str(EXAMPLE), "--out", str(folder)]) == 0
    return str(folder)


def test_both_step_times_are_shown_and_the_scenario_is_written(run, tmp_path, capsys):
    file = tmp_path / "fitted.toml"
    assert main(["calibrate", run, "-o", str(file)]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["measured", "simulated"]
    assert err == f"Wrote {file}\n"
    assert tomllib.loads(file.read_text())["work"]["buckets"] == 10
    assert main(["simulate", str(file)]) == 0


def test_without_a_file_the_scenario_is_printed(run, capsys):
    assert main(["calibrate", run]) == 0
    assert tomllib.loads(capsys.readouterr().out)["job"]["ranks"] == 32


def test_json_has_scenario_fits_and_comparison(run, capsys):
    main(["calibrate", run, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "evenstep.calibration/1"
    assert found["simulated"]["mean_ns"] == pytest.approx(found["measured"]["mean_ns"], rel=0.02)
    assert {noise.get("kind") for noise in found["scenario"]["noise"]} == {None, "slow"}


def test_a_scenario_is_not_overwritten_unless_asked(run, tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text("mine")
    assert main(["calibrate", run, "-o", str(file)]) == 2
    assert (
        "mine.toml exists; choose another name, or overwrite it with --force"
        in capsys.readouterr().err
    )
    assert file.read_text() == "mine"


def test_a_missing_trace_is_named(tmp_path, capsys):
    assert main(["calibrate", str(tmp_path / "nowhere")]) == 2
    assert "nowhere; give a run's folder" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(run, tmp_path, capsys):
    assert main(["calibrate", str(run), "-o", str(tmp_path / "missing" / "a.toml")]) == 2
    told = capsys.readouterr().err
    assert f"there is no folder {tmp_path}/missing to write a.toml in; create it" in told


FORWARD_US, BACKWARD_US, MOVED_US, BUCKETS, UPDATED_US = 4_000, 2_000, 1_500, 4, 300


def profiled(rank):
    """DDP on a device: buckets that move beside backward, of which only the optimizer is marked."""
    profile, free = Profile(rank), 300
    for step in range(12):
        begin, moved = 300 * step, 0
        profile.step(step, begin, 299)
        profile.kernel("gemm", begin + 10, free, FORWARD_US)
        free += FORWARD_US
        for bucket in range(BUCKETS):
            profile.kernel("gemm", begin + 20 + 40 * bucket, free, BACKWARD_US)
            free += BACKWARD_US
            moved = max(free, moved) + 1
            profile.collective(begin + 30 + 40 * bucket, moved, MOVED_US, elements=25_000_000)
            moved += MOVED_US
        profile.note("Optimizer.step#SGD.step", begin + 250, 20)
        profile.kernel("sgd", begin + 255, moved + 1, UPDATED_US)
        free = moved + 1 + UPDATED_US
    return profile


def test_a_profile_without_marks_of_backward_keeps_its_overlap(tmp_path):
    trace = open_trace([profiled(rank).write(tmp_path / f"{rank}.json") for rank in range(2)])
    found = calibrate(observe(trace))
    work = found.scenario.work
    assert work.overlap
    assert work.forward_ms + work.backward_ms == pytest.approx(4 + BUCKETS * 2, rel=0.01)
    assert found.fits["collectives"][0].transfer_ns == pytest.approx(MOVED_US * 1000, rel=0.01)


def test_steps_with_an_evaluation_are_left_out_and_counted():
    world = World()
    table = world.everywhere()
    table[[20, 40]] = 300 * MS
    found = calibrate(observe(world.delayed(Phase.EVALUATION, table).trace()))
    assert found.measured["steps"] == world.steps - 2
    assert "steps with a checkpoint or an evaluation are left out: 2" in found.limits


@pytest.mark.parametrize(
    ("simulated", "said"),
    [(96, None), (104, None), (94, "6 % shorter"), (106, "6 % longer"), (210, "110 % longer")],
)
def test_a_scenario_whose_step_differs_by_more_than_a_twentieth_says_by_how_much(simulated, said):
    found = _apart({"mean_ns": 100.0}, {"mean_ns": float(simulated)})
    assert [text.partition(" than")[0] for text in found] == (
        [f"the scenario's step is {said}"] if said else []
    )


def test_a_step_lasts_since_the_last_rank_ended_the_one_before_where_that_is_known():
    """Steps 3, 4 and 6 of two ranks, of which the second is left out: 5 is not known."""
    grid = SimpleNamespace(
        steps=np.array([3, 4, 6, 7]), step_ns=np.array([40, 50, 60, 70]),
        end_ns=np.array([[100, 90], [130, 145], [300, 310], [390, 380]]),
    )  # fmt: skip
    steady = np.array([True, True, True, True])
    assert _step_ns(grid, steady).tolist() == [40, 45, 60, 80]
    assert _step_ns(grid, np.array([True, False, True, True])).tolist() == [40, 60, 80]


#: A rank's backwards (begin and end), and where its collectives begin, each of a step of its own.
@pytest.mark.parametrize(
    ("backwards", "calls", "overlapped"),
    [
        ([(10, 20), (110, 120), (210, 220)], [15, 115, 225], True),
        ([(10, 20), (110, 120), (210, 220)], [15, 125, 225], False),
        ([(10, 20), (110, 120)], [15, 125], False),  # half is not most
        ([(0, 100)], [97], True),
        ([(0, 100)], [98], False),  # as good as at its end
        ([(10, 20)], [5], False),
        ([(10, 20)], [], False),
    ],
)
def test_collectives_overlap_where_they_begin_within_backward_in_most_steps(
    backwards, calls, overlapped
):
    def rows(times, **more):
        enter, leave = np.array(times, float).reshape(-1, 2).T
        same = {name: np.full(len(enter), value) for name, value in more.items()}
        return Columns({
            "rank": np.zeros(len(enter), int), "step": np.arange(len(enter)), "enter_ns": enter,
            "exit_ns": leave, **same,
        })  # fmt: skip

    found = {
        Kind.PHASE: rows(backwards, op=int(Phase.BACKWARD)),
        Kind.COLLECTIVE: rows([(at, at + 1) for at in calls]),
    }
    grid = SimpleNamespace(ranks=np.array([0]))
    assert _is_overlapped(SimpleNamespace(of_kind=found.get), grid) is overlapped


@pytest.mark.parametrize(("hidden", "overlapped"), [(9, False), (11, True)])
def test_without_marks_of_backward_what_compute_hides_tells_of_overlap(hidden, overlapped):
    """More than a tenth of the transfers."""
    none = Columns({name: np.zeros(0, int) for name in ("rank", "op", "step")})
    grid = SimpleNamespace(
        ranks=np.array([0]), hidden_ns=np.array([hidden]), blocked_ns=np.array([100 - hidden])
    )
    trace = SimpleNamespace(of_kind=lambda kind: none)
    assert _is_overlapped(trace, grid) is overlapped
