"""Every topic by name, and published measurements beside them, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from evenstep.explain import arithmetic, topic
from evenstep.explain.topic import SCHEMA, Parameter, Topic
from evenstep.trace.spool.files import read_toml

if TYPE_CHECKING:
    from evenstep.reproduce.published.rows import System

_WORDS: Mapping[str, Any] = read_toml(Path(__file__).with_name("topics.toml"))


def _topic(name: str, words: dict[str, Any]) -> Topic:
    listed = words.pop("parameters")
    at = listed.index("link") if "link" in listed else 0
    links = _WORDS["links"]["parameters"] if "link" in listed else []
    rows = [*listed[:at], *links, *listed[at + bool(links) :]]
    parameters = [Parameter(**{**row, "kind": getattr(topic, row["kind"])}) for row in rows]
    work = getattr(arithmetic, f"explain_{name}")
    return Topic(name=name, parameters=parameters, work=work, **words)


TOPICS = tuple(_topic(*item) for item in _WORDS["topics"].items())
BY_NAME = {topic.name: topic for topic in TOPICS}


def published_comparison() -> dict[str, Any]:
    """Published measurements beside closed forms and simulations, and the claims of presets."""
    from evenstep.reproduce.published import training  # it simulates, which needs numpy
    from evenstep.reproduce.published.table import systems
    from evenstep.reproduce.systems import CLAIMS

    found = systems()
    errors = [abs(row.error) for system in found for row in system.predicted]
    return {
        "schema": SCHEMA,
        "topic": "published",
        "kind": "comparison",
        "mean_error": fmean(errors),
        "predicted_rows": len(errors),
        "systems": [_system(system) for system in found],
        "simulated": [{**row._asdict(), "error": row.error} for row in training.simulated_rows()],
        "claims": [
            claim.checked(BY_NAME[claim.topic].answer(claim.options)["results"]) for claim in CLAIMS
        ],
    }


def _system(system: System) -> dict[str, Any]:
    named = ("name", "source", "model", "limits", "mean_error")
    return {name: getattr(system, name) for name in named} | {
        "inputs": list(system.inputs),
        "fitted": [number._asdict() for number in system.fitted],
        "rows": [{**row._asdict(), "error": row.error} for row in system.rows],
    }
