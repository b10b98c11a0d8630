import json
import tomllib
from pathlib import Path

import pytest

from evenstep.cli.calibrate import observe
from evenstep.cli.main import main
from evenstep.importers.opening import open_trace
from evenstep.simulate.calibrate.calibrate import calibrate
from evenstep.trace.spool.layout import Phase
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
