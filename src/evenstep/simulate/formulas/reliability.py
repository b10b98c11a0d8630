"""How often a job of some size is interrupted, from how often its parts fail.

Failures are independent and come at constant rates: a job that needs every part fails at the sum of
their rates. Counts observed on one cluster become rates, and rates give the mean time to failure of
a job of any size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evenstep.errors import ConfigError
from evenstep.scenario.parts import Part

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS


def observed(
    counts: Mapping[str, int],
    *,
    nodes: int,
    days: float,
    per_node: Mapping[str, float] | None = None,
    software: Sequence[str] = (),
) -> tuple[Part, ...]:
    """Parts with the rates that these counts of failures in `days` on `nodes` nodes show."""
    if nodes < 1 or days <= 0:
        raise ConfigError(f"nodes and days must be positive, found {nodes} and {days:g}")

    def part(name: str, count: int) -> Part:
        each = (per_node or {}).get(name, 1.0)
        rate = count / (nodes * each * days * 24) * 1e6
        return Part(name=name, failures_per_million_hours=rate, per_node=each,
                    hardware=name not in software)  # fmt: skip

    return tuple(part(name, count) for name, count in counts.items())


def _per_node_day(part: Part) -> float:
    return part.failures_per_million_hours * 24e-6 * part.per_node


def failures_per_day(parts: Sequence[Part], nodes: int) -> float:
    """Interruptions a day of a job on this many nodes."""
    return nodes * math.fsum(_per_node_day(part) for part in parts)


def mtbf_ns(parts: Sequence[Part], nodes: int) -> float:
    """Mean time between interruptions of a job on this many nodes; infinite without failures."""
    return interval_ns(failures_per_day(parts, nodes))


def interval_ns(per_day: float) -> float:
    """Mean time between events of which there are this many a day."""
    return DAY_NS / per_day if per_day > 0 else math.inf


def mttf_ns(per_1000_node_days: float, *, gpus: int, gpus_per_node: int = 8) -> float:
    """Mean time to failure of a job of so many GPUs: 1000/(r N) days (Kokolis et al. 2025).

    The job takes whole nodes.
    """
    if per_1000_node_days < 0 or gpus < 1 or gpus_per_node < 1:
        raise ConfigError("failures must not be negative, GPUs and GPUs per node at least 1")
    return interval_ns(per_1000_node_days / 1000 * math.ceil(gpus / gpus_per_node))


def by_cause(parts: Sequence[Part]) -> dict[str, float]:
    """Share of interruptions by part, largest first."""
    total = failures_per_day(parts, 1) or 1.0
    rates = {part.name: _per_node_day(part) / total for part in parts}
    return dict(sorted(rates.items(), key=lambda item: -item[1]))
