import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep import allreduce
from evenstep.allreduce import ALGORITHMS, Link
from evenstep.errors import ConfigError

SIZES = st.floats(1, 1e12)
RANKS = st.integers(2, 5000)
LINKS = st.builds(Link, st.floats(0.1, 1000), st.floats(0, 1e6))


def pipelined_ring(size, n, link):
    """A ring round by round: every rank sends one chunk to its neighbour, 2(n−1) times."""
    done = [0.0] * n
    for _ in range(2 * (n - 1)):
        done = [
            max(done[i], done[i - 1]) + link.latency_ns + size / n / link.gBps for i in range(n)
        ]
    return max(done)


def test_a_ring_of_64_takes_what_the_exact_workload_says():
    # 100 MB in chunks of S // 64 over 12.5 GB/s and 2 µs a message: 16.002 ms
    cost = allreduce.ring(100_000_000, 64, Link(12.5, 2000))
    assert cost.time_ns == pytest.approx(16.002e6, rel=1e-4)


def test_a_ring_agrees_with_its_rounds():
    link = Link(12.5, 2000)
    rounds = pipelined_ring(1e8, 17, link)
    assert allreduce.ring(1e8, 17, link).time_ns == pytest.approx(rounds, rel=1e-12)


@given(SIZES, RANKS, LINKS)
def test_no_algorithm_beats_the_bytes_that_must_move(size, n, link):
    least = 2 * size * (n - 1) / n / link.gBps
    for name, formula in ALGORITHMS.items():
        if name != "in-switch":
            assert formula.cost(size, n, link).transfer_ns >= least * (1 - 1e-12)


@given(SIZES, RANKS, LINKS, st.floats(1, 10))
def test_more_bandwidth_is_never_slower(size, n, link, factor):
    faster = link._replace(gBps=link.gBps * factor)
    for formula in ALGORITHMS.values():
        assert formula.cost(size, n, faster).time_ns <= formula.cost(size, n, link).time_ns


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_single_rank_has_nothing_to_exchange(name):
    assert ALGORITHMS[name].cost(1e9, 1, Link(50, 2000)).time_ns == 0


def test_a_ring_approaches_twice_the_bytes_over_the_bandwidth():
    cost = allreduce.ring(20e9, 10**6, Link(50))
    assert cost.time_ns == pytest.approx(allreduce.limit_ns(20e9, 50), rel=1e-5)


def test_rounds_are_those_of_the_textbook():
    rounds = {name: form.cost(1e6, 512, Link(1)).rounds for name, form in ALGORITHMS.items()}
    assert rounds["ring"] == 2 * 511
    assert rounds["tree"] == rounds["binomial"] == rounds["halving-doubling"] == 2 * 9


def test_halving_doubling_is_a_ring_without_its_latency():
    link = Link(50, 2000)
    ring, halving = allreduce.ring(1e9, 64, link), allreduce.halving_doubling(1e9, 64, link)
    assert halving.transfer_ns == ring.transfer_ns
    assert ring.latency_ns / halving.latency_ns == 63 / 6


def test_one_rank_a_node_makes_a_hierarchy_a_ring():
    outer = Link(25, 1000)
    flat = allreduce.ring(1e9, 16, outer)
    assert allreduce.hierarchical(1e9, 16, 1, inner=Link(300), outer=outer) == flat


def test_one_node_makes_a_hierarchy_the_ring_inside():
    inner = Link(300, 500)
    nested = allreduce.hierarchical(1e9, 1, 8, inner=inner, outer=Link(25))
    assert nested == allreduce.ring(1e9, 8, inner)


def test_a_hierarchy_moves_an_eighth_between_nodes():
    cost = allreduce.hierarchical(8e9, 64, 8, inner=Link(240), outer=Link(25))
    by_hand = 2 * 8e9 * 7 / 8 / 240 + 2 * 1e9 * 63 / 64 / 25  # 2S(g−1)/(gB_i) + 2S(N−1)/(NgB_e)
    assert cost.time_ns == pytest.approx(by_hand)


def test_a_torus_uses_all_its_links():
    cost = allreduce.torus(20e9, (16, 16, 16), Link(50, 1000))
    assert cost.transfer_ns == pytest.approx(2 * 20e9 * 4095 / 4096 / 300)  # 6 links of 50 GB/s
    assert cost.rounds == 90


def test_a_torus_of_one_dimension_is_a_ring_both_ways():
    torus = allreduce.torus(1e9, (32,), Link(50))
    assert torus.transfer_ns == allreduce.ring(1e9, 32, Link(100)).transfer_ns


def test_bus_bandwidth_of_a_ring_is_the_links():
    time = allreduce.ring(1e9, 24, Link(25)).time_ns
    assert allreduce.bus_gBps(1e9, 24, time) == pytest.approx(25)


@given(st.integers(2, 10**9))
def test_depth_is_the_smallest_power_of_two_that_suffices(n):
    assert 2 ** (allreduce.depth(n) - 1) < n <= 2 ** allreduce.depth(n)


@pytest.mark.parametrize("link", [Link(0), Link(-1), Link(1, -1)])
def test_a_link_that_cannot_be_is_refused(link):
    with pytest.raises(ConfigError):
        allreduce.ring(1e6, 4, link)


def test_a_tree_of_six_has_three_levels_each_way():
    # each round doubles who has the result: 1, 2, 4, 6 of them; so many rounds up, so many down
    reached, rounds = 1, 0
    while reached < 6:
        reached, rounds = min(2 * reached, 6), rounds + 1
    assert rounds == 3
    assert allreduce.double_tree(0, 6, Link(1, 1000)).time_ns == 2 * 3 * 1000


@pytest.mark.parametrize(
    ("operation", "ranks", "factor"),  # nccl-tests, doc/PERFORMANCE.md
    [
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 8, 0.875),
        ("all_to_all", 8, 0.875),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation, ranks, factor):
    assert allreduce.bus_factor(operation, ranks) == factor


def test_published_h100_bandwidth_comes_out():
    # NVIDIA, 8x H100: 8 GiB in 31307 µs is 480 GB/s of bus bandwidth
    assert allreduce.bus_gBps(8 * 2**30, 8, 31_307_000) == pytest.approx(480, rel=0.001)


@given(SIZES, RANKS, LINKS)
def test_a_cost_grows_with_its_bytes_as_computed_anew(size, n, link):
    for formula in ALGORITHMS.values():
        grown = formula.cost(1.0, n, link).grown(size)
        assert grown == pytest.approx(formula.cost(size, n, link).time_ns, rel=1e-9)
