"""Trace to findings: what a run lost, to which rank, why, and what would help.

The nouns, in the order of data flow:

    Graph      host threads, device streams, messages and their waits     graph/
    StepGrid   steps x ranks: lengths, waits, phases, pauses              measure/grid.py
    Case       the trace with its graph and grid, given to every mode     lateness/case.py
    Mode       a failure mode: finds culprits, cost and remedies          modes/
    Finding    a failure mode at work, with title, cost and remedies      finding.py
    Verdict    the whole diagnosis in four parts                          sentences.py, engine.py

Also: predict/ (a run with a change, or at other numbers of ranks), compare/ (several runs). Limits
are in `Diagnosis.limits`. The package can be called: `evenstep.diagnose(run)`. A new mode is a
module with `find`, named in modes/catalog.py, and its sentences in sentences.toml.
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
    """This package, callable as a function of the same name."""

    def __call__(self, run: str | Path | Trace) -> Diagnosis:
        """Diagnose a run's folder, another tool's file, or a loaded trace.

        Raises `TraceError` where nothing usable is found.
        """
        import evenstep
        from evenstep.diagnose.engine import diagnose
        from evenstep.diagnose.measure.attempts import with_attempts

        if isinstance(run, (str, Path)):
            run = with_attempts(evenstep.load(run), Path(run))
        return diagnose(run)


sys.modules[__name__].__class__ = _Callable
