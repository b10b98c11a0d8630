"""Metrics of a run, and the Prometheus text format 0.0.4, in a file or from one port per node.

Metrics have three sources: a diagnosis, the step summaries of the spools (counters of a running
job), and `live/window.json` (its latest window).

https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import msgspec

from evenstep.diagnose.finding import Diagnosis
from evenstep.errors import TraceError, UsageError, refuse_as
from evenstep.trace.reader import SpoolContents, open_spool
from evenstep.trace.spool.files import read_toml
from evenstep.trace.spool.folder import RunFolder, read_facts
from evenstep.trace.spool.layout import Phase
from evenstep.trace.spools import spools_in

COUNTER = "counter"
S = 1e-9  # seconds in a nanosecond


@dataclass(slots=True, frozen=True)
class MetricFamily:
    """A metric and its samples. Names of counters end with `_total`."""

    name: str
    kind: str
    unit: str  # UCUM: s, By, 1, J
    meaning: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)


class Families(dict[str, MetricFamily]):
    """Metric families by name, in the order of their first samples."""

    def add(self, name: str, value: float | None, **labels: object) -> None:
        """Add a sample, unless its value is unknown (None)."""
        if value is None:
            return
        kind, unit, meaning = MEANINGS[name]
        family = self.setdefault(name, MetricFamily(name, kind, unit, meaning))
        family.samples.append(({key: str(text) for key, text in labels.items()}, float(value)))


#: Kind, unit and meaning of every metric.
MEANINGS: Mapping[str, tuple[str, str, str]] = read_toml(Path(__file__).with_suffix(".toml"))


def of_diagnosis(diagnosis: Diagnosis) -> Families:
    found = Families()
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
    """Add severity, confidence and culprits; findings of one mode are numbered."""
    seen: dict[str, int] = {}
    for finding in diagnosis.findings:
        number = seen[finding.mode] = seen.get(finding.mode, 0) + 1
        labels = {"mode": finding.mode, "layer": finding.layer, "number": number}
        found.add("evenstep_finding_severity", finding.severity, **labels)
        found.add("evenstep_finding_confidence", finding.confidence, **labels)
        for rank in finding.where.ranks:
            found.add("evenstep_finding_culprit", 1, **labels, rank=rank)


def of_spools(spools: Iterable[SpoolContents]) -> Families:
    """Return the counters in the step summaries of ranks, which cover all steps."""
    found = Families()
    for spool in spools:
        rows = spool.summaries
        if not len(rows):
            continue
        labels = {"rank": spool.identity["rank"], "node": spool.identity.get("hostname", "")}
        found.add("evenstep_steps_total", int(rows["count"].sum()), **labels)
        found.add("evenstep_step_seconds_total", rows["step_sum_ns"].sum() * S, **labels)
        for phase in Phase:
            spent, name = int(rows["phase_ns"][:, int(phase)].sum()), phase.name.lower()
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
    """The part of `live/window.json` that is exported: the latest window."""

    schema: Literal["evenstep.live/1"]
    ranks: list[_Report] = []
    late: _Late | None = None
    late_windows: dict[int, int] = {}


def of_live(live: Live) -> Families:
    found = Families()
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


# -- the text format -------------------------------------------------------------------------------

WAITING_S = 60.0  # timeout of a request
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(families: Mapping[str, MetricFamily]) -> str:
    lines = []
    for one in families.values():
        name, meaning = one.name, one.meaning.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {one.kind}"]
        for labels, value in one.samples:
            told = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
            lines.append(f"{name}{{{told}}} {_value(value)}" if told else f"{name} {_value(value)}")
    return "".join(f"{line}\n" for line in lines)


def _escape(text: str) -> str:
    text = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text.encode("utf-8", "replace").decode()


def _value(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def running(run: Path, *, node: str | None = None, anonymous: bool = False) -> Families:
    """Current metrics of a run, of the ranks on a node, or of all if none is there, from the spools
    of the latest attempt and `live/window.json`. Ranks just starting are left out."""
    folder = RunFolder(run)
    attempts = folder.attempts()
    places = spools_in(folder.spool_path(attempts[-1], 0).parent)[0] if attempts else []
    spools = []
    for place in places:
        with suppress(TraceError):
            spools.append(open_spool(place)[0])
    spools = [each for each in spools if each.identity.get("hostname") == node] or spools
    name = spools[0].identity.get("run_id", "") if spools else ""
    if anonymous:
        name = "anonymous"
        hosts = list(dict.fromkeys(each.identity.get("hostname") for each in spools))
        for each in spools:
            each.identity["hostname"] = f"node-{hosts.index(each.identity.get('hostname'))}"
    found = Families()
    found.add("evenstep_run_info", 1, run=name, attempt=attempts[-1] if attempts else 0)
    found.add("evenstep_ranks", len(spools))
    found |= of_spools(spools)
    with suppress(TraceError, msgspec.ValidationError):  # there may be no latest window
        latest = read_facts(run / "live" / "window.json")
        found |= of_live(msgspec.convert(latest, Live, str_keys=True))
    return found


def server(
    address: tuple[str, int], read: Callable[[], Families], *, token: str = ""
) -> ThreadingHTTPServer:
    """An HTTP server that answers /metrics with the result of `read`, with a token only to
    `Authorization: Bearer TOKEN`. Raises `UsageError` if the port is taken."""
    wanted = f"Bearer {token}".encode()

    class Handler(BaseHTTPRequestHandler):
        """Answers GET /metrics."""

        timeout = WAITING_S

        def do_GET(self) -> None:
            sent = self.headers.get("Authorization", "").encode("utf-8", "replace")
            if token and not hmac.compare_digest(sent, wanted):
                self.send_error(401, "send the bearer token printed by evenstep export --serve")
                return
            if self.path.partition("?")[0] not in ("/metrics", "/"):
                self.send_error(404, "use /metrics")
                return
            body = exposition(read()).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log no requests."""

    what = f"cannot listen on {address[0]}:{address[1]}"
    with refuse_as(UsageError, what, "; choose another address for --serve"):
        return ThreadingHTTPServer(address, Handler)
