"""Variables that contradict each other or the hardware of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from evenstep.doctor.check import Check, fine, or_ok, wrong
from evenstep.doctor.host import Host
from evenstep.doctor.variables import VariableSetting, settings
from evenstep.host.sources.nic import ports

_LOCAL = ("localhost", "127.0.0.1", "::1")


_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_NOWHERE = ("lo", "docker", "virbr", "veth")  # interfaces that lead to no other node


def checks(host: Host) -> Iterator[Check]:
    given = settings(host)
    found = [
        *_network(given, host),
        *_interfaces(given, host),
        *_adapters(given, host),
        *_address(given),
    ]
    yield from or_ok(found, fine("variables.contradictions", "none"))


def _wrong(what: str, **facts: object) -> Check:
    return wrong(f"variables.contradictions.{what}", **facts)


def _is(given: Mapping[str, VariableSetting], name: str, value: str) -> bool:
    return name in given and given[name].value.strip().lower() == value


def _network(given: Mapping[str, VariableSetting], host: Host) -> Iterator[Check]:
    """Check whether InfiniBand is disabled although it is requested or present."""
    off = _is(given, "NCCL_IB_DISABLE", "1")
    if off and _is(given, "NCCL_NET", "ib"):
        yield _wrong("no_network", unset=given["NCCL_IB_DISABLE"].unset("NCCL_IB_DISABLE"))
    active = [
        f"{device}/{port}"
        for device, port in ports(str(host.root))
        if "ACTIVE" in (host.text(f"sys/class/infiniband/{device}/ports/{port}/state") or "")
    ]
    name = "NCCL_IB_DISABLE" if off else "NCCL_NET"
    if active and (off or _is(given, "NCCL_NET", "socket")):
        set_, unset = given[name], given[name].unset(name)
        yield _wrong("sockets", name=name, value=set_.value, active=active, unset=unset)
    if off and "NCCL_IB_HCA" in given:
        yield _wrong("no_effect")


# -- interfaces ------------------------------------------------------------------------------------


def _interfaces(given: Mapping[str, VariableSetting], host: Host) -> Iterator[Check]:
    there = host.children("sys/class/net")
    named = [name for name in _INTERFACE_VARIABLES if name in given] if there else []
    instead = next((one for one in there if not one.startswith(_NOWHERE)), "…")
    for name in named:
        setting, exact = given[name], name != "NCCL_SOCKET_IFNAME"
        fits = select_names(setting.value, there, exact=exact)
        nowhere = all(one.startswith(_NOWHERE) for one in fits)
        told = {"name": name, "value": setting.value, "instead": instead}
        if not fits:
            yield _wrong("no_interface", **told, there=there)
        elif nowhere and not setting.value.startswith("^"):
            yield _wrong("internal", **told, fits=fits)


def select_names(value: str, there: Sequence[str], *, exact: bool = False) -> list[str]:
    """Return the names that a list such as "^=docker0,lo" or "eth" selects in NCCL."""
    exclude = value.startswith("^")
    rest = value.lstrip("^")
    exact = exact or rest.startswith("=")
    words = [word.partition(":")[0] for word in rest.lstrip("=").split(",") if word]
    fits = [one for one in there if any(one == w if exact else one.startswith(w) for w in words)]
    return [one for one in there if one not in fits] if exclude else fits


def _adapters(given: Mapping[str, VariableSetting], host: Host) -> Iterator[Check]:
    """Check the adapters selected by `NCCL_IB_HCA`."""
    there = host.children("sys/class/infiniband")
    hca = given.get("NCCL_IB_HCA")
    if hca is not None and there and not select_names(hca.value, there):
        yield _wrong("no_adapter", value=hca.value, there=there, first=there[0])


# -- numbers and addresses -------------------------------------------------------------------------


def _number(given: Mapping[str, VariableSetting], name: str) -> int | None:
    text = given[name].value.strip() if name in given else ""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _address(given: Mapping[str, VariableSetting]) -> Iterator[Check]:
    """Check for a MASTER_ADDR on this host in a job of several nodes."""
    address = given.get("MASTER_ADDR")
    nodes = _number(given, "GROUP_WORLD_SIZE") or _number(given, "SLURM_NNODES") or 1
    if address is not None and address.value in _LOCAL and nodes > 1:
        yield _wrong("address", value=address.value, nodes=nodes)
