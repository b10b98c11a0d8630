"""Links that are slow for all that crosses them, and what tells which."""

from dataclasses import replace

import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.measure.links import NODE, PATH, Traffic, slow_links
from tests.diagnose.pipelines import Pipeline
from tests.diagnose.programs import pipeline, staged
from tests.diagnose.synthetic import MS, World

MB = 1_000_000
NIC = {"name": "eth0", "pci": "0000:04:00.0", "driver": "mlx5_core", "speed_gbps": 400.0}
#: Two ranks a node, so that both tensor and data groups cross nodes.
ACROSS = World(ranks=16, style="grid", tensor_parallel=4, ranks_per_node=2, noise=0.005)


def first_of(world, *, nics=()):
    trace = world.trace()
    for info in trace.ranks.values():
        info.facts["locality"] = {"nics": list(nics)}
    return diagnose(trace).findings[0]


def slow_where(world, hit):
    """The world in which transfers of these groups take four times as long, and its loss."""
    slow = replace(world, fabric=lambda move: (8 if hit(move.members) else 2) * MS)
    return slow, slow.lost_against(replace(world, fabric=lambda move: 2 * MS))


@pytest.mark.parametrize("nics", [(), (NIC,)])
def test_the_node_is_named_that_all_slow_groups_and_no_quick_one_have(nics):
    """Tensor group 4-7 is on nodes 2 and 3, data groups 2 and 3 are on all odd nodes; whether all
    groups are below what adapters should carry changes nothing."""
    slow, lost = slow_where(ACROSS, lambda members: {6, 7} & set(members))
    finding = first_of(slow, nics=nics)
    assert (finding.mode, list(finding.where.nodes)) == ("fabric_contention", ["node3"])
    assert not finding.where.links
    assert finding.title == "Slow transfers on node3"
    assert finding.severity == pytest.approx(lost, rel=0.05)


def test_a_path_is_slow_where_other_groups_cross_both_its_ends_as_quickly_as_ever():
    slow, lost = slow_where(ACROSS, lambda members: members == (4, 5, 6, 7))
    finding = first_of(slow)
    assert (list(finding.where.nodes), list(finding.where.links)) == ([], ["node2-node3"])
    assert finding.observation.startswith("all_reduces of ranks 4-7 take 8 ms")
    assert "a link of node2-node3 is slower in every step" in finding.cause
    assert finding.severity == pytest.approx(lost, rel=0.05)


def test_nodes_that_only_a_slow_group_has_cannot_be_told_apart():
    """Each of four groups of eight has two nodes of its own; the data groups' time is latency."""
    world = World(ranks=32, style="grid", tensor_parallel=8, ranks_per_node=4, noise=0.005)
    times = {tuple(range(8, 16)): 8 * MS}
    slow = replace(
        world,
        fabric=lambda move: times.get(move.members, (2 if len(move.members) == 8 else 0.1) * MS),
    )
    finding = first_of(slow)
    assert (finding.mode, list(finding.where.groups)) == ("fabric_contention", ["tp1"])
    assert list(finding.where.nodes) == ["node2", "node3"]
    assert "cannot tell which" in finding.cause


@pytest.mark.parametrize(("groups", "name"), [(4, "dp2"), (2, "dp1")])
def test_of_groups_on_the_same_nodes_the_slow_one_is_named_at_what_its_links_cost(groups, name):
    world = World(
        ranks=4 * groups, style="grid", tensor_parallel=groups, ranks_per_node=groups, noise=0.005
    )
    members = tuple(range(int(name[-1]), 4 * groups, groups))
    slow, lost = slow_where(world, lambda these: these == members)
    finding = first_of(slow)
    assert (finding.mode, list(finding.where.groups)) == ("fabric_contention", [name])
    assert (finding.where.nodes, finding.where.links) == ([], [])
    assert finding.severity == pytest.approx(lost, rel=0.1)
    assert "a link of ranks " in finding.cause


def slow_messages(slow):
    """A pipeline of four stages of two replicas, messages of these ranks slow; by node of two."""
    return staged(lambda ends, _: (6 if slow & ends else 0.5) * MS, replicas=2)


def test_a_node_of_several_ranks_is_named_where_all_its_messages_are_slow():
    trace, took = slow_messages({2, 3})
    finding = diagnose(trace).findings[0]
    usual = slow_messages(set())[1]
    assert (list(finding.where.nodes), list(finding.where.links)) == (["node1"], [])
    assert finding.title == "Slow messages on node1"
    assert finding.severity == pytest.approx(1 - usual / took, rel=0.1)


def test_of_a_node_whose_other_rank_has_quick_messages_only_the_rank_is_named():
    assert list(diagnose(slow_messages({3})[0]).findings[0].where.ranks) == [3]


def test_on_one_host_the_rank_is_named_all_of_whose_messages_are_slow():
    slow = Pipeline(stages=4, on_device=True, slow_link={(0, 1): 6.0, (1, 2): 6.0})
    assert list(diagnose(slow.trace()).findings[0].where.ranks) == [1]


@pytest.mark.parametrize("host", ["node0", ""])
def test_quick_messages_of_the_same_size_clear_their_links_however_short_they_are(host):
    """Of 20 µs, which may be latency; and a host of unknown name is no place."""
    trace = Pipeline(stages=4, transfer_ms=0.02, slow_link={(1, 2): 6.0}).trace()
    for info in trace.ranks.values():
        info.identity["hostname"] = host
    finding = diagnose(trace).findings[0]
    assert finding.title == "Slow messages between ranks 1 and 2"
    assert not list(finding.where.nodes)


def a_slow_pair(slow_ms):
    """A pipeline of four stages: messages from rank 1 back to rank 0 are slow, and of those ahead
    the first of each step, behind which the others hide."""
    job = pipeline(replicas=1, noise=0.01, transfer=lambda do, step: do.ns)

    def timed(rank):
        made = []
        for do in job.program(rank):
            first = not any(one[0] == do[0] and one.peer == do.peer for one in made)
            ahead = (do.what == "send") == (do.peer > rank)
            slow = {rank, do.peer} == {0, 1} and (first or not ahead)
            took_ns = (slow_ms if slow else 0.5) * MS
            made.append(do._replace(ns=took_ns) if do.what in ("send", "receive") else do)
        return made

    run = replace(job, program=timed).run()
    return run.trace(), run.length_ns


def test_a_message_ahead_that_is_as_slow_as_those_back_on_the_same_link_counts_in_every_step():
    trace, length_ns = a_slow_pair(8)
    finding = diagnose(trace).findings[0]
    assert finding.title == "Slow messages between ranks 0 and 1"
    assert finding.severity == pytest.approx(1 - a_slow_pair(0.5)[1] / length_ns, rel=0.05)


def test_messages_of_one_way_that_are_slower_than_those_back_name_nobody():
    """Twice as many may share the same links one way, where their senders keep pace."""
    job = pipeline(stages=2, replicas=4, noise=0.01, transfer=lambda do, step: do.ns or 0.3 * MS)
    program = job.program

    def timed(rank):
        ahead = [
            do._replace(ns=2 * MS)
            if (do.what == "send" and do.peer > rank) or (do.what == "receive" and do.peer < rank)
            else do
            for do in program(rank)
        ]
        return [
            do._replace(ns=MS) if do.what in ("send", "receive") and not do.ns else do
            for do in ahead
        ]

    trace = replace(job, program=timed).run().trace()
    for rank, info in trace.ranks.items():
        info.identity["hostname"] = f"node{rank // 4}"
    assert "fabric_contention" not in [one.mode for one in diagnose(trace).findings]


def flow(*nodes, lost=0.0, alike="a"):
    names = sorted(nodes)
    crosses = {(NODE, (name,), 1) for name in names} | {(PATH, tuple(names), 1)}
    return Traffic(frozenset(crosses), alike, lost)


@pytest.mark.parametrize(
    ("flows", "links"),
    [
        ([flow("a", "b", lost=5.0), flow("c", "d")], [["a", "b", "a-b"]]),
        ([flow("a", "b", lost=5.0), flow("b", "c", lost=4.0), flow("c", "d")], [["b"]]),
        ([flow("a", "b", lost=5.0), flow("b", "c"), flow("a", "c")], [["a-b"]]),
        # two faults, the costlier first
        ([flow("a", "b", lost=3.0), flow("c", "d", lost=5.0), flow("b", "d"), flow("a", "c")],
         [["c-d"], ["a-b"]]),
        # all of a kind cross b, and are alike: they do not clear it
        ([flow("a", "b", lost=5.0), flow("c", "d"), flow("b", "x", alike="k"),
          flow("b", "y", alike="k")], [["a", "b", "a-b"]]),
        ([flow("a", "b", lost=5.0), flow("a", "b")], []),
    ],
)  # fmt: skip
def test_slow_links_are_the_fewest_that_explain_the_slow_flows(flows, links):
    named = [["-".join(map(str, ends)) for _, ends, _ in one.links] for one in slow_links(flows)]
    assert named == links


@pytest.mark.parametrize("first", range(0, 24, 3))
def test_of_links_that_explain_as_much_the_first_by_name_is_told(first):
    """In any process: the order of a set of names differs from one to the next."""
    a, b, c = (f"node{number:02}" for number in range(first, first + 3))
    found = slow_links([flow(a, b, lost=1.0), flow(b, c, lost=1.0), flow(a, c, lost=1.0)])
    assert found[0].links == [(NODE, (a,), 1)]
