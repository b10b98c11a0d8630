"""Metrics pushed with OTLP over HTTP, JSON-encoded: what an OpenTelemetry collector takes.

https://opentelemetry.io/docs/specs/otlp (OTLP/HTTP), opentelemetry/proto/metrics/v1/metrics.proto
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.export.posting import checked, post
from evenstep.export.prometheus_metrics import COUNTER, MetricFamily

CUMULATIVE = 2  # AggregationTemporality


def push(
    families: Mapping[str, MetricFamily], url: str, *, time_ns: int, resource: Mapping[str, str]
) -> None:
    """Send the metrics. A URL without a path gets the standard one, /v1/metrics.

    Raises `UsageError` where the collector cannot be reached or refuses.
    """
    purpose = "OTLP metrics"
    bare = checked(url, purpose).path in ("", "/")
    where = f"{url.rstrip('/')}/v1/metrics" if bare else url
    post(where, request(families, time_ns=time_ns, resource=resource), purpose=purpose)


def request(
    families: Mapping[str, MetricFamily], *, time_ns: int, resource: Mapping[str, str]
) -> dict[str, Any]:
    """The message ExportMetricsServiceRequest."""
    metrics = [_metric(family, str(time_ns)) for family in families.values()]
    scope = {"scope": {"name": "evenstep"}, "metrics": metrics}
    return {
        "resourceMetrics": [
            {"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scope]}
        ]
    }


def _metric(family: MetricFamily, time_ns: str) -> dict[str, Any]:
    points = [
        {"timeUnixNano": time_ns, "asDouble": value, "attributes": _attributes(labels)}
        for labels, value in family.samples
    ]
    told = {"name": family.name, "description": family.meaning, "unit": family.unit}
    if family.kind == COUNTER:
        total = {"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": True}
        return {**told, "sum": total}
    return {**told, "gauge": {"dataPoints": points}}


def _attributes(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in labels.items()]
