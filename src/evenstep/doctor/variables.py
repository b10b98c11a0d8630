"""Variables that steer NCCL, torch and gloo: misspelt, outdated, harmful or impossible ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.doctor.check import Check, Severity, Subject, or_ok
from evenstep.doctor.host import Host
from evenstep.trace.spool.folder import recorded_environment
from evenstep.trace.spool.toml import read_toml

NCCL_GUIDE = "NCCL user guide, Environment Variables"
_NEAR = 0.85  # similarity of names from which one is the other, misspelt
_CONF_FILES = ("etc/nccl.conf",)
_TOLD: dict[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
#: Names known, by the prefix that makes a variable one of its library's.
KNOWN: Mapping[str, frozenset[str]] = {
    prefix: frozenset(prefix + word for word in words.split())
    for prefix, words in _TOLD["names"].items()
}
FOREIGN: tuple[str, ...] = tuple(_TOLD["foreign"]["prefixes"])
RENAMED: Mapping[str, tuple[str, str]] = _TOLD["outdated"]


class VariableSetting(NamedTuple):
    """A variable's value, and who set it."""

    value: str  # never shown of a variable that may hold a secret
    place: str  # "the environment" or a file

    def unset(self, name: str) -> str:
        """The command that takes it away."""
        if self.place == "the environment":
            return f"unset {name}"
        return f"sed -i '/^{name}=/d' {self.place}"


def settings(host: Host) -> dict[str, VariableSetting]:
    """What NCCL sees: its files, and above them the environment."""
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
    """`NAME=value`, without the value of what may be a secret."""
    return f"{name}={setting.value}" if recorded_environment({name: setting.value}) else name


def checks(host: Host) -> Iterator[Check]:
    """What is wrong with each variable by itself."""
    given = settings(host)
    yield from names(given)
    yield from values(given)


# -- names -----------------------------------------------------------------------------------------


def names(given: Mapping[str, VariableSetting]) -> Iterator[Check]:
    """Variables that nothing reads."""
    ours = sorted(name for name in given if name.startswith(tuple(KNOWN)))
    subject = Subject("variables.names", NCCL_GUIDE)
    wrong = [check for name in ours if (check := _name(name, given[name])) is not None]
    fine = f"{len(ours)} set, all of them known" if ours else "none is set"
    yield from or_ok(wrong, subject.ok(fine))


def _name(name: str, setting: VariableSetting) -> Check | None:
    subject = Subject("variables.names", NCCL_GUIDE)
    if name in RENAMED:
        return _renamed(name, setting)
    prefix = next(prefix for prefix in KNOWN if name.startswith(prefix))
    if name in KNOWN[prefix] or name.startswith(FOREIGN):
        return None
    everything = sorted(name for known in KNOWN.values() for name in known)
    near = get_close_matches(name, everything, n=1, cutoff=_NEAR)
    if near:
        return subject.warning(
            f"{display(name, setting)} is set, and nothing reads that name",
            f"it looks like {near[0]} misspelt: what it was meant to change stays as it was",
            f"{setting.unset(name)}; export {display(near[0], setting)}",
        )
    return subject.advice(
        f"{display(name, setting)} is not among the variables that are documented",
        "it may do nothing, or something else in another version",
        f"{setting.unset(name)}, unless a plugin of yours reads it",
    )


def _renamed(name: str, setting: VariableSetting) -> Check:
    instead, since = RENAMED[name]
    renew = f"; export {instead}=… in its place" if instead else ""
    return Subject("variables.outdated", NCCL_GUIDE).advice(
        f"{display(name, setting)} is outdated since {since}",
        "new versions ignore it, or will",
        f"{setting.unset(name)}{renew}",
    )


# -- values ----------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """Values of a variable that do harm; the first words of `bad` say how its rest is read."""

    variable: str
    bad: str
    severity: str
    why: str
    source: str = ""
    mend: str = ""  # "": take it away

    def harms(self, value: str) -> bool:
        """Whether a value is one of them."""
        kind, words = _read(self.bad)
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
                return any(name not in words for name in _named(value))
            case "no power of two":
                return not value.isdecimal() or int(value).bit_count() != 1
        return bool(value)  # it is set


_ON = ("1", "true", "y", "yes")
_KINDS = ("one of", "none of", "outside", "begins", "names other than", "names")


def _read(condition: str) -> tuple[str, list[str]]:
    kind = next((kind for kind in _KINDS if condition.startswith(f"{kind} ")), condition)
    return kind, condition.removeprefix(kind).split()


def _named(value: str) -> list[str]:
    """The words of "^a,b;allreduce:c"."""
    parts = [part.rpartition(":")[2].lstrip("^") for part in value.lower().split(";")]
    return [word.strip() for part in parts for word in part.split(",") if word.strip()]


RULES = tuple(Rule(*row) for row in _TOLD["harm"]["rules"])


def values(given: Mapping[str, VariableSetting]) -> Iterator[Check]:
    """Values that do harm; of a variable, the worst thing that can be said."""
    worst: dict[str, Rule] = {}
    for rule in RULES:
        if rule.variable in given and rule.harms(given[rule.variable].value):
            known = worst.get(rule.variable)
            if known is None or Severity[rule.severity.upper()] > Severity[known.severity.upper()]:
                worst[rule.variable] = rule
    found = [_harm(rule, given[name]) for name, rule in worst.items()]
    yield from or_ok(found, Subject("variables.values", NCCL_GUIDE).ok("none does harm"))


def _harm(rule: Rule, setting: VariableSetting) -> Check:
    where = "" if setting.place == "the environment" else f" in {setting.place}"
    return Subject("variables.values", rule.source or NCCL_GUIDE).of(
        Severity[rule.severity.upper()],
        f"{rule.variable}={setting.value}{where}",
        rule.why,
        rule.mend or setting.unset(rule.variable),
    )
