"""Variables that contradict each other, or what the host has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from evenstep.doctor.check import Check, Subject, listed, or_ok
from evenstep.doctor.host import Host
from evenstep.doctor.variables import NCCL_GUIDE, VariableSetting, settings
from evenstep.host.sources.infiniband import ports

_SUBJECT = Subject("variables.contradictions", NCCL_GUIDE)
_LOCAL = ("localhost", "127.0.0.1", "::1")
_MOST_SOCKETS = 64  # NCCL user guide, NCCL_SOCKET_NTHREADS
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_NOWHERE = ("lo", "docker", "virbr", "veth")  # interfaces that lead to no other node


def checks(host: Host) -> Iterator[Check]:
    """All contradictions."""
    given = settings(host)
    found = [
        *_network(given, host),
        *_interfaces(given, host),
        *_adapters(given, host),
        *_bounds(given),
        *_address(given),
    ]
    yield from or_ok(found, _SUBJECT.ok("none"))


def _is(given: Mapping[str, VariableSetting], name: str, value: str) -> bool:
    return name in given and given[name].value.strip().lower() == value


def _network(given: Mapping[str, VariableSetting], host: Host) -> Iterator[Check]:
    """InfiniBand switched off, and asked for or present."""
    off = _is(given, "NCCL_IB_DISABLE", "1")
    if off and _is(given, "NCCL_NET", "ib"):
        yield _SUBJECT.problem(
            "NCCL_IB_DISABLE=1 beside NCCL_NET=IB",
            "NCCL finds no network it may use and ends",
            given["NCCL_IB_DISABLE"].unset("NCCL_IB_DISABLE"),
        )
    active = [
        f"{device}/{port}" for device, port in ports(str(host.root)) if _up(host, device, port)
    ]
    sockets = "NCCL_IB_DISABLE" if off else "NCCL_NET"
    if active and (off or _is(given, "NCCL_NET", "socket")):
        yield _SUBJECT.problem(
            f"{sockets}={given[sockets].value}, but {listed(active)} could carry the traffic",
            "everything between nodes goes through TCP and the host's cores instead of RDMA",
            given[sockets].unset(sockets),
        )
    if off and "NCCL_IB_HCA" in given:
        yield _SUBJECT.advice(
            "NCCL_IB_HCA has no effect beside NCCL_IB_DISABLE=1",
            "the adapters it names are not used",
            "unset one of the two",
        )


def _up(host: Host, device: str, port: str) -> bool:
    state = host.text(f"sys/class/infiniband/{device}/ports/{port}/state") or ""
    return "ACTIVE" in state


# -- interfaces ------------------------------------------------------------------------------------


def _interfaces(given: Mapping[str, VariableSetting], host: Host) -> Iterator[Check]:
    there = host.children("sys/class/net")
    for name in _INTERFACE_VARIABLES:
        if name in given and there:
            exact = name != "NCCL_SOCKET_IFNAME"
            yield from _interface(name, given[name], there, exact=exact)


def _interface(
    name: str, setting: VariableSetting, there: Sequence[str], *, exact: bool
) -> Iterator[Check]:
    fits = chosen(setting.value, there, exact=exact)
    if not fits:
        yield _SUBJECT.problem(
            f"{name}={setting.value} fits no interface; there are {listed(there)}",
            "ranks find no address to meet at, and fail or hang at the start",
            f"export {name}={_suggested(there)}",
        )
    elif not setting.value.startswith("^") and all(one.startswith(_NOWHERE) for one in fits):
        yield _SUBJECT.warning(
            f"{name}={setting.value} chooses {listed(fits)}, which leads to no other node",
            "jobs on several nodes cannot connect",
            f"export {name}={_suggested(there)}",
        )


def chosen(value: str, there: Sequence[str], *, exact: bool = False) -> list[str]:
    """Names that a list such as "^=docker0,lo" or "eth" chooses, as NCCL reads it."""
    exclude = value.startswith("^")
    rest = value.lstrip("^")
    exact = exact or rest.startswith("=")
    words = [word.partition(":")[0] for word in rest.lstrip("=").split(",") if word]
    fits = [one for one in there if any(one == w if exact else one.startswith(w) for w in words)]
    return [one for one in there if one not in fits] if exclude else fits


def _suggested(there: Sequence[str]) -> str:
    useful = [name for name in there if not name.startswith(_NOWHERE)]
    return useful[0] if useful else "…"


def _adapters(given: Mapping[str, VariableSetting], host: Host) -> Iterator[Check]:
    """`NCCL_IB_HCA` and what it chooses; the address index of RoCE."""
    there = host.children("sys/class/infiniband")
    hca = given.get("NCCL_IB_HCA")
    if hca is not None and there:
        fits = chosen(hca.value, there)
        if not fits:
            yield _SUBJECT.problem(
                f"NCCL_IB_HCA={hca.value} fits no adapter; there are {listed(there)}",
                "NCCL falls back to TCP sockets",
                f"export NCCL_IB_HCA=={there[0]}",
            )
        elif _reaches_further(hca.value, fits):
            yield _SUBJECT.advice(
                f"NCCL_IB_HCA={hca.value} chooses {listed(fits)}: names are prefixes",
                "mlx5_1 is also mlx5_10 to mlx5_19",
                f"export NCCL_IB_HCA=={hca.value}",
            )
    yield from _address_index(given, host, there)


def _reaches_further(value: str, fits: Sequence[str]) -> bool:
    """Whether a full name such as mlx5_1 also fits others."""
    words = [word.partition(":")[0] for word in value.split(",")]
    plain = not value.startswith(("^", "="))
    return plain and any(
        word in fits and any(one != word and one.startswith(word) for one in fits) for word in words
    )


def _address_index(
    given: Mapping[str, VariableSetting], host: Host, there: Sequence[str]
) -> Iterator[Check]:
    index = given.get("NCCL_IB_GID_INDEX")
    if index is None or not index.value.isdecimal():
        return
    types = {d: _address_type(host, d, index.value) for d in there if _is_roce(host, d)}
    old = [device for device, kind in types.items() if kind != "RoCE v2"]
    if types and old:
        yield _SUBJECT.problem(
            f"NCCL_IB_GID_INDEX={index.value} is no RoCE v2 address on {listed(old)}",
            "queue pairs fail (ibv_modify_qp), or packets are not routed between subnets",
            f"{index.unset('NCCL_IB_GID_INDEX')}: NCCL chooses by itself since 2.21",
        )


def _is_roce(host: Host, device: str) -> bool:
    layer = host.text(f"sys/class/infiniband/{device}/ports/1/link_layer")
    return layer == "Ethernet"


def _address_type(host: Host, device: str, index: str) -> str | None:
    return host.text(f"sys/class/infiniband/{device}/ports/1/gid_attrs/types/{index}")


# -- numbers and addresses -------------------------------------------------------------------------


def _bounds(given: Mapping[str, VariableSetting]) -> Iterator[Check]:
    for low, high in (("MIN_CTAS", "MAX_CTAS"), ("MIN_NCHANNELS", "MAX_NCHANNELS")):
        least, most = _number(given, f"NCCL_{low}"), _number(given, f"NCCL_{high}")
        if least is not None and most is not None and least > most:
            yield _SUBJECT.problem(
                f"NCCL_{low}={least} is above NCCL_{high}={most}",
                "no number of channels satisfies both",
                f"unset NCCL_{low} NCCL_{high}",
            )
    threads = _number(given, "NCCL_SOCKET_NTHREADS") or 1
    sockets = _number(given, "NCCL_NSOCKS_PERTHREAD") or 1
    if threads * sockets > _MOST_SOCKETS:
        yield _SUBJECT.problem(
            f"NCCL_SOCKET_NTHREADS × NCCL_NSOCKS_PERTHREAD is {threads * sockets}",
            f"the product must not be above {_MOST_SOCKETS}",
            "export NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4",
        )
    if _is(given, "NCCL_GRAPH_STREAM_ORDERING", "0") and _is(
        given, "NCCL_GRAPH_MIXING_SUPPORT", "1"
    ):
        yield _SUBJECT.problem(
            "NCCL_GRAPH_STREAM_ORDERING=0 beside NCCL_GRAPH_MIXING_SUPPORT=1",
            "the two together are not supported",
            "unset NCCL_GRAPH_STREAM_ORDERING",
        )


def _number(given: Mapping[str, VariableSetting], name: str) -> int | None:
    text = given[name].value.strip() if name in given else ""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _address(given: Mapping[str, VariableSetting]) -> Iterator[Check]:
    """A meeting point on this host, for ranks of several."""
    address = given.get("MASTER_ADDR")
    nodes = next(
        (n for name in ("GROUP_WORLD_SIZE", "SLURM_NNODES") if (n := _number(given, name))), 1
    )
    if address is not None and address.value in _LOCAL and nodes > 1:
        yield Subject("variables.contradictions", "torch.distributed documentation").problem(
            f"MASTER_ADDR={address.value}, and the job has {nodes} nodes",
            "each node waits for ranks that meet on another",
            "export MASTER_ADDR=<name of the node of rank 0>",
        )
