import numpy as np
import pytest

from evenstep.simulate.sharing import Claim, coflow_rates, flow_rates
from evenstep.simulate.simulation import simulate
from tests.simulate.worlds import MS, scenario

#: two jobs of two nodes each, whose rings share one link of 12.5 GB/s each way
SHARED = (
    "cluster.nodes=4", "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=2", "fabric.spines=1",
    "fabric.oversubscription=2", "job.placement=given", "job.nodes=0,2", "work.forward_ms=100",
    "collectives.algorithm=ring",
)  # fmt: skip


def exchange_bytes(length_ms):
    """Of a ring of two, which sends S/2 twice."""
    return round(length_ms * MS * 12.5)


def drifting(m_ms, steps, compute_ms=101, **more):
    return scenario(
        *SHARED,
        f"work.gradient_bytes={exchange_bytes(m_ms)}",
        f"run.steps={steps}",
        noise=[{"kind": "normal", "sigma": 0.01}],
        neighbours=[
            {"nodes": "1,3", "compute_ms": compute_ms, "message_bytes": exchange_bytes(m_ms)} | more
        ],
    )


@pytest.mark.parametrize("m_ms", [10, 20, 40])
def test_two_drifting_jobs_lose_what_the_closed_form_says(m_ms):
    """E[T] = c + m + m²/T for near-equal periods that drift through all phases."""
    expected = 100.0 + m_ms
    for _ in range(50):
        expected = 100 + m_ms + m_ms**2 / expected
    found = simulate(drifting(m_ms, 3000)).step_time.mean_ns / MS
    assert found == pytest.approx(expected, rel=0.02)


def test_a_job_beside_one_that_never_pauses_gets_half_of_the_link():
    asked = drifting(20, 50, compute_ms=0.0)
    assert simulate(asked).step_time.p50_ns / MS == pytest.approx(140, rel=0.03)


def test_traffic_that_does_not_yield_leaves_what_it_does_not_take():
    more = {"compute_ms": 0.0, "responsive": False, "rate_gBps": 10.0}
    asked = drifting(20, 50, **more)
    assert simulate(asked).step_time.p50_ns / MS == pytest.approx(100 + 20 * 12.5 / 2.5, rel=0.03)


def test_incast_costs_goodput_only_while_others_are_there():
    alone = drifting(20, 20, offset_ms=1e9)
    assert simulate(alone).step_time.p50_ns / MS == pytest.approx(120, rel=0.02)
    asked = drifting(20, 50, compute_ms=0.0)
    lossy = simulate(
        scenario(
            *SHARED,
            "fabric.incast_goodput=0.8",
            f"work.gradient_bytes={exchange_bytes(20)}",
            "run.steps=50",
            neighbours=[{"nodes": "1,3", "compute_ms": 0.0, "message_bytes": exchange_bytes(20)}],
        )
    )
    gained = lossy.step_time.p50_ns - simulate(asked).step_time.p50_ns
    assert gained / MS == pytest.approx(40 / 0.8 - 40, rel=0.05)


def test_a_bursty_neighbour_makes_steps_differ():
    asked = drifting(20, 200, kind="bursty")
    assert simulate(asked).step_time.cv > 0.02


def test_message_by_message_a_neighbour_costs_the_same():
    """On average over many phases; single steps differ with the phase."""
    asked = drifting(40, 1500)
    fast, exact = simulate(asked), simulate(asked, exact=True)
    assert fast.step_time.mean_ns == pytest.approx(exact.step_time.mean_ns, rel=0.02)


def test_the_smallest_share_is_as_large_as_it_can_be():
    """Bertsekas & Gallager 1992, figure 6.12: three flows over two links of 1 and 2."""
    flow, link = np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1])
    assert flow_rates(flow, link, np.array([1.0, 2.0]), 3) == pytest.approx([0.5, 0.5, 1.5])


def test_a_coflow_that_crosses_a_link_twice_gets_half_as_much_of_it_for_each_message():
    rates = coflow_rates([Claim(np.array([2.0])), Claim(np.array([1.0]))], np.array([3.0]))
    assert rates == pytest.approx([1.0, 1.0])
