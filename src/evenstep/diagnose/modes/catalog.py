"""Every failure mode there is, in the order in which they are asked.

The order is that of naming: who has evidence of his own comes before who only sees lateness (see
`evenstep.diagnose.lateness.case`). What each costs beside the others no order decides: see
`evenstep.diagnose.engine`. A mode is a function, and what `sentences.toml` says of it: the one
source of `evenstep explain MODE`, of the page of principles and of findings' words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from evenstep.diagnose.finding import Finding
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.modes import (
    async_staleness,
    bound,
    collective_topology_mismatch,
    endings,
    fabric_contention,
    incast,
    locality,
    phases,
    restart_amplification,
    runtime_jitter,
    scaling_collapse,
    straggler,
    synchronization,
    thermal_drift,
    workload_imbalance,
)
from evenstep.diagnose.sentences import TEXTS


class Mode(NamedTuple):
    """One way in which training stops scaling. `name` is that of its findings."""

    name: str
    find: Callable[[Case], list[Finding]]
    without_steps: bool  # can be asked of a trace in which no step was finished by all
    layer: str  # where it usually lives: one of `finding.LAYERS`
    symptom: str  # what a user sees, one sentence
    look_at: Sequence[str]  # numbers and pictures that show it, in order
    remedy: Sequence[str]  # best first
    confirm: str  # the experiment that proves it


def _mode(find: Callable[[Case], list[Finding]], *, alone: bool = False) -> Mode:
    """A mode of the name of its function, or of the module whose `find` it is."""
    name = find.__name__
    if name == "find":
        name = find.__module__.rpartition(".")[2]
    return Mode(name, find, alone, **{one: TEXTS[name][one] for one in Mode._fields[3:]})


#: Those that need no step come first: they can be asked of a trace in which none was finished.
WITHOUT_STEPS = (
    endings.rank_failed,
    endings.hang,
    restart_amplification.find,
    async_staleness.find,
)
MODES: tuple[Mode, ...] = (
    *(_mode(find, alone=True) for find in WITHOUT_STEPS),
    *map(
        _mode,
        (
            runtime_jitter.find,
            phases.input_pipeline,
            phases.checkpoint_stall,
            thermal_drift.find,
            workload_imbalance.find,
            synchronization.synchronization_oscillation,
            locality.find,
            straggler.find,
            incast.find,
            collective_topology_mismatch.find,
            fabric_contention.find,
            bound.latency_bound,
            bound.bandwidth_bound,
            synchronization.synchronization_amplification,
            scaling_collapse.find,
        ),
    ),
)


def by_name(name: str) -> Mode:
    """The mode of this name; raises `KeyError` where there is none."""
    return {mode.name: mode for mode in MODES}[name]
