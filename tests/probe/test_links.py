"""Three nodes on a bridge, as network namespaces; the cable of one carries little one way."""

import os
import shutil
import subprocess

import pytest

NODES, SLOW = 3, 1
RATE = "200mbit"  # .025 GB/s, where an unshaped pair of devices carries several

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc") or not shutil.which("ip"),
    reason="network namespaces and traffic shaping need root, ip and tc",
)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def inside(node):
    return ["ip", "netns", "exec", node]


@pytest.fixture
def nodes():
    """Names of the namespaces; the `SLOW` one sends slowly."""
    tag = f"p{os.getpid() % 100_000}"
    bridge, names = f"{tag}br", [f"{tag}n{i}" for i in range(NODES)]
    try:
        ip("netns", "add", bridge)
        ip("-n", bridge, "link", "add", "bridge0", "type", "bridge")
        ip("-n", bridge, "link", "set", "bridge0", "up")
        for number, name in enumerate(names):
            connect(name, number, bridge)
        shape = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", RATE]
        shape += ["burst", "256kb", "latency", "100ms"]
        subprocess.run([*inside(names[SLOW]), *shape], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this kernel makes no such network: {error.stderr.decode().strip()}")
    else:
        yield names
    finally:
        for name in (*names, bridge):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def connect(name, number, bridge):
    ip("netns", "add", name)
    ip("-n", name, "link", "set", "lo", "up")
    ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", f"e{number}", "netns", bridge)
    ip("-n", bridge, "link", "set", f"e{number}", "master", "bridge0", "up")
    ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
    ip("-n", name, "link", "set", "eth0", "up")


@pytest.mark.clock
def test_a_cable_slow_in_one_direction_is_the_adapter_of_its_node(
    nodes, probe, parsed, monkeypatch
):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    done = probe(
        NODES, "--seconds", 8, "--timeout", 40, "--json", local=1, address="10.77.0.1",
        before=lambda rank: inside(nodes[rank]),
    )  # fmt: skip
    found = parsed(done)
    assert (found["complete"], found["nodes"]) == (True, NODES)
    worst = next(one for one in found["findings"] if one["metric"] == "transfer")
    assert (worst["kind"], worst["ranks"]) == ("slow_adapter", [SLOW])
    assert {a for a, _ in worst["links"]} == {SLOW}  # what it sends, not what it receives
    # 4 MB, of which the shaper lets .26 MB through at once and the rest at .025 GB/s
    sent = [row["gBps"] for row in found["pairs"] if row["from"] == SLOW]
    assert all(speed < 0.025 * 4 / (4 - 0.27) * 1.1 for speed in sent)
