"""The agent of one rank: everything put together, and taken apart again.

When our own code fails, the agent says so once, stops observing, and the job goes on.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenstep.agent.collector import PauseWatch
from evenstep.agent.config import Config
from evenstep.agent.control import Control, record, stance
from evenstep.agent.gaps import GapGate
from evenstep.agent.live import LiveView
from evenstep.agent.pace import PaceHost
from evenstep.agent.recorder import Recorder
from evenstep.agent.request import Change, allowed
from evenstep.agent.resources import Lap, ResourceMeter, RunDelay
from evenstep.agent.sampler import Sampler
from evenstep.agent.selection import whereabouts
from evenstep.agent.sharing import Sharing
from evenstep.agent.stacks import Hooks, Stack, combined
from evenstep.agent.steps import ClosedStep
from evenstep.agent.windows import WINDOW_STEPS, Late, StepRow, WindowReport, summarize
from evenstep.errors import EvenstepError
from evenstep.pacing import Decision, Pacer, PacerSettings, Reason
from evenstep.trace.folder import RunFolder
from evenstep.trace.identity import Identity
from evenstep.trace.spool import Spool

log = logging.getLogger("evenstep")

CLOSING_TIMEOUT_S = 2.0
PENDING_STEPS = 8  # at most so many wait to be worked through …
PENDING_NS = 1_000_000_000  # … and none for longer than this and a step


class Agent:
    """One rank under observation, from `start` to `stop`."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        folder: RunFolder,
        spool: Spool,
        stacks: Sequence[Stack],
    ) -> None:
        self.config = config
        self.identity = identity
        self.folder = folder
        self.spool = spool
        self.recorder = Recorder(spool)
        self.failure = ""
        self._pid = os.getpid()
        self._stopped = False
        self._part = config.part("pace")
        self._place = whereabouts(identity, os.environ)
        mode = allowed(config.pace_mode, chosen=self._part.holds(self._place))
        self.gate = self._gate(mode)
        self._hooks: dict[str, Hooks] = {stack.name: stack.hooks(self) for stack in stacks}
        self._pauses = PauseWatch(self.recorder.pause)
        self._meter = ResourceMeter()
        self._run_delay = RunDelay(threading.get_native_id())
        self._pace = PaceHost(
            Pacer(replace(pacer_settings(config, identity), mode=mode)),
            self.recorder,
            world=identity.world,
            can_hold=not any(hooks.on_device for hooks in self._hooks.values()),
            gate=self.gate,
            on_stream=self._hold_device,
        )
        self._live = LiveView(folder.path)
        self._sharing: Sharing | None = None
        self._control = Control(
            folder.path, identity.run_id, leads=identity.rank == 0, attempt=identity.attempt
        )
        self._rows: deque[StepRow] = deque(maxlen=WINDOW_STEPS)
        self._once: list[Callable[[], None]] = [self._record_locality]
        self._sampler = self._make_sampler()
        self._step_cost_ns = 0
        self._at_once = mode == "on"
        self._pending: list[ClosedStep] = []  # ended, not worked through yet
        self._decision = Decision(0, "none", Reason.LEARNING)
        self._absent: dict[str, str] = {}
        self._noted: set[str] = set()
        self._floor_ns = 0  # of the step's first collective, as last known

    def _gate(self, mode: str) -> GapGate | None:
        """The pause between buckets, in the way of every collective only where it is asked for."""
        asked = mode == "on" and self.config.pace_controller in ("gap", "auto")
        return GapGate(self.recorder) if asked else None

    def _make_sampler(self) -> Sampler:
        from evenstep.agent.sources import all_sources

        sources = all_sources(thread_id=threading.get_native_id(), device_index=self._device_index)
        return Sampler(
            sources,
            self.recorder.sample,
            period_s=self.config.sample_period_s,
            also=[self._background],
            between=self._listen,
        )

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install everything. Raises what a hook raises; the caller stops the agent then."""
        for hooks in tuple(self._hooks.values()):
            hooks.install()
        self._pauses.install()
        self._sampler.start()
        if self.spool.note:
            self.spool.add_fact("spool", self.spool.note)
        self._describe_hooks()
        mode = self._pace.pacer.settings.mode
        self.spool.add_fact("pace", stance(self.config.pace_mode, mode, self._part))

    def take_in(self, stack: Stack) -> None:
        """Watch a stack that was imported after the start. Raises what its hooks raise."""
        if stack.name in self._hooks or self._stopped or self.failure:
            return
        hooks = self._hooks[stack.name] = stack.hooks(self)
        try:
            hooks.install()
        except BaseException:
            hooks.remove()  # not one half of it; what else is watched still is
            raise
        self._describe_hooks()

    def _hold_device(self, delay_ns: int, seq: int) -> bool:
        return any(hooks.hold_device(delay_ns, seq) for hooks in tuple(self._hooks.values()))

    def _describe_hooks(self) -> None:
        self.spool.add_fact("hooks", combined([each.describe() for each in self._hooks.values()]))

    @property
    def _device_index(self) -> int | None:
        indices = (hooks.device_index for hooks in self._hooks.values())
        return next((index for index in indices if index is not None), None)

    @property
    def stopped(self) -> bool:
        """Whether the trace has been ended."""
        return self._stopped

    def connect(self, make_store: Callable[[], Any]) -> None:
        """The ranks can reach each other: `make_store` gives a client for a thread of ours."""
        if self.config.share and self.identity.world > 1 and self._sharing is None:
            self._sharing = self._connect_store(make_store)

    def stop(self, reason: str) -> None:
        """Take the hooks out, write the last facts and close the spool."""
        if self._stopped or os.getpid() != self._pid:
            return
        self._stopped = True
        for part, end in (
            *((f"{name} hooks", hooks.remove) for name, hooks in self._hooks.items()),
            ("last steps", self._work_through),
            ("collector", self._pauses.remove),
            ("sampler", lambda: self._sampler.stop(CLOSING_TIMEOUT_S)),
            ("scheduler", self._run_delay.close),
        ):
            try:
                end()
            except Exception as error:  # the other parts must still go
                log.warning("evenstep: removing the %s: %s", part, error)
        try:
            self._write_costs()
            self.spool.add_fact("closed", {"monotonic_ns": time.monotonic_ns(), "reason": reason})
            self.recorder.summaries.release()
            self.spool.shut()
        except (ValueError, OSError, BufferError) as error:
            log.warning("evenstep: the end of %s is missing: %s", self.spool.path, error)

    def disarm(self) -> None:
        """For a forked child: nothing of ours may write into the parent's mapping."""
        for hooks in tuple(self._hooks.values()):
            hooks.disarm()
        self._pauses.disarm()
        self._sampler.disarm()
        self._pace.pacer.kill()
        self._stopped = True

    def give_up(self, error: Exception) -> None:
        """Our own code failed: observe nothing from here on; the job goes on."""
        if self.failure:
            return
        self.failure = f"{type(error).__name__}: {error}"
        for hooks in tuple(self._hooks.values()):
            hooks.disarm()
        self._pauses.disarm()
        self._pace.pacer.kill()
        log.error("evenstep: stopped observing rank %d: %s", self.identity.rank, self.failure)
        log.debug("evenstep: the failure was", exc_info=error)
        try:
            self.spool.add_fact("failure", self.failure)
        except (ValueError, OSError):
            return

    # -- steps -----------------------------------------------------------------------------------

    def end_step(self, now_ns: int) -> None:
        """The marking optimizer has finished. On the training thread; may sleep when pacing.

        Only pacing needs its answer before the next step. Otherwise steps are worked through a few
        at a time: code that runs once in tens of milliseconds runs from a cold cache, at several
        times its cost.
        """
        pace = self._pace
        closed = self._closed(now_ns, self.lap(), pace.take_held())
        closed.counted["agent_ns"] += self._step_cost_ns
        pending = self._pending
        oldest_ns = pending[0].end_ns
        if self._at_once or len(pending) >= PENDING_STEPS or now_ns - oldest_ns > PENDING_NS:
            self._work_through()
        self._step_cost_ns = time.monotonic_ns() - now_ns
        if self._at_once:
            pace.hold(self._decision, closed.number + 1)
        self._look_for_change(closed)

    def end_past_step(self, end_ns: int, used: tuple[Lap, int]) -> None:
        """Close a step of which it is known only now that it ended then; `used` is its `lap`."""
        closed = self._closed(end_ns, used, held_ns=0)
        closed.realtime_ns -= time.monotonic_ns() - end_ns

    def lap(self) -> tuple[Lap, int]:
        """What was used since the last lap, and for how long the thread had no core (ns)."""
        return self._meter.lap(), self._run_delay.lap() or 0

    def _closed(self, end_ns: int, used: tuple[Lap, int], held_ns: int) -> ClosedStep:
        lap, run_delay_ns = used
        if self.config.samples_per_step is not None:
            self.recorder.clock.samples = self.config.samples_per_step
        usage = (lap[0], lap[3], lap[4], lap[1], lap[2])
        closed = self.recorder.end_step(end_ns, usage, held_ns, run_delay_ns)
        self._pending.append(closed)
        return closed

    def _look_for_change(self, closed: ClosedStep) -> None:
        """Follow what was asked for, if it is time, from the first step that is not decided yet."""
        control = self._control
        try:
            control.look(closed.number, closed.end_ns - closed.start_ns)
        except EvenstepError as error:
            self._note_once("control", error)
        while control.due and closed.number + 2 >= control.due[0].first_step:
            self._follow(control.due.popleft(), closed.number + 2)

    def _follow(self, change: Change, step: int) -> None:
        """Pace as asked from `step` on."""
        self._work_through()
        pacer = self._pace.pacer
        self._part = change.part_of(self._part)
        chosen = self._part.holds(self._place)
        pacer.settings = change.applied_to(pacer.settings, chosen=chosen)
        self._at_once = pacer.settings.mode == "on"
        record(self.spool, change, pacer.settings, self._part, step=step)

    def _note_pacing(self) -> None:
        """Say once that pacing is asked for where it cannot act."""
        note = ""
        if not self._pace.can_hold:
            note = "on CUDA holds the stream, by shared plans only: its waits are known too late"
        elif self.config.pace_sharing and self._sharing is None:
            note = "holds nothing: pace.sharing is on, but this rank shares nothing (see `share`)"
        if note and self._at_once and "pacing" not in self._noted:
            self._noted.add("pacing")
            self.spool.add_fact("pacing", note)
            log.warning("evenstep: pacing %s", note)

    def _work_through(self) -> None:
        """Estimate, decide, summarize and share the steps that ended since the last time."""
        pending, self._pending = self._pending, []
        each = self.recorder.cost.median_ns or 0
        for closed in pending:
            row, wait, self._decision = self._pace.after_step(closed)
            if self._decision.plan is not None and self._sharing is not None:
                self._sharing.publish(self._decision.plan)
            self._floor_ns = wait.floor_lower_ns or self._floor_ns
            closed.counted["agent_ns"] += each * len(closed.collectives)
            self.recorder.store_summary(closed)
            self._rows.append(row)
            if (closed.number + 1) % WINDOW_STEPS == 0:
                self._end_window(closed.number // WINDOW_STEPS)
            if not self._at_once:
                self._pace.hold(self._decision, closed.number + 1)
        self._note_pacing()

    def _end_window(self, window: int) -> None:
        if self._sharing is None:
            return
        report = summarize(
            list(self._rows),
            rank=self.identity.rank,
            window=window,
            loss_ns=self._pace.pacer.account.booked_ns,
            floor_ns=self._floor_ns,
        )
        self._sharing.post(report)

    # -- background ------------------------------------------------------------------------------

    def _background(self) -> None:
        """Once per sampling period, on the background thread."""
        while self._once:
            task = self._once.pop()
            try:
                task()
            except Exception as error:
                self.spool.add_fact("background", f"{type(error).__name__}: {error}"[:200])
        for hooks in tuple(self._hooks.values()):
            hooks.poll()
        self._say_absent()
        try:
            self.spool.flush()
        except OSError as error:  # a full disk may have room again
            self._note_once("flush", error)
        if self._sharing is not None:
            self._exchange(self._sharing)
        self._ask_for_change()

    def _listen(self) -> float:
        """Between two rounds: seconds until something may have been asked for."""
        return self._ask_for_change() / 1e9 if self._control.listens else math.inf

    def _ask_for_change(self) -> int:
        step_ns = self._rows[-1].step_ns if self._rows else PENDING_NS
        try:
            return self._control.poll(self.recorder.stack.step, step_ns)
        except (OSError, EvenstepError) as error:
            self._note_once("control", error)
        except Exception as error:  # the store is gone, or the job is ending
            self._control.disconnect()
            self._note_once("control", error)
        return PENDING_NS

    def _note_once(self, what: str, error: Exception) -> None:
        if what not in self._noted:
            self._noted.add(what)
            log.warning("evenstep: %s: %s", what, error)
            self.spool.add_fact(what, f"{type(error).__name__}: {error}"[:200])

    def _say_absent(self) -> None:
        absent = self._sampler.absent
        if absent != self._absent:
            self._absent = absent
            self.spool.add_fact("absent", absent)

    def _exchange(self, sharing: Sharing) -> None:
        try:
            sharing.exchange()
        except Exception as error:  # the store is gone, or the job is ending: local only from here
            self._sharing = None
            self._control.disconnect()
            self.spool.add_fact("sharing", f"ended: {type(error).__name__}: {error}"[:200])

    def _on_window(self, reports: Sequence[WindowReport], late: Late | None) -> None:
        try:
            self._live.update(reports, late)
        except OSError as error:
            self._note_once("live", error)

    def _connect_store(self, make_store: Callable[[], Any]) -> Sharing | None:
        try:
            store = make_store()
        except Exception as error:  # a store of another kind: everything works without sharing
            self.spool.add_fact(
                "sharing", f"local only: the store cannot be cloned ({error})"[:200]
            )
            return None
        identity = self.identity
        prefix = f"evenstep/{identity.run_id}/{identity.attempt}"
        self._control.connect(
            store, prefix, world=identity.world, together=self.config.pace_sharing
        )
        return Sharing(
            store,
            prefix=prefix,
            rank=identity.rank,
            world=identity.world,
            local_rank=identity.local_rank,
            local_world=int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1),
            threshold=self.config.pace_threshold,
            period_s=self.config.sample_period_s,
            on_window=self._on_window,
            on_orders=self._pace.hear if self.config.pace_sharing else None,
        )

    def _record_locality(self) -> None:
        from evenstep.agent.locality import locality
        from evenstep.agent.sources.nvml_library import Nvml, NvmlError

        try:
            nvml = Nvml.load()
        except (OSError, NvmlError, EvenstepError):
            nvml = None
        try:
            self.spool.add_fact("locality", locality(self._device_index, nvml=nvml))
        finally:
            if nvml is not None:
                nvml.close()

    def _write_costs(self) -> None:
        self._say_absent()
        self.spool.add_fact(
            "cost",
            {
                "ns_per_collective": self.recorder.cost.median_ns,
                "background_cpu_ns": self._sampler.cost_ns,
            },
        )
        account = self._pace.pacer.account
        self.spool.add_fact(
            "pacing_account",
            {
                **account._asdict(),
                "verdict": _plain(account.verdict._asdict()),
                "mode": self._pace.pacer.settings.mode,
            },
        )


def pacer_settings(config: Config, identity: Identity) -> PacerSettings:
    """The pacer's part of the configuration. Raises `ConfigError` naming what it refuses."""
    return PacerSettings(
        mode=config.pace_mode,
        controller=config.pace_controller,
        objective=config.pace_objective,
        imbalance=config.pace_threshold,
        max_delay=config.pace_max_delay,
        stability_cost=config.pace_stability_cost,
        sharing=config.pace_sharing,
        exchange_ns=int(config.sample_period_s * 1e9),
        run_id=identity.run_id,
        attempt=identity.attempt,
        rank=identity.rank,
        world=identity.world,
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON knows them: what is not finite is unknown, names are text."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, float):
            found[name] = value if math.isfinite(value) else None
        else:
            found[name] = value if isinstance(value, int) else str(value)
    return found
