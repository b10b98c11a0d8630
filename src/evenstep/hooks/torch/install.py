"""All hooks of torch as one: installed together, disarmed together, removed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

from evenstep.agent.arming import arm, disarm
from evenstep.agent.recording.phases import Word
from evenstep.agent.stacks import Hooks, ObservedRank
from evenstep.hooks.repeating import InferredSteps
from evenstep.hooks.torch.call_sites import CallSites
from evenstep.hooks.torch.groups import Groups, watch_groups
from evenstep.hooks.torch.native import NativeGroups, NativeKernels, Session
from evenstep.hooks.torch.observer import Observer
from evenstep.hooks.torch.phases import PhaseHooks
from evenstep.hooks.torch.steps import RepeatedSteps
from evenstep.hooks.torch.works import Batches
from evenstep.hooks.wrapping import replace_attribute, undo
from evenstep.trace.spool.layout import WINDOW_STEPS

if TYPE_CHECKING:
    from evenstep.hooks.torch.device import DeviceTimer
    from evenstep.hooks.torch.stream_delay import CaptureGate

DISPATCHER = "dispatcher"
COMPILED = "compiled kernels"
_DYNAMO_RULES = "torch._dynamo.trace_rules"


class TorchHooks(Hooks):
    """Hooks of collectives, phases and device times of this process.

    With a `session` collectives are recorded by compiled kernels, and `groups` are a
    `NativeGroups`; else by Python's own. `instead` is the reason why compiled kernels are not used.
    `steps` are inferred while nothing else marks any.
    """

    def __init__(
        self, torch: Any, agent: ObservedRank, groups: Groups, *, session: Session | None = None,
        instead: str = "", steps: InferredSteps | None = None,
    ) -> None:  # fmt: skip
        self._torch = torch
        recorder = self._recorder = agent.recorder
        self._groups = groups
        self._observer = Observer(torch, recorder, groups, agent.give_up, agent.gate)
        self._instead = instead
        self._native: NativeKernels | None = None
        self._sites = CallSites(torch, recorder)
        if session is not None and isinstance(groups, NativeGroups):
            self._native = NativeKernels(session, self._observer.give_up)
            session.gate_by(agent.gate)
        else:  # else not imported: each module costs a starting process most of a millisecond
            from evenstep.hooks.torch.dispatcher import DispatcherHooks, Thrift

            self._kernels = DispatcherHooks(torch, self._observer)
            self._thrift = Thrift(
                self._kernels, recorder, groups,
                lambda: recorder.spool.add_fact("hooks", self.describe()),
            )  # fmt: skip
        self._batches = Batches(self._native or self._observer, self._observer.give_up)
        self._repeated = RepeatedSteps(steps, recorder, groups) if steps else None
        self._phases = PhaseHooks(
            torch, recorder, agent.end_step, agent.give_up, self._optimizer_made,
            session=session if self._native else None,
        )  # fmt: skip
        self._undo: list[Callable[[], None]] = []
        self._timers: dict[int, DeviceTimer] = {}
        self._gate: CaptureGate | None = None
        self._measured = False  # whether what being called costs is known

    @property
    def on_device(self) -> bool:
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_available())

    @property
    def device_index(self) -> int | None:
        return int(self._torch.cuda.current_device()) if self.on_device else None

    def install(self) -> None:
        """Install all hooks, or raise; those installed by then pass every call through."""
        self._observer.device_timer = self._device_timer
        c10d = self._torch.distributed.distributed_c10d
        self._undo.append(_keep_dynamo_out())
        self._undo.append(watch_groups(c10d, self._group_made))
        kernels = self._native or self._kernels
        self._undo.append(kernels.remove)
        kernels.install()
        if self._native is None:
            from evenstep.hooks.torch.dispatcher import observe_functional_waits

            self._undo.append(observe_functional_waits(self._torch, self._observer))
        else:
            self._undo.append(lambda: self._recorder.defer(later=False))
            self._recorder.defer(later=True)
            if self._torch.backends.cuda.is_built():
                from evenstep.hooks.torch.stream_delay import CaptureGate

                gate = self._gate = CaptureGate(self._torch.cuda.CUDAGraph, self._native.capture)
                self._undo.append(gate.remove)
        bindings = self._torch._C._distributed_c10d
        self._undo.append(self._batches.patch(bindings.ProcessGroup))
        self._undo.append(self._patch_wait(bindings.Work))
        self._phases.install()
        self._undo.append(self._sites.remove)
        self._sites.begins(self._recorder.step)

    def _patch_wait(self, work_type: Any) -> Callable[[], None]:
        if self._native is None:
            then = None if self._repeated is None else self._repeated.waited
            return self._observer.patch_wait(work_type, self._batches, then)
        self._recorder.words[Word.WAITS] = 1
        hook = self._native.session.hook_wait(
            self._recorder, work_type.wait, self._batches.reached, self._waited
        )
        return replace_attribute(work_type, "wait", hook)

    def _waited(self, work: Any) -> None:
        """A thread has waited, while compiled hooks tell of it."""
        batches, repeated = self._batches, self._repeated
        batches.waited(work)
        if repeated is not None:
            repeated.waited()
        words, native = self._recorder.words, self._native
        words[Word.WAITS] = 0  # first: another thread may launch the first batch meanwhile
        if (native and native.batched) or (repeated is not None and not repeated.off):
            words[Word.WAITS] = 1

    def _measure_mechanism(self) -> None:
        from evenstep.hooks.torch.mechanism import outside_share

        self._measured = True
        functions = self._native.session.functions if self._native else None
        with suppress(Exception):  # then our stated cost is without the mechanism's
            self._recorder.cost.mechanism(outside_share(self._torch, functions))

    def begins_step(self, step: int, *, spared: bool) -> int:
        if not self._observer.armed:
            return step + 1
        due = self._sites.begins(step)
        if self._native is not None:
            return due
        spared = spared and self._observer.gate is None and not self._observer.messages
        spared = spared and not (self._repeated and self._repeated.known)
        self._thrift.begins(step, spared=spared)
        return step + 1

    def disarm(self) -> None:
        self._observer.armed = False
        self._phases.armed = False
        if self._native is not None:
            self._native.disarm()

    def remove(self) -> None:
        self._undo.append(self._phases.remove)
        self._undo.append(self.disarm)
        undo(self._undo)

    def pause_by(self, gate: Callable[[], None] | None) -> None:
        self._observer.gate = gate
        if self._native is not None:
            self._native.session.gate_by(gate)

    def poll(self) -> None:
        """Read what the devices have finished; for the background thread."""
        unknown = not self._measured and get_ident() != self._recorder.ident
        if unknown and self._observer.armed:
            self._measure_mechanism()
        self._observer.let_go()
        self._batches.let_go()
        for timer in list(self._timers.values()):
            timer.poll()
        if self._native is not None and self._observer.armed:
            try:
                self._native.poll()
            except Exception as error:
                self._observer.give_up(error)

    def hold_device(self, delay_ns: int, seq: int) -> bool:
        """Delay the current stream; False where no collective on the device was recorded yet."""
        if not ((self._timers or self._native is not None) and self.on_device):
            return False
        device = int(self._torch.cuda.current_device())
        timer = self._timers.get(device)
        if timer is None and self._native is not None:  # compiled kernels have their own timers
            timer = self._device_timer(device)
        return timer is not None and timer.hold(delay_ns, seq)

    def describe(self) -> dict[str, Any]:
        """The mechanism, and the operations that are not recorded, for the trace: those that this
        torch has, as a method of a group, but does not dispatch by the name we know."""
        group, hooks = self._torch.distributed.ProcessGroup, self._native or self._kernels
        unseen = with_methods(group, hooks.unseen)
        if self._native is not None:
            return {"mechanism": COMPILED, "unseen": unseen}
        from evenstep.hooks.torch.dispatcher import BUDGET

        every, instead = self._thrift.most, self._instead
        if every > 1:
            instead += (
                f"; to keep to {BUDGET:.1%} they see {WINDOW_STEPS} of {every * WINDOW_STEPS} steps"
            )
        return {"mechanism": DISPATCHER, "instead": instead, "unseen": unseen, "every": every}

    def _optimizer_made(self) -> None:
        """An optimizer is made, which will mark the steps."""
        if self._repeated is not None:
            self._repeated.leave()

    def _group_made(self, name: str) -> None:
        try:
            self._groups.renew(name)
        except Exception as error:
            self._observer.give_up(error)

    def _device_timer(self, device: int) -> DeviceTimer:
        timer = self._timers.get(device)
        if timer is None:
            from evenstep.hooks.torch.device import DeviceTimer
            from evenstep.hooks.torch.stream_delay import CaptureGate

            cuda = self._torch.cuda
            if self._gate is None:
                self._gate = CaptureGate(cuda.CUDAGraph)
                self._undo.append(self._gate.remove)
            timer = DeviceTimer(cuda, device, self._recorder.spool, self._gate)
            timer = self._timers.setdefault(device, timer)  # another thread may have been first
        return timer


def _keep_dynamo_out() -> Callable[[], None]:
    """Make Dynamo skip our modules, now or when it is imported; return how to stop waiting for it.

    It traces every Python frame that begins while a compiled model runs, also ours, which torch
    calls inside a collective; there it fails on the size of a tensor. The entry in its list of
    skipped modules stays.
    """

    def skip_evenstep() -> None:
        from torch._dynamo import trace_rules

        trace_rules.add("evenstep")

    arm(skip_evenstep, target=_DYNAMO_RULES)
    return lambda: disarm(_DYNAMO_RULES)


def with_methods(group: type, operations: Iterable[str]) -> list[str]:
    """The operations that a group has methods for: the same names but for underscores."""
    methods = {name.replace("_", "") for name in dir(group)}
    return [name for name in operations if name.replace("_", "") in methods]
