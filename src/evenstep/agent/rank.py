"""The agent of one rank: its parts, started and stopped together.

When our own code fails, the agent logs it once and stops observing; the job goes on.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evenstep.agent.background import Background
from evenstep.agent.control import Control
from evenstep.agent.notes import Notes
from evenstep.agent.pulse.heartbeat import Heartbeat
from evenstep.agent.pulse.vigil import Vigil
from evenstep.agent.recording.collector import PauseWatch, signal_behind
from evenstep.agent.recording.phases import Compiled, Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.agent.settings.config import Config
from evenstep.agent.settings.selection import OFF, local_world, whereabouts
from evenstep.agent.stacks import Hooks, RankInWorld, Stack, combine
from evenstep.agent.steering import StartingMode, Steering
from evenstep.agent.step_work import StepWork
from evenstep.errors import EvenstepError
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.identity import Identity
from evenstep.trace.spool.layout import HOST_DEVICE
from evenstep.trace.spool.spool import Spool

if TYPE_CHECKING:
    from evenstep.agent.actions.conductor import Conductor
    from evenstep.agent.actions.link import LinkToken, StorageTurns
    from evenstep.agent.pace import PaceHost
    from evenstep.pacing import TrialBudget
    from evenstep.probe.measurements import PeriodicProbe

log = logging.getLogger("evenstep")

CLOSING_TIMEOUT_S = 2.0
LOOK_STEPS = 64  # at most, between two in which the training thread attends to the rest


class Agent:
    """One rank under observation, from `start` to `stop`."""

    def __init__(
        self, config: Config, identity: Identity, folder: RunFolder, spool: Spool,
        stacks: Sequence[Stack], compiled: Compiled | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.identity = identity
        self.folder = folder
        self.spool = spool
        self.recorder = Recorder(spool, compiled)
        self.failure = ""
        self._pid = os.getpid()
        self._stopped = False
        start = StartingMode(config, whereabouts(identity, os.environ))
        self.gate: Callable[[], None] | None = None  # called before every collective
        self._hooks: dict[str, Hooks] = {stack.name: stack.hooks(self) for stack in stacks}
        self._pauses = PauseWatch(self.recorder.pause)
        notes = self._notes = Notes(spool)
        control = self._control = Control(
            folder.path, identity.run_id, leads=identity.rank == 0, attempt=identity.attempt
        )
        self._work = StepWork(
            self.recorder, lambda: self._make_pace(start.mode), rank=identity.rank,
            samples_per_step=config.samples_per_step, at_once=start.mode == "on",
        )  # fmt: skip
        self._probe: PeriodicProbe | None = None  # made when the first step has ended
        self._probe_every = config.probe_every  # None: never, or no longer
        self._vigil = Vigil(self.recorder, self._work.durations)
        self._heartbeat = Heartbeat(self.recorder, self._vigil.look if config.stacks else None)
        self._steering = Steering(
            start, control, self._work, self.recorder, notes,
            lambda names, step: self._conductor.ask(names, step),
        )  # fmt: skip
        self._background = Background(
            config, identity, self.recorder, self._hooks, self._work, control,
            folder.path, notes, lambda: self._vigil.standstill, self.give_up,
        )  # fmt: skip
        self._background.sampler.wake_on(control.written)

    def _make_pace(self, mode: str) -> PaceHost:
        from evenstep.agent.pace import PaceHost, pacer_settings
        from evenstep.pacing import Pacer

        on_device = any(hooks.on_device for hooks in tuple(self._hooks.values()))
        pacer = Pacer(pacer_settings(self.config, self.identity, mode))
        return PaceHost(pacer, self.recorder, can_hold=not on_device, on_stream=self._hold_device)

    @property
    def _account(self) -> TrialBudget:
        """Shared by all trials of this rank."""
        return self._work.pace.pacer.trial.account

    @cached_property
    def _conductor(self) -> Conductor:
        """Tries actions. Made when the first is asked for: most jobs ask for none."""
        from evenstep.agent.actions.conductor import Conductor, Power
        from evenstep.agent.actions.cores import Cores
        from evenstep.agent.actions.garbage import Garbage

        place = self.identity
        return Conductor(
            self.spool, seed=f"{place.run_id}/{place.attempt}", budget=self._account,
            place=(place.local_rank, local_world(os.environ), place.world),
            makers={"gc": Garbage, "cores": Cores, "power": Power},
            make_turns=self._turns, soon=self._background.once.append,
        )  # fmt: skip

    @property
    def _asked(self) -> Conductor | None:
        """The conductor, if any action was asked for."""
        return vars(self).get("_conductor")

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install and start everything. Raises what a hook raises; the caller then calls `stop`."""
        for hooks in tuple(self._hooks.values()):
            hooks.install()
        self._pauses.install()
        self._background.sampler.start()
        self._heartbeat.start()
        if self.spool.note:
            self.spool.add_fact("spool", self.spool.note)
        self._describe_hooks()
        self._steering.record_start()
        if self.config.act != OFF:
            self._conductor.ask(self.config.act.split(","), self.recorder.step)

    def add_stack(self, stack: Stack) -> None:
        """Observe a stack that was imported after the start. Raises what its hooks raise."""
        if stack.name in self._hooks or self._stopped or self.failure:
            return
        hooks = self._hooks[stack.name] = stack.hooks(self)
        try:
            hooks.install()
        except BaseException:
            hooks.remove()  # the other stacks are still observed
            raise
        self._describe_hooks()
        self.recorder.words[Word.ATTENDED] = 0

    def note_place(self, place: RankInWorld) -> None:
        """Report that a later process group numbers the ranks differently, if it does."""
        identity = self.identity
        if place != (identity.rank, identity.world):
            was, now = f"{identity.rank} of {identity.world}", f"{place.rank} of {place.world}"
            self._notes.once(
                "renumbered",
                f"rank {was} is now {now}: its trace goes on as rank {identity.rank}",
                f"rank {now} since step {self.recorder.step}",
            )

    def _hold_device(self, delay_ns: int, seq: int) -> bool:
        return any(hooks.hold_device(delay_ns, seq) for hooks in tuple(self._hooks.values()))

    def _turns(self) -> Iterator[LinkToken | StorageTurns]:
        """The job's turns on a shared link, this rank's on storage. Raises `EvenstepError`."""
        from evenstep.agent.actions.link import LinkToken, StorageTurns

        group, account = self.config.link_group, self._account
        if self.identity.rank == 0:
            yield LinkToken(self.recorder, account, group=group, gate_by=self.gate_by)
        yield StorageTurns(self.recorder, account, group=group)

    def gate_by(self, gate: Callable[[], None] | None) -> None:
        """Call `gate` before every collective; None: nothing."""
        self.gate = gate
        for hooks in tuple(self._hooks.values()):
            hooks.pause_by(gate)

    def _describe_hooks(self) -> None:
        self.spool.add_fact("hooks", combine([each.describe() for each in self._hooks.values()]))

    @property
    def stopped(self) -> bool:
        """Whether the trace has been ended."""
        return self._stopped

    def connect(self, make_store: Callable[[], Any], meeting: int) -> None:
        """Begin to share: `make_store` makes a client of the job's store for a thread of ours.

        `meeting` counts the job's process groups.
        """
        self._background.connect(make_store, meeting)

    def stop(self, reason: str) -> None:
        """Remove the hooks, write the last facts and close the spool."""
        if self._stopped or os.getpid() != self._pid:
            return
        self._stopped = True
        parts: list[tuple[str, Callable[[], object]]] = [
            ("sampler", lambda: self._background.sampler.stop(CLOSING_TIMEOUT_S)),
            # What has ended on a device since the sampler's last round is read before the hooks go.
            *((f"last times of the {name} hooks", each.poll) for name, each in self._hooks.items()),
            *((f"{name} hooks", each.remove) for name, each in self._hooks.items()),
            *([("actions", self._asked.stop)] if self._asked else []),
            ("collector", self._pauses.remove),
            ("store", self._background.close),
            ("last steps", self._work.process_pending),
            ("scheduler", self._work.meter.close),
            ("control", self._control.close),
            ("heartbeat", lambda: self._heartbeat.stop(CLOSING_TIMEOUT_S)),
        ]
        for part, end in parts:
            try:
                end()
            except Exception as error:  # the other parts must still be stopped
                self.spool.keep_mapped()  # a part that is left in place may still write
                log.warning("evenstep: ending the %s: %s", part, error)
        try:
            self._background.record_absent()
            self._write_costs()
            self.spool.add_fact("closed", {"monotonic_ns": time.monotonic_ns(), "reason": reason})
            self.recorder.summaries.release()
            self.spool.shut()
        except (ValueError, OSError, BufferError) as error:
            log.warning("evenstep: the end of %s is missing: %s", self.spool.path, error)

    def disarm(self) -> None:
        """In a forked child: make sure that nothing writes into the parent's mapping."""
        for hooks in tuple(self._hooks.values()):
            hooks.disarm()
        self._pauses.disarm()
        self._background.sampler.disarm()
        self._background.close()
        self._heartbeat.disarm()
        self._work.kill_pacer()
        self._stopped = True
        if self._asked:
            self._asked.end_all()

    def give_up(self, error: Exception) -> None:
        """Stop observing after a failure of our own code; the job goes on.

        An error raised by a signal handler of the script, which ran inside our code, is raised
        again and reaches the script.
        """
        if signal_behind(error) is not None:
            raise error
        if self.failure or self._stopped:  # a call that outlived the end finds its spool shut
            return
        self.failure = f"{type(error).__name__}: {error}"
        for hooks in tuple(self._hooks.values()):
            hooks.disarm()
        self._pauses.disarm()
        self._work.kill_pacer()
        log.error("evenstep: stopped observing rank %d: %s", self.identity.rank, self.failure)
        log.debug("evenstep: the failure was", exc_info=error)
        with suppress(Exception), ExitStack() as ends:  # nothing of ours reaches the script
            if self._asked:
                ends.callback(self._asked.stop)
            self.spool.add_fact("failure", self.failure)

    # -- steps -----------------------------------------------------------------------------------

    def end_step(self, now_ns: int, began_ns: int = 0) -> None:
        """End a step. On the training thread; may sleep when pacing. `began_ns`: that thread's time
        when our code began, where it has been read."""
        began_ns = began_ns or time.thread_time_ns()
        step, words, acted_ns = self._work.end(now_ns), self.recorder.words, 0
        if step >= words[Word.ATTENDED] or self._control.due:
            acted_ns = self._attend(step)
        spent_ns = time.thread_time_ns() - began_ns - acted_ns
        for start, end, _ in self.recorder.pauses_since(now_ns):
            spent_ns -= end - start  # garbage is collected in whichever code runs
        words[Word.OWN_NS] += max(spent_ns, 0)

    def _attend(self, step: int) -> int:
        """Do what is not to be done in each step, and find out when there is more: every line that
        runs once a step is fetched into cold caches. Return the thread time (ns) of actions, whose
        cost is their trial's."""
        work, conductor = self._work, self._asked
        acts = conductor is not None and conductor.acts
        spared = not (acts or work.at_once)
        hooks = tuple(self._hooks.values())
        due = min([step + LOOK_STEPS, *(each.begins_step(step, spared=spared) for each in hooks)])
        acted_ns = 0
        if conductor and acts and (closed := work.newest_step()) is not None:
            acted_ns = -time.thread_time_ns()
            conductor.end_step(closed, work.waited_ns)
            acted_ns += time.thread_time_ns()
        if self._control.due or work.at_once:
            self._steering.apply_due(step)
            due = step + 1
        if self._probe_every is not None:
            self._probe_after(step, self._probe_every)
        work.relieve()
        if acts or work.single_steps or self._probe_every is not None:
            due = step + 1
        self.recorder.words[Word.ATTENDED] = due
        if self._control.due:  # in the meantime; the next one resets the word itself
            self.recorder.words[Word.ATTENDED] = 0
        return acted_ns

    def _probe_after(self, steps: int, every: int) -> None:
        """Measure the machine if it is time; a failure is reported once and ends the probe."""
        index = self._background.device_index
        try:
            if self._probe is None:
                self._probe = _make_probe(index, every)
            for metric, value in self._probe.after(steps).items():
                self.recorder.sample(metric, HOST_DEVICE if index is None else index, value)
        except Exception as error:  # torch's have no common class
            if signal_behind(error) is not None:
                raise
            self._probe_every = self._probe = None
            self._notes.failed("periodic probe", error)

    def end_past_step(self, end_ns: int, counters: Sequence[int], upto: int) -> None:
        """Close a step that ended in the past, at `end_ns`, with record `upto` as its last."""
        self._work.end_past(end_ns, counters, upto)

    def counters(self) -> Sequence[int]:
        """The kernel's counters now."""
        return self._work.meter.now()

    # -- the end ---------------------------------------------------------------------------------

    def _write_costs(self) -> None:
        spent_ns = self._background.sampler.cost_ns + self._heartbeat.cost_ns
        cost = {"ns_per_collective": self.recorder.cost.each_ns, "background_cpu_ns": spent_ns}
        self.spool.add_fact("cost", cost)
        if self._asked and self._asked.outcomes:
            self.spool.add_fact("actions", self._asked.outcomes)
        if (pace := self._work.made_pace) is not None:
            self.spool.add_fact("pacing_account", pace.pacer.account)


def _make_probe(index: int | None, every: int) -> PeriodicProbe:
    """The probe of this rank's machine. Raises `EvenstepError` where the job has no torch."""
    from evenstep.probe.measurements import PeriodicProbe

    if "torch" not in sys.modules:
        raise EvenstepError("it measures with torch, which this job does not use")
    return PeriodicProbe(sys.modules["torch"], index, every=every)
