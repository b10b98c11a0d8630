"""A failure mode: what it looks like, how to be sure, what to do, and the function that finds it.

The text is the one source of `evenstep explain MODE`, of the page of diagnostic principles and of
what a finding's reader is told: symptom, what to look at, remedy, how to confirm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenstep.diagnose.finding import Finding
    from evenstep.diagnose.lateness.case import Case


@dataclass(slots=True, frozen=True)
class Mode:
    """One way in which training stops scaling. `name` is that of its findings."""

    name: str
    layer: str  # where it usually lives: one of `finding.LAYERS`
    symptom: str  # what a user sees, one sentence
    look_at: Sequence[str]  # numbers and pictures that show it, in order
    remedy: Sequence[str]  # best first
    confirm: str  # the experiment that proves it
    find: Callable[[Case], list[Finding]]
    without_steps: bool = False  # can be asked of a trace in which no step was finished by all
