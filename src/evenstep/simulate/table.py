"""A result as a person reads it in a terminal."""

from __future__ import annotations

from evenstep.simulate.result import Result

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def render(result: Result) -> str:
    """The result in a few lines."""
    step, shares = result.step_time, result.shares
    title = result.name or "simulation"
    lines = [
        f"{title}: {result.ranks} ranks on {result.nodes} nodes, {result.steps} steps, "
        f"{result.mode} engine" + (", interrupted" if result.partial else ""),
        f"  throughput   {result.throughput:.4g} {result.unit}, "
        f"{100 * result.efficiency:.1f} % of compute alone",
        f"  step time    {duration(step.mean_ns)} on average, CV {step.cv:.3f}, "
        f"median {duration(step.p50_ns)}, 99 % below {duration(step.p99_ns)}",
        f"  time goes to compute {_percent(shares.compute)}, "
        f"exposed communication {_percent(shares.exposed_communication)}, "
        f"waiting for others {_percent(shares.wait)}, input {_percent(shares.input)}"
        + (f", pacing {_percent(shares.held)}" if shares.held else ""),
    ]
    for use in result.collectives:
        bus = f", bus bandwidth {use.busbw_gBps:.4g} GB/s" if use.busbw_gBps is not None else ""
        lines.append(
            f"  {use.operation:12} {amount(use.bytes)} among {use.size} ranks by {use.algorithm}: "
            f"{duration(use.alone_ns)} alone{bus}"
        )
    lines += [
        f"  busiest link {link.link}: {_percent(link.utilisation)} of "
        f"{link.capacity_gBps:g} GB/s used"
        for link in result.links[:3]
    ]
    if result.energy is not None:
        each = result.energy["joules_per_unit"] or 0.0
        one = result.unit.removesuffix("s/s")
        cost = result.energy["cost_per_unit"] or 0.0
        lines.append(f"  energy       {each:.4g} J a {one}, cost {cost:.3g} a {one}")
    if result.goodput is not None:
        useful = result.goodput["useful"]
        lines.append(
            f"  over weeks   {_percent(useful)} of the time is useful work "
            f"({result.throughput * useful:.4g} {result.unit}), "
            f"{result.goodput['interruptions_per_day']:.3g} interruptions a day"
        )
    if result.pacing is not None:
        lines.append(f"  pacing       {result.pacing['verdict']}")
    return "\n".join(lines) + "\n"


def duration(length_ns: float) -> str:
    """A time in the unit that fits."""
    scale, unit = next((u for u in _UNITS if abs(length_ns) >= u[0]), _UNITS[-1])
    return f"{length_ns / scale:.4g} {unit}"


def amount(size_bytes: float) -> str:
    """A size in the unit that fits; SI."""
    scale, unit = next((u for u in _BYTES if size_bytes >= u[0]), _BYTES[-1])
    return f"{size_bytes / scale:.4g} {unit}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
