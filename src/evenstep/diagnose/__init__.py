"""Trace to findings: what a run lost, to whom, why, and what would help.

The nouns, in the order data flows through them:

    Graph      host threads, device streams, messages: who had to wait    graph/
    StepGrid   steps x ranks: lengths, waits, phases, pauses              measure/grid.py
    Case       the trace with its graph and grid, asked by every mode     lateness/case.py
    Mode       a failure mode: finds, names, says what would help         modes/
    Finding    one of them at work, with its title, cost and remedies     finding.py
    Verdict    what all of it comes to, in four parts                     verdict.py, engine.py

Beside them: what_if/ and operations/ (a run replayed with a change), sizes/ (other numbers of
ranks), compare/ (runs beside each other). Limits stand in `Diagnosis.limits`. The package can be
called: `evenstep.diagnose(run)`. To add a mode: a module with `find`, named in
modes/catalog.py, and its words in sentences.toml.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenstep.diagnose.finding import Diagnosis
    from evenstep.trace.trace import Trace


class _Callable(ModuleType):
    """This package, which is also the function of that name."""

    def __call__(self, run: str | Path | Trace) -> Diagnosis:
        """Diagnose a run's folder, another tool's file, or a trace that is loaded already.

        Raises `TraceError` where nothing usable is found.
        """
        import evenstep
        from evenstep.diagnose.engine import diagnose

        return diagnose(evenstep.load(run) if isinstance(run, (str, Path)) else run)


sys.modules[__name__].__class__ = _Callable
