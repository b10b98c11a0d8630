"""The diagnosis of a job that takes no step any more, as `evenstep diagnose` finds it.

The latest steps tell what goes on now. Where nothing does, as every rank has ended, died or hangs,
the whole trace tells more, and does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.finding import TERMINAL, Diagnosis
from evenstep.diagnose.measure.attempts import load_run
from evenstep.errors import TraceError
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.trace import Trace
from evenstep.watch.frame import LiveFinding
from evenstep.watch.run import SILENT_STEPS, FollowedRun
from evenstep.words import plural


@dataclass(slots=True)
class StandstillDiagnosis:
    """The diagnosis of a followed run while it takes no step: one at each death and at the end of
    an attempt, and of silent ranks another whenever their silence has doubled. None of a job that
    goes on without its dead."""

    read: Callable[[Path], tuple[Trace, float]] = lambda path: (load_run(path), 0.0)
    judge: Callable[[Trace, float], Diagnosis] = lambda trace, _: diagnose(trace)
    diagnosis: Diagnosis | None = None  # to be shown
    notes: list[LiveFinding] = field(default_factory=list)  # why there is none
    _of: tuple[int | None, ...] | None = None  # attempt, whether over, deaths, doublings of silence
    _deaths: tuple[int | None, int] = (None, 0)  # attempt, and how many
    _step: int = 0  # that all living ranks had finished when they were seen

    def is_due(self, run: FollowedRun) -> bool:
        """Whether the run is to be diagnosed; forget its diagnosis where it takes steps again."""
        silent = [state.silent_s for state in run.states if not (state.closed or state.gone)]
        deaths = sum(state.failed for state in run.states)
        if not run.states or not (self._ends(run, deaths) or all(silent)):
            self.diagnosis, self.notes, self._of = None, [], None
            return False
        before, doublings = self._of, int(min(silent, default=0.0)).bit_length()
        self._of = run.attempt, run.over, deaths, doublings
        if self._of != before and self.diagnosis is None:
            self.notes = [LiveFinding("agent", (), None, "the whole run is being diagnosed")]
        return self._of != before

    def _ends(self, run: FollowedRun, deaths: int) -> bool:
        """Whether ranks died, after whose deaths the others take no more steps than under way."""
        living = [each.rank for each in run.states if not (each.closed or each.gone or each.failed)]
        steps = run.window.last_step[np.isin(run.window.ranks, living)]
        step = int(steps.min()) if len(steps) else 0
        if self._deaths != (run.attempt, deaths):
            self._deaths, self._step = (run.attempt, deaths), step
        return deaths > 0 and step <= self._step + SILENT_STEPS

    def renew(self, run: FollowedRun) -> None:
        """Diagnose the run; of living ranks that is kept if it says what ended the job."""
        self.diagnosis, self.notes = None, []
        ranks, spools = len(run.states), RunFolder(run.path).spools(run.attempt or 0)
        try:
            if (missing := ranks - len(spools)) > 0:  # on disks of their nodes
                raise TraceError(f"traces of {missing} of {plural(ranks, 'rank')} are elsewhere")
            found = self.judge(*self.read(run.path))
        except TraceError as error:
            why = f"the whole run is not diagnosed: {error}"
            self.notes = [LiveFinding("agent", (), None, why)]
            return
        if run.over or any(finding.mode in TERMINAL for finding in found.findings):
            self.diagnosis = found
