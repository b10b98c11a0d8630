"""How often a job of some size is interrupted, from how often its parts fail.

Failures are independent and come at constant rates: a job that needs every part fails at the sum of
their rates. Counts observed on one cluster become rates, and rates give the mean time to failure of
a job of any size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenstep.errors import ConfigError

HOUR_NS = 3_600 * 10**9
DAY_NS = 24 * HOUR_NS


@dataclass(slots=True, frozen=True, kw_only=True)
class Component:
    """A kind of part, how often one of them fails and how many of them a node has.

    `per_node` may be below 1 for what several nodes share, such as a switch.
    """

    name: str
    per_million_hours: float  # failures of one part in 10^6 hours (also called FIT ÷ 1,000)
    per_node: float = 1.0
    hardware: bool = True  # its failure takes the node out until it is repaired

    def __post_init__(self) -> None:
        if self.per_million_hours < 0 or self.per_node < 0:
            raise ConfigError(
                f"component {self.name!r}: per_million_hours and per_node must not be negative"
            )

    def per_node_day(self) -> float:
        """Failures a day of all of a node's parts of this kind."""
        return self.per_million_hours * 24e-6 * self.per_node


def observed(
    counts: Mapping[str, int],
    *,
    nodes: int,
    days: float,
    per_node: Mapping[str, float] | None = None,
    software: Sequence[str] = (),
) -> tuple[Component, ...]:
    """Components with the rates that these counts of failures in `days` on `nodes` nodes show."""
    if nodes < 1 or days <= 0:
        raise ConfigError(f"nodes and days must be positive, found {nodes} and {days:g}")
    parts = per_node or {}

    def component(name: str, count: int) -> Component:
        each = parts.get(name, 1.0)
        rate = count / (nodes * each * days * 24) * 1e6
        return Component(
            name=name, per_million_hours=rate, per_node=each, hardware=name not in software
        )

    return tuple(component(name, count) for name, count in counts.items())


def failures_per_day(components: Sequence[Component], nodes: int) -> float:
    """Interruptions a day of a job on this many nodes."""
    return nodes * math.fsum(part.per_node_day() for part in components)


def mtbf_ns(components: Sequence[Component], nodes: int) -> float:
    """Mean time between interruptions of a job on this many nodes; infinite without failures."""
    return interval_ns(failures_per_day(components, nodes))


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


def by_cause(components: Sequence[Component]) -> dict[str, float]:
    """Share of interruptions by component, largest first."""
    total = failures_per_day(components, 1) or 1.0
    rates = {part.name: part.per_node_day() / total for part in components}
    return dict(sorted(rates.items(), key=lambda item: -item[1]))
