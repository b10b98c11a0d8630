from dataclasses import replace

import pytest

from evenstep.agent.settings import config
from evenstep.cli import strategies as decision_table
from evenstep.errors import ConfigError
from evenstep.report.schema import schema
from evenstep.simulate.simulation import simulate
from evenstep.simulate.study import decision
from evenstep.simulate.study.decision import DecisionRow, Limits, choose, compare
from evenstep.simulate.study.decision_options import DecisionOption, change, neutral, options
from evenstep.simulate.study.margin import AXES, Margin
from tests.simulate.worlds import scenario

JOB = (
    "cluster.nodes=12", "work.forward_ms=30", "work.backward_ms=60", "work.gradient_bytes=200MB",
    "work.buckets=4", "collectives.algorithm=halving_doubling", "work.samples_per_rank=8",
    "run.steps=20",
)  # fmt: skip
SLOW = [{"kind": "slow", "ranks": "3", "factor": 1.5}, {"kind": "normal", "sigma": 1e-4}]


def row(name, throughput, *, cv=0.0, p99_ns=1.0, training=False, staleness=0.0, by="the launch"):
    option = DecisionOption(name, "strategy", (), training, by)
    return DecisionRow(
        option, throughput, "samples/s", 1.0, cv, p99_ns, 0.9, staleness, None, None, None, 0.0, {}
    )


@pytest.fixture(scope="module")
def table():
    return compare(scenario(*JOB, noise=SLOW), Limits(cv=0.1), axes=())


def test_no_option_is_simulated_before_its_cost_is_told(monkeypatch):
    """A step of a contended fabric may take minutes: errors are found without one."""
    told = []
    monkeypatch.setattr(decision, "simulate", lambda _: told.append("simulated"))
    with pytest.raises(ZeroDivisionError):
        compare(scenario(*JOB), Limits(), axes=(), estimate=lambda seconds: told.append(1 / 0))
    with pytest.raises(ConfigError, match="a step takes no time"):
        compare(scenario("cluster.nodes=2"), Limits(), axes=())
    assert not told


def test_the_most_throughput_within_the_limit_is_taken():
    rows = [row("a", 100), row("b", 130, cv=0.2), row("c", 120, cv=0.05)]
    found = choose(rows, Limits(cv=0.1))
    assert (found.row.option.name, found.within) == ("c", True)
    assert "b is faster (+8.3 %) but breaks cv" in found.reason


def test_among_equals_the_simpler_one_is_taken():
    rows = [row("plain", 100), row("fancy", 100.05)]
    assert choose(rows, Limits(cv=0.1)).row.option.name == "plain"


def test_what_changes_the_training_is_named_but_never_recommended():
    rows = [row("a", 100), row("b", 105), row("loose", 150, training=True)]
    found = choose(rows, Limits(cv=0.1))
    assert (found.row.option.name, found.other_training.option.name) == ("b", "loose")
    assert "loose is faster (+42.9 %) but changes what is trained" in found.reason


@pytest.mark.parametrize(
    "limits", [Limits(p99_ns=5.0), Limits(staleness=3.0), Limits(efficiency=0.95)]
)
def test_where_no_option_fits_the_nearest_is_named_as_breaking_it(limits):
    rows = [row("a", 100, p99_ns=20, staleness=9), row("b", 90, p99_ns=10, staleness=6)]
    found = choose(rows, limits)
    assert not found.within
    assert found.reason.startswith("no option keeps")


def test_every_strategy_is_a_row(table):
    kinds = {text for found in table.rows for text in found.option.sets}
    for kind in ("paced", "local_sgd", "stale_synchronous", "asynchronous", "backup_workers",
                 "partial_reduce", "priority"):  # fmt: skip
        assert f"strategy.kind={kind}" in kinds


def test_one_that_is_slow_for_good_is_best_left_behind(table):
    """Asynchronous: the mean of the rates, 11/12 + 1/12/1.5; waiting for all: 1/1.5."""
    first = table.rows[0]
    free = next(found for found in table.rows if found.option.name == "asynchronous")
    assert free.throughput > 1.2 * first.throughput
    assert table.choice.other_training == free
    assert free.staleness == pytest.approx(11, rel=0.05)


def test_a_slow_gpu_is_replaced_first_else_left_out(table):
    """Eleven of twelve ranks do 11/12 of what twelve do."""
    assert table.choice.row.option.name == "slow GPU replaced"
    of = {found.option.name: found for found in table.rows}
    ratio = of["its node left out"].throughput / of["slow GPU replaced"].throughput
    assert ratio == pytest.approx(11 / 12, rel=0.03)


def test_slow_nodes_are_replaced_by_such_as_the_others():
    slow = 'cluster.kinds=[{nodes="3", factor=1.5}]', "cluster.slow_nodes=2"
    asked = scenario(*JOB, *slow, "cluster.slow_nodes_factor=1.5")
    repair = next(one for one in options(asked)[0] if one.name == "slow nodes replaced")
    repaired = change(neutral(asked), repair.sets).cluster
    assert (repaired.kinds[0].factor, repaired.slow_nodes) == (1, "")


def test_a_row_is_what_simulate_says_of_its_assignments(table):
    data = neutral(scenario(*JOB, noise=SLOW))
    for found in table.rows[:6]:
        again = simulate(change(data, found.option.sets))
        assert again.throughput == found.throughput


def test_averages_count_as_often_as_they_come_and_pacing_what_never_waits_gains_nothing():
    """Four ranks as two stages of two micro-batches, 12 and 24 ms: 3/2 × 36 ms, and a ring of two
    with 25 MB, 2 ms; averaged every 16 steps that is 1/8 ms."""
    asked = scenario(
        "cluster.nodes=4", "cluster.nic_latency_us=0", "work.kind=pipeline", "run.steps=4",
        "work.pipeline_parallel=2", "work.micro_batches=2", "work.forward_ms=12",
        "work.backward_ms=24", "work.gradient_bytes=25MB", "collectives.algorithm=ring",
    )  # fmt: skip
    table = compare(asked, Limits(), axes=())
    rates = {found.option.name: 1e3 / found.throughput for found in table.rows}
    for name, step_ms in (
        ("synchronous", 56), ("paced, slack", 56), ("local SGD, every 4", 54.5),
        ("local SGD, every 16", 54.125),
    ):  # fmt: skip
        assert rates[name] == pytest.approx(step_ms, rel=1e-5), name
    assert table.choice.row.option.name == "synchronous"
    sets = next(f.option.sets for f in table.rows if f.option.name == "local SGD, every 16")
    assert simulate(change(neutral(asked), sets)).steps == 16


def test_the_scenarios_own_strategy_is_compared_too():
    asked = scenario(*JOB, "strategy.kind=local_sgd", "strategy.every=7")
    names = [option.name for option in options(asked)[0]]
    assert "as written" in names
    assert "strategy" not in neutral(asked)


def test_layouts_keep_compute_and_batch_and_spread_the_parameters():
    sets = ("cluster.gpus_per_node=4", "work.message_bytes=10MB", "work.layers=8")
    found = [option for option in options(scenario(*JOB, *sets))[0] if option.family == "layout"]
    assert {option.name for option in found} >= {"dp 24 × tp 2 × pp 1", "dp 12 × tp 2 × pp 2"}
    data = neutral(scenario(*JOB, *sets))
    for option in found:
        work = change(data, option.sets).work
        split = work.tensor_parallel * work.pipeline_parallel
        assert work.gradient_bytes * split == pytest.approx(200e6, rel=1e-6)
        assert work.message_bytes * work.micro_batches == pytest.approx(10e6 * split, rel=1e-6)


def test_without_activations_layouts_are_not_guessed():
    notes = options(scenario(*JOB))[1]
    assert any("work.message_bytes" in note for note in notes)


def test_tensor_parallel_stages_exchange_in_every_layer():
    """Two all-reduces each way in each of 8 / 2 layers of a stage, for each of m + p - 1 turns."""
    sets = ("cluster.nodes=2", "cluster.gpus_per_node=2", "work.kind=pipeline", "run.steps=1",
            "work.tensor_parallel=2", "work.pipeline_parallel=2", "work.micro_batches=4",
            "work.forward_ms=40", "work.backward_ms=80", "work.gradient_bytes=0",
            "work.message_bytes=3MB")  # fmt: skip
    without, with_them = (
        simulate(scenario(*sets, f"work.layers={layers}")).step_time.mean_ns for layers in (0, 8)
    )
    one = 3e6 / 300 + 2 * 1e3  # ring of two at 300 GB/s: 2 (S/2)/B + 2 latencies
    assert with_them - without == pytest.approx((4 + 2 - 1) * 2 * 2 * 4 * one, rel=0.02)


def test_pacing_that_is_recommended_becomes_settings_the_agent_takes(tmp_path, table):
    sets = ("strategy.kind=paced", "strategy.controller=slack", "strategy.max_delay=0.05",
            "strategy.sharing=true")  # fmt: skip
    best = row("paced, slack", 200, by="the agent")
    best = best._replace(
        option=DecisionOption("paced, slack", "strategy", sets, False, "the agent")
    )
    chosen = choose([row("a", 100), best], Limits(cv=0.1))
    text = decision_table.settings(type(table)(table.scenario, Limits(), (best,), chosen, ()))
    (tmp_path / "evenstep.toml").write_text(text)
    found = config.load(environ={}, folder=tmp_path)
    assert (found.pace_mode, found.pace_controller) == ("on", "slack")
    assert (found.pace_max_delay, found.pace_sharing) == (0.05, True)


def test_what_the_agent_cannot_do_is_left_to_words(tmp_path, table):
    text = decision_table.settings(table)
    (tmp_path / "evenstep.toml").write_text(text)
    assert config.load(environ={}, folder=tmp_path).pace_mode == "observe"
    assert "Applied by the operators, not by the agent" in text


@pytest.fixture
def widest(table):
    """All there can be in a row: energy, a margin on every axis, every limit broken."""
    margin = Margin(now=0.01, value=0.1234, crosses="efficiency", tried=1.0)
    margins = dict.fromkeys(AXES, margin)
    rows = tuple(row._replace(joules_per_unit=1234.5, margins=margins) for row in table.rows)
    return replace(table, rows=rows, limits=Limits(cv=0.0, p99_ns=1.0, efficiency=2.0))


def test_the_widest_table_has_eighty_columns(widest):
    lines = decision_table.render(widest).splitlines()
    assert max(map(len, lines)) <= 80
    assert "    breaks cv, p99, efficiency" in lines


def test_its_json_fits_the_schema(widest):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(schema("strategies")).validate(widest.to_json())


def test_an_interrupted_option_ends_the_comparison(monkeypatch):
    """Ctrl-C inside a simulation ends it early: what is left of it is no row."""
    cut = replace(simulate(scenario(*JOB, "run.steps=2")), partial=True)
    monkeypatch.setattr(decision, "simulate", lambda *_, **__: cut)
    with pytest.raises(KeyboardInterrupt):
        compare(scenario(*JOB), Limits(cv=0.1), axes=())


def test_servers_on_every_rank_are_no_option_beside_the_direct_exchange_that_they_are():
    def named(asked):
        return [one.name for one in options(asked)[0] if one.family == "collective"]

    asked = scenario(*JOB, noise=SLOW)
    shared = scenario(*JOB, "cluster.nodes=6", "cluster.gpus_per_node=2", noise=SLOW)
    assert "direct all-reduce" in named(asked)
    assert "server all-reduce" not in named(asked)
    assert "server all-reduce" in named(shared)  # one card, and so one server, for two ranks
    ways = (("algorithm=direct",), ("algorithm=server", "servers=12"))
    direct, served = (
        simulate(change(neutral(asked), tuple(f"collectives.{one}" for one in way))) for way in ways
    )
    assert (direct.step_ns == served.step_ns).all()
