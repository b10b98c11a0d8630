"""What the network is to be: hosts under leaves, leaves under one spine. Pure.

Each host is a network namespace with one card, `eth0`. All switches live in one further namespace:
a leaf is a bridge with a port per host, and where there are several, each has an uplink to the
bridge `spine`. A link is a pair of virtual cards, and each of its directions is shaped where it is
entered: `eth0` and `portN` for a host's link, `upN` and `downN` for an uplink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenstep.errors import ConfigError
from lab.tcp import shaping
from lab.tcp.shaping import Shape

MOST_HOSTS = 250
_SUBNET = "10.201.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which leaf each host is under, and how the links are shaped.

    Raises `ConfigError` naming the field that cannot be.
    """

    leaf_of: Sequence[int]  # per host; leaves are numbered from 0 without a hole
    edge: Shape | None = None  # a host's link, each direction; None: as fast as the kernel is
    uplink: Shape | None = None  # a leaf's, each direction; needed from two leaves on
    congestion: str = "cubic"

    def __post_init__(self) -> None:
        if not 1 <= len(self.leaf_of) <= MOST_HOSTS:
            raise ConfigError(f"hosts must be from 1 to {MOST_HOSTS}, found {len(self.leaf_of)}")
        if set(self.leaf_of) != set(range(self.leaves)):
            raise ConfigError(
                f"leaf_of must use every leaf from 0 on, found {sorted(set(self.leaf_of))}"
            )
        if self.leaves > 1 and self.uplink is None:
            raise ConfigError("uplink is missing: two leaves or more meet over their uplinks")

    @property
    def hosts(self) -> int:
        """How many there are."""
        return len(self.leaf_of)

    @property
    def leaves(self) -> int:
        """How many bridges have hosts."""
        return max(self.leaf_of, default=-1) + 1


def address(host: int) -> str:
    """The host's address."""
    return f"{_SUBNET}.{host + 1}"


def switch_lines(layout: Layout) -> list[str]:
    """For `ip -batch` in the switches' namespace: bridges and uplinks."""
    found: list[str] = []
    for bridge in [f"leaf{leaf}" for leaf in range(layout.leaves)] + ["spine"]:
        found += [f"link add name {bridge} type bridge mcast_snooping 0", f"link set {bridge} up"]
    if layout.leaves > 1:
        for leaf in range(layout.leaves):
            found += [
                f"link add name up{leaf} type veth peer name down{leaf}",
                f"link set up{leaf} master leaf{leaf} up",
                f"link set down{leaf} master spine up",
            ]
    return found


def port_lines(layout: Layout, namespaces: Sequence[str]) -> list[str]:
    """For `ip -batch` in the switches' namespace: each host's cable, plugged into its leaf."""
    found: list[str] = []
    for host, (leaf, namespace) in enumerate(zip(layout.leaf_of, namespaces, strict=True)):
        found += [
            f"link add name port{host} type veth peer name eth0 netns {namespace}",
            f"link set port{host} master leaf{leaf} up",
        ]
    return found


def host_lines(host: int, congestion: str) -> list[str]:
    """For `ip -batch` in a host's namespace.

    A card sends single frames: a super-frame of 64 kB would fill a small buffer by itself. The
    congestion control belongs to the route: a namespace's default may only be one that the whole
    machine allows everybody.
    """
    return [
        "link set lo up",
        f"addr add {address(host)}/24 dev eth0 noprefixroute",
        "link set eth0 gso_max_segs 1 up",
        f"route add {_SUBNET}.0/24 dev eth0 src {address(host)} congctl {congestion}",
    ]


def switch_shapes(layout: Layout) -> list[str]:
    """For `tc -batch` in the switches' namespace."""
    found: list[str] = []
    if layout.edge is not None:
        for host in range(layout.hosts):
            found += shaping.lines(f"port{host}", layout.edge)
    if layout.uplink is not None and layout.leaves > 1:
        for leaf in range(layout.leaves):
            found += shaping.lines(f"up{leaf}", layout.uplink)
            found += shaping.lines(f"down{leaf}", layout.uplink)
    return found


def kernel_settings() -> dict[str, str]:
    """Files of a host's namespace and what they are to hold."""
    return {
        "/proc/sys/net/ipv6/conf/all/disable_ipv6": "1",
        "/proc/sys/net/ipv6/conf/default/disable_ipv6": "1",
        # What one connection has learnt of a path is no business of the next.
        "/proc/sys/net/ipv4/tcp_no_metrics_save": "1",
    }
