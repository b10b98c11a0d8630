"""The agent's background thread: samples, messages between ranks, requests."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.agent.control import Control
from evenstep.agent.notes import LONGEST, Notes
from evenstep.agent.pulse.alarm import Alarm
from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.agent.sampler import Sampler
from evenstep.agent.settings.config import Config
from evenstep.agent.settings.selection import local_world
from evenstep.agent.stacks import Hooks
from evenstep.agent.step_work import FIRST_STEP_NS, StepWork
from evenstep.errors import EvenstepError
from evenstep.trace.spool.identity import Identity

if TYPE_CHECKING:
    from evenstep.agent.exchange.live import LiveView
    from evenstep.agent.exchange.messages import Late, WindowReport
    from evenstep.agent.exchange.node_store import StoreClient, StoreServer
    from evenstep.agent.exchange.sharing import Sharing
    from evenstep.agent.pulse.vigil import Standstill
    from evenstep.host.sources import Source

EXCHANGE_S = 0.25  # longest time between two looks for messages of other ranks
SOONEST_S = 0.01  # shortest one, for an overdue message: else half of the time it is overdue


class Background:
    """One rank's background thread and its tasks.

    `hooks` may grow while it runs. `folder` gets rank 0's view. What only this thread needs is
    imported by it, while the job goes on.
    """

    def __init__(
        self, config: Config, identity: Identity, recorder: Recorder, hooks: dict[str, Hooks],
        work: StepWork, control: Control, folder: Path, notes: Notes,
        standstill: Callable[[], Standstill | None], give_up: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self._config, self._identity, self._recorder = config, identity, recorder
        self._hooks, self._work, self._control = hooks, work, control
        self._folder, self._notes, self._give_up = folder, notes, give_up
        self._standstill = standstill
        self._spool = recorder.spool
        self._exchange_s = min(EXCHANGE_S, config.sample_period_s)
        self._prefix = f"evenstep/{identity.run_id}/{identity.attempt}"
        self._alarm = Alarm(
            standstill, rank=identity.rank, world=identity.world, prefix=self._prefix
        )
        self._store: StoreServer | StoreClient | None = None
        self._local_world = local_world(os.environ)
        self._meeting: int | None = None  # that the store in use belongs to
        self._joining: StoreServer | StoreClient | None = None  # by which to begin to share
        self._absent: dict[str, str] = {}
        self._nccl = ""  # NCCL's last report
        self._parted: tuple[int, str] | None = None  # step in which sharing ended, and why
        self._thread_id = threading.get_native_id()  # the training thread's
        self._sources: Sequence[Source] = ()
        #: Tasks of the next round, the last one first.
        self.once: list[Callable[[], object]] = [self._record_locality, self._add_sources]
        self.sampler = Sampler(
            (), self._recorder.sample, period_s=config.sample_period_s,
            task=self._round, between=self._between_rounds,
        )  # fmt: skip
        self._work.wake = self.sampler.wake
        if identity.rank == 0:
            from evenstep.agent.pulse.alarm import Interruptions

            self._work.processed = Interruptions().add

    @cached_property
    def _live(self) -> LiveView:
        from evenstep.agent.exchange.live import LiveView

        return LiveView(self._folder, self._config.pace_threshold)

    @property
    def device_index(self) -> int | None:
        """The device that this rank has selected; None on a CPU."""
        indices = (hooks.device_index for hooks in tuple(self._hooks.values()))
        return next((index for index in indices if index is not None), None)

    def connect(self, make_store: Callable[[], Any], meeting: int) -> None:
        """Begin to share: `make_store` makes a client of the job's store for the background thread.

        `meeting` counts the job's process groups. The store of a later one replaces that of the
        one before, which may be gone.
        """
        if not self._config.share or self._identity.world < 2 or meeting == self._meeting:
            return
        try:
            store = self._store_of(make_store, meeting)
        except Exception as error:  # a store of another kind: everything works without sharing
            self._spool.add_fact(
                "sharing", f"local only: the store cannot be cloned ({error})"[:LONGEST]
            )
            return
        identity, together = self._identity, self._config.pace_sharing
        prefix = self._prefix
        if self._meeting is None:
            self._control.connect(store, prefix, world=identity.world, together=together)
        else:
            self._control.reconnect(store, together=together)
        before, self._store = self._store, store
        if before is not None:
            before.close()
        self._meeting = meeting
        self._alarm.store = store
        self._work.sharing = None
        self._joining = store
        self.sampler.wake()

    def close(self) -> None:
        """Close the store's connections; also in a forked child."""
        if self._store is not None:
            self._store.close()

    def _store_of(self, make_store: Callable[[], Any], meeting: int) -> StoreServer | StoreClient:
        """The store as this rank uses it: by the first rank of its node."""
        from evenstep.agent.exchange import node_store

        identity, environ = self._identity, os.environ
        master = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
        name = node_store.socket_name(self._prefix, *master, str(meeting), str(identity.node))
        if identity.local_rank and self._local_world > 1:
            step, recorder, standstill = self._recorder.step, self._recorder, self._standstill
            # That rank listens before it issues a collective, which a step of ours awaits; nobody
            # is waited for where we stand still.
            return node_store.StoreClient(
                name, make_store, lambda: recorder.step > step or standstill() is not None
            )
        by_node = node_store.gathers_by_node(identity.world, self._local_world)
        windows = re.compile(re.escape(self._prefix) + r"/\d+/r\d+")

        def stays_on_node(key: str) -> bool:
            return by_node and windows.fullmatch(key) is not None

        return node_store.StoreServer(make_store(), name, stays_on_node)

    # -- on the thread ---------------------------------------------------------------------------

    def _round(self) -> None:
        """Once per sampling period."""
        while self.once:
            task = self.once.pop()
            try:
                task()
            except Exception as error:
                self._spool.add_fact("background", f"{type(error).__name__}: {error}"[:LONGEST])
        for name, hooks in tuple(self._hooks.items()):
            self._try(f"hooks of {name}", hooks.poll)  # a device may have failed
        self._process_steps()
        self.record_absent()
        if self._parted is not None and self._recorder.step > self._parted[0] + 1:  # it goes on
            self._spool.add_fact("sharing", self._parted[1])
            self._parted = None
        self._record_nccl()
        self._try("flush", self._spool.flush)  # a full disk may have room again
        if not self._try("alarm", self._alarm.round):  # the store is gone, or the job is ending
            self._alarm.store = None
        self._poll_control()

    def _try(self, what: str, action: Callable[[], object]) -> bool:
        """Whether an optional part works; a failure is reported once."""
        try:
            action()
        except Exception as error:
            self._notes.failed(what, error)
            return False
        return True

    def _process_steps(self) -> None:
        if not self._work.at_once and self._work.window_over:
            try:
                self._work.process_pending()
            except Exception as error:
                self._give_up(error)

    def _add_sources(self) -> None:
        from evenstep.host.sources import all_sources

        self._sources = all_sources(thread_id=self._thread_id, device_index=self.device_index)
        self.sampler.add(self._sources)

    def _join(self) -> None:
        """Begin to share by a new store."""
        store, self._joining = self._joining, None
        if store is None or store is not self._store:  # replaced, or gone already
            return
        from evenstep.agent.exchange.sharing import Sharing

        config, identity = self._config, self._identity
        self._work.sharing = Sharing(
            store, prefix=self._prefix, rank=identity.rank, world=identity.world,
            local_rank=identity.local_rank, local_world=self._local_world,
            threshold=config.pace_threshold, period_s=self._exchange_s, on_window=self._on_window,
            on_orders=self._work.pace.take_orders if config.pace_sharing else None,
        )  # fmt: skip

    def _between_rounds(self) -> float:
        """Exchange messages; return in how many seconds to do so again."""
        self._join()
        self._pump()
        pause_s = self._poll_control() / 1e9 if self._control.needs_polling else math.inf
        work, sharing = self._work, self._work.sharing
        self._process_steps()
        if sharing is not None:
            first_ns = work.share_begun_step()
            self._exchange(sharing)
            if work.single_steps:
                for due_ns in filter(None, (first_ns, sharing.due_ns)):
                    pause_s = min(pause_s, self._exchange_s, _soon_s(due_ns))
            elif sharing.due_ns or self._config.pace_sharing or not work.window_due_ns:
                pause_s = min(pause_s, self._exchange_s)
            else:
                pause_s = min(pause_s, _soon_s(work.window_due_ns))
        return pause_s

    def _pump(self) -> None:
        """Pass messages between the ranks of this node."""
        store = self._store
        try:
            if store is not None:
                store.pump()
        except Exception as error:  # the first rank of the node has gone, or the job's store
            if store is None or store is not self._store:  # replaced by a later meeting's
                return
            store.close()
            self._store = self._alarm.store = None
            self._part(error)

    def _part(self, error: Exception) -> None:
        """End sharing: the store is gone, or the job is ending."""
        self._work.sharing = None
        self._control.disconnect()
        self._parted = (self._recorder.step, f"ended: {type(error).__name__}: {error}"[:LONGEST])

    def _poll_control(self) -> int:
        try:
            pause_ns = self._control.poll(self._recorder.step, self._work.step_ns)
            if self._control.due:
                self._recorder.words[Word.ATTENDED] = 0
            return pause_ns
        except (OSError, EvenstepError) as error:
            self._notes.failed("control", error)
        except Exception as error:  # the store is gone, or the job is ending
            self._control.disconnect()
            self._notes.failed("control", error)
        return FIRST_STEP_NS

    def _exchange(self, sharing: Sharing) -> None:
        try:
            sharing.exchange()
        except Exception as error:
            if self._work.sharing is sharing:  # not replaced by a later meeting's
                self._part(error)

    def _on_window(self, reports: Sequence[WindowReport], late: Late | None) -> None:
        self._try("live", lambda: self._live.update(reports, late))

    def record_absent(self) -> None:
        """Write into the trace which sources give nothing, with reasons, if that has changed."""
        absent = self.sampler.absent
        if absent != self._absent:
            self._absent = absent
            self._spool.add_fact("absent", absent)

    def _record_nccl(self) -> None:
        """Write into the trace which ranks do not answer NCCL or fail, if that has changed."""
        for source in self._sources:
            status = getattr(source, "latest", None)
            if status is not None and (words := status.in_words()) != self._nccl:
                self._nccl = words
                self._spool.add_fact("nccl", words)

    def _record_locality(self) -> None:
        from evenstep.host.locality import locality
        from evenstep.host.sources.nvml import Nvml, NvmlError

        try:
            nvml = Nvml.load()
        except (OSError, NvmlError, EvenstepError):
            nvml = None
        try:
            self._spool.add_fact("locality", locality(self.device_index, nvml=nvml))
        finally:
            if nvml is not None:
                nvml.close()


def _soon_s(due_ns: int) -> float:
    """Seconds until the next look for a message that is due then."""
    over_s = (time.monotonic_ns() - due_ns) / 1e9
    return max(over_s / 2, SOONEST_S) if over_s >= 0 else -over_s
