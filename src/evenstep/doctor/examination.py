"""All checks of a host in order, their summary, and the summary as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from evenstep.doctor import (
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
from evenstep.doctor.check import Check, Severity, skip
from evenstep.doctor.host import Host
from evenstep.documents import Document, Meta, Natural
from evenstep.host.locality import locality
from evenstep.host.sources.nvml import NvmlError
from evenstep.report.terminal.style import Style
from evenstep.words import printable

_ROOMS = (versions, variables, processors, kernel, limits, network, pcie, gpus)
ROOMS: dict[str, Callable[[Host], Iterable[Check]]] = {
    room.__name__.rpartition(".")[2]: room.checks for room in _ROOMS
}


@dataclass(frozen=True, slots=True)
class Examination(Document):
    """The checks of a host and of files given in addition."""

    schema: ClassVar[str] = "evenstep.doctor/1"
    computed: ClassVar[tuple[str, ...]] = ("severity", "counts")

    host: str
    checks: tuple[Check, ...]
    topologies: tuple[topology.Topology, ...]

    @property
    def severity(self) -> Annotated[Severity, Meta("Severity of the worst check.")]:
        return max((check.severity for check in self.checks), default=Severity.OK)

    @property
    def counts(self) -> Annotated[dict[str, Natural], Meta("Number of checks by severity.")]:
        """The number of checks of each severity, worst first."""
        counts = Counter(check.severity for check in self.checks)
        return {severity.word: counts[severity] for severity in reversed(Severity)}


def examine(
    host: Host,
    also: Iterable[Check] = (),
    *,
    matrix: Path | None = None,
    tree: Path | None = None,
    log: Path | None = None,
) -> Examination:
    """Make all checks and add those in `also`; `matrix` (`nvidia-smi topo -m`), `tree` (lstopo) and
    `log` (NCCL) may be of another machine. `UsageError` for an unusable one, a log `TraceError`."""
    found: list[Check] = list(also)
    seen: list[topology.Topology] = []
    if matrix is not None:
        seen.append(topology.load(matrix))
    if tree is not None:
        layout, links = lstopo.load(tree)
        seen.append(layout)
        found += links
    if log is not None:
        found += nccl_log.checks(log, host)
    for name, checks in ROOMS.items():
        try:
            found.extend(checks(host))  # those before a driver fails stay
        except (OSError, NvmlError) as error:
            found.append(skip(f"{name}.rest", str(error)))
    if not seen:
        facts = locality(None, str(host.root), host.nvml, affinity=host.cpus, environ=host.environ)
        seen.append(topology.of_host(facts))
    found += [check for one in seen for check in topology.checks(one)]
    place = {name: number for number, name in enumerate(ROOMS)}
    found.sort(key=lambda check: place.get(check.name.partition(".")[0], len(place)))
    return Examination(host.name, tuple(found), tuple(seen))


# -- as text ---------------------------------------------------------------------------------------

_COLORS = {Severity.PROBLEM: "1;31", Severity.WARNING: "33", Severity.ADVICE: "36"}
_COUNTED = {
    Severity.PROBLEM: ("problem", "problems"),
    Severity.WARNING: ("warning", "warnings"),
    Severity.ADVICE: ("piece of advice", "pieces of advice"),
}
_WORD = 9  # columns of the severity before the observation


def render(
    found: Examination, *, every: bool = False, width: int | None = None, color: bool | None = None
) -> str:
    """Render the checks in at most `width` columns; `every` lists passed checks in full."""
    style = Style.of(width, color)
    of = {one: [check for check in found.checks if check.severity == one] for one in Severity}
    fine, unknown = of[Severity.OK], of[Severity.SKIPPED]
    counts = {words: len(of[one]) for one, words in _COUNTED.items() if of[one]}
    parts = [f"{count} {words[count != 1]}" for words, count in counts.items()]
    lines = style.wrap(
        f"{printable(found.host)}: {', '.join(parts) or 'no problems'}; {len(fine)} checks passed, "
        f"{len(unknown)} could not be made."
    )
    for check in (check for one in _COUNTED for check in of[one]):
        lines += ["", *_explained(check, style)]
    lines += _short("passed", fine, style, every=every)
    lines += _short("not checked", unknown, style, every=True)
    return "\n".join(lines) + "\n"


def _explained(check: Check, style: Style) -> Iterator[str]:
    """Render a failed check: observation, why it matters, fix, source."""
    word = check.severity.word
    first, *rest = style.wrap(printable(f"{check.name}: {check.found}"), first=word, indent=_WORD)
    yield style.paint(word, _COLORS[check.severity]) + first[len(word) :]
    yield from rest
    for label, text in (("why", check.why), ("fix", check.mend), ("from", check.source)):
        if text:
            head = " " * _WORD + label
            yield from style.wrap(printable(text), first=head, indent=_WORD + 6)


def _short(title: str, checks: Sequence[Check], style: Style, *, every: bool) -> Iterator[str]:
    """Render checks with a line each, or only their names in one paragraph."""
    if not checks:
        return
    yield ""
    if every:
        yield f"{title}:"
        for check in checks:
            text = printable(f"{check.name}: {check.found}")
            yield from style.wrap(text, first="  ", indent=2)
    else:
        yield from style.wrap(f"{title}: {', '.join(dict.fromkeys(c.name for c in checks))}")
