"""All hooks of torch as one: installed together, disarmed together, removed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evenstep.agent.recorder import Recorder
from evenstep.hooks.device import DeviceTimer
from evenstep.hooks.dispatcher import DispatcherHooks
from evenstep.hooks.groups import Groups
from evenstep.hooks.observer import Observer
from evenstep.hooks.phases import PhaseHooks


class TorchHooks:
    """Collectives, phases and device times of this process."""

    def __init__(
        self,
        torch: Any,
        recorder: Recorder,
        groups: Groups,
        on_step: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._torch = torch
        self._recorder = recorder
        self._observer = Observer(torch, recorder, groups, on_failure)
        self._collectives = DispatcherHooks(torch, self._observer)
        self._phases = PhaseHooks(torch, recorder.clock, recorder.ident, on_step, on_failure)
        self._restore_wait: Callable[[], None] | None = None
        self._wait: Any = None
        self._timer: DeviceTimer | None = None

    @property
    def on_device(self) -> bool:
        """Whether this rank computes on a CUDA device, as far as can be told without touching it."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_available())

    @property
    def device_index(self) -> int | None:
        """The device this rank has selected; None on a CPU or before it selected one."""
        return int(self._torch.cuda.current_device()) if self.on_device else None

    def install(self) -> None:
        """Put everything in place, or raise and leave nothing behind but pass-through."""
        work = self._torch._C._distributed_c10d.Work
        self._wait = work.wait
        self._observer.device_timer = self._device_timer
        self._collectives.install()
        self._restore_wait = self._observer.patch_wait(work)
        self._phases.install()

    def disarm(self) -> None:
        """Pass every call through from now on; cheap, and safe from anywhere."""
        self._observer.armed = False
        self._phases.armed = False

    def remove(self) -> None:
        """Restore everything that was replaced."""
        self.disarm()
        self._phases.remove()
        if self._restore_wait is not None:
            self._restore_wait()
            self._restore_wait = None
        self._collectives.remove()

    def poll(self) -> None:
        """Read what the device has finished; for the background thread."""
        if self._timer is not None:
            self._timer.poll()

    def describe(self) -> dict[str, Any]:
        """How collectives are seen, for the trace."""
        return {"mechanism": "dispatcher", "unseen": self._collectives.unseen}

    def _device_timer(self) -> DeviceTimer:
        if self._timer is None:
            self._timer = DeviceTimer(self._torch.cuda, self._recorder.spool, self._wait)
        return self._timer
