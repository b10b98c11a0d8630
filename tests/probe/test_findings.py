import json
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.importers.content import SourceFile
from evenstep.importers.nccl import tests as nccl_tests
from evenstep.probe import document
from evenstep.probe.findings import common_ends, judge
from evenstep.probe.measurements import rounds
from evenstep.probe.scenario import scenario, to_toml
from evenstep.scenario.scenario import parse
from evenstep.simulate.simulation import simulate
from tests.probe.measured import ALPHA_NS, GBPS, outcome


def kinds(made):
    return [(one.kind, one.ranks) for one in judge(made).findings]


def leaving(node, others, factor=3.0):
    """All links that leave a node are slow."""
    return {(node, other): factor for other in others if other != node}


def test_where_all_are_alike_nobody_is_named():
    assert kinds(outcome(nodes=4, per_node=2)) == []


def test_a_slow_rank_is_named_with_its_factor():
    (found,) = judge(outcome(nodes=2, per_node=4, compute={5: 2.0})).findings
    assert (found.kind, found.ranks, found.nodes) == ("slow_rank", (5,), ("host1",))
    assert found.factor == pytest.approx(2.0)


def test_a_node_of_slow_ranks_is_named_as_a_node():
    assert kinds(outcome(nodes=4, per_node=2, compute={2: 2.0, 3: 2.0})) == [("slow_node", (2, 3))]


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_a_slow_adapter_is_told_from_its_links(nodes):
    (found,) = judge(outcome(nodes=nodes, edges=leaving(1, range(nodes)))).findings
    assert (found.kind, found.nodes) == ("slow_adapter", ("host1",))
    assert "send" in found.observation
    assert "receive" not in found.observation


def test_an_adapter_slow_in_both_directions_is_one_finding():
    edges = leaving(2, range(4))
    edges |= {(b, a): factor for (a, b), factor in edges.items()}
    (found,) = judge(outcome(nodes=4, edges=edges)).findings
    assert "to send and to receive" in found.observation
    assert len(found.links) == 6


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_a_single_slow_link_accuses_no_adapter(nodes):
    (found,) = judge(outcome(nodes=nodes, edges={(0, 2): 4.0})).findings
    assert (found.kind, found.links) == ("slow_link", ((0, 2),))


def test_of_two_nodes_link_and_adapter_cannot_be_told_apart():
    (found,) = judge(outcome(nodes=2, edges={(0, 1): 4.0})).findings
    assert "cannot be told apart" in found.observation


def played(nodes, rounds_played):
    """The pairs that met in so many rounds."""
    return {pair for pairs in rounds(range(nodes))[:rounds_played] for pair in pairs}


def test_of_three_nodes_the_one_that_met_both_others_shows_its_adapter():
    (found,) = judge(outcome(nodes=3, edges=leaving(1, range(3)), met={(0, 1), (1, 2)})).findings
    assert (found.kind, found.nodes) == ("slow_adapter", ("host1",))


def test_where_a_node_met_one_other_its_adapter_is_not_told_from_the_link():
    (found,) = judge(outcome(nodes=3, edges=leaving(1, range(3)), met={(0, 1), (0, 2)})).findings
    assert (found.kind, found.links) == ("slow_link", ((1, 0),))
    assert found.observation.endswith("no faster message that host1 sends was measured")


def test_one_quick_link_at_each_end_clears_both_adapters():
    for met, doubted in ((played(4, 1), True), (played(4, 2), False)):
        (slow, *_) = sorted(met)
        (found,) = judge(outcome(nodes=4, edges={slow: 4.0}, met=met)).findings
        assert (found.kind, found.links) == ("slow_link", (slow,))
        assert ("cannot be told apart" in found.observation) is doubted


@settings(deadline=None)
@given(st.data(), st.integers(3, 9), st.floats(3.0, 60.0))
def test_a_slow_adapter_is_named_or_not_told_apart_whichever_rounds_were_played(data, nodes, slow):
    noisy = st.floats(1.0, 1.15)
    met = played(nodes, data.draw(st.integers(1, nodes)))
    culprit = data.draw(st.integers(0, nodes - 1))
    edges = {(a, b): data.draw(noisy) for a in range(nodes) for b in range(nodes) if a != b}
    edges |= {edge: factor * slow for edge, factor in edges.items() if edge[0] == culprit}
    partners = sum(culprit in pair for pair in met)
    named = judge(outcome(nodes=nodes, edges=edges, met=met)).findings
    if partners > 1:
        assert [(one.kind, one.ranks) for one in named] == [("slow_adapter", (culprit,))]
    else:
        assert all(
            culprit in one.ranks and "cannot be told apart" in one.observation for one in named
        )


def test_an_adapter_and_a_link_elsewhere_are_both_named():
    made = outcome(nodes=6, edges=leaving(1, range(6)) | {(4, 5): 8.0})
    assert sorted(kinds(made)) == [("slow_adapter", (1,)), ("slow_link", (4, 5))]


def test_slow_answers_are_told_once_for_both_directions():
    assert kinds(outcome(nodes=4, latency={(1, 3): 5.0})) == [("slow_link", (1, 3))]


def test_a_busy_rank_is_to_be_fixed_before_its_links():
    made = outcome(nodes=4, compute={1: 3.0}, edges=leaving(1, range(4)))
    adapter = next(one for one in judge(made).findings if one.kind == "slow_adapter")
    assert "fix the rank first" in adapter.mend


def test_who_did_not_come_is_named_first():
    made = outcome(nodes=4, compute={3: 2.0}, stopped={1: "stopped in stage memory"})
    assert kinds(made) == [("missing_rank", (1,)), ("slow_rank", (3,))]


def test_common_ends_explain_each_link_once():
    measured = [(a, b) for a in range(5) for b in range(5) if a != b]
    slow = dict.fromkeys([edge for edge in measured if 0 in edge], 2.0)
    ends = common_ends(slow, {edge: slow.get(edge, 1.0) for edge in measured})
    assert sorted(edge for end in ends for edge in end.edges) == sorted(slow)
    assert {end.team for end in ends} == {0}


def test_a_link_that_noise_hides_still_counts_for_its_adapter():
    ratios = {(0, 1): 6.0, (0, 2): 5.0, (1, 0): 1.0, (2, 0): 1.1, (1, 2): 1.0, (2, 1): 1.2}
    (end,) = common_ends({(0, 1): 6.0}, ratios)
    assert (end.team, end.sending, end.edges) == (0, True, ((0, 1), (0, 2)))
    assert not common_ends({(0, 1): 6.0}, ratios | {(0, 2): 2.0})  # a fifth of the excess


# -- what is written -------------------------------------------------------------------------------


def test_the_document_has_what_the_page_shows():
    made = outcome(nodes=3, per_node=2, edges=leaving(2, (0, 4)), compute={5: 2.0})
    found = document.document(made, judge(made), seconds=60.0)
    json.dumps(found, allow_nan=False)
    text = document.render(found, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "the network adapter of host1 takes 3 times as long as usual to send" in found["verdict"]
    assert "rank 5 (host2) computes 2 times as long" in " ".join(text.split())
    assert "all-reduce" in text


def test_bandwidth_is_size_over_time():
    made = outcome(nodes=2)
    found = document.document(made, judge(made), seconds=1.0)
    largest = found["all_reduce"][-1]
    # a ring of two: t = 2 α + S / B, and bus bandwidth is S / t
    assert largest["busbw_gBps"] == pytest.approx(
        2**24 / (2 * ALPHA_NS + 2**24 / GBPS), rel=1e-3
    )  # fmt: skip


def test_the_scenario_takes_as_long_as_what_was_measured():
    made = outcome(nodes=4)
    largest = made.reductions[-1].times.median_ns
    step = simulate(scenario(made, judge(made))).step_time.mean_ns
    # one matrix product (1 ms, and the slowest of four with 3 % noise) and the all-reduce
    assert step == pytest.approx(1e6 + largest, rel=0.03)


def test_the_scenario_has_the_slow_in_it():
    made = outcome(nodes=4, compute={1: 2.0}, edges=leaving(3, range(4)))
    data = tomllib.loads(to_toml(made, judge(made)))
    assert {"kind": "slow", "ranks": "1", "factor": 2.0} in data["noise"]
    (change,) = data["fabric"]["changes"]
    assert (change["links"], change["factor"]) == ("node3.nic*.send", pytest.approx(1 / 3, rel=0.1))
    assert simulate(parse(data)).steps == 100


def test_floors_are_read_beside_a_trace(tmp_path):
    made = outcome(nodes=4)
    (tmp_path / "floors.json").write_text(json.dumps(document.floors(made)))
    source = SourceFile(tmp_path / "floors.json", (tmp_path / "floors.json").read_bytes())
    assert nccl_tests.recognises(source)
    rows = nccl_tests.read([source])["floors"]
    assert [row["bytes"] for row in rows] == [one.bytes for one in made.reductions]
    assert rows[-1]["busbw_gBps"] == made.reductions[-1].busbw_gBps
