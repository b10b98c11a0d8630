"""Examples from the simulator, which shares no formula with the diagnosis or the closed forms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.labelled.example import Example, Label
from evenstep.scenario.scenario import Scenario, parse
from evenstep.simulate.simulation import simulate_trace

Random = np.random.Generator
Table = dict[str, Any]

SEVERITIES = (0.08, 0.15, 0.35)
WORK_MS = 100.0


class Posed(NamedTuple):
    """A scenario, the same without the cause (None: no such), and what the diagnosis must say."""

    scenario: Table
    without: Table | None
    mode: str | None
    culprits: frozenset[int] | None = None


def job(random: Random, **changes: Table) -> Table:
    """A data-parallel job on a leaf-spine fabric with room to spare."""
    nodes = int(random.choice([4, 6, 8, 12, 16]))
    pace = float(random.uniform(0.2, 3))
    table: Table = {
        "cluster": {"nodes": nodes, "nic_gBps": 12.5},
        "fabric": {"kind": "leaf_spine", "nodes_per_leaf": 4},
        "work": {
            "forward_ms": 30 * pace,
            "backward_ms": 65 * pace,
            "optimizer_ms": 5 * pace,
            "gradient_bytes": int(50e6 * pace),
            "buckets": int(random.choice([3, 6])),
            "overlap": bool(random.integers(2)),
        },
        "collectives": {"algorithm": "ring"},
        "noise": [{"kind": "normal", "sigma": float(random.uniform(0.002, 0.01))}],
        "run": {"steps": int(random.integers(100, 200)), "seed": int(random.integers(1 << 30))},
    }
    return _changed(table, changes)


def _changed(table: Table, changes: Table) -> Table:
    merged = dict(table)
    for key, value in changes.items():
        merged[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


def _step_ms(table: Table) -> float:
    work = table["work"]
    return float(work["forward_ms"] + work["backward_ms"] + work["optimizer_ms"])


def _noisier(table: Table, noise: Table) -> Table:
    return {**table, "noise": [*table["noise"], noise]}


def slow(random: Random, severity: float) -> Posed:
    """One rank computes slower."""
    calm = job(random)
    rank = int(random.integers(calm["cluster"]["nodes"]))
    noise = {"kind": "slow", "ranks": str(rank), "factor": 1 + 1.2 * severity}
    return Posed(_noisier(calm, noise), calm, "straggler", frozenset({rank}))


def late_input(random: Random, severity: float) -> Posed:
    """One rank's input takes longer."""
    calm = job(random)
    rank = int(random.integers(calm["cluster"]["nodes"]))
    calm["work"]["input_ms"] = 0.02 * _step_ms(calm)
    factor = 1 + severity / 0.02
    noise = {"kind": "slow", "phase": "input", "ranks": str(rank), "factor": factor}
    return Posed(_noisier(calm, noise), calm, "input_pipeline", frozenset({rank}))


def heating(random: Random, severity: float) -> Posed:
    """One rank throttles by and by."""
    calm = job(random, run={"steps": 300, "seed": int(random.integers(1 << 30))})
    rank = int(random.integers(calm["cluster"]["nodes"]))
    noise = {
        "kind": "thermal", "ranks": str(rank), "factor": 1 + 2 * severity, "steps": 100.0,
        "first_step": 20,
    }  # fmt: skip
    return Posed(_noisier(calm, noise), calm, "thermal_drift", frozenset({rank}))


def collecting(random: Random, severity: float) -> Posed:
    """Every rank collects garbage in steps of its own."""
    calm = job(random)
    ranks = calm["cluster"]["nodes"]
    noise = {"kind": "collector", "every": 20, "delay_ms": 20 * severity * _step_ms(calm) / ranks}
    return Posed(_noisier(calm, noise), calm, "runtime_jitter")


def varying(random: Random, severity: float) -> Posed:
    """All ranks vary, in forward and backward by themselves."""
    calm = job(random, cluster={"nodes": 16, "nic_gBps": 12.5})
    calm["noise"] = []
    sigma = min(severity, 0.2) / (1 - severity) / (0.72 * 1.766)
    noise = [{"kind": "normal", "phase": p, "sigma": sigma} for p in ("forward", "backward")]
    varied = {**calm, "noise": [*calm["noise"], *noise]}
    return Posed(varied, calm, "synchronization_amplification")


def crossing(random: Random, severity: float, *, kind: str) -> Posed:
    """Another job takes a part of the links between the leaves, again and again."""
    calm = job(random, fabric={"kind": "leaf_spine", "nodes_per_leaf": 4, "spines": 1})
    calm["cluster"]["nodes"], calm["work"]["overlap"] = 8, False
    calm["fabric"]["oversubscription"] = 4.0
    calm["job"] = {"placement": "given", "nodes": "0,1,4,5"}
    # a ring of four passes 1.5 times the gradients over each link
    moving_s = 0.15 * _step_ms(calm) / 1e3
    calm["work"]["gradient_bytes"] = int(moving_s * 12.5e9 / 1.5)
    share = severity / 0.15
    rate = 12.5 * min(0.9, share / (0.4 + share))
    neighbour = {
        "name": "the other job", "nodes": "2,3,6,7", "kind": kind, "responsive": False,
        "rate_gBps": rate,
        "compute_ms": 4.3 * _step_ms(calm),
    }  # fmt: skip
    busy_s = 2.8 * _step_ms(calm) / 1e3
    neighbour["message_bytes"] = int(busy_s * rate * 1e9 / 1.5)
    return Posed({**calm, "neighbours": [neighbour]}, calm, "fabric_contention")


def full(random: Random, severity: float) -> Posed:
    """The cards are too slow for what is exchanged beside compute."""
    calm = job(random)
    share = 0.35 + severity
    calm["work"]["overlap"] = False
    nodes = calm["cluster"]["nodes"]
    moving_s = share / (1 - share) * _step_ms(calm) / 1e3
    sent = 2 * (nodes - 1) / nodes * calm["work"]["gradient_bytes"]
    calm["cluster"]["nic_gBps"] = sent / moving_s / 1e9
    return Posed(calm, None, "bandwidth_bound")


def many_small(random: Random, severity: float) -> Posed:
    """Many small buckets over long ways."""
    calm = job(random)
    buckets, nodes = 60, calm["cluster"]["nodes"]
    share = min(0.7, 0.1 + 1.2 * severity)
    latency_s = share / (1 - share) * _step_ms(calm) / 1e3 / buckets / (2 * (nodes - 1))
    calm["work"] |= {"overlap": False, "gradient_bytes": 60 * 5_000, "buckets": buckets}
    calm["cluster"]["nic_latency_us"] = latency_s * 1e6 / 2
    without = _changed(calm, {"work": {"buckets": 1}})
    return Posed(calm, without, "latency_bound")


CAUSES: dict[str, Callable[[Random, float], Posed]] = {
    "slow": slow,
    "late input": late_input,
    "heating": heating,
    "collecting": collecting,
    "varying": varying,
    "a periodic neighbour": partial(crossing, kind="periodic"),
    "a bursty neighbour": partial(crossing, kind="bursty"),
    "full links": full,
    "many small": many_small,
}


def disturbed(
    seeds: range, severities: Collection[float] = SEVERITIES, only: str = ""
) -> Iterator[Example]:
    """Every cause × severity × seed."""
    for name, cause in CAUSES.items():
        for severity in severities:
            for seed in seeds if only in name else ():
                random = np.random.default_rng([seed, round(1000 * severity), 7])
                yield _example(
                    f"simulated: {name}, {severity:g}, seed {seed}", cause(random, severity)
                )


def healthy(seeds: range, only: str = "") -> Iterator[Example]:
    """The same jobs without a cause."""
    for seed in seeds if only in "healthy" else ():
        posed = Posed(job(np.random.default_rng([seed, 7])), None, None)
        yield _example(f"simulated: healthy, seed {seed}", posed)


def _example(name: str, posed: Posed) -> Example:
    scenario = parse(posed.scenario)
    lost = None
    if posed.without is not None:
        lost = 1 - _mean_ns(parse(posed.without)) / _mean_ns(scenario)
    label = Label(mode=posed.mode, culprits=posed.culprits, lost=lost)
    return Example(name=name, label=label, diagnosis=partial(_diagnosed, scenario))


def _mean_ns(scenario: Scenario) -> float:
    return float(np.mean(simulate_trace(scenario)[0].step_ns))


def _diagnosed(scenario: Scenario) -> dict[str, Any]:
    from evenstep.diagnose.engine import diagnose

    return diagnose(simulate_trace(scenario)[1]).to_json()
