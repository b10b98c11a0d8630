"""What the ranks' posts come to: numbers by rank, size and pair, whatever has arrived of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from evenstep import words
from evenstep.allreduce import bus_factor
from evenstep.probe.board import FAILED, STAGES, Board
from evenstep.statistics.outliers import Series, series

CONTESTED = 0.1  # of the time


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedPlace:
    """A rank, and where it is."""

    rank: int
    node: int
    host: str
    device: str
    kind: str
    flop: int  # of one matrix product
    copied_bytes: int  # of one copy, each way


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """All-reduces of one size over one kind of group."""

    bytes: int
    ranks: int
    nodes: int
    times: Series

    @property
    def algbw_gBps(self) -> float:  # noqa: N802
        """Size over time: 1 GB/s is a byte per ns."""
        return self.bytes / max(self.times.median_ns, 1.0)

    @property
    def busbw_gBps(self) -> float:  # noqa: N802
        """As nccl-tests defines it: comparable with the speed of a link."""
        return self.algbw_gBps * bus_factor("all_reduce", self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """All that was measured."""

    world: int
    backend: str | None
    places: Mapping[int, ProbedPlace]
    compute: Mapping[int, Series]
    memory: Mapping[int, Series]
    reductions: tuple[Reduction, ...]
    latency: Mapping[tuple[int, int], Series]  # of pairs, the lower rank first
    transfer: Mapping[tuple[int, int], Series]  # from, to: of one message, latency taken off
    message_bytes: int
    stopped: Mapping[int, str]  # ranks that did not finish: after which stage, or why
    limits: tuple[str, ...] = ()
    whole: bool = True  # every rank has finished

    @property
    def nodes(self) -> int:
        """Nodes that were heard of."""
        return len({place.node for place in self.places.values()})

    @property
    def between_nodes(self) -> bool:
        """Whether pairs are of nodes; else of ranks."""
        return self.nodes > 1

    def name(self, rank: int) -> str:
        """A rank with its host, where hosts differ."""
        place = self.places.get(rank)
        return f"rank {rank}" + (f" ({place.host})" if place and self.nodes > 1 else "")

    def node_name(self, rank: int) -> str:
        """The node of a rank; with its number where hosts have one name."""
        place = self.places[rank]
        hosts = {p.node: p.host for p in self.places.values()}
        alone = list(hosts.values()).count(place.host) == 1
        return place.host if alone else f"node {place.node} ({place.host})"


def gather(board: Board, world: int) -> ProbeResult:
    """The outcome of what is on the board."""
    posts = board.posts
    names = [one.name for one in fields(ProbedPlace)][1:]
    places = {
        rank: ProbedPlace(rank=rank, **{name: post[name] for name in names})
        for rank, post in posts["arrived"].items()
    }
    met = posts["pairs"]
    left_out = max((post["rounds_left_out"] for post in met.values()), default=0)
    limits = _contested(posts["done"])
    if left_out:
        limits.append(
            f"{left_out} rounds of the tournament did not fit into the time: not every pair was "
            "measured; give more --seconds"
        )
    return ProbeResult(
        world=world,
        backend=next((post["backend"] for post in posts["done"].values()), None),
        places=places,
        compute={rank: series(times) for rank, times in posts["compute"].items()},
        memory={rank: series(times) for rank, times in posts["memory"].items()},
        reductions=tuple(_reductions(posts["all_reduce"], places, world)),
        latency=_pairs(met, "latency_ns"),
        transfer=_pairs(met, "sent_ns")
        | {(b, a): times for (a, b), times in _pairs(met, "received_ns").items()},
        message_bytes=next((post["message_bytes"] for post in met.values()), 0),
        stopped=_stopped(board, world),
        whole=len(posts["done"]) == world,
        limits=tuple(limits),
    )


def _contested(posts: Mapping[int, Any]) -> list[str]:
    """Ranks that often stood ready without a core: their figures tell of the host's load."""
    shares = {rank: post["ready_ns"] / max(post["lasted_ns"], 1) for rank, post in posts.items()}
    waited = sorted(rank for rank, share in shares.items() if share > CONTESTED)
    if not waited:
        return []
    most = f"{100 * max(shares.values()):.0f} %"
    return [
        f"{words.ranks(waited)} stood ready without a core for up to {most} of the time: "
        "figures are those of a busy host, and single links in them are little reliable"
    ]


def _reductions(
    posts: Mapping[int, Any], places: Mapping[int, ProbedPlace], world: int
) -> list[Reduction]:
    """Over all ranks as the first of them saw it; within nodes as the slowest node did."""
    found: list[Reduction] = []
    if posts:
        first = posts[min(posts)]
        nodes = len({place.node for place in places.values()})
        found += _rows(first["world"], world, nodes)
    within: dict[int, list[Reduction]] = {}
    for node in sorted({place.node for place in places.values()}):
        members = [rank for rank, place in places.items() if place.node == node]
        heard = [rank for rank in members if "node" in posts.get(rank, {})]
        if heard and len(members) > 1:
            for row in _rows(posts[min(heard)]["node"], len(members), 1):
                within.setdefault(row.bytes, []).append(row)
    found += [max(rows, key=lambda row: row.times.median_ns) for rows in within.values()]
    return found


def _rows(sweep: Mapping[str, Any], ranks: int, nodes: int) -> list[Reduction]:
    pairs = zip(sweep["sizes"], sweep["times_ns"], strict=True)
    return [
        Reduction(bytes=size, ranks=ranks, nodes=nodes, times=series(times))
        for size, times in pairs
    ]


def _pairs(met: Mapping[int, Any], name: str) -> dict[tuple[int, int], Series]:
    return {
        (rank, int(other)): series(times)
        for rank, post in met.items()
        for other, times in post[name].items()
    }


def _stopped(board: Board, world: int) -> dict[int, str]:
    """Ranks that did not finish. Of those that fell silent, the ones that did so first: others
    wait for them. Of those that failed the first, unless they lost touch with a silent one."""
    silent = [rank for rank in range(world) if rank not in board.ended]
    if silent:
        stages = {rank: board.last_stage(rank) for rank in silent}
        first = min(map(_position, stages.values()))
        return {r: _silence(stage) for r, stage in stages.items() if _position(stage) == first}
    failures = board.posts[FAILED]
    order = sorted(failures, key=lambda rank: failures[rank]["time_ns"])
    return {
        rank: f"failed in stage {failures[rank]['stage']}: {failures[rank]['error']}"
        for rank in order
    }


def _position(stage: str | None) -> int:
    return -1 if stage is None else STAGES.index(stage)


def _silence(stage: str | None) -> str:
    if stage is None:
        return "never arrived"
    following = STAGES[min(STAGES.index(stage) + 1, len(STAGES) - 1)]
    return f"stopped in stage {following}"
