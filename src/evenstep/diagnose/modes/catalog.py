"""Every failure mode there is, in the order in which they are asked.

The order is that of naming: who has evidence of his own comes before who only sees lateness (see
`evenstep.diagnose.lateness.case`). What each costs beside the others no order decides: see
`evenstep.diagnose.engine`. A mode is a module with `find`, and what `sentences.toml` says of
it: the one source of `evenstep explain MODE`, of the page of principles and of findings' words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

from evenstep.diagnose.finding import Finding
from evenstep.diagnose.lateness.case import Case
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
from evenstep.diagnose.sentences import TEXTS


class Mode(NamedTuple):
    """One way in which training stops scaling. `name` is that of its module and its findings."""

    name: str
    find: Callable[[Case], list[Finding]]
    without_steps: bool  # can be asked of a trace in which no step was finished by all
    layer: str  # where it usually lives: one of `finding.LAYERS`
    symptom: str  # what a user sees, one sentence
    look_at: Sequence[str]  # numbers and pictures that show it, in order
    remedy: Sequence[str]  # best first
    confirm: str  # the experiment that proves it


def _mode(module: ModuleType, *, without_steps: bool = False) -> Mode:
    name = module.__name__.rpartition(".")[2]
    texts = {one: TEXTS[name][one] for one in Mode._fields[3:]}
    return Mode(name, module.find, without_steps, **texts)


MODES: tuple[Mode, ...] = (
    _mode(rank_failed, without_steps=True),
    _mode(hang, without_steps=True),
    _mode(restart_amplification, without_steps=True),
    _mode(async_staleness, without_steps=True),
    *map(
        _mode,
        (
            runtime_jitter,
            input_pipeline,
            checkpoint_stall,
            thermal_drift,
            workload_imbalance,
            synchronization_oscillation,
            locality,
            straggler,
            incast,
            collective_topology_mismatch,
            fabric_contention,
            latency_bound,
            bandwidth_bound,
            synchronization_amplification,
            scaling_collapse,
        ),
    ),
)


def by_name(name: str) -> Mode:
    """The mode of this name; raises `KeyError` where there is none."""
    return {mode.name: mode for mode in MODES}[name]
