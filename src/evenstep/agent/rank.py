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
from typing import Any

from evenstep.agent.collector import PauseWatch
from evenstep.agent.config import Config
from evenstep.agent.control import Change, Control, record
from evenstep.agent.gaps import GapGate
from evenstep.agent.live import LiveView
from evenstep.agent.pace import PaceHost
from evenstep.agent.recorder import Recorder
from evenstep.agent.resources import ResourceMeter, RunDelay
from evenstep.agent.sampler import Sampler
from evenstep.agent.sharing import Sharing
from evenstep.agent.steps import ClosedStep
from evenstep.agent.windows import WINDOW_STEPS, Late, StepRow, WindowReport, summarize
from evenstep.errors import EvenstepError
from evenstep.hooks.groups import Groups
from evenstep.hooks.install import TorchHooks
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
        self, config: Config, identity: Identity, folder: RunFolder, spool: Spool, torch: Any
    ) -> None:
        self.config = config
        self.identity = identity
        self.folder = folder
        self.spool = spool
        self.recorder = Recorder(spool)
        self.failure = ""
        self._torch = torch
        self._pid = os.getpid()
        self._stopped = False
        self._groups = Groups(spool, torch.distributed)
        gate = self._gate()
        self._hooks = TorchHooks(
            torch, self.recorder, self._groups, self.end_step, self.give_up, gate=gate
        )
        self._pauses = PauseWatch(self.recorder.pause)
        self._meter = ResourceMeter()
        self._run_delay = RunDelay(threading.get_native_id())
        self._pace = PaceHost(
            Pacer(pacer_settings(config, identity)),
            self.recorder,
            world=identity.world,
            can_hold=not self._hooks.on_device,
            gate=gate,
        )
        self._live = LiveView(folder.path)
        self._sharing: Sharing | None = None
        self._control = Control(folder.path, identity.run_id, leads=identity.rank == 0)
        self._rows: deque[StepRow] = deque(maxlen=WINDOW_STEPS)
        self._once: list[Callable[[], None]] = [self._record_locality]
        self._sampler = self._make_sampler()
        self._step_cost_ns = 0
        self._at_once = config.pace_mode == "on"
        self._pending: list[ClosedStep] = []  # ended, not worked through yet
        self._decision = Decision(0, "none", Reason.LEARNING)
        self._absent: dict[str, str] = {}
        self._noted: set[str] = set()
        self._floor_ns = 0  # of the step's first collective, as last known

    def _gate(self) -> GapGate | None:
        """The pause between buckets, in the way of every collective only where it is asked for."""
        config = self.config
        asked = config.pace_mode == "on" and config.pace_controller in ("gap", "auto")
        return GapGate(self.recorder) if asked else None

    def _make_sampler(self) -> Sampler:
        from evenstep.agent.sources import all_sources

        sources = all_sources(
            thread_id=threading.get_native_id(), device_index=self._hooks.device_index
        )
        return Sampler(
            sources,
            self.recorder.sample,
            period_s=self.config.sample_period_s,
            also=[self._background],
        )

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install everything. Raises what a hook raises; the caller stops the agent then."""
        self._hooks.install()
        self._pauses.install()
        self._sampler.start()
        if self.spool.note:
            self.spool.add_fact("spool", self.spool.note)
        self.spool.add_fact("hooks", self._hooks.describe())
        self.spool.add_fact("pace", {"mode": self.config.pace_mode})

    @property
    def stopped(self) -> bool:
        """Whether the trace has been ended."""
        return self._stopped

    def forget_groups(self) -> None:
        """Process groups were destroyed: their names may come back with other members."""
        self._groups.forget()

    def connect(self) -> None:
        """`init_process_group` is done: rank and store are known."""
        if self.config.share and self.identity.world > 1 and self._sharing is None:
            self._sharing = self._connect_store()

    def stop(self, reason: str) -> None:
        """Take the hooks out, write the last facts and close the spool."""
        if self._stopped or os.getpid() != self._pid:
            return
        self._stopped = True
        for part, end in (
            ("hooks", self._hooks.remove),
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
        self._hooks.disarm()
        self._pauses.disarm()
        self._sampler.disarm()
        self._pace.pacer.kill()
        self._stopped = True

    def give_up(self, error: Exception) -> None:
        """Our own code failed: observe nothing from here on; the job goes on."""
        if self.failure:
            return
        self.failure = f"{type(error).__name__}: {error}"
        self._hooks.disarm()
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
        held_ns = pace.take_held()
        lap = self._meter.lap()
        if self.config.samples_per_step is not None:
            self.recorder.clock.samples = self.config.samples_per_step
        usage = (lap[0], lap[3], lap[4], lap[1], lap[2])
        closed = self.recorder.end_step(now_ns, usage, held_ns, self._run_delay.lap() or 0)
        closed.counted["agent_ns"] += self._step_cost_ns
        pending = self._pending
        pending.append(closed)
        oldest_ns = pending[0].end_ns
        if self._at_once or len(pending) >= PENDING_STEPS or now_ns - oldest_ns > PENDING_NS:
            self._work_through()
        self._step_cost_ns = time.monotonic_ns() - now_ns
        if self._at_once:
            pace.hold(self._decision, closed.number + 1)
        if self._control.due:
            self._follow(self._control.due[0], closed.number + 2)

    def _follow(self, change: Change, step: int) -> None:
        """Pace as asked from `step` on, the first that is not decided yet, if it is time."""
        if step < change.first_step:
            return
        self._control.due.popleft()
        self._work_through()
        pacer = self._pace.pacer
        pacer.settings = change.applied_to(pacer.settings)
        self._at_once = change.mode == "on"
        record(self.spool, pacer.settings, number=change.number, step=step)

    def _note_pacing(self) -> None:
        """Say once that pacing is asked for where it cannot act."""
        note = ""
        if not self._pace.can_hold:
            note = "observes only: on CUDA a host sleep would not hold the device"
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
        self._hooks.poll()
        self._say_absent()
        try:
            self.spool.flush()
        except OSError as error:  # a full disk may have room again
            self._note_once("flush", error)
        if self._sharing is not None:
            self._exchange(self._sharing)
        self._look_for_change()

    def _look_for_change(self) -> None:
        step_ns = self._rows[-1].step_ns if self._rows else PENDING_NS
        period_ns = int(self.config.sample_period_s * 1e9)
        try:
            self._control.poll(self.recorder.stack.step, step_ns=step_ns, period_ns=period_ns)
        except (OSError, EvenstepError) as error:
            self._note_once("control", error)
        except Exception as error:  # the store is gone, or the job is ending
            self._control.disconnect()
            self._note_once("control", error)

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

    def _connect_store(self) -> Sharing | None:
        try:
            store = self._torch.distributed.distributed_c10d._get_default_store().clone()
        except Exception as error:  # a store of another kind: everything works without sharing
            self.spool.add_fact(
                "sharing", f"local only: the store cannot be cloned ({error})"[:200]
            )
            return None
        identity = self.identity
        prefix = f"evenstep/{identity.run_id}/{identity.attempt}"
        if self.config.pace_sharing:
            self._control.connect(store, prefix)
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
            self.spool.add_fact("locality", locality(self._hooks.device_index, nvml=nvml))
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
