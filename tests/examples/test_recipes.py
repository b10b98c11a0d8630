"""The Slurm and Kubernetes recipes: run where that is possible, else checked against schemas."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenstep.watch.run import LiveRun
from tests.environment import plain
from tests.forks import python

ROOT = Path(__file__).parents[2]
SLURM, KUBERNETES = ROOT / "examples" / "slurm", ROOT / "examples" / "kubernetes"
FAKES = Path(__file__).parent / "slurm"
SCRIPTS = sorted(SLURM.glob("*.sbatch"))
PATIENCE_S = 180.0
RANKS = 2
ENDLESS = 10_000_000  # steps: only the signal ends the first attempt, however late it is sent
MORE = 40  # steps of the second attempt


def free_port():
    """A port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


class Cluster:
    """A cluster of this machine: `sbatch` starts a script as a batch step would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "runs" / "77"
        self.requeued = folder / "requeued"
        (folder / "bin").mkdir()
        for name, what in (
            ("evenstep", f"{sys.executable} -m evenstep"),
            ("python", python()),
            ("srun", f"{sys.executable} {FAKES / 'srun.py'}"),
        ):
            file = folder / "bin" / name
            file.write_text(f'#!/bin/sh\nexec {what} "$@"\n')
            file.chmod(0o755)

    def sbatch(self, script, *arguments, restarts=0, last=""):
        """The running batch step, whose tasks are given `last` after their own arguments."""
        ours = {name: value for name, value in plain().items() if not name.startswith("SLURM")}
        path = [self.folder / "bin", FAKES, os.environ["PATH"]]
        places = {
            "PATH": os.pathsep.join(map(str, path)),
            "PYTHONPATH": str(ROOT / "src"),
            "RUNS": str(self.folder / "runs"),
            "REQUEUED": str(self.requeued),
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            "LAST_ARGUMENTS": last,
        }
        slurm = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": str(RANKS), "SLURM_NNODES": "1"}
        slurm |= {"SLURM_JOB_NODELIST": "localhost", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
        if restarts:
            slurm |= {"SLURM_RESTART_COUNT": str(restarts), "EVENSTEP_VERDICT": "0"}
        command = ["bash", str(SLURM / script), *arguments]
        return subprocess.Popen(
            command, env=ours | places | slurm, cwd=SLURM, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def steps(self):
        """Steps that every rank has finished."""
        run = LiveRun(self.run)
        run.refresh()
        table = run.steps
        return int(table.step[table.ranks == RANKS].max(initial=-1)) + 1


@pytest.fixture(scope="module")
def requeued(tmp_path_factory):
    """A job that runs out of time, is told so, and goes on when it is its turn again."""
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    first = cluster.sbatch("srun.sbatch", "--steps", str(ENDLESS))
    try:
        due = time.monotonic() + PATIENCE_S
        while cluster.steps() < 20 and first.poll() is None and time.monotonic() < due:
            time.sleep(0.05)
        first.send_signal(signal.SIGUSR1)  # --signal=B: the batch step alone
        said = first.communicate(timeout=PATIENCE_S)[0]
    finally:
        first.kill()
    assert first.returncode == 0, said
    done = int(re.search(r"stopped after step (\d+)", said)[1])
    enough = f"--steps {done + 1 + MORE}"
    second = cluster.sbatch("srun.sbatch", "--steps", str(ENDLESS), restarts=1, last=enough)
    return cluster, said, done, second.communicate(timeout=PATIENCE_S)[0]


def test_a_signal_before_the_limit_marks_the_run_and_queues_it_again(requeued):
    cluster, said, _, _ = requeued
    mark = json.loads((cluster.run / "attempt-000" / "preempted.json").read_text())
    assert mark["signal"] == "SIGUSR1"
    assert "attempt 0 is preempted (SIGUSR1)" in said
    assert cluster.requeued.read_text() == "77\n"


def test_a_preempted_attempt_says_so_in_its_verdict(requeued):
    _, said, _, _ = requeued
    assert "Attempt 0 was preempted (SIGUSR1" in " ".join(said.split())


def test_a_job_queued_again_is_a_new_attempt_that_goes_on(requeued):
    cluster, _, done, said = requeued
    assert done > 0
    assert f"stopped after step {done + MORE}" in said
    assert cluster.steps() == MORE
    run = LiveRun(cluster.run)
    run.refresh()
    assert (run.attempt, run.ended) == (1, True)
    assert not (cluster.run / "attempt-001" / "preempted.json").exists()


def test_attempts_know_which_of_them_were_preempted(requeued):
    from evenstep.diagnose.measure.attempts import read_attempts

    assert [one.preempted for one in read_attempts(requeued[0].run)] == ["SIGUSR1", None]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_bash_and_asks_slurm_for_what_there_is(script):
    subprocess.run(["bash", "-n", script], check=True)
    asked = re.findall(r"^#SBATCH --([a-z-]+)(?:=\S+)?$", script.read_text(), re.MULTILINE)
    documented = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "time", "signal"}
    assert set(asked) <= documented | {"requeue", "open-mode", "array"}  # sbatch(1)
    assert len(asked) == script.read_text().count("#SBATCH")


def documents():
    yaml = pytest.importorskip("yaml", reason="reads the Kubernetes recipes")
    for path in sorted(KUBERNETES.glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def test_manifests_of_kubernetes_fit_its_own_schema():
    schema = pytest.importorskip("kubernetes_validate", reason="holds the schemas of Kubernetes")
    kinds = []
    for document in documents():
        if document["kind"] != "TrainJob":
            schema.validate(document, "1.33", strict=True)
            kinds.append(document["kind"])
    assert kinds == ["Service", "Job"]


def test_the_trainjob_fits_the_models_of_its_operator():
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="holds the TrainJob")
    found = next(document for document in documents() if document["kind"] == "TrainJob")
    job = models.TrainerV1alpha1TrainJob.from_dict(found)
    assert job.to_dict() == found  # nothing in it is unknown to them


def test_no_container_can_write_to_its_root():
    pods = [
        document["spec"]["template"]["spec"]
        for document in documents()
        if document["kind"] == "Job"
    ]
    for pod in pods:
        for container in [*pod["initContainers"], *pod["containers"]]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            writable = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert {"/trace", "/runs", "/tmp"} == writable
