"""A scenario of the probed cluster, with fitted links, slow ranks and slow adapters.

Its work is one matrix product and the largest all-reduce of the probe, so that the simulated step
can be compared with the measurement; users replace it by the work of their job.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from evenstep.documents import short
from evenstep.errors import TraceError
from evenstep.probe.findings import Judgement
from evenstep.probe.outcome import ProbeResult, Reduction
from evenstep.scenario import schema
from evenstep.scenario.hardware import Cluster, Fabric, LinkChange
from evenstep.scenario.parts import Collectives, Job, Noise, Run, Work
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.calibrate.links import FittedLinks, ObservedCollectives, fit_line
from evenstep.trace.ranks import format_ranks

_HEAD = """\
# Measured by evenstep probe on {where}.
# [cluster] and [fabric] are measured; [work] is one matrix product and one all-reduce of {bytes}
# bytes: replace it by the work of your job (evenstep simulate --fields).
"""


def to_toml(outcome: ProbeResult, judged: Judgement) -> str:
    """Return the scenario as TOML. Raises `TraceError` if no all-reduces were measured."""
    made, nodes = scenario(outcome, judged), outcome.nodes
    where = f"{outcome.world} ranks on {nodes} node{'s' if nodes > 1 else ''}"
    head = _HEAD.format(where=where, bytes=made.work.gradient_bytes)
    omitted = [f for f in judged.findings if f.kind == "slow_link"]
    notes = "".join(f"# Not included: {finding.observation}.\n" for finding in omitted)
    return f"{head}{notes}\n{schema.to_toml(schema.plain(made))}"


def scenario(outcome: ProbeResult, judged: Judgement) -> Scenario:
    """Return the scenario. Raises `TraceError` if no all-reduces were measured."""
    if not outcome.reductions or outcome.world < 2:
        what = "a scenario needs measured all-reduces of two ranks or more"
        raise TraceError(f"{what}; probe again with all ranks")
    nodes, per_node = _layout(outcome)
    whole = [row for row in outcome.reductions if row.ranks == outcome.world]
    largest = max(whole, key=lambda row: row.bytes)
    products = [times.median_ns for times in outcome.compute.values()]
    usual_ns = median(products) if products else 0.0
    return Scenario(
        name="a probed machine",
        cluster=Cluster(
            nodes=nodes, gpus_per_node=per_node, nics_per_node=per_node,
            **_links(outcome, judged, whole).cluster,
        ),
        fabric=Fabric(
            kind="switch", nodes_per_leaf=nodes, changes=tuple(_changes(outcome, judged))
        ),
        job=Job(ranks=outcome.world),
        work=Work(
            kind="collective", operation="all_reduce", gradient_bytes=largest.bytes,
            forward_ms=short(usual_ns / 1e6),
        ),
        collectives=Collectives(algorithm="ring", channels=1),
        noise=tuple(_noise(outcome, judged)),
        run=Run(steps=100),
    )  # fmt: skip


def _layout(outcome: ProbeResult) -> tuple[int, int]:
    """Return (nodes, ranks per node); every rank is a node if nodes differ or are not in order."""
    places = [outcome.places[rank].node for rank in sorted(outcome.places)]
    nodes = list(dict.fromkeys(places))
    counts = {places.count(node) for node in nodes}
    in_order = places == sorted(places, key=nodes.index)
    if len(counts) == 1 and in_order:
        return len(nodes), counts.pop()
    return len(places), 1


def _links(outcome: ProbeResult, judged: Judgement, whole: Sequence[Reduction]) -> FittedLinks:
    """Fit latency and bandwidth of a ring's messages, within and between nodes. A ring is as slow
    as its slowest link: with a slow adapter the pairs tell the others."""
    within = [row for row in outcome.reductions if row.nodes == 1]
    across = [row for row in whole if row.nodes > 1]
    between = fit_line(_observed_collectives(across))
    usual = judged.standings["transfer"].usual_ns
    if between and usual and any(one.kind == "slow_adapter" for one in judged.findings):
        between = between._replace(bandwidth_gBps=short(outcome.message_bytes / usual))
    return FittedLinks(fit_line(_observed_collectives(within)), between)


def _observed_collectives(rows: Sequence[Reduction]) -> list[ObservedCollectives]:
    return [
        ObservedCollectives(
            operation="all_reduce", members=tuple(range(row.ranks)), bytes=float(row.bytes),
            per_step=1.0, transfer_ns=row.times.median_ns, floor_ns=min(row.times.values_ns),
            blocking=True,
        )
        for row in rows
    ]  # fmt: skip


def _noise(outcome: ProbeResult, judged: Judgement) -> list[Noise]:
    """Return the noise of the median rank, and slow ranks."""
    computed = [times for times in outcome.compute.values() if times.median_ns]
    spread = [1.4826 * times.mad_ns / times.median_ns for times in computed]
    noises = [Noise(kind="normal", sigma=short(median(spread)))] if spread else []
    noises += [
        Noise(kind="slow", ranks=format_ranks(found.ranks), factor=short(found.factor or 1.0))
        for found in judged.findings
        if found.kind in ("slow_rank", "slow_node") and found.metric == "compute"
    ]
    return noises


def _changes(outcome: ProbeResult, judged: Judgement) -> list[LinkChange]:
    """Return slow adapters as links with less capacity."""
    if not outcome.between_nodes:
        return []
    order = list(dict.fromkeys(outcome.places[rank].node for rank in sorted(outcome.places)))
    return [
        LinkChange(
            links=f"node{order.index(outcome.places[found.ranks[0]].node)}.nic*.{way}",
            factor=short(1 / found.factor),
        )
        for found in judged.findings
        if found.kind == "slow_adapter" and found.metric == "transfer" and found.factor
        for way in _ways(found.links, found.ranks[0])
    ]


def _ways(links: Sequence[tuple[int, int]], team: int) -> list[str]:
    ways = {"send": any(a == team for a, _ in links), "receive": any(b == team for _, b in links)}
    return [way for way, slow in ways.items() if slow]
