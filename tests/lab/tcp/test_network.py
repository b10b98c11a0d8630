"""Networks of namespaces: what stands, what it carries, and that nothing is ever left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from evenstep.errors import UsageError
from lab.children import python_path
from lab.tcp import network
from lab.tcp.layout import Layout, address
from lab.tcp.network import Network
from lab.tcp.shaping import Shape

LACKING = network.missing()
privileged = pytest.mark.skipif(bool(LACKING), reason=LACKING or "nothing is lacking")
SOURCE = python_path()
GBPS = 0.04
SENT_BYTES = 2_000_000

#: makes a network, says so, and waits to be killed
HOLD = """
import sys, time
from lab.tcp.layout import Layout
from lab.tcp.network import Network
made = Network(Layout(leaf_of=[0, 0]))
print(made.hosts[0], flush=True)
time.sleep(60)
"""


def shape(**changes) -> Shape:
    return Shape(**{"gbps": GBPS, "buffer_bytes": 50_000, **changes})


def timed_transfer(net: Network, source: int, target: int) -> float:
    """Seconds that `SENT_BYTES` take from one host to another."""
    receive = (
        "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); "
        "c = s.accept()[0]\nwhile c.recv(1 << 18): pass"
    )
    send = (
        f"import socket, time; s = socket.create_connection(('{address(target)}', 5000)); "
        f"t = time.monotonic(); s.sendall(bytes({SENT_BYTES})); s.shutdown(1); s.recv(1); "
        "print(time.monotonic() - t)"
    )
    into = ["ip", "netns", "exec"]
    sink = subprocess.Popen(
        [*into, net.hosts[target], sys.executable, "-c", receive], stdout=subprocess.PIPE
    )
    assert sink.stdout is not None
    sink.stdout.readline()
    said = subprocess.check_output([*into, net.hosts[source], sys.executable, "-c", send])
    sink.wait(60)
    return float(said)


@pytest.fixture(scope="module")
def dumbbell():
    with Network(Layout(leaf_of=[0, 1], uplink=shape(), congestion="reno")) as net:
        yield net


@privileged
def test_an_uplink_carries_no_more_than_it_should(dumbbell):
    # 2 MB at 40 Mbit/s with 66 bytes of headers on 1448: .418 s; the queue may hold 10 ms of it
    floor_s = SENT_BYTES * 8 / (GBPS * 1e9) * 1514 / 1448
    assert timed_transfer(dumbbell, 0, 1) > 0.95 * floor_s


@privileged
def test_a_throttled_uplink_carries_less_and_its_buffer_loses(dumbbell):
    dumbbell.reshape(0, shape(gbps=GBPS / 2, buffer_bytes=8_000))
    before = dumbbell.dropped()
    assert timed_transfer(dumbbell, 0, 1) > 0.95 * SENT_BYTES * 8 / (GBPS / 2 * 1e9)
    assert dumbbell.dropped() > before
    dumbbell.reshape(0, shape())


@privileged
def test_connections_use_the_congestion_control_asked_for(dumbbell):
    ask = ["ip", "-n", dumbbell.hosts[0], "-j", "route", "show"]
    assert json.loads(subprocess.check_output(ask))[0]["metrics"][0]["congestion"] == "reno"


@privileged
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_network_whose_maker_is_killed(number):
    maker = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip
    assert maker.stdout is not None
    host = maker.stdout.readline().decode().strip()
    assert host in network.names()
    maker.send_signal(number)
    maker.wait()
    assert gone(host)


def gone(name: str) -> bool:
    """Whether it goes away within a minute."""
    deadline = time.monotonic() + 60
    while name in network.names() and time.monotonic() < deadline:
        time.sleep(0.02)
    return name not in network.names()


@privileged
def test_clean_removes_what_the_dead_have_left_and_touches_nothing_else():
    dead = subprocess.Popen(["true"])
    dead.wait()
    orphan = network.Owner(dead.pid, 1, 0).name("host0")
    names = [orphan, network.Owner.here().name("host0"), f"foreign-{os.getpid()}"]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        assert orphan in network.clean()
        assert set(network.names()) >= set(names[1:])
        assert orphan not in network.names()
    finally:
        network.remove([name for name in names if name in network.names()])


def test_without_the_right_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(network, "_capable", lambda capability: False)
    with pytest.raises(UsageError, match=r"takes root .* --fabric fair"):
        Network(Layout(leaf_of=[0]))
