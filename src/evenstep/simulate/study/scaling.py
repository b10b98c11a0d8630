"""Scaling of a job: throughput by size, ideal and predicted, and the cause of its limit.

Efficiency is throughput per rank over that of the smallest size. Each size is simulated without
and, where one is given, with a control, under the same random numbers.

From bandwidth alone, a collective takes its bytes over the speed of the cards, and compute overlaps
with it as in the work's graph; latencies, shared links and late ranks are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from evenstep.allreduce import bus_factor
from evenstep.scenario import schema
from evenstep.scenario.hardware import Cluster
from evenstep.scenario.parts import Strategy, Work
from evenstep.scenario.scenario import AVERAGING, Scenario
from evenstep.simulate.fabric.flows import Flow
from evenstep.simulate.simulation import Setup, set_up, simulate_set_up, step_ns
from evenstep.simulate.study import sweep as sweeps
from evenstep.simulate.study.scaling_sizes import resize, share_samples
from evenstep.simulate.study.sweep import SweepRun, interval
from evenstep.simulate.wires.carriage import alone_ns
from evenstep.trace.columns import Array

Row = Mapping[str, Any]

BEFORE, AFTER = "before", "after"
#: Parts of the step's growth, and their descriptions.
CAUSES = {
    "compute_ns": "compute itself gets slower (noise, heat, input)",
    "wait_ns": "ranks wait for the slowest of more of them",
    "bytes_ns": "more bytes a rank go over the same cards",
    "latency_ns": "the rounds of a collective, and with them its latency, grow with the ranks",
    "shared_ns": "the job's own messages share links of the fabric",
    "fixed_ns": "work that a rank's share of the batch does not shrink stays, as the optimizer",
    "bubble_ns": "a pipeline fills and drains for fewer micro-batches",
    "others_ns": "neighbours and collectives that are out of step take the links",
}
#: Where one batch is divided.
STRONG = {"bytes_ns": "a rank exchanges as many bytes for a smaller share of the batch"}


@dataclass(frozen=True, slots=True)
class Study:
    """A scaling study: sizes, weak or strong, control, repeats."""

    scenario: Scenario
    sizes: tuple[int, ...]
    strong: bool
    control: Scenario | None  # the scenario with the control
    repeats: int

    def units(self) -> list[SweepRun]:
        """Every simulation. Raises `ConfigError` for a size that does not fit."""
        found: list[SweepRun] = []
        states = [(BEFORE, self.scenario)]
        if self.control is not None:
            states.append((AFTER, self.control))
        for ranks in self.sizes:
            for state, scenario in states:
                asked = resize(scenario, ranks, strong=self.strong)
                for repeat in range(self.repeats):
                    varied = (("size", ranks), ("state", state))
                    plain = sweeps.with_seed(asked, repeat)
                    found.append(SweepRun(len(found), len(found), repeat, varied, plain))
        return found

    def amount(self, ranks: int) -> tuple[float, str]:
        """Progress of a step at a size, over that counted in its row; and the unit."""
        samples, now = self.scenario.work.samples_per_rank, self.scenario.ranks
        if not samples:
            return (1.0, "steps/s") if self.strong else (ranks, "rank-steps/s")
        whole = share_samples(samples, now, ranks) * ranks
        return (samples * now / whole if self.strong else 1.0), "samples/s"


def measured_row(unit: SweepRun) -> dict[str, Any] | None:
    """A row of `sweep.outcome` with the parts of the step's communication."""
    setup = set_up(schema.read(Scenario, unit.scenario))
    row = sweeps.row_of(unit, simulate_set_up(setup))
    if row is not None:
        row.update(parts(setup)._asdict())
    return row


# -- the curve -------------------------------------------------------------------------------------


def curve(study: Study, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One point for each finished size, the smallest first."""
    points = []
    for ranks in study.sizes:
        before, after = (
            [row for row in rows if row["size"] == ranks and row["state"] == state]
            for state in (BEFORE, AFTER)
        )
        if before:
            points.append(_point(study, ranks, before, after))
    if points:
        first = points[0]
        for point in points:
            larger = point["ranks"] / first["ranks"]
            point["ideal"] = first["throughput"]["value"] * larger
            point["efficiency"] = point["throughput"]["value"] / point["ideal"]
            point["effective_efficiency"] = point["effective"] / first["effective"] / larger
    return points


def _point(study: Study, ranks: int, rows: list[Row], after: list[Row]) -> dict[str, Any]:
    amount, unit = study.amount(ranks)
    rate = interval([row["throughput"] * amount for row in rows])
    first = rows[0]
    useful = _mean(rows, "goodput")
    per_step = first["throughput"] * amount * first["step_mean_ns"]
    return {
        "ranks": ranks,
        "nodes": first["nodes"],
        "throughput": rate,
        "unit": unit,
        "step_ns": interval([row["step_mean_ns"] for row in rows]),
        "cv": interval([row["step_cv"] for row in rows]),
        "p99_ns": interval([row["step_p99_ns"] for row in rows]),
        "goodput": useful,
        "effective": (rate["value"] or 0.0) * (1.0 if useful is None else useful),
        "bandwidth_only": per_step / first["bandwidth_only_step_ns"],
        "parts_ns": split_up(rows),
        "joules_per_unit": _ratio(_mean(rows, "joules_per_unit"), amount),
        "control": _ratios(rows, after) if after else None,
    }


def _mean(rows: list[Row], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) / len(values) if values else None


def split_up(rows: list[Row]) -> dict[str, float]:
    """The mean step in parts that add up to it. Exposed communication is divided in proportion to
    all communication; the excess over that is attributed to other traffic."""
    step = _mean(rows, "step_mean_ns") or 0.0
    busy = sum(_mean(rows, f"share_{name}") or 0.0 for name in ("compute", "input", "held"))
    wait = (_mean(rows, "share_wait") or 0.0) * step
    exposed = (_mean(rows, "share_exposed_communication") or 0.0) * step
    whole = {name: _mean(rows, name) or 0.0 for name in ("bytes_ns", "latency_ns", "shared_ns")}
    alone = sum(whole.values())
    shown = min(1.0, exposed / alone) if alone else 0.0
    fixed = min(_mean(rows, "fixed_ns") or 0.0, busy * step)
    bubble = min(_mean(rows, "bubble_ns") or 0.0, wait)
    found = {"compute_ns": busy * step - fixed, "wait_ns": wait - bubble}
    found |= {"fixed_ns": fixed, "bubble_ns": bubble}
    found.update({name: value * shown for name, value in whole.items()})
    found["others_ns"] = max(exposed - alone, 0.0) if alone else exposed
    return found


def _ratios(rows: list[Row], after: list[Row]) -> dict[str, float | None]:
    """Ratios of measures with the control over those without."""
    names = {
        "throughput": "throughput", "step": "step_mean_ns", "cv": "step_cv", "p99": "step_p99_ns",
        "wait": "share_wait", "useful": "goodput",
    }  # fmt: skip
    found = {key: _ratio(_mean(after, name), _mean(rows, name)) for key, name in names.items()}
    useful = found["useful"] or 1.0
    for key in ("joules_per_unit", "cost_per_unit"):
        found[key] = _ratio(_ratio(_mean(after, key), _mean(rows, key)), useful)
    found["effective"] = _ratio(_effective(after), _effective(rows))
    return found


def _effective(rows: list[Row]) -> float:
    useful = _mean(rows, "goodput")
    return (_mean(rows, "throughput") or 0.0) * (1.0 if useful is None else useful)


def _ratio(after: float | None, before: float | None) -> float | None:
    return None if after is None or not before else after / before


# -- conclusions -----------------------------------------------------------------------------------


def peak(points: Sequence[Mapping[str, Any]], *, strong: bool = False) -> dict[str, Any]:
    """Size of the highest throughput, whether it still rises, and what limits efficiency."""
    best = max(points, key=lambda point: float(point["effective"]))
    last = points[-1]
    inside = best is not last
    first, compared = (best, last) if inside else (points[0], last)
    ideal = first["ranks"] / last["ranks"] if strong else 1.0  # of a whole step, whatever is in it
    grown = {name: last["parts_ns"][name] - first["parts_ns"][name] * ideal for name in CAUSES}
    name = max(grown, key=lambda key: grown[key])
    why = STRONG.get(name, CAUSES[name]) if strong else CAUSES[name]
    total = sum(value for value in grown.values() if value > 0)
    lost = None if first["goodput"] is None else first["goodput"] - compared["goodput"]
    failing = lost is not None and total <= lost * last["step_ns"]["value"]
    return {
        "ranks": best["ranks"],
        "inside": inside,
        "from_ranks": first["ranks"],
        "to_ranks": last["ranks"],
        "cause": "failures" if failing else name,
        "why": "failures and restarts take more of the time" if failing else why,
        "grown_ns": None if failing else grown[name],
        "share": None if failing or total <= 0 else grown[name] / total,
    }


def outlay(
    points: Sequence[Mapping[str, Any]], *, target: float, price_per_hour: float,
    deadline_hours: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Hours and cost of `target` units at each size, and the cheapest size in time."""
    sizes = []
    for point in points:
        hours = target / point["effective"] / 3600 if point["effective"] else None
        rank_hours = None if hours is None else hours * point["ranks"]
        joules = point["joules_per_unit"]
        useful = point["goodput"] if point["goodput"] is not None else 1.0
        sizes.append({
            "ranks": point["ranks"],
            "hours": hours,
            "rank_hours": rank_hours,
            "cost": None if not price_per_hour or rank_hours is None
            else rank_hours * price_per_hour,
            "kilowatt_hours": target * joules / 3.6e6 / useful if joules and useful else None,
        })  # fmt: skip
    in_time = [
        size for size in sizes
        if size["hours"] is not None and (deadline_hours is None or size["hours"] <= deadline_hours)
    ]  # fmt: skip
    cheapest = min(in_time, key=lambda size: float(size["rank_hours"] or 0.0), default=None)
    return {
        "target": target,
        "price_per_hour": price_per_hour or None,
        "deadline_hours": deadline_hours,
        "sizes": sizes,
        "cheapest": cheapest["ranks"] if cheapest else None,
    }


# -- what bandwidth predicts -----------------------------------------------------------------------


class Parts(NamedTuple):
    """A step's communication in ns, overlapped or not, and the step that bandwidth predicts."""

    bytes_ns: float  # at the speed of the cards
    latency_ns: float  # of all rounds and launches
    shared_ns: float  # added where messages of a collective share links
    fixed_ns: float  # work that does not depend on a rank's batch
    bubble_ns: float  # of a pipeline
    bandwidth_only_step_ns: float


def parts(setup: Setup) -> Parts:
    """The parts of one step of a scenario that is set up."""
    flows = [flow for flow in setup.graph.flows if flow.stages]
    moved = sum(wire_ns(flow, setup) for flow in flows)
    latency = sum(_latency_ns(flow) for flow in flows)
    alone = sum(alone_ns(flow) for flow in flows)
    work, strategy = setup.scenario.work, setup.scenario.strategy
    exchange_ms = strategy.encode_ms
    if strategy.kind in AVERAGING:
        exchange_ms = (exchange_ms + strategy.outer_ms) / strategy.every
    return Parts(
        moved, latency, max(alone - moved - latency, 0.0),
        (work.optimizer_ms + exchange_ms) * 1e6, bubble_ns(work),
        _bandwidth_only_ns(setup),
    )  # fmt: skip


def bubble_ns(work: Work) -> float:
    """(p - 1)/v micro-batches (Narayanan et al. 2021); of zero bubble only their forwards (Qi et
    al. 2023)."""
    if work.kind != "pipeline":
        return 0.0
    each = work.forward_ms + (0.0 if work.schedule == "zero_bubble" else work.backward_ms)
    return (work.pipeline_parallel - 1) / work.interleaved * each / work.micro_batches * 1e6


def _bandwidth_only_ns(setup: Setup) -> float:
    """The step if a collective took its bytes over the speed of the cards; messages between stages,
    whose senders go on, are as they are. The mean of steps with and without an average."""

    @cache
    def bare(flow: Flow) -> Flow:
        if flow.operation == "send":
            return flow
        return setup.library.barrier(flow.members, wire_ns(flow, setup))

    calm = replace(setup.scenario, noise=(), neighbours=(), strategy=Strategy())
    bare_ns, every = [], setup.scenario.strategy.every
    for one in dict.fromkeys((setup.graph, setup.between)):
        graph = replace(one, flows=[bare(flow) for flow in one.flows])
        bare_ns.append(step_ns(replace(setup, scenario=calm, graph=graph, between=graph)))
    return bare_ns[-1] + (bare_ns[0] - bare_ns[-1]) / every


def wire_ns(flow: Flow, setup: Setup) -> float:
    """A ring's bytes over the joint sending speed of a group's ranks on a node."""
    size = int(flow.members.shape[1])
    if size < 2:
        return 0.0
    sent = bus_factor(flow.operation, size) * flow.bytes
    return sent / _speed(setup.scenario.cluster, setup.placement.node[flow.members])


def _speed(cluster: Cluster, node: Array) -> float:
    """GB/s; `node`: of each member of the groups, of which the first stands for all."""
    _, counts = np.unique(node[0], return_counts=True)
    if len(counts) == 1:
        return cluster.gpu_link_gBps
    cards = cluster.nic_gBps * cluster.nics_per_node
    mine = cards * float(counts.max()) / cluster.gpus_per_node
    return min(mine, cluster.gpu_link_gBps) if counts.max() > 1 else mine


def _latency_ns(flow: Flow) -> float:
    rounds = (float(s.latency_ns.max(initial=0.0)) * s.round.repeats for s in flow.stages)
    return flow.launch_ns + sum(rounds)
