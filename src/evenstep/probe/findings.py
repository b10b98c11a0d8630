"""Slow ranks, nodes, adapters and links, each beyond what noise explains.

Links are slow in a direction. If nearly all links that leave a node are slow, its adapter is slow
in sending, and the links are not named; likewise in receiving. Otherwise the link is slow: one fast
link at an end clears the adapter there; if none was measured, link and adapter cannot be told
apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from typing import Annotated, Any, NamedTuple

from evenstep.documents import Document, Meta, Natural
from evenstep.probe.outcome import ProbeResult
from evenstep.statistics.outliers import Outliers, standing

KINDS = (
    "missing_rank", "slow_node", "slow_rank", "slow_memory", "slow_adapter", "slow_link",
)  # fmt: skip
METRICS = ("compute", "memory", "transfer", "latency")
LEAST_RANK, LEAST_LINK, LEAST_LATENCY = 0.15, 0.25, 0.5  # smallest slowdowns that are named
COMMON = 0.75  # share of a node's links from which its adapter is slow
LIKENESS = 0.5  # share of the logarithm of a slow link's factor from which a link is as slow
_QUARTILE = 0.25  # the usual link: with few nodes, a slow node is part of more than half of them


Edge = tuple[int, int]  # from, to


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFinding(Document):
    """A slow or missing rank, or a slow node, adapter or link."""

    kind: Annotated[str, Meta(enum=KINDS)]
    observation: str
    mend: str
    ranks: tuple[Natural, ...]
    metric: Annotated[str | None, Meta(enum=(*METRICS, None))] = None
    nodes: tuple[str, ...] = ()
    links: Annotated[tuple[Edge, ...], Meta("From, to.")] = ()
    factor: Annotated[float | None, Meta("Multiple of the usual time.")] = None
    limit: Annotated[float | None, Meta("Smallest factor that is named.")] = None


class SlowEnd(NamedTuple):
    """A team whose links are all slow, or may be, in one direction."""

    team: int
    sending: bool
    edges: tuple[Edge, ...]


class Judgement(NamedTuple):
    """The findings, worst first, and the references they were compared with."""

    findings: list[ProbeFinding]
    standings: dict[str, Outliers[Any]]


def judge(outcome: ProbeResult) -> Judgement:
    both_ways = {**outcome.latency}
    both_ways |= {(b, a): times for (a, b), times in outcome.latency.items()}
    standings: dict[str, Outliers[Any]] = {
        "compute": standing(outcome.compute, least=LEAST_RANK),
        "memory": standing(outcome.memory, least=LEAST_RANK),
        "latency": standing(both_ways, least=LEAST_LATENCY, quantile=_QUARTILE),
        "transfer": standing(outcome.transfer, least=LEAST_LINK, quantile=_QUARTILE),
    }
    slow = [
        *_ranks(outcome, standings["compute"], "compute"),
        *_ranks(outcome, standings["memory"], "memory"),
        *_links(outcome, standings, "transfer"),
        *_links(outcome, standings, "latency"),
    ]
    slow.sort(key=lambda finding: -(finding.factor or 0.0))
    return Judgement([*_missing(outcome), *slow], standings)


def _missing(outcome: ProbeResult) -> list[ProbeFinding]:
    return [
        ProbeFinding(
            kind="missing_rank",
            ranks=(rank,),
            nodes=(outcome.node_name(rank),) if rank in outcome.places else (),
            observation=f"{outcome.name(rank)} {why}",
            mend="check the output of that rank, and the kernel log of its host",
        )
        for rank, why in outcome.stopped.items()
    ]


# -- ranks -----------------------------------------------------------------------------------------

_WORDS = {
    "compute": ("computes", "slow_rank", "check for other processes, heat or a low power limit: "
                "evenstep doctor"),
    "memory": ("copies memory", "slow_memory", "check NUMA placement and other users of its "
               "memory: numastat, evenstep doctor"),
}  # fmt: skip


def _ranks(outcome: ProbeResult, found: Outliers[int], stage: str) -> Iterator[ProbeFinding]:
    """Nodes whose ranks are all slow, and the other slow ranks."""
    verb, kind, mend = _WORDS[stage]
    whole = _whole_nodes(outcome, found.factors)
    named = {rank for members in whole for rank in members}
    for ranks in [*whole, *([rank] for rank in found.factors if rank not in named)]:
        node, factor = outcome.node_name(ranks[0]), min(found.factors[rank] for rank in ranks)
        times = f"{factor:.2g} times as long as usual"
        seen = f"{outcome.name(ranks[0])} {verb} {times}"
        if len(ranks) > 1:
            seen = f"all {len(ranks)} ranks of {node} take {times}: each {verb} slowly"
        yield ProbeFinding(
            kind="slow_node" if len(ranks) > 1 else kind, metric=stage, ranks=tuple(ranks),
            nodes=(node,), factor=factor, observation=seen, limit=1 + found.limit,
            mend=f"{mend} on {node}",
        )  # fmt: skip


def _whole_nodes(outcome: ProbeResult, slow: Mapping[int, float]) -> list[list[int]]:
    """Return the ranks of nodes whose ranks are all slow, if there are other nodes."""
    nodes: dict[int, list[int]] = {}
    for rank, place in sorted(outcome.places.items()):
        nodes.setdefault(place.node, []).append(rank)
    whole = [m for m in nodes.values() if len(m) > 1 and all(rank in slow for rank in m)]
    return whole if len(nodes) > 1 else []


# -- links -----------------------------------------------------------------------------------------


def _links(
    outcome: ProbeResult, standings: Mapping[str, Outliers[Any]], metric: str
) -> Iterator[ProbeFinding]:
    """Adapters whose links are slow, and the other slow links."""
    found: Outliers[Edge] = standings[metric]
    sides = common_ends(found.factors, found.ratios)
    for team in dict.fromkeys(side.team for side in sides):
        mine = [side for side in sides if side.team == team]
        yield _adapter(outcome, found, mine, metric, busy=team in standings["compute"].factors)
    seen = {edge for side in sides for edge in side.edges}
    for edge in found.factors:
        if edge not in seen:
            seen |= {edge, edge[::-1]} if metric == "latency" else {edge}
            yield _link(outcome, found, edge, metric)


def _adapter(
    outcome: ProbeResult, found: Outliers[Edge], sides: Sequence[SlowEnd], metric: str, *,
    busy: bool,
) -> ProbeFinding:  # fmt: skip
    team = sides[0].team
    edges = tuple(edge for side in sides for edge in side.edges)
    factor = sorted(found.ratios[edge] for edge in edges)[len(edges) // 2]
    what, mend = _of_team(outcome, team, busy=busy)
    return ProbeFinding(
        kind="slow_adapter", metric=metric, ranks=(team,), links=edges, factor=factor,
        nodes=(outcome.node_name(team),), limit=1 + found.limit, mend=mend,
        observation=f"{what} takes {factor:.2g} times as long as usual to "
        f"{_ways(sides, metric)}, with every partner",
    )  # fmt: skip


def _of_team(outcome: ProbeResult, team: int, *, busy: bool) -> tuple[str, str]:
    """Return the slow part of a team and the fix; a slow rank slows its links too."""
    name = outcome.node_name(team)
    if busy:
        return (
            f"{outcome.team_name(team)}, which also computes slowly,",
            f"fix the rank first, it may delay its own messages: evenstep doctor on {name}",
        )
    if outcome.between_nodes:
        return (
            f"the network adapter of {name}",
            f"evenstep doctor on {name}: speed, lanes, MTU and errors of its adapter and cable",
        )
    return f"rank {team}", "check for other users of its cores, and its binding: evenstep doctor"


def _ways(sides: Sequence[SlowEnd], metric: str) -> str:
    if metric == "latency":
        return "answer"
    if len(sides) > 1:
        return "send and to receive"
    return "send" if sides[0].sending else "receive"


def _link(outcome: ProbeResult, found: Outliers[Edge], edge: Edge, metric: str) -> ProbeFinding:
    factor = found.factors[edge]
    a, b = map(outcome.team_name, edge)
    way = f"between {a} and {b}" if metric == "latency" else f"from {a} to {b}"
    said = "a round trip takes" if metric == "latency" else "a message takes"
    caution = _caution(outcome, suspect_ends(edge, found.ratios), metric)
    return ProbeFinding(
        kind="slow_link", metric=metric, ranks=edge, links=(edge,), factor=factor,
        nodes=tuple(outcome.node_name(rank) for rank in edge), limit=1 + found.limit,
        observation=f"{said} {factor:.2g} times as long as usual {way}{caution}",
        mend="check the path between the two: cable, switch port, routing"
        if outcome.between_nodes
        else "check the binding of both to cores and memory: evenstep doctor",
    )  # fmt: skip


def _caution(outcome: ProbeResult, unclear: Sequence[SlowEnd], metric: str) -> str:
    """Name adapters or ranks that cannot be told from the link, for lack of other pairs."""
    if not unclear:
        return ""
    both = ("sends", "receives") if metric == "transfer" else ("answers", "answers")
    which = " or ".join(
        f"{outcome.team_name(side.team)} {both[not side.sending]}" for side in unclear
    )
    part = "adapter" if outcome.between_nodes else "rank"
    return f"; link and {part} cannot be told apart: no faster message that {which} was measured"


# -- slow adapters ---------------------------------------------------------------------------------


def common_ends(slow: Mapping[Edge, float], ratios: Mapping[Edge, float]) -> list[SlowEnd]:
    """Teams with at least two links in a direction of which nearly all are slow, those with most
    slow links first; the links they explain do not count for others."""
    left, found = set(slow), list[SlowEnd]()
    while candidates := [
        side
        for end in (0, 1)
        for team in sorted({edge[end] for edge in ratios})
        if (side := _side(team, end, left, slow, ratios)) is not None
    ]:
        best = max(candidates, key=lambda side: len(side.edges))
        found.append(best)
        left -= set(best.edges)
    return found


def _side(
    team: int, end: int, left: set[Edge], slow: Mapping[Edge, float], ratios: Mapping[Edge, float]
) -> SlowEnd | None:
    """Return a team's links in one direction if nearly all are about as slow as the slow ones."""
    mine = [edge for edge in ratios if edge[end] == team]
    out = [edge for edge in mine if edge in left]
    if not out or len(mine) < 2:
        return None
    usual = median(slow[edge] for edge in out)
    alike = tuple(edge for edge in mine if edge in slow or _alike(ratios[edge], usual))
    fresh = sum(edge in left or edge not in slow for edge in alike)
    common = fresh >= 2 and len(alike) >= COMMON * len(mine)
    return SlowEnd(team, end == 0, alike) if common else None


def suspect_ends(edge: Edge, ratios: Mapping[Edge, float]) -> list[SlowEnd]:
    """Return the ends of a slow link whose adapter no faster link clears."""
    found = []
    for end in (0, 1):
        mine = tuple(other for other in ratios if other[end] == edge[end])
        if all(_alike(ratios[other], ratios[edge]) for other in mine):
            found.append(SlowEnd(edge[end], end == 0, mine))
    return found


def _alike(ratio: float, slow: float) -> bool:
    """Whether a link is about as slow as a slow one, allowing for noise in both."""
    return log(max(ratio, 1.0)) >= LIKENESS * log(slow)
