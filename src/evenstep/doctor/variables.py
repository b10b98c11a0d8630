"""Checks of NCCL, torch and gloo variables: misspelt, outdated, harmful or invalid ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.doctor.check import Check, Severity, fine, or_ok, wrong
from evenstep.doctor.host import Host
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
                return any(name not in words for name in _split_names(value))
            case "no power of two":
                return not value.isdecimal() or int(value).bit_count() != 1
        return bool(value)  # "set"


_ON = ("1", "true", "y", "yes")
_KINDS = ("one of", "none of", "outside", "begins", "names other than", "names")


def _split_names(value: str) -> list[str]:
    """Return the names in "^a,b;allreduce:c"."""
    parts = [part.rpartition(":")[2].lstrip("^") for part in value.lower().split(";")]
    return [word.strip() for part in parts for word in part.split(",") if word.strip()]


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
