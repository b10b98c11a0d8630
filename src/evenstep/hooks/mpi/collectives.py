"""Record collectives of MPI from the arguments of their calls.

A program takes this path thousands of times a second, so it is written for speed: the positions of
the arguments are found once for each method, and a blocking call needs no ticket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from typing import Any

from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.mpi.calls import MpiCollective, bytes_in_and_out, size_and_type
from evenstep.hooks.mpi.groups import MpiGroups
from evenstep.hooks.mpi.methods import Enter, Ticket, Watch
from evenstep.hooks.repeating import InferredSteps
from evenstep.trace.spool.layout import NO_PEER, Flag, Op, Phase

_NOT_BLOCKING = int(Flag.ASYNC | Flag.EXIT_UPPER_BOUND)
_BLOCKED = int(Flag.HOST_BLOCKED)
_SYNC, _LAST_ENTRY = int(Phase.SYNC), Word.LAST_ENTRY
_ABSENT = 1 << 16  # the position of a parameter that a method does not have
#: Operations whose output is as long as their input, if that is the same on all ranks.
_AS_GIVEN = frozenset({Op.ALL_REDUCE, Op.BROADCAST, Op.ALL_TO_ALL})

_get_ident = threading.get_ident

#: Time, communicator, arguments by place and by name -> the record.
Begin = Callable[[int, Any, tuple[Any, ...], dict[str, Any]], int]


class MpiCollectives:
    """Records collectives while `watch` is armed, and reports our own failures to it."""

    def __init__(
        self, watch: Watch, recorder: Recorder, groups: MpiGroups, steps: InferredSteps
    ) -> None:
        self._watch = watch
        self._recorder = recorder
        self._groups = groups
        self._steps = steps

    def blocking(self, original: Any, call: MpiCollective) -> Callable[..., Any]:
        """A collective that has ended when it returns."""
        watch, recorder, left = self._watch, self._recorder, self._steps.left
        count, words, close = recorder.stack.count, recorder.words, recorder.spool.close
        begin = self._begin(call, _BLOCKED)

        def method(communicator: Any, *args: Any, **kwargs: Any) -> Any:
            if not watch.armed:
                return original(communicator, *args, **kwargs)
            gate = watch.gate  # read once: another thread may remove it
            if gate is not None:
                watch.safely(gate)
            enter_ns = monotonic_ns()
            seq, failure = 0, None
            try:
                seq = begin(enter_ns, communicator, args, kwargs)
            except Exception as error:
                failure = error
            try:
                result = original(communicator, *args, **kwargs)
            except BaseException:
                watch.safely(watch.failed, Ticket(seq) if seq else None)
                raise
            if failure is not None:  # not of arguments that MPI refuses, too
                watch.missed(failure)
            elif watch.armed:
                try:
                    now = monotonic_ns()
                    close(seq, now)
                    if _get_ident() == recorder.ident:
                        recorder.note((count, _SYNC, enter_ns, now))
                        words[_LAST_ENTRY] = 0
                        left(seq, now)
                except Exception as error:
                    watch.missed(error)
            return result

        return method

    def issuing(self, call: MpiCollective) -> Enter:
        """How a nonblocking collective is recorded."""
        watch, begin = self._watch, self._begin(call, _NOT_BLOCKING)

        def enter(communicator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ticket:
            gate = watch.gate  # read once, as above
            if gate is not None:
                gate()
            return Ticket(begin(monotonic_ns(), communicator, args, kwargs))

        return enter

    def _begin(self, call: MpiCollective, flags: int) -> Begin:
        """The function that records a call of this kind."""
        recorder, groups, op = self._recorder, self._groups, int(call.op)
        record, known, meet = recorder.collective, groups.known, groups.meet
        entered, cost = self._steps.entered, recorder.cost
        (sent, sent_at), (received, received_at), (root, root_at) = (
            (name, call.parameters.index(name) if name else _ABSENT)
            for name in (call.sent, call.received, call.root)
        )
        same, uniform, uniform_in = received == sent, bool(call.uniform), call.uniform == sent
        as_given = uniform_in and call.op in _AS_GIVEN

        def begin(
            enter_ns: int, communicator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> int:
            began_ns = cost.began()
            state = known.get(communicator.handle) or meet(communicator)
            count, members = len(args), len(state.ranks)
            given = args[sent_at] if count > sent_at else kwargs.get(sent)
            bytes_in, kind = size_and_type(given)
            bytes_out = bytes_in
            if not (as_given and bytes_in):
                if not same:
                    taken = args[received_at] if count > received_at else kwargs.get(received)
                    bytes_out, other = size_and_type(taken)
                    kind = kind or other
                bytes_in, bytes_out = bytes_in_and_out(call, bytes_in, bytes_out, members)
            at, peer = 0, NO_PEER
            if root:
                at = (args[root_at] if count > root_at else kwargs.get(root)) or 0
                peer = state.global_rank(at)
            seq = record(enter_ns, state, op, bytes_in, bytes_out, flags, peer, kind)
            if members > 1 and _get_ident() == recorder.ident:
                size = 0 if not uniform else bytes_in if uniform_in else bytes_out
                entered(seq, members, (state.uid, op, size, at), enter_ns)
            if began_ns:
                cost.add(thread_time_ns() - began_ns, readings=1)
            return seq

        return begin
