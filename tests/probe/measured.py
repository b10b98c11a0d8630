"""An outcome with known causes: what a probe would have measured on such a machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import permutations

from evenstep.probe.outcome import ProbedPlace, ProbeResult, Reduction
from evenstep.probe.preflight import teams
from evenstep.statistics.outliers import series

USUAL_NS, MESSAGE_BYTES = 1_000_000.0, 4_000_000
#: A ring's message: α in ns, B in GB/s.
ALPHA_NS, GBPS = 20_000.0, 2.0


def repeats(usual_ns: float, *, noise: float = 0.02) -> list[float]:
    """Ten repeats around a value, alternating."""
    return [usual_ns * (1 + noise * (-1) ** i) for i in range(10)]


def outcome(
    *,
    nodes: int = 1,
    per_node: int = 1,
    compute: Mapping[int, float] | None = None,
    edges: Mapping[tuple[int, int], float] | None = None,
    latency: Mapping[tuple[int, int], float] | None = None,
    stopped: Mapping[int, str] | None = None,
    met: Collection[tuple[int, int]] | None = None,
) -> ProbeResult:
    """`compute` is how many times slower a rank is, `edges` and `latency` so of links.

    `met` are the pairs that there was time for, the lower first; by default all.
    """
    world = nodes * per_node
    places = {
        rank: ProbedPlace(
            rank=rank, node=rank // per_node, host=f"host{rank // per_node}", device="cpu",
            flop=2 * 512**3, copied_bytes=64_000_000,
        )
        for rank in range(world)
    }  # fmt: skip
    players = teams([place.node for place in places.values()])
    pairs = [p for p in permutations(players, 2) if met is None or tuple(sorted(p)) in met]
    return ProbeResult(
        world=world,
        backend="gloo",
        places=places,
        compute={r: series(repeats(USUAL_NS * (compute or {}).get(r, 1))) for r in places},
        memory={r: series(repeats(USUAL_NS)) for r in places},
        reductions=tuple(ring(world, nodes)) if world > 1 else (),
        latency={(a, b): series(repeats(50_000 * (latency or {}).get((a, b), 1)))
                 for a, b in pairs if a < b},
        transfer={pair: series(repeats(USUAL_NS * (edges or {}).get(pair, 1))) for pair in pairs},
        message_bytes=MESSAGE_BYTES,
        stopped=stopped or {},
    )  # fmt: skip


def ring(ranks: int, nodes: int) -> list[Reduction]:
    """t = 2 (n - 1) α + 2 (n - 1) / n S / B, the time of a ring."""
    return [
        Reduction(
            bytes=size, ranks=ranks, nodes=nodes,
            times=series(repeats(2 * (ranks - 1) * (ALPHA_NS + size / ranks / GBPS), noise=0)),
        )
        for size in (8, 4_096, 262_144, 16_777_216)
    ]  # fmt: skip
