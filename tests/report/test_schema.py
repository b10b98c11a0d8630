"""The published schemas are schemas, and what evenstep prints fits them."""

import json

import pytest

from evenstep.diagnose.comparison import compare
from evenstep.diagnose.comparison_account import account
from evenstep.diagnose.comparison_result import normalised_json
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import LAYERS, PATTERNS, SCHEMA
from evenstep.errors import UsageError
from evenstep.report.schema import published, schema
from evenstep.trace.layout import Phase
from tests.diagnose.synthetic import MS, World, with_missing

jsonschema = pytest.importorskip("jsonschema")

WORLDS = {
    "healthy": World(),
    "straggler": World(noise=0.02, samples=8).slow(2, Phase.BACKWARD, 20 * MS),
    "without phases": World(phases=False).slow(1, Phase.INPUT, 20 * MS),
    "without collectives": World(collectives=False),
    "on a device": World(on_device=True, ranks_per_node=2),
    "one rank": World(ranks=1),
    "short": World(steps=2),
}


def fits(document, name):
    jsonschema.Draft202012Validator(schema(name)).validate(json.loads(json.dumps(document)))


@pytest.mark.parametrize("name", published())
def test_each_schema_is_one(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))
    assert schema(name)["properties"]["schema"]["const"] == f"evenstep.{name.replace('-', '/')}"


@pytest.mark.parametrize("name", WORLDS)
def test_every_diagnosis_fits_its_schema(name):
    fits(diagnose(WORLDS[name].trace()).to_json(), "diagnosis-1")


def test_a_diagnosis_of_a_part_of_the_ranks_fits():
    fits(diagnose(with_missing(World().trace(), 1)).to_json(), "diagnosis-1")


@pytest.mark.parametrize("damage", ["severity", "mode", "where", "options"])
def test_a_finding_without_one_of_its_keys_does_not_fit(damage):
    document = json.loads(json.dumps(diagnose(WORLDS["straggler"].trace()).to_json()))
    del document["findings"][0][damage]
    with pytest.raises(jsonschema.ValidationError, match=damage):
        fits(document, "diagnosis-1")


def test_words_of_the_schema_are_those_of_the_contract():
    finding = schema("diagnosis")["$defs"]["finding"]["properties"]
    assert tuple(finding["layer"]["enum"]) == LAYERS
    assert tuple(finding["when"]["properties"]["pattern"]["enum"]) == (*PATTERNS, None)
    assert schema("diagnosis")["properties"]["schema"]["const"] == SCHEMA


@pytest.mark.parametrize("form", [lambda found: found.to_json(), normalised_json])
def test_a_comparison_fits_with_and_without_absolute_numbers(form):
    runs = []
    for name in ("healthy", "straggler"):
        trace = WORLDS[name].trace()
        runs.append(account(name, trace, diagnose(trace)))
    run = {"name": "x", "run_id": None, "ranks": 4, "nodes": 1, "steps": 57}
    document = {"schema": "evenstep.comparison/1", "baseline": run, "failed": []}
    fits({**document, "comparisons": [{**form(compare(*runs)), "run": run}]}, "comparison-1")


def test_an_unknown_schema_is_one_sentence():
    with pytest.raises(UsageError, match="there is no schema 'x'; there are: alert-1, "):
        schema("x")
