import pytest

from evenstep.doctor import variables
from evenstep.doctor.check import Severity
from evenstep.doctor.variables import VariableSetting, contradictions, select_names, settings


def judged(environ):
    given = {name: VariableSetting(value, "the environment") for name, value in environ.items()}
    return [c for c in (*variables.names(given), *variables.values(given)) if c.why]


def one(environ):
    (check,) = judged(environ)
    return check


def test_a_misspelt_name_is_told_with_the_right_one():
    check = one({"NCCL_SOCKET_IFNAMES": "eth0"})
    assert check.severity == Severity.WARNING
    assert "misspelt NCCL_SOCKET_IFNAME" in check.why
    assert check.mend.endswith("export NCCL_SOCKET_IFNAME=eth0")


def test_a_name_nobody_documents_is_advice():
    assert one({"NCCL_FROBNICATE": "1"}).severity == Severity.ADVICE


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "TORCH_NCCL_TRACE_BUFFER_SIZE", "GLOO_SOCKET_IFNAME", "NCCL_VERSION"]
)
def test_known_names_pass(name):
    assert not judged({name: "INFO"})


def test_an_old_name_is_told_with_the_new_one():
    check = one({"NCCL_BLOCKING_WAIT": "0"})
    assert "TORCH_NCCL_BLOCKING_WAIT" in check.mend


def test_the_value_of_a_secret_is_not_shown():
    assert "hunter2" not in str(one({"NCCL_MY_SECRET_KEY": "hunter2"}).to_json())


@pytest.mark.parametrize(
    ("variable", "value", "severity"),
    [  # NCCL user guide, Environment Variables: values accepted
        ("NCCL_P2P_DISABLE", "1", Severity.WARNING),
        ("NCCL_P2P_LEVEL", "LOC", Severity.WARNING),
        ("NCCL_P2P_LEVEL", "NEAR", Severity.PROBLEM),
        ("NCCL_NTHREADS", "100", Severity.PROBLEM),
        ("NCCL_IB_TIMEOUT", "0", Severity.WARNING),
        ("NCCL_IB_TIMEOUT", "32", Severity.PROBLEM),
        ("NCCL_IB_QPS_PER_CONNECTION", "129", Severity.PROBLEM),
        ("NCCL_ALGO", "Ring", Severity.ADVICE),
        ("NCCL_ALGO", "allreduce:tree,rong", Severity.PROBLEM),
        ("NCCL_PROTO", "LL128", Severity.WARNING),
        ("NCCL_PROTO", "^LL128", Severity.ADVICE),
        ("CUDA_LAUNCH_BLOCKING", "1", Severity.PROBLEM),
    ],
)
def test_values_that_do_harm(variable, value, severity):
    assert one({variable: value}).severity == severity


@pytest.mark.parametrize(
    "environ",
    [{"NCCL_P2P_DISABLE": "0"}, {"NCCL_IB_TIMEOUT": "22"}, {"NCCL_CROSS_NIC": "1"},
     {"NCCL_NET_GDR_LEVEL": "phb"}, {"NCCL_DEBUG": "warn"}],
)  # fmt: skip
def test_values_that_are_allowed_pass(environ):
    assert not judged(environ)


def test_files_count_where_the_environment_is_silent(host):
    found = variables.settings(
        host(files={"etc/nccl.conf": "NCCL_DEBUG=TRACE\nNCCL_ALGO=Tree"},
             environ={"NCCL_ALGO": "Ring"})
    )  # fmt: skip
    assert found["NCCL_DEBUG"] == ("TRACE", "/etc/nccl.conf")
    assert found["NCCL_ALGO"] == ("Ring", "the environment")


# -- contradictions --------------------------------------------------------------------------------


def contradicting(host, **options):
    given = host(**options)
    return [check for check in contradictions(settings(given), given) if check.why]


def test_infiniband_that_is_there_must_not_be_switched_off(host):
    (check,) = contradicting(host, environ={"NCCL_IB_DISABLE": "1"})
    assert check.severity == Severity.PROBLEM
    assert "mlx5_0/1" in check.found
    assert check.mend == "unset NCCL_IB_DISABLE"


def test_a_network_asked_for_and_switched_off_is_a_contradiction(host):
    found = contradicting(host, environ={"NCCL_IB_DISABLE": "1", "NCCL_NET": "IB"})
    assert "NCCL_NET=IB" in found[0].found


def test_an_interface_that_is_not_there_is_named(host):
    (check,) = contradicting(host, environ={"NCCL_SOCKET_IFNAME": "eth7"})
    assert "there are ib0" in check.found


@pytest.mark.parametrize("environ", [
    {"NCCL_SOCKET_IFNAME": "ib"}, {"NCCL_SOCKET_IFNAME": "^docker,lo"},
    {"NCCL_IB_HCA": "=mlx5_0:1"},
])  # fmt: skip
def test_what_fits_passes(host, environ):
    assert not contradicting(host, environ=environ)


@pytest.mark.parametrize(
    "environ",
    [
        {"MASTER_ADDR": "localhost", "SLURM_NNODES": "2"},
        {"NCCL_IB_HCA": "mlx4"},
    ],
)
def test_what_cannot_be_is_a_problem(host, environ):
    assert [c.severity for c in contradicting(host, environ=environ)] == [Severity.PROBLEM]


@pytest.mark.parametrize(("value", "expected"), [
    # NCCL user guide, NCCL_IB_HCA and NCCL_SOCKET_IFNAME: its own examples
    ("mlx5_1", ["mlx5_1", "mlx5_10"]), ("=mlx5_1", ["mlx5_1"]), ("^=mlx5_1", ["mlx5_0", "mlx5_10"]),
    ("=mlx5_0:1,mlx5_1:1", ["mlx5_0", "mlx5_1"]), ("^mlx5_1", ["mlx5_0"]),
])  # fmt: skip
def test_lists_choose_as_nccl_reads_them(value, expected):
    assert select_names(value, ["mlx5_0", "mlx5_1", "mlx5_10"]) == expected
