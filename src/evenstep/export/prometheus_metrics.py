"""A run's numbers as metrics: families of samples with labels, whoever they are sent to.

Three sources: a diagnosis (a finished run), the step summaries of the spools (what is counted while
a job runs), and `live.json` (its latest window).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from evenstep.diagnose.finding import Diagnosis
from evenstep.trace.reader import SpoolContents
from evenstep.trace.spool.layout import Phase
from evenstep.trace.spool.toml import read_toml

COUNTER = "counter"
S = 1e-9  # seconds in a nanosecond


@dataclass(slots=True, frozen=True)
class MetricFamily:
    """Samples of one name. A counter's name ends in `_total`."""

    name: str
    kind: str
    unit: str  # as UCUM writes it: s, By, 1, J
    meaning: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)


class Families(dict[str, MetricFamily]):
    """Families by name, in the order they were first given a sample."""

    def add(self, name: str, value: float | None, **labels: object) -> None:
        """One sample; an unknown value is none."""
        if value is None:
            return
        kind, unit, meaning = MEANINGS[name]
        family = self.setdefault(name, MetricFamily(name, kind, unit, meaning))
        family.samples.append(({key: str(text) for key, text in labels.items()}, float(value)))


#: Every metric: kind, unit, what it means.
MEANINGS: Mapping[str, tuple[str, str, str]] = read_toml(Path(__file__).with_suffix(".toml"))


def of_diagnosis(diagnosis: Diagnosis, into: Families | None = None) -> Families:
    """What a diagnosis says."""
    found = Families() if into is None else into
    summary, run = diagnosis.summary, diagnosis.run
    found.add("evenstep_run_info", 1, run=run.get("run_id") or "", attempt=run.get("attempt", 0))
    found.add("evenstep_ranks", summary.get("ranks"))
    time = summary.get("step_time") or {}
    for statistic in ("mean", "p50", "p99"):
        value = time.get(f"{statistic}_ns")
        found.add("evenstep_step_time_seconds", _seconds(value), statistic=statistic)
    found.add("evenstep_step_time_cv", time.get("cv"))
    rate = summary.get("throughput") or {}
    found.add("evenstep_throughput", rate.get("value"), unit=rate.get("unit"))
    for part, share in (summary.get("shares") or {}).items():
        found.add("evenstep_time_share", share, part=part)
    hidden = summary.get("overlapped_communication")
    found.add("evenstep_overlapped_communication_share", hidden)
    wasted = summary.get("rank_hours_wasted")
    found.add("evenstep_wasted_seconds", None if wasted is None else wasted * 3600)
    _findings(diagnosis, found)
    return found


def _seconds(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns * S


def _findings(diagnosis: Diagnosis, found: Families) -> None:
    """Severity and culprits; a mode found twice is numbered."""
    seen: dict[str, int] = {}
    for finding in diagnosis.findings:
        number = seen[finding.mode] = seen.get(finding.mode, 0) + 1
        labels = {"mode": finding.mode, "layer": finding.layer, "number": number}
        found.add("evenstep_finding_severity", finding.severity, **labels)
        found.add("evenstep_finding_confidence", finding.confidence, **labels)
        for rank in finding.where.ranks:
            found.add("evenstep_finding_culprit", 1, **labels, rank=rank)


def of_spools(spools: Iterable[SpoolContents], into: Families | None = None) -> Families:
    """What the step summaries of some ranks count; these never get lost."""
    found = Families() if into is None else into
    for spool in spools:
        rows = spool.summaries
        if not len(rows):
            continue
        labels = {"rank": spool.identity["rank"], "node": spool.identity.get("hostname", "")}
        found.add("evenstep_steps_total", int(rows["count"].sum()), **labels)
        found.add("evenstep_step_seconds_total", rows["step_sum_ns"].sum() * S, **labels)
        for phase in Phase:
            spent = int(rows["phase_ns"][:, int(phase)].sum())
            name = phase.name.lower()
            found.add("evenstep_phase_seconds_total", spent * S, **labels, phase=name)
        for name in ("wait", "held", "pause", "agent"):
            spent = int(rows[f"{name}_ns"].sum())
            found.add(f"evenstep_{name}_seconds_total", spent * S, **labels)
        for name in ("collectives", "bytes", "samples"):
            found.add(f"evenstep_{name}_total", int(rows[name].sum()), **labels)
        stamp = int(rows["realtime_ns"].max()) * S
        found.add("evenstep_last_step_timestamp_seconds", stamp, **labels)
    return found


class _Report(msgspec.Struct):
    rank: int
    step_ns: float | None = None
    work_ns: float | None = None
    wait_ns: float | None = None
    delay_ns: float | None = None
    waits_known: int = 0


class _Late(msgspec.Struct):
    rank: int = -1
    share: float = 0.0


class Live(msgspec.Struct):
    """What is used of `live.json`: the latest window."""

    schema: Literal["evenstep.live/1"]
    ranks: list[_Report] = []
    late: _Late | None = None
    late_windows: dict[int, int] = {}


def of_live(live: Live, into: Families | None = None) -> Families:
    """What `live.json` says of the latest window."""
    found = Families() if into is None else into
    for report in live.ranks:
        for name in ("step", "work", "wait", "delay"):
            value = _seconds(getattr(report, f"{name}_ns"))
            if name == "wait" and not report.waits_known:
                value = None
            found.add(f"evenstep_window_{name}_seconds", value, rank=report.rank)
    late = live.late or _Late()
    found.add("evenstep_late_rank", late.rank)
    found.add("evenstep_late_share", late.share)
    for rank, windows in live.late_windows.items():
        found.add("evenstep_late_windows_total", windows, rank=rank)
    return found
