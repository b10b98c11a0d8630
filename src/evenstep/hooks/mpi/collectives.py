"""Record collectives and messages of MPI from the arguments of their calls.

A program takes this path thousands of times a second, so it is written for speed: the positions of
the arguments are found once for each method, and a blocking collective needs no ticket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns, thread_time_ns
from typing import Any

from evenstep.agent.recording.entries import GroupState, MessageOrders
from evenstep.agent.recording.phases import Word
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.mpi import calls
from evenstep.hooks.mpi.calls import (
    Message,
    MpiCollective,
    argument,
    bytes_in_and_out,
    size_and_type,
)
from evenstep.hooks.mpi.groups import MpiGroups
from evenstep.hooks.mpi.methods import Enter, Ticket, Watch
from evenstep.hooks.repeating import MESSAGE, InferredSteps
from evenstep.trace.spool.layout import NO_PEER, WORD_GROUP_SEQ, Flag, Op, Phase

_NOT_BLOCKING = int(Flag.ASYNC | Flag.EXIT_UPPER_BOUND)
_BLOCKED = int(Flag.HOST_BLOCKED)
_SYNC, _LAST_ENTRY = int(Phase.SYNC), Word.LAST_ENTRY
_SEND, _RECV = int(Op.SEND), int(Op.RECV)
_WORD_TAG, _WORD_PEER = 10, 12  # tag in the high half, peer in the low one
_LOW = 0xFFFFFFFF
_ABSENT = 1 << 16  # the position of a parameter that a method does not have
#: Operations whose output is as long as their input, if that is the same on all ranks.
_AS_GIVEN = frozenset({Op.ALL_REDUCE, Op.BROADCAST, Op.ALL_TO_ALL})

_get_ident = threading.get_ident

#: Time, communicator, arguments by place and by name -> the record.
Begin = Callable[[int, Any, tuple[Any, ...], dict[str, Any]], int]
Begun = tuple[Ticket, Any]


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


class MpiMessages:
    """Records sends and receives, numbered among those of the same peer and tag.

    A receive may take any source or any tag, which is mpi4py's default. Then the record is
    completed by the status when the message has arrived.
    """

    def __init__(
        self, mpi: Any, recorder: Recorder, groups: MpiGroups, steps: InferredSteps
    ) -> None:
        self._mpi = mpi
        self._recorder = recorder
        self._groups = groups
        self._steps = steps
        self._nobody, self._anybody, self._any_tag = mpi.PROC_NULL, mpi.ANY_SOURCE, mpi.ANY_TAG
        self._orders = MessageOrders()

    def entering(self, call: Message, *, blocking: bool = False) -> Enter:
        """How a call is recorded, an exchange by two records; None where there is no peer."""
        flags = _BLOCKED if blocking else _NOT_BLOCKING

        def enter(
            communicator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Ticket | None:
            enter_ns, state = monotonic_ns(), self._groups.state(communicator)
            given = [
                self._record(enter_ns, state, op, flags, call, names, args, kwargs)
                for op, names in ((_SEND, call.sent), (_RECV, call.received))
                if names is not None
            ]
            begun = [one for one in given if one is not None]
            if not begun:
                return None
            ticket, signature = begun[-1]
            if len(begun) > 1:
                ticket.also = begun[0][0].record
                signature = (begun[0][1], signature)
            if _get_ident() == self._recorder.ident:
                self._steps.entered(ticket.record, MESSAGE, signature, enter_ns)
            return ticket

        return enter

    def receiving(self, method: Callable[..., Any], call: Message) -> Callable[..., Any]:
        """A blocking call; a receive of any source or tag is given a status of ours to fill."""
        if call.received is None:
            return method
        parameters, names = call.parameters, (*call.received[1:], "status")

        def with_status(communicator: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                source, tag, status = (argument(one, parameters, args, kwargs) for one in names)
                wild = source in (None, self._anybody) or tag in (None, self._any_tag)
                ours = status is None and wild
            except Exception:  # arguments that cannot be compared: MPI will refuse them
                ours = False
            if ours:
                args = args[: parameters.index("status")]
                kwargs["status"] = self._mpi.Status()
            return method(communicator, *args, **kwargs)

        return with_status

    def _record(
        self, enter_ns: int, state: GroupState, op: int, flags: int, call: Message,
        names: tuple[str, str, str], args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Begun | None:  # fmt: skip
        buffer, peer, tag = (argument(name, call.parameters, args, kwargs) for name in names)
        if op == _SEND:
            tag = 0 if tag is None else tag
        else:
            peer = self._anybody if peer is None else peer
            tag = self._any_tag if tag is None else tag
        if peer == self._nobody:
            return None
        wild = op == _RECV and (peer == self._anybody or tag == self._any_tag)
        other = NO_PEER if peer == self._anybody else state.global_rank(peer)
        size = calls.nbytes(buffer)
        order = 0 if wild else self._orders.next((state.index, other, op, tag))
        shown = 0 if tag == self._any_tag and op == _RECV else tag
        seq = self._recorder.point_to_point(
            enter_ns, state, op, size, flags, other, calls.dtype(buffer), order, shown
        )
        status = None
        if wild and "status" in call.parameters:
            status = argument("status", call.parameters, args, kwargs)
        ticket = Ticket(seq, wildcard=(state, status) if wild else None)
        return ticket, (state.uid, op, other, tag)

    def resolve(self, ticket: Ticket, status: Any) -> None:
        """Complete the record of a receive of any source or tag."""
        state: GroupState = ticket.wildcard[0]
        status = ticket.wildcard[1] if status is None else status
        source, tag = (-1, 0) if status is None else (status.Get_source(), status.Get_tag())
        if source < 0:  # cancelled, or from nobody
            return
        peer = state.global_rank(source)
        spool, seq = self._recorder.spool, ticket.record
        if not spool.holds(seq):
            return
        base = spool.word_of(seq)
        words = spool.words
        spool.patch(seq, WORD_GROUP_SEQ, self._orders.next((state.index, peer, _RECV, tag)))
        spool.patch(seq, _WORD_TAG, words[base + _WORD_TAG] & _LOW | (tag & _LOW) << 32)
        spool.patch(seq, _WORD_PEER, words[base + _WORD_PEER] & ~_LOW | (peer & _LOW))
