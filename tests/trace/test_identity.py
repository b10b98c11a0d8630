import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigError
from evenstep.trace.spool import identity
from evenstep.trace.spool.identity import from_environment, given_run_id

TORCHRUN = {
    "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job7", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "SLURM_NODEID": "1",
    "SLURM_NNODES": "2", "SLURM_JOB_ID": "991",
}  # fmt: skip


def test_torchrun_names_everything():
    assert from_environment(TORCHRUN) == identity.Identity(
        run_id="job7", attempt=2, rank=5, local_rank=1, world=8, node=1, launcher="torchrun",
        nodes=2,
    )  # fmt: skip


def test_torchrun_inside_slurm_is_torchrun():
    assert from_environment(SLURM | TORCHRUN).launcher == "torchrun"


def test_slurm_is_read_where_torchrun_is_not():
    found = from_environment(SLURM)
    assert (found.launcher, found.rank, found.local_rank, found.world) == ("slurm", 3, 1, 4)
    assert (found.run_id, found.node, found.nodes) == ("991", 1, 2)


def test_a_requeued_slurm_job_is_a_new_attempt_of_the_same_run():
    again = from_environment(SLURM | {"SLURM_RESTART_COUNT": "1"})
    assert (again.run_id, again.attempt) == ("991", 1)


def test_restarts_count_from_the_attempt_the_launcher_began_with():
    assert from_environment(TORCHRUN | {"EVENSTEP_ATTEMPT": "3"}).attempt == 3 + 2


def test_openmpi_places_ranks_by_the_number_per_node():
    found = from_environment({
        "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "PMIX_NAMESPACE": "prterun-1",
    })  # fmt: skip
    assert (found.launcher, found.node, found.nodes) == ("openmpi", 5 // 4, 8 // 4)
    assert found.run_id == "prterun-1"


def test_pmi_is_read_where_openmpi_is_not():
    found = from_environment({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"})
    assert (found.launcher, found.rank, found.local_rank) == ("pmi", 1, 1)


def test_an_indexed_kubernetes_job_has_one_rank_a_pod():
    found = from_environment(
        {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "4", "HOSTNAME": "train-2"}
    )
    assert (found.rank, found.local_rank, found.node, found.nodes) == (2, 0, 2, 4)
    assert found.run_id == "train"


def test_without_a_launcher_there_is_one_rank():
    found = from_environment({})
    assert (found.launcher, found.rank, found.world, found.attempt) == ("single", 0, 1, 0)


def test_torchruns_default_run_id_is_no_name():
    nameless = TORCHRUN | {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n1", "MASTER_PORT": "29"}
    assert given_run_id(nameless) is None
    assert from_environment(nameless).run_id == "n1:29"


def test_our_own_name_for_the_run_wins():
    assert from_environment(TORCHRUN | {"EVENSTEP_RUN_ID": "mine"}).run_id == "mine"


def test_spawned_processes_learn_their_place_from_init_process_group():
    placed = from_environment({}).at(rank=3, world=4)
    assert (placed.rank, placed.world, placed.local_rank) == (3, 4, 3)


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "EVENSTEP_ATTEMPT"])
@pytest.mark.parametrize("text", ["-1", "two", "1.5", "²"])
def test_a_variable_that_is_no_number_is_named(variable, text):
    with pytest.raises(ConfigError, match=f"{variable} in the environment.*{text}"):
        from_environment(TORCHRUN | {variable: text})


def test_a_rank_beyond_the_world_is_refused():
    with pytest.raises(ConfigError, match="RANK is 8 but WORLD_SIZE is 8"):
        from_environment(TORCHRUN | {"RANK": "8"})


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_a_rank_is_always_inside_its_world_and_on_one_of_its_nodes(place):
    rank, world = place
    found = from_environment({
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(world),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    })  # fmt: skip
    assert found.rank == rank < found.world
    assert 0 <= found.node < found.nodes


def test_the_header_of_a_spool_names_machine_boot_and_process():
    header = from_environment(TORCHRUN).header()
    assert header["rank"] == 5
    assert {"hostname", "boot_id", "pid"} < header.keys()


def test_the_boot_is_the_kernels_own_name_for_it():
    shown = subprocess.check_output(["cat", "/proc/sys/kernel/random/boot_id"], text=True)
    assert identity.boot_id() == shown.strip()


def test_a_rank_alone_on_its_node_is_on_the_node_of_its_number():
    place = {"RANK": "OMPI_COMM_WORLD_RANK", "SIZE": "OMPI_COMM_WORLD_SIZE"}
    environ = {place["RANK"]: "3", place["SIZE"]: "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    found = from_environment(environ)
    assert (found.node, found.nodes) == (3, 4)
