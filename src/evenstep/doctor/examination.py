"""All checks of a host, in order, and what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from evenstep.doctor import (
    contradictions,
    gpus,
    kernel,
    limits,
    lstopo,
    nccl_log,
    network,
    pcie,
    processors,
    topology,
    variables,
    versions,
)
from evenstep.doctor.check import Check, Severity, skipped
from evenstep.doctor.host import Host
from evenstep.documents import Document, Meta, Natural
from evenstep.host.locality import locality
from evenstep.host.sources.nvml_library import NvmlError

SCHEMA = "evenstep.doctor/1"
ROOMS: tuple[tuple[str, Callable[[Host], Iterable[Check]]], ...] = (
    ("versions", versions.checks),
    ("variables", variables.checks),
    ("contradictions", contradictions.checks),
    ("processors", processors.checks),
    ("kernel", kernel.checks),
    ("limits", limits.checks),
    ("network", network.checks),
    ("pcie", pcie.checks),
    ("gpus", gpus.checks),
)


class ForeignFiles(NamedTuple):
    """What another machine has told."""

    matrix: Path | None = None  # of `nvidia-smi topo -m`
    lstopo: Path | None = None
    nccl_log: Path | None = None


@dataclass(frozen=True, slots=True)
class Examination(Document):
    """What was found on a host and in what was given beside it."""

    schema: ClassVar[str] = SCHEMA
    computed: ClassVar[tuple[str, ...]] = ("severity", "counts")

    host: str
    checks: tuple[Check, ...]
    topologies: tuple[topology.Topology, ...]

    @property
    def severity(self) -> Annotated[Severity, Meta("Of the worst check.")]:
        """That of the worst check."""
        return max((check.severity for check in self.checks), default=Severity.OK)

    @property
    def counts(self) -> Annotated[dict[str, Natural], Meta("Checks of each severity.")]:
        """How many checks are of each severity, the worst first."""
        counts = Counter(check.severity for check in self.checks)
        return {severity.word: counts[severity] for severity in reversed(Severity)}


def examine(
    host: Host,
    given: ForeignFiles = ForeignFiles(),  # noqa: B008 - it is immutable
    also: Iterable[Check] = (),
) -> Examination:
    """Make every check; `also` was made elsewhere. Raises `UsageError` for an unusable file."""
    found: list[Check] = list(also)
    seen: list[topology.Topology] = []
    if given.matrix is not None:
        seen.append(topology.load(given.matrix))
    if given.lstopo is not None:
        told, links = lstopo.load(given.lstopo)
        seen.append(told)
        found += links
    if given.nccl_log is not None:
        facts = nccl_log.load(given.nccl_log)
        found += nccl_log.checks(facts, str(given.nccl_log), host)
    for name, checks in ROOMS:
        found += _made(name, checks, host)
    if not seen:
        facts = locality(None, str(host.root), host.nvml, affinity=host.cpus, environ=host.environ)
        seen.append(topology.of_host(facts))
    found += [check for one in seen for check in topology.checks(one)]
    order = [name for name, _ in ROOMS]
    found.sort(key=lambda check: order.index(r) if (r := _room(check)) in order else len(order))
    return Examination(host.name, tuple(found), tuple(seen))


def _room(check: Check) -> str:
    return check.name.partition(".")[0]


def _made(name: str, checks: Callable[[Host], Iterable[Check]], host: Host) -> list[Check]:
    """The checks of a room; a driver that fails in the middle of it takes the rest with it."""
    made: list[Check] = []
    try:
        made.extend(checks(host))
    except (OSError, NvmlError) as error:
        made.append(skipped(f"{name}.rest", str(error)))
    return made
