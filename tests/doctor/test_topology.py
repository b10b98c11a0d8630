import json

import pytest

from evenstep.doctor import lstopo, topology
from evenstep.doctor.check import Severity
from evenstep.errors import UsageError

#: As `nvidia-smi topo -m` prints it on a host with two GPUs and two adapters (NVIDIA's legend).
MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-31,64-95\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t{far}\t32-63,96-127\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\t{far}\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def xml(*, second_link="63.015385", nic_place="switch"):
    """hwloc 2.x: two packages, a NUMA node and a GPU each; the adapter where it is told."""
    nic = (
        '<object type="PCIDev" pci_busid="0000:04:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00"'
        ' pci_link_speed="63.015385">'
        '<object type="OSDev" name="ib0" osdev_type="2"/>'
        '<object type="OSDev" name="mlx5_0" osdev_type="3"/></object>'
    )

    def bridge(inside, kind="1-1"):
        return f'<object type="Bridge" bridge_type="{kind}" depth="0">{inside}</object>'

    def gpu(bus, speed):
        return (
            f'<object type="PCIDev" pci_busid="{bus}" pci_type="0302 [10de:2330] [10de:16c1] a1"'
            f' pci_link_speed="{speed}"/>'
        )

    near, port, root = (nic if nic_place == name else "" for name in ("switch", "port", "root"))
    switch = bridge(bridge(gpu("0000:03:00.0", "63.015385")) + bridge(near))
    first = bridge(bridge(switch) + bridge(port), "0-1")
    second = bridge(bridge(bridge(gpu("0000:83:00.0", second_link))) + bridge(root), "0-1")

    def package(number, inside):
        return (
            f'<object type="Package" os_index="{number}" nodeset="0x0000000{number + 1}">'
            f'<object type="NUMANode" os_index="{number}" nodeset="0x0000000{number + 1}"/>'
            f"{inside}</object>"
        )

    return (
        '<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE topology SYSTEM "hwloc2.dtd">'
        '<topology version="2.0"><object type="Machine" os_index="0" nodeset="0x00000003">'
        f"{package(0, first)}{package(1, second)}</object></topology>"
    )


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "given").write_text(text)
        return tmp_path / "given"

    return write


def test_a_matrix_gives_levels_names_and_numa_nodes():
    found = topology.parse(MATRIX.format(far="PIX"), "x")
    assert (found.gpus, found.nics) == (("GPU0", "GPU1"), ("mlx5_0", "mlx5_1"))
    assert found.gpu_nic["GPU0", "mlx5_1"] == "SYS"
    assert found.gpu_gpu["GPU0", "GPU1"] == "NV18"
    assert found.nearest["GPU1"] == ("PIX", ["mlx5_1"])
    assert (found.numa["GPU1"], found.numa_nodes) == (1, 2)


def test_every_gpu_with_a_near_adapter_is_fine():
    found = topology.parse(MATRIX.format(far="PIX"), "x")
    assert {c.severity for c in topology.checks(found)} == {Severity.OK}  # none of NUMA nodes that
    assert not set(found.nics) & found.numa.keys()  # `nvidia-smi topo -m` does not tell


def test_a_gpu_farther_from_its_adapter_than_others_is_named():
    found = topology.parse(MATRIX.format(far="NODE"), "x")
    check = next(topology.checks(found))
    assert check.severity == Severity.WARNING
    assert check.found.startswith("GPU1 reaches its nearest adapter by NODE, others by PIX")


def test_text_without_a_matrix_is_refused(written):
    with pytest.raises(UsageError, match="has no matrix of GPUs"):
        topology.load(written("Mon Jan 1\nNo devices were found\n"))


@pytest.mark.parametrize(
    ("place", "first", "second"),  # nvidia-smi topo -m, legend
    [("switch", "PIX", "SYS"), ("port", "PHB", "SYS"), ("root", "SYS", "PHB")],
)
def test_lstopo_gives_the_levels_of_its_tree(written, place, first, second):
    found, _ = lstopo.load(written(xml(nic_place=place)))
    assert found.nics == ("mlx5_0",)
    assert found.gpu_nic["0000:03:00.0", "mlx5_0"] == first
    assert found.gpu_nic["0000:83:00.0", "mlx5_0"] == second
    assert (found.numa["0000:83:00.0"], found.numa_nodes) == (1, 2)


def test_a_slower_link_than_others_of_its_kind_is_a_warning(written):
    _, checks = lstopo.load(written(xml(second_link="31.507692")))
    assert [check.severity for check in checks] == [Severity.WARNING]
    assert "GPU 0000:83:00.0 31.5 GB/s" in checks[0].found


@pytest.mark.parametrize(
    ("text", "says"),
    [("no XML", "is not XML"), ('<?xml version="1.0" encoding="UTD-8"?><topology/>', "is not XML"),
     ("<svg/>", "XML of <svg>"),
     ('<!DOCTYPE t [<!ENTITY a "b">]><topology/>', "defines XML entities")],
)  # fmt: skip
def test_what_is_no_topology_is_refused(written, text, says):
    with pytest.raises(UsageError, match=says):
        lstopo.read(written(text))


def test_a_topology_is_plain_values_in_json():
    found = topology.parse(MATRIX.format(far="PIX"), "x").to_json()
    assert json.loads(json.dumps(found))["nearest"]["GPU0"] == ["PIX", ["mlx5_0"]]
