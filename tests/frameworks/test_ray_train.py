"""The example of Ray Train on two workers of a local cluster."""

import sys
import types

import numpy as np
import pytest

import evenstep
from evenstep.diagnose.engine import diagnose
from evenstep.errors import EvenstepError
from evenstep.frameworks import ray_train
from evenstep.trace.spool.layout import Kind, Phase

STEPS = 20


@pytest.fixture(scope="module")
def trained(cluster, tmp_path_factory):
    pytest.importorskip("ray.train", reason="Ray Train is not installed", exc_type=ImportError)
    import ray_trainer

    folder = tmp_path_factory.mktemp("ray") / "run"
    said = ray_trainer.train(folder, steps=STEPS, pause_ms=80.0)
    return evenstep.load(folder), said["late_ns"]


def test_the_wait_is_the_delay_that_was_injected(trained):
    trace, late_ns = trained
    first = diagnose(trace).findings[0]
    waited = {one.metric: one.measured for one in first.evidence}["wait_of_the_others"]
    assert first.where.ranks == [0]
    assert waited == pytest.approx(late_ns, rel=0.10)


def test_every_worker_is_the_rank_that_ray_says(trained):
    trace, _ = trained
    assert (sorted(trace.ranks), trace.world) == ([0, 1], 2)
    assert [trace.ranks[rank].identity["local_rank"] for rank in (0, 1)] == [0, 1]
    assert {trace.ranks[rank].identity["run_id"] for rank in (0, 1)} == {"late"}


def test_steps_are_seen_on_the_thread_that_trains_and_end_properly(trained):
    trace, _ = trained
    assert np.bincount(trace.of_kind(Kind.STEP).rank).tolist() == [STEPS, STEPS]
    phases = trace.of_kind(Kind.PHASE)
    assert (phases.op == int(Phase.BACKWARD)).sum() == 2 * STEPS
    assert all(info.closed for info in trace.ranks.values())


class Context:
    """A worker as Ray describes it."""

    def __init__(self, folder):
        system = types.SimpleNamespace(type_name="local")
        self.storage = types.SimpleNamespace(
            storage_filesystem=system, experiment_fs_path=str(folder)
        )

    def get_world_rank(self):
        return 0

    def get_storage(self):
        return self.storage


@pytest.fixture
def agreed(monkeypatch, tmp_path):
    collective = types.SimpleNamespace(broadcast_from_rank_zero=lambda data: data)
    monkeypatch.setitem(sys.modules, "ray.train.collective", collective)
    return lambda out=None: ray_train._agree(Context(tmp_path), out)


def test_a_group_that_is_started_again_is_a_new_attempt(agreed, tmp_path):
    assert agreed()["attempt"] == 0
    (tmp_path / "evenstep" / "attempt-000").mkdir(parents=True)
    assert agreed() == {"out": str(tmp_path / "evenstep"), "attempt": 1}


def test_the_folder_that_was_given_counts(agreed, tmp_path):
    assert agreed(tmp_path / "mine")["out"] == str(tmp_path / "mine")


def test_the_folder_of_the_environment_counts(agreed, tmp_path, monkeypatch):
    monkeypatch.setenv("EVENSTEP_OUT", str(tmp_path / "theirs"))
    assert agreed()["out"] == str(tmp_path / "theirs")
    assert agreed(tmp_path / "mine")["out"] == str(tmp_path / "mine")


def test_a_rank_0_without_a_folder_tells_the_others_who_wait_for_it(monkeypatch):
    said = []
    collective = types.SimpleNamespace(
        broadcast_from_rank_zero=lambda data: said.append(data) or data
    )
    monkeypatch.setitem(sys.modules, "ray.train.collective", collective)
    context = types.SimpleNamespace(get_world_rank=lambda: 0)  # and no storage
    with pytest.raises(EvenstepError, match="rank 0 found no folder"):
        ray_train._agree(context, None)
    assert "get_storage" in said[0]["error"]


def test_outside_of_a_worker_it_says_so_and_does_not_raise(monkeypatch, caplog):
    monkeypatch.setattr(ray_train.Loop, "attach", lambda self, settings: bool(settings))
    monkeypatch.setattr(ray_train, "_agree", lambda *_: 1 / 0)
    pytest.importorskip("ray.train", exc_type=ImportError)
    assert ray_train.attach() is False
    assert "does not give this worker's place" in caplog.text


def test_the_loop_keeps_its_name_its_result_and_its_errors(monkeypatch):
    monkeypatch.setattr(ray_train, "attach", lambda **_: False)
    loop = ray_train.observed(len)
    assert (loop.__name__, loop("abc")) == ("len", 3)
    with pytest.raises(TypeError):
        loop(1)
