"""Every collective of every process group, seen by torch's own process-group hooks.

torch 2.14.1 and later call a pre-hook before an operation is handed to the backend and a post-hook
after, on the issuing thread, for 1 microsecond. Three things bite:

- A hook belongs to one group: the existing ones get theirs at once, later ones when they are made.
- Of two hooks with one id the later silently replaces the earlier: ours is a number nobody picks.
- An exception in a hook fails the collective, and the post-hook is not called when the backend
  raises: what has begun on a thread and not ended when that thread's next operation of the group
  begins, has failed.

A hook holds no reference to its group: torch destroys a group when the last one is gone. Not told:
the tag of a message, and `monitored_barrier`, which keeps its dispatcher kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import monotonic_ns, thread_time_ns
from typing import Any

from evenstep.hooks.torch.observer import Observer, Token
from evenstep.hooks.wrapping import undo
from evenstep.trace.spool.layout import NO_PEER, Flag, Op

HOOK_ID = int.from_bytes(b"evenstep", "big")

_ASYNC, _COALESCED = int(Flag.ASYNC), int(Flag.COALESCED)
_ON_DEVICE, _UPPER_BOUND = int(Flag.ON_DEVICE), int(Flag.EXIT_UPPER_BOUND)
_SEND = int(Op.SEND)  # the messages are the last of `Op`
_REDUCE_SCATTER = int(Op.REDUCE_SCATTER)
_ONE_INPUT = (int(Op.ALL_REDUCE), int(Op.ALL_GATHER))  # unless coalesced
_UNRECORDED = ("SPLIT", "NEW_WINDOW", "UNKNOWN")  # making things, not moving data

_get_ident = threading.get_ident

#: How a call is read: (operation, flags, whether it works in place, whether it has a root).
#: torch 2.14 names families only, later ones every variant.
Reading = tuple[int, int, bool, bool]

READINGS: dict[str, tuple[Op, Flag, bool, bool]] = {
    "ALLREDUCE": (Op.ALL_REDUCE, Flag(0), True, False),
    "ALLREDUCE_COALESCED": (Op.ALL_REDUCE, Flag.COALESCED, True, False),
    "BROADCAST": (Op.BROADCAST, Flag(0), True, True),
    "REDUCE": (Op.REDUCE, Flag(0), True, True),
    "ALLGATHER": (Op.ALL_GATHER, Flag(0), False, False),
    "ALLGATHER_BASE": (Op.ALL_GATHER, Flag(0), False, False),
    "ALLGATHER_COALESCED": (Op.ALL_GATHER, Flag.COALESCED, False, False),
    "ALLGATHER_INTO_TENSOR_COALESCED": (Op.ALL_GATHER, Flag.COALESCED, False, False),
    "REDUCE_SCATTER": (Op.REDUCE_SCATTER, Flag(0), False, False),
    "REDUCE_SCATTER_BASE": (Op.REDUCE_SCATTER, Flag(0), False, False),
    "REDUCE_SCATTER_TENSOR_COALESCED": (Op.REDUCE_SCATTER, Flag.COALESCED, False, False),
    "GATHER": (Op.GATHER, Flag(0), False, True),
    "SCATTER": (Op.SCATTER, Flag(0), False, True),
    "ALLTOALL": (Op.ALL_TO_ALL, Flag(0), False, False),
    "ALLTOALL_BASE": (Op.ALL_TO_ALL, Flag(0), False, False),
    "BARRIER": (Op.BARRIER, Flag(0), False, False),
    "SEND": (Op.SEND, Flag(0), True, True),
    "RECV": (Op.RECV, Flag(0), False, True),
}


def available(torch: Any) -> bool:
    """Whether this torch has process-group hooks."""
    c10d = torch._C._distributed_c10d
    group = c10d.ProcessGroup
    names = ("register_pre_hook", "register_post_hook", "unregister_pre_hook")
    return hasattr(c10d, "HookOpName") and all(hasattr(group, name) for name in names)


class ProcessGroupHooks:
    """A pair of hooks on every process group, feeding an `Observer`."""

    def __init__(self, torch: Any, observer: Observer) -> None:
        self._world = torch.distributed.distributed_c10d._world
        self._resolve = torch._C._distributed_c10d._resolve_process_group
        self._observer = observer
        # group -> thread -> begun, not ended, and what that took where it is sampled (ns), else 0
        self._begun: dict[str, dict[int, tuple[Token, int]]] = {}
        members = torch._C._distributed_c10d.HookOpName.__members__
        self._readings = _by_number(members)
        known = set(READINGS) | set(_UNRECORDED)
        self.unseen: list[str] = sorted(set(members) - known)  # reported, but not read by us

    def install(self) -> None:
        """Hook the groups there are. Raises what torch raises where it cannot."""
        for group, name in list(self._world.pg_names.items()):
            self.follow(str(name), group)

    def follow(self, name: str, group: Any) -> None:
        """Hook a group that was just made."""
        before, after = self._hooks(name, device_only(group))
        group.register_pre_hook(HOOK_ID, before)
        group.register_post_hook(HOOK_ID, after)

    def remove(self) -> None:
        """Take the hooks from every group. What this thread has begun and not ended, has failed."""
        for group in list(self._world.pg_names):
            undo(
                [
                    partial(group.unregister_pre_hook, HOOK_ID),
                    partial(group.unregister_post_hook, HOOK_ID),
                ]
            )
        for begun in self._begun.values():
            entry = begun.pop(_get_ident(), None)
            if entry is not None:
                self._observer.failed(entry[0])
        self._begun.clear()

    def _hooks(
        self, name: str, on_device: bool
    ) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
        """One group's pair. Our part may fail; the collective must not notice."""
        observer, readings, resolve = self._observer, self._readings, self._resolve
        begin, end, give_up = observer.begin, observer.end, observer.give_up
        failed, send_or_receive = observer.failed, observer.begin_point_to_point
        state_of, dtype_of = observer.groups.state, observer.dtypes.get
        recorder, cost = observer.recorder, observer.recorder.cost
        begun: dict[int, tuple[Token, int]] = {}
        self._begun[name] = begun
        state: Any = None
        bare = _UPPER_BOUND | (_ON_DEVICE | _ASYNC if on_device else 0)  # of a call with no tensor

        def before(call: Any) -> None:
            nonlocal state
            if not observer.armed:
                return
            try:
                gate = observer.gate  # once: it may go while we look
                if gate is not None:
                    gate()
                began_ns = cost.began()
                enter_ns = monotonic_ns()
                ident = _get_ident()
                if begun and ident in begun:
                    failed(begun.pop(ident)[0])
                reading = readings[call.name.value]
                if reading is None:
                    return
                if state is None:
                    state = state_of(resolve(name))
                op, flags, in_place, rooted = reading
                tensors = call.input_tensors
                nbytes = tensors[0].nbytes if len(tensors) == 1 else _nbytes(tensors)
                bytes_out, outputs = nbytes, tensors
                if not in_place:
                    outputs = call.output_tensors
                    bytes_out = _nbytes(outputs)
                if len(tensors) != 1:
                    flags |= _coalesced(op, tensors, outputs)
                    tensors = tensors or outputs
                tensor = tensors[0] if tensors else None
                flags |= _UPPER_BOUND if tensor is not None else bare
                peer = state.global_rank(call.root) if rooted else NO_PEER
                if op >= _SEND:
                    token = send_or_receive(enter_ns, state, op, bytes_out, peer, tensor, 0)
                    begun[ident] = token, 0
                    return
                if call.async_op:
                    flags |= _ASYNC
                if tensor is None or tensor.is_cuda:
                    token = begin(enter_ns, state, op, nbytes, bytes_out, flags, peer, tensor)
                    begun[ident] = token, 0
                    return
                dtype = dtype_of(tensor.dtype, 0)
                seq = recorder.collective(  # what `begin` does on a host, a frame shorter
                    enter_ns, state, op, nbytes, bytes_out, flags, peer, dtype
                )
                begun[ident] = (seq, flags), thread_time_ns() - began_ns if began_ns else 0
            except Exception as error:
                give_up(error)

        def after(call: Any) -> None:
            entry = begun.pop(_get_ident(), None)
            if entry is None:
                return
            token, spent_ns = entry
            back_ns = thread_time_ns() if spent_ns else 0
            try:
                end(token, call.work)
                if spent_ns:
                    cost.add(spent_ns + thread_time_ns() - back_ns)
            except Exception as error:
                give_up(error)

        return before, after


def device_only(group: Any) -> bool:
    """Whether even a barrier of this group runs on a device: it has no backend for the CPU."""
    try:
        kinds = {device.type for device in group._device_types}
    except Exception:  # a group that does not say
        return False
    return bool(kinds) and "cpu" not in kinds


def _nbytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _coalesced(op: int, inputs: Any, outputs: Any) -> int:
    """The flag of several operations in one, which torch 2.14 does not name differently."""
    several = outputs if op == _REDUCE_SCATTER else inputs if op in _ONE_INPUT else ()
    return _COALESCED if len(several) > 1 else 0


def _by_number(members: Any) -> list[Reading | None]:
    """The readings in the order of torch's numbers; None for what is not recorded."""
    table: list[Reading | None] = [None] * (1 + max(int(member) for member in members.values()))
    for name, (op, flags, in_place, rooted) in READINGS.items():
        if name in members:
            table[int(members[name])] = (int(op), int(flags), in_place, rooted)
    return table
