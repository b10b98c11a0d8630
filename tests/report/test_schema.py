"""The published schemas are schemas, and what evenstep prints fits them."""

import json

import pytest

from docs import schemas
from evenstep.diagnose.compare.comparison import account, compare
from evenstep.diagnose.compare.result import normalised_json
from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import LAYERS, PATTERNS, SCHEMA
from evenstep.errors import UsageError
from evenstep.probe.document import document, floors
from evenstep.probe.findings import judge
from evenstep.report.schema import published_schemas, schema
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World, with_missing
from tests.probe import measured

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

#: Objects that may hold more than is named, by their first key: a summary says what modes add.
OPEN = {"diagnosis-1": ["verdict"]}


def fits(document, name):
    jsonschema.Draft202012Validator(schema(name)).validate(json.loads(json.dumps(document)))


@pytest.mark.parametrize("name", published_schemas())
def test_each_schema_is_one(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))
    assert schema(name)["properties"]["schema"]["const"] == f"evenstep.{name.replace('-', '/')}"


@pytest.mark.parametrize("name", schemas.FROM_TYPES)
def test_what_types_say_is_what_is_published(name):
    assert schemas.renewed(name) == schema(name), "renew it: python docs/schemas.py"


def objects(part):
    """Every object a schema describes by its names, with where it stands."""
    if isinstance(part, list):
        for each in part:
            yield from objects(each)
    if isinstance(part, dict):
        if "properties" in part and "oneOf" not in part:
            yield part
        for each in part.values():
            yield from objects(each)


@pytest.mark.parametrize("name", published_schemas())
def test_a_new_key_has_to_be_put_into_the_schema(name):
    loose = [one for one in objects(schema(name)) if one.get("additionalProperties") is not False]
    assert [next(iter(one["properties"])) for one in loose] == OPEN.get(name, [])


@pytest.mark.parametrize("name", ["alert", "lab.comparison"])
def test_a_finding_is_the_same_wherever_it_stands(name):
    found = schema(name)
    finding = found["$defs"]["finding"] if "$defs" in found else found["properties"]["finding"]
    assert finding == schema("diagnosis")["$defs"]["finding"]


def test_what_a_strategy_does_to_training_is_told_alike():
    option = schema("strategies")["properties"]["strategies"]["items"]["properties"]
    assert option["convergence"] == schema("simulation")["properties"]["convergence"]


@pytest.mark.parametrize("name", WORLDS)
def test_every_diagnosis_fits_its_schema(name):
    fits(diagnose(WORLDS[name].trace()).to_json(), "diagnosis-1")


def test_a_diagnosis_of_a_part_of_the_ranks_fits():
    fits(diagnose(with_missing(World().trace(), 1)).to_json(), "diagnosis-1")


@pytest.mark.parametrize("damage", ["severity", "mode", "where", "options"])
def test_a_finding_without_one_of_its_keys_does_not_fit(damage):
    found = json.loads(json.dumps(diagnose(WORLDS["straggler"].trace()).to_json()))
    del found["findings"][0][damage]
    with pytest.raises(jsonschema.ValidationError, match=damage):
        fits(found, "diagnosis-1")


def test_words_of_the_schema_are_those_of_the_contract():
    finding = schema("diagnosis")["$defs"]["finding"]["properties"]
    assert tuple(finding["layer"]["enum"]) == LAYERS
    assert tuple(finding["when"]["properties"]["pattern"]["enum"]) == (*PATTERNS, None)
    assert schema("diagnosis")["properties"]["schema"]["const"] == SCHEMA


def test_a_probe_and_its_floors_fit():
    outcome = measured.outcome(nodes=3, compute={1: 2.0}, edges={(0, 2): 3.0}, stopped={2: "gone"})
    fits(document(outcome, judge(outcome), seconds=1.0), "probe-1")
    fits(floors(outcome), "floors-1")


@pytest.mark.parametrize("form", [lambda found: found.to_json(), normalised_json])
def test_a_comparison_fits_with_and_without_absolute_numbers(form):
    runs = []
    for name in ("healthy", "straggler"):
        trace = WORLDS[name].trace()
        runs.append(account(name, trace))
    run = {"name": "x", "run_id": None, "ranks": 4, "nodes": 1, "steps": 57}
    shown = {"schema": "evenstep.comparison/1", "baseline": run, "failed": []}
    fits({**shown, "comparisons": [{**form(compare(*runs)), "run": run}]}, "comparison-1")


def test_an_unknown_schema_is_one_sentence():
    with pytest.raises(UsageError, match="there is no schema 'x'; there are: alert-1, "):
        schema("x")
