"""Apply requested pacing modes: the settings' at the start, then those of `evenstep ctl`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenstep.agent.control import Control, mode_fact, record
from evenstep.agent.notes import Notes
from evenstep.agent.recording.recorder import Recorder
from evenstep.agent.settings.config import Config
from evenstep.agent.settings.request import SettingsChange, allowed_mode
from evenstep.agent.settings.selection import PACE, Whereabouts
from evenstep.agent.step_work import StepWork


class StartingMode:
    """The pacing mode that the settings request, and that of this rank in its part of the job."""

    def __init__(self, config: Config, place: Whereabouts) -> None:
        self.config = config
        self.place = place
        self.part = config.part("pace")
        self.asked = "on" if PACE in config.act.split(",") else config.pace_mode
        self.mode = allowed_mode(self.asked, chosen=self.part.holds(place))


class Steering:
    """Applies requests while the job runs; on the training thread. `ask` takes the names of
    actions, and the step from which on they are requested."""

    def __init__(
        self, start: StartingMode, control: Control, work: StepWork, recorder: Recorder,
        notes: Notes, ask: Callable[[Iterable[str], int], None],
    ) -> None:  # fmt: skip
        self._start, self._control, self._work = start, control, work
        self._recorder, self._notes, self._ask = recorder, notes, ask
        self._part = start.part

    def record_start(self) -> None:
        """Write the starting mode into the trace."""
        fact = mode_fact(self._start.asked, self._start.mode, self._part)
        self._recorder.spool.add_fact("pace", fact)

    def apply_due(self, step: int) -> None:
        """Apply requests that hold from the next step on; earlier ones for later steps end."""
        due = self._control.due
        for change in tuple(due):
            if step + 1 >= change.first_step:
                while due and due.popleft() is not change:
                    continue
                self._apply(change, step + 1)
        if self._work.at_once:
            self._note_idle()

    def _apply(self, change: SettingsChange, step: int) -> None:
        """Pace as requested from `step` on."""
        self._work.process_pending()
        pacer = self._work.pace.pacer
        self._part = change.part_of(self._part)
        chosen = self._part.holds(self._start.place)
        if change.act is not None:
            self._ask(change.act.split(","), step)
        pacer.settings = change.applied_to(pacer.settings, chosen=chosen)
        self._work.at_once = pacer.settings.mode == "on"
        record(self._recorder.spool, change, pacer.settings, self._part, step=step)

    def _note_idle(self) -> None:
        """Report once that pacing is requested where it cannot act."""
        note = ""
        if not self._work.pace.can_hold:
            note = "on CUDA holds the stream, by shared plans only: its waits are known too late"
        elif self._start.config.pace_sharing and self._work.sharing is None:
            note = "holds nothing: pace.sharing is on, but this rank shares nothing (see `share`)"
        if note:
            self._notes.once("pacing", f"pacing {note}", note)
