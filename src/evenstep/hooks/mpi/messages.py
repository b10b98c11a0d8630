"""Record messages of MPI with peer, tag and number.

A receive may take any source or any tag, which is mpi4py's default. Then the record is completed by
the status when the message has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any

from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.recorder import Recorder
from evenstep.hooks.mpi import calls
from evenstep.hooks.mpi.calls import Message, argument
from evenstep.hooks.mpi.groups import MpiGroups
from evenstep.hooks.mpi.methods import Enter, Ticket
from evenstep.hooks.repeating import MESSAGE, InferredSteps
from evenstep.hooks.torch.message_orders import MessageOrders
from evenstep.trace.spool.layout import NO_PEER, WORD_GROUP_SEQ, Flag, Op

_BLOCKED = int(Flag.HOST_BLOCKED)
_NOT_BLOCKING = int(Flag.ASYNC | Flag.EXIT_UPPER_BOUND)
_SEND, _RECV = int(Op.SEND), int(Op.RECV)
_WORD_TAG, _WORD_PEER = 10, 12  # tag in the high half, peer in the low one
_LOW = 0xFFFFFFFF

Begun = tuple[Ticket, Any]


class MpiMessages:
    """Records sends and receives, numbered among those of the same peer and tag."""

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
            if get_ident() == self._recorder.ident:
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
