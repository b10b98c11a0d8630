"""A scenario says which field is wrong, and every shipped one can be read."""

import pickle
from pathlib import Path

import msgspec
import pytest

from evenstep.errors import ConfigError
from lab.arms import Schedule, arm
from lab.scenario import load, parse
from lab.tier import Trial

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "lab").glob("*.toml"))
ONE = {"jobs": [{}]}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_scenario(path):
    assert load(path).jobs


def test_there_are_examples():
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({}, "[[jobs]]"),
        ({"jobs": [{"ranks": 1}]}, "jobs[0].ranks"),
        ({"jobs": [{"leaves": [1]}]}, "jobs[0].leaves"),
        ({"jobs": [{"name": "a b"}]}, "jobs[0].name"),
        ({"jobs": [{"name": "a"}, {"name": "a"}]}, "jobs[1].name"),
        ({"jobs": [{"ranks": 40, "copies": 2}]}, "80 ranks"),
        ({"jobs": [{}], "run": {"settle_s": 9, "block_s": 3}}, "run.settle_s"),
        ({"jobs": [{}], "run": {"limit_s": 901}}, "run.limit_s"),
        ({"jobs": [{}], "fabric": "ethernet"}, "fabric"),
        ({"jobs": [{}], "faults": [{"job": 3}]}, "faults[0].job"),
        ({"jobs": [{}], "faults": [{"ranks": "2"}]}, "faults[0].ranks"),
        ({"jobs": [{}], "faults": [{"kind": "lossy_buffer"}]}, "faults[0].kind"),
        ({"jobs": [{}], "faults": [{"during": 2}]}, "faults[0].during"),
        ({"jobs": [{}], "faults": [{"kind": "throttled_link", "link": 1}]}, "faults[0].link"),
        ({"jobs": [{}], "network": {"link_gbps": 1}}, "link_gBps"),
    ],
)
def test_what_does_not_fit_is_named(data, named):
    with pytest.raises(ConfigError) as refused:
        parse(data)
    assert named in str(refused.value)


def test_copies_become_jobs_that_compute_longer_and_longer():
    jobs = parse({"jobs": [{"copies": 3, "apart": 0.1, "compute_ms": 40}]}).jobs
    assert [job.compute_ms for job in jobs] == pytest.approx([40, 44, 48])
    assert len({job.name for job in jobs}) == 3


def test_a_file_that_is_wrong_is_named(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text("[[jobs]]\nranks = 0\n")
    with pytest.raises(ConfigError, match=r"wrong\.toml: jobs\[0\]\.ranks"):
        load(path)


def test_a_field_is_changed_from_outside():
    assert parse(dict(ONE), ["network.link_gBps=2.5"]).network.link_gBps == 2.5


def test_what_needs_cores_does_not_run_before_ordinary_work():
    assert parse(dict(ONE)).real_time
    assert not parse({"jobs": [{"work": "train"}]}).real_time
    assert not parse({"jobs": [{}], "faults": [{"kind": "cpu_hog"}]}).real_time


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_trial_comes_back_from_its_file_without_a_program(tmp_path, path):
    schedule = Schedule((arm("baseline"), arm("slack+sharing")), 3, 1, seed=5)
    trial = Trial(load(path), schedule, tmp_path, tmp_path / "board", "run")
    trial.write()
    assert Trial.read(trial.path) == trial
    trial.path.write_bytes(pickle.dumps(trial))
    with pytest.raises(msgspec.DecodeError):
        Trial.read(trial.path)
