"""OTLP over HTTP: what a collector receives, parsed by OpenTelemetry's own messages."""

import json

import pytest

from evenstep.errors import UsageError
from evenstep.export.posting import post, push, request
from evenstep.export.prometheus import Families, of_diagnosis
from tests.report.receiver import receiving

TIME_NS = 1_700_000_000_123_456_789  # beyond what a float holds exactly


def test_a_collector_receives_every_sample_of_a_diagnosis(diagnosis):
    families = of_diagnosis(diagnosis)
    with receiving() as collector:
        push(families, collector.url, time_ns=TIME_NS, resource={"service.name": "evenstep"})
    [(path, kind, document)] = collector.got
    assert (path, kind) == ("/v1/metrics", "application/json")
    metrics = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    assert {metric["name"] for metric in metrics} == families.keys()
    assert sum(len(metric["gauge"]["dataPoints"]) for metric in metrics) == sum(
        len(family.samples) for family in families.values()
    )


def test_the_message_is_one_that_opentelemetry_reads(diagnosis):
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    from google.protobuf import json_format

    families = of_diagnosis(diagnosis)
    families.add("evenstep_steps_total", 12, rank=0)
    document = json.dumps(request(families, time_ns=TIME_NS, resource={"service.name": "x"}))
    read = json_format.Parse(document, service.ExportMetricsServiceRequest())
    metrics = {m.name: m for m in read.resource_metrics[0].scope_metrics[0].metrics}
    assert metrics["evenstep_throughput"].gauge.data_points[0].as_double == 213.3
    assert metrics["evenstep_throughput"].gauge.data_points[0].time_unix_nano == TIME_NS
    assert metrics["evenstep_steps_total"].sum.is_monotonic


def test_a_path_that_is_given_is_kept():
    with receiving() as collector:
        push(Families(), f"{collector.url}/mine", time_ns=1, resource={})
        push(Families(), f"{collector.url}?team=a", time_ns=1, resource={})
    assert [path for path, *_ in collector.got] == ["/mine", "/v1/metrics?team=a"]


def test_a_collector_that_refuses_is_one_sentence():
    with receiving(503) as collector, pytest.raises(UsageError, match="refused OTLP metrics: 503"):
        push(Families(), collector.url, time_ns=1, resource={})


@pytest.mark.parametrize(
    "url",
    ["http://h/a b", "http://h:x/", "http://[::1", "http://h\n/", "http://h:99999/", "http://:80/"],
)
def test_a_url_that_is_none_is_one_sentence(url):
    with pytest.raises(UsageError, match="needs a URL"):
        push(Families(), url, time_ns=1, resource={})


def test_errors_show_neither_password_nor_path_nor_query():
    with receiving(503) as collector:
        address = collector.url.removeprefix("http://")
        secret = f"http://user:hunter2@{address}/T0/hunter2?key=hunter2"
        with pytest.raises(UsageError, match=f"http://{address} refused") as refused:
            post(secret, {}, purpose="a finding")
    with pytest.raises(UsageError, match="cannot reach") as gone:
        post(secret, {}, purpose="a finding")
    assert "hunter2" not in f"{refused.value} {gone.value}"


def test_a_collector_that_is_not_there_is_one_sentence():
    with receiving() as collector:
        gone = collector.url
    with pytest.raises(UsageError, match=r"cannot reach .* check the URL"):
        push(Families(), gone, time_ns=1, resource={})


@pytest.mark.parametrize("url", ["collector:4318", "file:///etc/passwd", "http://"])
def test_only_web_addresses_are_posted_to(url):
    with pytest.raises(UsageError, match="needs a URL that begins with http"):
        push(Families(), url, time_ns=1, resource={})
