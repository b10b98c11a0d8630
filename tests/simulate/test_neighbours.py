import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.simulate import simulation
from evenstep.simulate.simulation import simulate, simulate_trace
from evenstep.simulate.wires.world_python import PythonWorld
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
    """Twice 20 ms over half a link, and over .8 of that."""

    def job(**more):
        other = {"nodes": "1,3", "compute_ms": 0.0, "message_bytes": exchange_bytes(20)} | more
        return simulate(
            scenario(
                *SHARED,
                "fabric.incast_goodput=0.8",
                f"work.gradient_bytes={exchange_bytes(20)}",
                neighbours=[other],
            )
        )

    assert job(offset_ms=1e9).step_time.p50_ns / MS == pytest.approx(120, rel=1e-3)
    assert job().step_time.p50_ns / MS == pytest.approx(100 + 40 / 0.8, rel=1e-3)


def test_a_bursty_neighbour_makes_steps_differ():
    asked = drifting(20, 200, kind="bursty")
    assert simulate(asked).step_time.cv > 0.02


def test_diagnosis_names_the_fabric_where_a_neighbour_shares_the_uplinks():
    asked = scenario(
        "cluster.nodes=16", "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=4",
        "fabric.oversubscription=4", "job.placement=given", "job.nodes=0,4,8,12,1,5,9,13",
        "work.forward_ms=30", "work.backward_ms=60", "work.gradient_bytes=200MB",
        "work.buckets=4", "run.steps=30", "collectives.algorithm=ring",
        noise=[{"kind": "normal", "sigma": 0.01}],
        neighbours=[
            {"nodes": "2,6,10,14,3,7,11,15", "compute_ms": 60, "message_bytes": 200_000_000}
        ],
    )  # fmt: skip
    assert diagnose(simulate_trace(asked)[1]).findings[0].mode == "fabric_contention"


@pytest.mark.parametrize("engine", ["compiled", "python"])
def test_a_link_that_a_neighbour_floods_never_carries_more_than_is_left_beside_it(
    monkeypatch, engine
):
    """12.5 GB/s never yield on an uplink of 12.5; a twentieth is left to others (`LEAST_SHARE`)."""
    if engine == "python":
        monkeypatch.setattr(simulation, "make_world", PythonWorld)
    loads = simulate(drifting(20, 20, responsive=False)).loads
    uplink = loads.network.names.index("leaf0->spine0")
    assert loads.peak_gBps[uplink] == pytest.approx(1.05 * 12.5)


def test_a_neighbour_s_own_links_have_a_fullest_moment_too():
    """Of its rings only messages on links that others use are followed."""
    asked = scenario(
        *SHARED, "cluster.gpus_per_node=8", "work.gradient_bytes=100MB", "run.steps=2",
        neighbours=[{"nodes": "1,3", "compute_ms": 10, "message_bytes": 10**8}],
    )  # fmt: skip
    loads = simulate(asked).loads
    assert (loads.peak_gBps[loads.others_bytes > 0] > 0).all()
