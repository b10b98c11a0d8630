"""The Grafana dashboard: its schema by Grafana's own model, its queries by Prometheus' grammar."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from evenstep.agent.exchange.messages import WindowReport
from evenstep.export.prometheus import Families, Live, of_diagnosis, of_live, of_spools
from evenstep.trace.reader import read_spool
from tests.report.test_prometheus import DASHBOARD
from tests.trace.small_run import write_run


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text("utf-8"))


@pytest.fixture
def emitted(diagnosis, tmp_path) -> Families:
    """Everything the exporter says of a finished run, its spools and its latest window."""
    found = of_diagnosis(diagnosis)
    folder = write_run(tmp_path / "run")
    found |= of_spools([read_spool(path) for path in folder.glob("attempt-*/*.spool")])
    report = WindowReport(*range(len(WindowReport._fields)))
    window = {"ranks": [report._asdict()], "late_windows": {0: 1}}
    found |= of_live(msgspec.convert(window | {"schema": "evenstep.live/1"}, Live))
    return found


def selectors(node: Any) -> Iterator[Any]:
    """All selectors of a query."""
    promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        child = getattr(node, name, None)
        if isinstance(child, promql.Expr):
            yield from selectors(child)
    for child in getattr(node, "args", None) or []:
        yield from selectors(child)


def test_every_query_asks_for_metrics_and_labels_that_are_emitted(dashboard, emitted):
    promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
    seen = 0
    for target in (target for panel in dashboard["panels"] for target in panel["targets"]):
        for selector in selectors(promql.parse(target["expr"])):
            labels = {name for sample, _ in emitted[selector.name].samples for name in sample}
            assert {each.name for each in selector.matchers.matchers} <= labels, target["expr"]
            seen += 1
    assert seen >= len(dashboard["panels"])


def test_sums_are_kept_apart_by_labels_that_are_emitted(dashboard, emitted):
    promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries = [promql.parse(text) for text in texts if " by " in text]
    assert queries
    for query in queries:
        sides = (query, getattr(query, "lhs", None))
        for found in (side for side in sides if isinstance(side, promql.AggregateExpr)):
            [selector] = selectors(found)
            labels = {name for sample, _ in emitted[selector.name].samples for name in sample}
            assert set(found.modifier.labels) <= labels


def test_rates_are_taken_of_counters_only(dashboard, emitted):
    promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
    for target in (target for panel in dashboard["panels"] for target in panel["targets"]):
        for selector in selectors(promql.parse(target["expr"])):
            rated = f"rate({selector.name}" in target["expr"]
            assert rated == (emitted[selector.name].kind == "counter"), target["expr"]


def test_grafanas_own_model_reads_the_dashboard_and_gives_it_back(dashboard):
    sdk = "grafana_foundation_sdk"
    model = pytest.importorskip(f"{sdk}.models.dashboard", reason=f"{sdk} is not installed")
    encoder = pytest.importorskip(f"{sdk}.cog.encoder").JSONEncoder
    read = model.Dashboard.from_json(dashboard)
    again = json.loads(json.dumps(read, cls=encoder))
    assert list(missing(dashboard, again)) == []


def missing(asked: Any, given: Any, path: str = "") -> Iterator[str]:
    """Where what was read differs from what stands in the file; defaults may be added."""
    if isinstance(asked, dict):
        for name, value in asked.items():
            known = isinstance(given, dict) and name in given
            yield from (
                missing(value, given[name], f"{path}/{name}") if known else [f"{path}/{name}"]
            )
    elif isinstance(asked, list) and isinstance(given, list) and len(asked) == len(given):
        for at, value in enumerate(asked):
            yield from missing(value, given[at], f"{path}/{at}")
    elif asked != given:
        yield path
