"""Writes schemas from the types of results, and `schemas.md`: `python docs/schemas.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from evenstep.cli.collect import Collection
from evenstep.cli.completion import Completions
from evenstep.cli.ctl import PaceState
from evenstep.cli.demo import DemoRuns
from evenstep.cli.env import Environment
from evenstep.cli.listing import FieldsDocument
from evenstep.cli.selftest import SelfTest
from evenstep.diagnose.compare.history import History
from evenstep.diagnose.compare.result import Changed, MetricChange, StepTimePart
from evenstep.diagnose.finding import Finding
from evenstep.diagnose.predict.project import ProjectionDocument
from evenstep.doctor.examination import Examination
from evenstep.documents import Meta, printed_fields
from evenstep.explain.topic import CitedFormula, Quantity
from evenstep.export.posting import Alert
from evenstep.probe.document import FloorsDocument, ProbeDocument
from evenstep.report.schema import FOLDER, published_schemas, schema
from evenstep.reproduce.evaluation import EvaluationDocument
from evenstep.reproduce.published.rows import Fitted
from evenstep.reproduce.published.table import ErrorEstimate
from evenstep.reproduce.table_one import Figure, Published, TableOneFit
from evenstep.scenario.presets import PresetsDocument
from evenstep.simulate.calibrate.calibrate import CalibrationDocument
from evenstep.simulate.result import CollectiveUse, LinkUse, Result, Shares, StepTime
from evenstep.simulate.study.margin import Edges, Margin
from evenstep.simulate.study.sweep import MeanInterval, SweepDocument
from evenstep.watch.frame import Frame
from lab.command import CleanedDocument
from lab.single import RunDocument
from lab.validation import PredictionDocument

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# JSON

With `--json` every command prints one object to standard output; messages, progress and
`Wrote FILE` go to standard error. (`evenstep watch --json` prints one object per line, and
`evenstep diagnose` a list if it is given several traces.) `evenstep run --json` and
`evenstep export --json` print a diagnosis.

The key `schema` of each object names its schema: `evenstep.diagnosis/1` is described by the schema
`diagnosis-1`, which is part of the package:

```
evenstep export --json-schema              # of a diagnosis
evenstep export --json-schema lab.run      # of any other document
```

The schemas are [JSON Schema](https://json-schema.org/draft/2020-12/schema), draft 2020-12, and
strict: every key is listed, and required unless the schema says otherwise. Additional keys are
possible only in `run` and `summary` of a diagnosis, the scenario of a calibration, the rows of an
SQL result, and objects whose keys are names. The meaning of a key does not change within a
version; a removed or changed key makes a new version. Names end with the unit: `_ns`, `_ms`, `_s`,
`_bytes`, `_gBps` (10^9 bytes a second). Shares are fractions of 1, not percentages; unknown values
are null.

| schema | what it describes |
| --- | --- |
"""


COMPARED = "properties/comparisons/items/properties"
STRATEGIES = "properties/strategies/items/properties"
TABLE_ONE = "properties/families/items/properties"
CONVERGENCE = get_type_hints(Result, include_extras=True)["convergence"]
#: Where in a schema a type of ours stands, by name and place; "" is the whole document.
FROM_TYPES: dict[str, dict[str, Any]] = {
    "alert-1": {"": Alert},
    "calibration-1": {"": CalibrationDocument},
    "collection-1": {"": Collection},
    "comparison-1": {
        f"{COMPARED}/changes/items/anyOf/0": MetricChange,
        f"{COMPARED}/findings/items/anyOf/0": Changed,
        f"{COMPARED}/parts/items/anyOf/0": StepTimePart,
    },
    "completion-1": {"": Completions},
    "ctl-1": {"": PaceState},
    "demo-1": {"": DemoRuns},
    "diagnosis-1": {"$defs/finding": Finding},
    "doctor-1": {"": Examination},
    "env-1": {"": Environment},
    "evaluation-1": {"": EvaluationDocument},
    "explain-1": {
        **{
            f"{place}/rows/items": Quantity
            for place in ("oneOf/2/properties", "$defs/quantity/properties")
        },
        **{
            f"{place}/formulas/items": CitedFormula
            for place in ("oneOf/2/properties", "$defs/quantity/properties")
        },
        "oneOf/3/properties/systems/items/properties/fitted/items": Fitted,
    },
    "fields-1": {"": FieldsDocument},
    "history-1": {"": History},
    "lab.clean-1": {"": CleanedDocument},
    "lab.comparison-1": {"$defs/finding": Finding},
    "lab.prediction-1": {"": PredictionDocument},
    "lab.run-1": {"": RunDocument},
    "floors-1": {"": FloorsDocument},
    "presets-1": {"": PresetsDocument},
    "probe-1": {"": ProbeDocument},
    "projection-1": {"": ProjectionDocument},
    "scaling-1": {
        f"properties/points/items/properties/{name}": MeanInterval
        for name in ("throughput", "step_ns", "cv", "p99_ns")
    },
    "selftest-1": {"": SelfTest},
    "simulation-1": {
        "properties/step_time": StepTime,
        "properties/shares": Shares,
        "properties/convergence": CONVERGENCE,
        "properties/collectives/items": CollectiveUse,
        "properties/links/items": LinkUse,
        "properties/error_estimate": ErrorEstimate | None,
    },
    "strategies-1": {
        "properties/edges": Annotated[Edges, Meta("What margins look for.")],
        f"{STRATEGIES}/margins/additionalProperties": Margin,
        f"{STRATEGIES}/convergence": CONVERGENCE,
    },
    "sweep-1": {"": SweepDocument},
    "table1-1": {
        f"{TABLE_ONE}/parameters": TableOneFit,
        f"{TABLE_ONE}/rows/items/properties/published": Published,
        **{
            f"{TABLE_ONE}/rows/items/properties/{arm}": Figure
            for arm in ("baseline", "paper", "token", "alone")
        },
    },
    "watch-1": {"": Frame},
}
HEADING = ("$schema", "$id", "title", "description")  # of a document, which no type says

_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}


def renewed(name: str) -> dict[str, Any]:
    """A published schema with what our types say put in its places."""
    whole = schema(name)
    for place, kind in FROM_TYPES.get(name, {}).items():
        part: Any = whole
        *way, last = place.split("/")
        for key in way:
            part = part[int(key) if key.isdigit() else key]
        if place:
            part[int(last) if last.isdigit() else last] = schema_of(kind)
        else:
            whole = {key: whole[key] for key in HEADING} | schema_of(kind)
    return whole


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of what `plain` makes of this type. Raises TypeError for one it cannot."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return reduce(_annotated, arguments[1:], schema_of(arguments[0]))
    if origin is Literal:
        return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return _union([schema_of(one) for one in arguments])
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [schema_of(one) for one in arguments]
        size = {"minItems": len(items), "maxItems": len(items)}
        alike = all(one == items[0] for one in items)
        return {
            "type": "array",
            **({"items": items[0]} if alike else {"prefixItems": items}),
            **size,
        }
    if isinstance(origin, type) and issubclass(origin, Mapping):
        held = {} if arguments[1] is Any else {"additionalProperties": schema_of(arguments[1])}
        return {"type": "object", **held}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "_fields"):
        return _object(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [one.name.lower() for one in reversed(kind)]}
    if kind not in _PLAIN:
        raise TypeError(f"a document cannot hold {kind}")
    return {"type": _PLAIN[kind]}


def _object(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    for name in getattr(kind, "computed", ()):
        hints[name] = get_type_hints(getattr(kind, name).fget, include_extras=True)["return"]
    shown = {"schema": {"const": kind.schema}} if getattr(kind, "schema", "") else {}
    shown |= {name: schema_of(hints[name]) for name in printed_fields(kind)}
    required = [name for name in shown if name in getattr(kind, "__required_keys__", shown)]
    return {
        "type": "object",
        "properties": shown,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _annotated(found: dict[str, Any], meta: Meta) -> dict[str, Any]:
    more = {key: value for key, value in meta._asdict().items() if value is not None}
    if meta.enum is not None:
        found = {key: value for key, value in found.items() if key != "type"}
        more["enum"] = list(meta.enum)
    return found | more


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Values of simple types, or one or null: one schema whose type is any of them."""
    if all(part.keys() == {"type"} for part in parts):
        return {"type": [part["type"] for part in parts]}
    value, *rest = [one for one in parts if one != {"type": "null"}]
    if rest or len(parts) == 1:
        return {"anyOf": parts}
    if "enum" in value:
        return value | {"enum": [*value["enum"], None]}
    return value | {"type": [value["type"], "null"]}


def page() -> str:
    """The whole page."""
    return HEAD + "".join(map(row, published_schemas()))


def row(name: str) -> str:
    """One schema as a row of the table."""
    meaning = schema(name)["description"].replace("|", "\\|")
    return f"| `{name}` | {meaning} |\n"


if __name__ == "__main__":
    for each in FROM_TYPES:
        text = json.dumps(renewed(each), indent=2, ensure_ascii=False)
        (FOLDER / f"{each}.json").write_text(text + "\n", "utf-8")
    PAGE.write_text(page())
    print(f"Wrote {PAGE}")
