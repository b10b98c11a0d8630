"""How many modules of ours something passes through: what a reader has to know to follow it."""

import gc
import sys
from pathlib import Path

import evenstep
from evenstep.diagnose.lateness.case import open_case
from evenstep.scenario.scenario import load
from evenstep.simulate.simulation import simulate_to
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World

ROOT = Path(evenstep.__file__).parent
EXAMPLE = ROOT.parents[1] / "examples" / "scenarios" / "straggler.toml"


def passed(run):
    """Modules whose functions are called meanwhile, in order; docs/design.md has the list."""
    found = {}

    def called(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":
            found[frame.f_code.co_filename] = None

    gc.collect()  # generators left by others would be called to close
    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return [path for path in found if ROOT in Path(path).parents]


def test_a_scenario_becomes_a_trace_through_no_more_modules_than_before(tmp_path):
    simulate_to(tmp_path / "first", load(EXAMPLE, ["run.steps=3"]))  # what is looked up once is
    scenario = load(EXAMPLE, ["run.steps=3", "run.seed=1"])  # of a network of its own
    assert len(passed(lambda: simulate_to(tmp_path / "run", scenario))) <= 25


def test_a_trace_becomes_a_case_through_no_more_modules_than_before():
    trace = World(steps=20).slow(1, Phase.BACKWARD, 30 * MS).trace()
    open_case(trace)
    assert len(passed(lambda: open_case(trace))) <= 12
