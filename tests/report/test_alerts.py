"""Findings that cost too much, told to a webhook."""

from dataclasses import replace

import pytest

from evenstep.export.posting import webhook
from evenstep.report.schema import schema
from tests.report.receiver import receiving


@pytest.fixture
def two(diagnosis, finding):
    diagnosis.findings.append(replace(finding, mode="locality", severity=0.03))
    return diagnosis


def test_only_findings_above_the_threshold_are_told(two):
    with receiving() as server:
        assert webhook(server.url, two, above=0.05) == 1
    assert [document["finding"]["mode"] for _, _, document in server.got] == ["straggler"]


def test_a_webhook_gets_each_finding_as_its_schema_says(two):
    validate = pytest.importorskip("jsonschema").validate
    with receiving() as server:
        webhook(server.url, two, above=0.02)
    assert [document["finding"]["mode"] for _, _, document in server.got] == [
        "straggler",
        "locality",
    ]
    for _, _, document in server.got:
        validate(document, schema("alert"))
        assert document["finding"]["title"] in document["text"]
