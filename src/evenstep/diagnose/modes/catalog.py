"""Every failure mode there is, in the order in which they are asked.

The order is that of naming: who has evidence of his own comes before who only sees lateness (see
`evenstep.diagnose.lateness.case`). What each costs beside the others no order decides: see
`evenstep.diagnose.attribution`.
"""

from __future__ import annotations

from evenstep.diagnose.modes import (
    async_staleness,
    bandwidth_bound,
    checkpoint_stall,
    collective_topology_mismatch,
    fabric_contention,
    hang,
    incast,
    input_pipeline,
    latency_bound,
    locality,
    rank_failed,
    restart_amplification,
    runtime_jitter,
    scaling_collapse,
    straggler,
    synchronization_amplification,
    synchronization_oscillation,
    thermal_drift,
    workload_imbalance,
)
from evenstep.diagnose.modes.mode import Mode

MODES: tuple[Mode, ...] = (
    rank_failed.MODE,
    hang.MODE,
    restart_amplification.MODE,
    async_staleness.MODE,
    runtime_jitter.MODE,
    input_pipeline.MODE,
    checkpoint_stall.MODE,
    workload_imbalance.MODE,
    thermal_drift.MODE,
    synchronization_oscillation.MODE,
    locality.MODE,
    straggler.MODE,
    incast.MODE,
    collective_topology_mismatch.MODE,
    fabric_contention.MODE,
    latency_bound.MODE,
    bandwidth_bound.MODE,
    synchronization_amplification.MODE,
    scaling_collapse.MODE,
)


def by_name(name: str) -> Mode:
    """The mode of this name; raises `KeyError` where there is none."""
    return {mode.name: mode for mode in MODES}[name]
