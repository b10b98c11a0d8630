"""All failure modes, in the order in which they are asked.

Modes with evidence of their own come before those that only see lateness, as each late cell is
claimed once (see `evenstep.diagnose.lateness.case`). The order does not decide what each costs (see
`evenstep.diagnose.engine`). A mode is a function and its table in `sentences.toml`, the one source
of `evenstep explain MODE`, of the page of principles and of the sentences of findings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from evenstep.diagnose.finding import Finding
from evenstep.diagnose.lateness.case import Case
from evenstep.diagnose.modes import (
    async_staleness,
    bound,
    endings,
    fabric,
    phases,
    placement,
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
    without_steps: bool  # applies to a trace without a step that all ranks finished
    layer: str  # the usual one of `finding.LAYERS`
    symptom: str  # what a user sees, one sentence
    look_at: Sequence[str]  # numbers and pictures that show it, in order
    remedy: Sequence[str]  # best first
    confirm: str  # the experiment that proves it


def _mode(number: int, find: Callable[[Case], list[Finding]]) -> Mode:
    """A mode with the name of its function, or of the module whose `find` it is."""
    name = find.__name__ if find.__name__ != "find" else find.__module__.rpartition(".")[2]
    fields = {one: TEXTS[name][one] for one in Mode._fields[3:]}
    return Mode(name, find, number < WITHOUT_STEPS, **fields)


WITHOUT_STEPS = 4  # the first modes, which need no step
_FINDERS = (
    endings.rank_failed,
    endings.hang,
    endings.restart_amplification,
    async_staleness.find,
    runtime_jitter.find,
    phases.input_pipeline,
    phases.checkpoint_stall,
    thermal_drift.find,
    workload_imbalance.find,
    synchronization.synchronization_oscillation,
    placement.locality,
    straggler.find,
    fabric.incast,
    placement.collective_topology_mismatch,
    fabric.fabric_contention,
    bound.latency_bound,
    bound.bandwidth_bound,
    synchronization.synchronization_amplification,
    scaling_collapse.find,
)
MODES: tuple[Mode, ...] = tuple(_mode(number, find) for number, find in enumerate(_FINDERS))
