"""Checks of NCCL, torch and gloo variables: misspelt, outdated, harmful or invalid ones, and those
that contradict each other or the hardware of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.doctor.check import Check, Severity, fine, or_ok, wrong
from evenstep.doctor.host import Host
from evenstep.host.sources.nic import ports
from evenstep.trace.spool.files import read_toml
from evenstep.trace.spool.folder import recorded_environment

NCCL_GUIDE = "NCCL user guide, Environment Variables"
_NEAR = 0.85  # similarity of names from which one is taken for a misspelling
_CONF_FILES = ("etc/nccl.conf",)
_DATA: dict[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
#: Known names by the prefix of their library.
KNOWN: Mapping[str, frozenset[str]] = {
    prefix: frozenset(prefix + word for word in words.split())
    for prefix, words in _DATA["names"].items()
}
FOREIGN: tuple[str, ...] = tuple(_DATA["foreign"]["prefixes"])
RENAMED: Mapping[str, tuple[str, str]] = _DATA["outdated"]


class VariableSetting(NamedTuple):
    """A variable's value, and where it is set."""

    value: str  # never shown if the variable may be a secret
    place: str  # "the environment" or a file

    def unset(self, name: str) -> str:
        if self.place == "the environment":
            return f"unset {name}"
        return f"sed -i '/^{name}=/d' {self.place}"


def settings(host: Host) -> dict[str, VariableSetting]:
    """Return the settings of NCCL: its files, overridden by the environment."""
    found: dict[str, VariableSetting] = {}
    named = host.environ.get("NCCL_CONF_FILE", "").lstrip("/")
    home = host.environ.get("HOME", "").lstrip("/")
    personal = named or (f"{home}/.nccl.conf" if home else "")
    for file in filter(None, (*_CONF_FILES, personal)):
        for line in (host.text(file) or "").splitlines():
            name, equals, value = line.strip().partition("=")
            if equals and not name.startswith("#"):
                found[name.strip()] = VariableSetting(value.strip(), f"/{file}")
    found.update({name: VariableSetting(v, "the environment") for name, v in host.environ.items()})
    return found


def display(name: str, setting: VariableSetting) -> str:
    """Return `NAME=value`, without the value of a possible secret."""
    return f"{name}={setting.value}" if recorded_environment({name: setting.value}) else name


def checks(host: Host) -> Iterator[Check]:
    given = settings(host)
    yield from names(given)
    yield from values(given)
    yield from contradictions(given, host)


# -- names -----------------------------------------------------------------------------------------


def names(given: Mapping[str, VariableSetting]) -> Iterator[Check]:
    ours = sorted(name for name in given if name.startswith(tuple(KNOWN)))
    found = [check for name in ours if (check := _name(name, given[name])) is not None]
    said = f"{len(ours)} set, all known" if ours else "none is set"
    yield from or_ok(found, fine("variables.names", said))


def _name(name: str, setting: VariableSetting) -> Check | None:
    facts = {"shown": display(name, setting), "unset": setting.unset(name)}
    if name in RENAMED:
        instead, since = RENAMED[name]
        renew = f"; export {instead}=… instead" if instead else ""
        return wrong("variables.outdated.outdated", **facts, since=since, renew=renew)
    prefix = next(prefix for prefix in KNOWN if name.startswith(prefix))
    if name in KNOWN[prefix] or name.startswith(FOREIGN):
        return None
    everything = sorted(name for known in KNOWN.values() for name in known)
    for near in get_close_matches(name, everything, n=1, cutoff=_NEAR):
        meant = display(near, setting)
        return wrong("variables.names.misspelt", **facts, near=near, meant=meant)
    return wrong("variables.names.undocumented", **facts)


# -- values ----------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """Harmful values of a variable; the first words of `bad` define how the rest is read."""

    variable: str
    bad: str
    severity: str
    why: str
    source: str = ""
    mend: str = ""  # "": unset it

    def harms(self, value: str) -> bool:
        kind = next((kind for kind in _KINDS if self.bad.startswith(f"{kind} ")), self.bad)
        words = self.bad.removeprefix(kind).split()
        plain = value.strip()
        match kind:
            case "on" | "off":
                return plain.lower() in (_ON if kind == "on" else ("0",))
            case "one of":
                return plain.upper() in words
            case "none of":
                return plain.upper() not in ["" if word == "-" else word for word in words]
            case "outside":
                low, high = map(int, words)
                return not (plain.lstrip("-").isdecimal() and low <= int(plain) <= high)
            case "begins":
                return plain.upper().startswith(words[0])
            case "names":
                return words[0] in value.lower() and "^" not in value
            case "names other than":
                parts = [part.rpartition(":")[2].lstrip("^") for part in value.lower().split(";")]
                names = (name.strip() for part in parts for name in part.split(","))  # "^a,b;all:c"
                return any(name and name not in words for name in names)
            case "no power of two":
                return not value.isdecimal() or int(value).bit_count() != 1
        return bool(value)  # "set"


_ON = ("1", "true", "y", "yes")
_KINDS = ("one of", "none of", "outside", "begins", "names other than", "names")


RULES = tuple(Rule(*row) for row in _DATA["harm"]["rules"])


def values(given: Mapping[str, VariableSetting]) -> Iterator[Check]:
    """Check for harmful values; yield the worst check of each variable."""
    worst: dict[str, Rule] = {}
    for rule in RULES:
        if rule.variable in given and rule.harms(given[rule.variable].value):
            known = worst.get(rule.variable)
            if known is None or Severity[rule.severity.upper()] > Severity[known.severity.upper()]:
                worst[rule.variable] = rule
    found = [_harm(rule, given[name]) for name, rule in worst.items()]
    yield from or_ok(found, fine("variables.values", "none is harmful"))


def _harm(rule: Rule, setting: VariableSetting) -> Check:
    where = "" if setting.place == "the environment" else f" in {setting.place}"
    return Check(
        name="variables.values",
        severity=Severity[rule.severity.upper()],
        found=f"{rule.variable}={setting.value}{where}",
        why=rule.why,
        mend=rule.mend or setting.unset(rule.variable),
        source=rule.source or NCCL_GUIDE,
    )


# -- contradictions --------------------------------------------------------------------------------

_LOCAL = ("localhost", "127.0.0.1", "::1")
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_NOWHERE = ("lo", "docker", "virbr", "veth")  # interfaces that lead to no other node


def contradictions(given: Mapping[str, VariableSetting], host: Host) -> Iterator[Check]:
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


def _number(given: Mapping[str, VariableSetting], name: str) -> int | None:
    text = given[name].value.strip() if name in given else ""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _address(given: Mapping[str, VariableSetting]) -> Iterator[Check]:
    """Check for a MASTER_ADDR on this host in a job of several nodes."""
    address = given.get("MASTER_ADDR")
    nodes = _number(given, "GROUP_WORLD_SIZE") or _number(given, "SLURM_NNODES") or 1
    if address is not None and address.value in _LOCAL and nodes > 1:
        yield _wrong("address", value=address.value, nodes=nodes)
