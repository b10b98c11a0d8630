"""Variables that steer NCCL, torch and gloo: misspelt, outdated, harmful or impossible ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from evenstep.doctor.check import Check, Severity, Subject, or_ok
from evenstep.doctor.host import Host
from evenstep.doctor.variable_names import FOREIGN, KNOWN, RENAMED
from evenstep.trace.spool.facts import recorded_environment

NCCL_GUIDE = "NCCL user guide, Environment Variables"
_NEAR = 0.85  # similarity of names from which one is the other, misspelt
_CONF_FILES = ("etc/nccl.conf",)
_OURS = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_")


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


def shown(name: str, setting: VariableSetting) -> str:
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
    ours = sorted(name for name in given if name.startswith(_OURS))
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
            f"{shown(name, setting)} is set, and nothing reads that name",
            f"it looks like {near[0]} misspelt: what it was meant to change stays as it was",
            f"{setting.unset(name)}; export {shown(near[0], setting)}",
        )
    return subject.advice(
        f"{shown(name, setting)} is not among the variables that are documented",
        "it may do nothing, or something else in another version",
        f"{setting.unset(name)}, unless a plugin of yours reads it",
    )


def _renamed(name: str, setting: VariableSetting) -> Check:
    instead, since = RENAMED[name]
    renew = f"; export {instead}=… in its place" if instead else ""
    return Subject("variables.outdated", NCCL_GUIDE).advice(
        f"{shown(name, setting)} is outdated since {since}",
        "new versions ignore it, or will",
        f"{setting.unset(name)}{renew}",
    )


# -- values ----------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """A value that does harm."""

    variable: str
    bad: Callable[[str], bool]
    severity: Severity
    why: str
    source: str = NCCL_GUIDE
    mend: str = ""  # "": take it away


def _on(value: str) -> bool:
    return value.strip().lower() in ("1", "true", "y", "yes")


def _off(value: str) -> bool:
    return value.strip() == "0"


def _outside(low: int, high: int) -> Callable[[str], bool]:
    return lambda value: not (value.strip().lstrip("-").isdecimal() and low <= int(value) <= high)


def _none_of(*words: str) -> Callable[[str], bool]:
    return lambda value: value.strip().upper() not in words


def _names_other_than(*words: str) -> Callable[[str], bool]:
    """Of "^a,b;allreduce:c": whether a word is none of these."""

    def bad(value: str) -> bool:
        parts = (part.rpartition(":")[2].lstrip("^") for part in value.lower().split(";"))
        named = (word.strip() for part in parts for word in part.split(","))
        return any(word and word not in words for word in named)

    return bad


def _no_power_of_two(value: str) -> bool:
    return not value.isdecimal() or int(value) < 1 or int(value) & (int(value) - 1) != 0


def _always(value: str) -> bool:
    return bool(value)


_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "0", "1", "2", "3", "4", "5")
_ALGORITHMS = (
    "ring", "tree", "collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat",
)  # fmt: skip
_LOGGING = "TORCH_DISTRIBUTED_DEBUG, torch.distributed documentation"
_CUDA = "CUDA C++ Programming Guide, Environment Variables"
_TORCH_NCCL = "torch, ProcessGroupNCCL.hpp"

RULES = (
    Rule("NCCL_P2P_DISABLE", _on, Severity.WARNING,
         "GPUs of a node exchange through host memory instead of NVLink or PCIe"),
    Rule("NCCL_P2P_LEVEL", lambda v: v.strip().upper() in ("LOC", "0"), Severity.WARNING,
         "GPUs of a node never reach each other's memory directly"),
    Rule("NCCL_P2P_LEVEL", _none_of(*_LEVELS), Severity.PROBLEM,
         "the level is none of LOC, NVL, PIX, PXB, PHB, SYS"),
    Rule("NCCL_SHM_DISABLE", _on, Severity.WARNING,
         "GPUs that cannot reach each other directly go through the network card"),
    Rule("NCCL_NET_GDR_LEVEL", lambda v: v.strip().upper() in ("LOC", "0"), Severity.WARNING,
         "the network never reads GPU memory by itself: every byte passes through the host"),
    Rule("NCCL_NET_GDR_LEVEL", _none_of(*_LEVELS), Severity.PROBLEM,
         "the level is none of LOC, PIX, PXB, PHB, SYS"),
    Rule("NCCL_DMABUF_ENABLE", _off, Severity.ADVICE,
         "without nvidia-peermem the network then cannot reach GPU memory by itself"),
    Rule("NCCL_NTHREADS", _none_of("64", "128", "256", "512"), Severity.PROBLEM,
         "only 64, 128, 256 and 512 are allowed"),
    Rule("NCCL_SOCKET_NTHREADS", _outside(1, 16), Severity.PROBLEM, "it must be 1 to 16"),
    Rule("NCCL_IB_TIMEOUT", _outside(0, 31), Severity.PROBLEM,
         "it must be 0 to 31; anything else never times out, so a lost link hangs the job"),
    Rule("NCCL_IB_TIMEOUT", lambda v: v.strip() == "0", Severity.WARNING,
         "0 never times out: a lost link hangs the job instead of ending it"),
    Rule("NCCL_IB_RETRY_CNT", _outside(0, 7), Severity.PROBLEM, "it must be 0 to 7"),
    Rule("NCCL_IB_QPS_PER_CONNECTION", _outside(1, 128), Severity.PROBLEM,
         "it must be 1 to 128"),
    Rule("NCCL_MAX_CTAS", _outside(1, 64), Severity.PROBLEM, "it must be 1 to 64"),
    Rule("NCCL_MIN_CTAS", _outside(1, 64), Severity.PROBLEM, "it must be 1 to 64"),
    Rule("NCCL_CROSS_NIC", _none_of("0", "1", "2"), Severity.PROBLEM, "it must be 0, 1 or 2"),
    Rule("NCCL_NVLS_ENABLE", _off, Severity.ADVICE,
         "NVSwitches of the fourth generation could reduce, and are not let to"),
    Rule("NCCL_BUFFSIZE", _no_power_of_two, Severity.ADVICE,
         "sizes that are powers of two are recommended; 4194304 is the default"),
    Rule("NCCL_ALGO", _names_other_than(*_ALGORITHMS), Severity.PROBLEM,
         "it names an algorithm there is none of; from NCCL 2.24 the job fails on it"),
    Rule("NCCL_ALGO", _always, Severity.ADVICE,
         "NCCL no longer chooses by size and topology; it is meant for experiments"),
    Rule("NCCL_PROTO", _names_other_than("ll", "ll128", "simple"), Severity.PROBLEM,
         "it names a protocol there is none of"),
    Rule("NCCL_PROTO", lambda v: "ll128" in v.lower() and "^" not in v, Severity.WARNING,
         "LL128 forced on a platform that does not support it can corrupt data"),
    Rule("NCCL_PROTO", _always, Severity.ADVICE,
         "NCCL no longer chooses by size; it is meant for experiments"),
    Rule("NCCL_DEBUG", _none_of("VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE", ""),
         Severity.WARNING, "the level is none of VERSION, WARN, INFO, TRACE: nothing is logged"),
    Rule("NCCL_DEBUG", lambda v: v.strip().upper() == "TRACE", Severity.WARNING,
         "every call of every rank writes a line", mend="export NCCL_DEBUG=WARN"),
    Rule("NCCL_LAUNCH_MODE", lambda v: v.strip().upper() == "GROUP", Severity.WARNING,
         "cooperative launch is deprecated since 2.9 and serialises kernels"),
    Rule("NCCL_CHECK_MODE", lambda v: v.strip().upper().startswith("DEBUG"), Severity.ADVICE,
         "arguments are checked on each call, which adds latency"),
    Rule("NCCL_RAS_ENABLE", _off, Severity.ADVICE,
         "a job that hangs can then not be asked which rank is missing"),
    Rule("CUDA_LAUNCH_BLOCKING", _on, Severity.PROBLEM,
         "the host waits for every kernel: nothing overlaps, collectives neither", _CUDA),
    Rule("TORCH_DISTRIBUTED_DEBUG", lambda v: v.strip().upper() == "DETAIL", Severity.WARNING,
         "each collective is preceded by one that compares it on all ranks", _LOGGING),
    Rule("TORCH_NCCL_BLOCKING_WAIT", _on, Severity.WARNING,
         "wait() blocks the host until the collective has ended: launches no longer run ahead",
         _TORCH_NCCL),
    Rule("TORCH_NCCL_ASYNC_ERROR_HANDLING", _off, Severity.WARNING,
         "when one rank fails the others wait for ever", _TORCH_NCCL),
    Rule("TORCH_NCCL_ENABLE_MONITORING", _off, Severity.ADVICE,
         "a stuck watchdog is not noticed, and holds the job's nodes", _TORCH_NCCL),
    Rule("TORCH_NCCL_NAN_CHECK", _on, Severity.ADVICE,
         "every buffer is read once more before it is sent", _TORCH_NCCL),
)  # fmt: skip


def values(given: Mapping[str, VariableSetting]) -> Iterator[Check]:
    """Values that do harm; of a variable, the worst thing that can be said."""
    worst: dict[str, Rule] = {}
    for rule in RULES:
        if rule.variable in given and rule.bad(given[rule.variable].value):
            known = worst.get(rule.variable)
            if known is None or rule.severity > known.severity:
                worst[rule.variable] = rule
    found = [_harm(rule, given[name]) for name, rule in worst.items()]
    yield from or_ok(found, Subject("variables.values", NCCL_GUIDE).ok("none does harm"))


def _harm(rule: Rule, setting: VariableSetting) -> Check:
    where = "" if setting.place == "the environment" else f" in {setting.place}"
    return Subject("variables.values", rule.source).of(
        rule.severity,
        f"{rule.variable}={setting.value}{where}",
        rule.why,
        rule.mend or setting.unset(rule.variable),
    )
