"""JSON posted to a server: findings to a webhook, metrics to an OpenTelemetry collector.

https://opentelemetry.io/docs/specs/otlp (OTLP/HTTP), opentelemetry/proto/metrics/v1/metrics.proto
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, ClassVar, TypedDict
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import Request, urlopen

from evenstep.diagnose.finding import Diagnosis, Finding
from evenstep.documents import Document
from evenstep.errors import UsageError
from evenstep.export.prometheus import COUNTER, MetricFamily

TIMEOUT_S = 10.0


def post(url: str, document: Any, *, purpose: str) -> None:
    """POST a document. Raises `UsageError` if that fails."""
    parts, place = check_url(url, purpose), redacted_url(url)
    headers = {"Content-Type": "application/json"}
    if parts.username is not None:  # urllib would take it as part of the host
        given = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(given.encode()).decode()}"
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    body = json.dumps(document, allow_nan=False).encode()
    try:
        request = Request(url, body, headers, method="POST")
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()
    except HTTPError as error:
        raise UsageError(f"{place} refused {purpose}: {error.code} {error.reason}") from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        reason = str(getattr(error, "reason", None) or error).replace(url, place)
        raise UsageError(f"cannot reach {place} for {purpose}: {reason}; check the URL") from None


def check_url(url: str, purpose: str) -> SplitResult:
    """Split an HTTP URL. Raises `UsageError` if it is invalid."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        what = "needs a URL that begins with http:// or https:// and has no spaces"
        raise UsageError(f"{purpose} {what}")
    return parts


def redacted_url(url: str) -> str:
    """Return a checked URL for messages, without user, password, path and query: secrets, maybe."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


# -- findings --------------------------------------------------------------------------------------


class AlertRun(TypedDict):
    """The run of an alert."""

    run_id: str | None
    attempt: int | None
    world: int | None


@dataclass(frozen=True)
class Alert(Document):
    """The JSON that a webhook receives for a finding."""

    schema: ClassVar[str] = "evenstep.alert/1"

    run: AlertRun
    text: str
    finding: Finding


def webhook(url: str, diagnosis: Diagnosis, *, above: float) -> int:
    """POST every finding of a higher severity as JSON, one request each, worst first; return how
    many. Raises `UsageError` if the server cannot be reached or refuses."""
    fact = diagnosis.run.get
    run: AlertRun = {
        "run_id": fact("run_id"), "attempt": fact("attempt"), "world": fact("world")
    }  # fmt: skip
    told = [finding for finding in diagnosis.findings if (finding.severity or 0.0) > above]
    for finding in told:
        text = f"evenstep: {finding.title} in {run['run_id'] or 'run'}: {finding.observation}"
        post(url, Alert(run, text, finding).to_json(), purpose="a finding")
    return len(told)


# -- OpenTelemetry ---------------------------------------------------------------------------------

CUMULATIVE = 2  # AggregationTemporality


def push(
    families: Mapping[str, MetricFamily], url: str, *, time_ns: int, resource: Mapping[str, str]
) -> None:
    """Send metrics; a URL without a path gets the standard one, /v1/metrics. Raises `UsageError` if
    the collector cannot be reached or refuses."""
    purpose = "OTLP metrics"
    parts = check_url(url, purpose)
    where = parts._replace(path="/v1/metrics").geturl() if parts.path in ("", "/") else url
    post(where, request(families, time_ns=time_ns, resource=resource), purpose=purpose)


def request(
    families: Mapping[str, MetricFamily], *, time_ns: int, resource: Mapping[str, str]
) -> dict[str, Any]:
    """Return the message ExportMetricsServiceRequest."""
    metrics = [_metric(family, str(time_ns)) for family in families.values()]
    scope = {"scope": {"name": "evenstep"}, "metrics": metrics}
    metrics_of = {"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scope]}
    return {"resourceMetrics": [metrics_of]}


def _metric(family: MetricFamily, time_ns: str) -> dict[str, Any]:
    points = [
        {"timeUnixNano": time_ns, "asDouble": value, "attributes": _attributes(labels)}
        for labels, value in family.samples
    ]
    metric = {"name": family.name, "description": family.meaning, "unit": family.unit}
    if family.kind == COUNTER:
        total = {"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": True}
        return {**metric, "sum": total}
    return {**metric, "gauge": {"dataPoints": points}}


def _attributes(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in labels.items()]
