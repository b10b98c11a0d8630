"""The methods of mpi4py's communicators: the operation of each, and how to read its arguments.

Upper-case methods take buffers. Lower-case ones pickle; their size is known only for objects with a
size of their own (an array, bytes), else it is 0, unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evenstep.trace.spool.layout import DType, Op


class MpiCollective(NamedTuple):
    """A collective: the names of its parameters in order, and of those with buffers and root.

    `uniform` is the buffer whose size is the same on every rank ("" for none): a part of the
    signature that ranks agree on.
    """

    op: Op
    parameters: tuple[str, ...] = ()
    sent: str = ""
    received: str = ""
    root: str = ""
    uniform: str = ""


class Message(NamedTuple):
    """A send, a receive, or one of each: names of the parameters with buffer, peer and tag."""

    parameters: tuple[str, ...]
    sent: tuple[str, str, str] | None = None
    received: tuple[str, str, str] | None = None


_PAIR = ("sendbuf", "recvbuf")


def _pair(op: Op, *more: str, root: str = "", uniform: str = "") -> MpiCollective:
    return MpiCollective(op, (*_PAIR, *more), "sendbuf", "recvbuf", root, uniform)


#: Blocking, by buffer. `I` and the name in lower case is the nonblocking one.
_BUFFERED: dict[str, MpiCollective] = {
    "Allreduce": _pair(Op.ALL_REDUCE, "op", uniform="sendbuf"),
    "Reduce": _pair(Op.REDUCE, "op", "root", root="root", uniform="sendbuf"),
    "Bcast": MpiCollective(Op.BROADCAST, ("buf", "root"), "buf", "buf", "root", "buf"),
    "Allgather": _pair(Op.ALL_GATHER, uniform="sendbuf"),
    "Allgatherv": _pair(Op.ALL_GATHER),
    "Gather": _pair(Op.GATHER, "root", root="root", uniform="sendbuf"),
    "Gatherv": _pair(Op.GATHER, "root", root="root"),
    "Scatter": _pair(Op.SCATTER, "root", root="root", uniform="recvbuf"),
    "Scatterv": _pair(Op.SCATTER, "root", root="root"),
    "Alltoall": _pair(Op.ALL_TO_ALL, uniform="sendbuf"),
    "Alltoallv": _pair(Op.ALL_TO_ALL),
    "Alltoallw": _pair(Op.ALL_TO_ALL),
    "Reduce_scatter": _pair(Op.REDUCE_SCATTER, "recvcounts", "op", uniform="sendbuf"),
    "Reduce_scatter_block": _pair(Op.REDUCE_SCATTER, "op", uniform="sendbuf"),
    "Barrier": MpiCollective(Op.BARRIER),
    "Scan": _pair(Op.OTHER, "op", uniform="sendbuf"),
    "Exscan": _pair(Op.OTHER, "op", uniform="sendbuf"),
}
_PICKLED: dict[str, MpiCollective] = {
    "allreduce": MpiCollective(Op.ALL_REDUCE, ("sendobj", "op"), "sendobj", "sendobj"),
    "reduce": MpiCollective(Op.REDUCE, ("sendobj", "op", "root"), "sendobj", "sendobj", "root"),
    "bcast": MpiCollective(Op.BROADCAST, ("obj", "root"), "obj", "obj", "root"),
    "allgather": MpiCollective(Op.ALL_GATHER, ("sendobj",), "sendobj"),
    "gather": MpiCollective(Op.GATHER, ("sendobj", "root"), "sendobj", "", "root"),
    "scatter": MpiCollective(Op.SCATTER, ("sendobj", "root"), "sendobj", "", "root"),
    "alltoall": MpiCollective(Op.ALL_TO_ALL, ("sendobj",), "sendobj"),
    "barrier": MpiCollective(Op.BARRIER),
    "scan": MpiCollective(Op.OTHER, ("sendobj", "op"), "sendobj"),
    "exscan": MpiCollective(Op.OTHER, ("sendobj", "op"), "sendobj"),
}

BLOCKING = _BUFFERED | _PICKLED
NONBLOCKING = {f"I{name.lower()}": call for name, call in _BUFFERED.items()}

_SEND = Message(("buf", "dest", "tag"), sent=("buf", "dest", "tag"))
_SEND_OBJECT = Message(("obj", "dest", "tag"), sent=("obj", "dest", "tag"))
_RECEIVE = Message(("buf", "source", "tag", "status"), received=("buf", "source", "tag"))
_TAKEN = ("recvbuf", "source", "recvtag")
_EXCHANGE, _EXCHANGE_OBJECT = (
    Message((*sent, *_TAKEN, "status"), sent, _TAKEN)
    for sent in (("sendbuf", "dest", "sendtag"), ("sendobj", "dest", "sendtag"))
)
_REPLACE = Message(
    ("buf", "dest", "sendtag", "source", "recvtag", "status"),
    ("buf", "dest", "sendtag"),
    ("buf", "source", "recvtag"),
)

BLOCKING_MESSAGES: dict[str, Message] = {
    **dict.fromkeys(("Send", "Bsend", "Ssend", "Rsend"), _SEND),
    **dict.fromkeys(("send", "bsend", "ssend"), _SEND_OBJECT),
    **dict.fromkeys(("Recv", "recv"), _RECEIVE),
    "Sendrecv": _EXCHANGE,
    "sendrecv": _EXCHANGE_OBJECT,
    "Sendrecv_replace": _REPLACE,
}
NONBLOCKING_MESSAGES: dict[str, Message] = {
    **dict.fromkeys(("Isend", "Ibsend", "Issend", "Irsend"), _SEND),
    **dict.fromkeys(("isend", "ibsend", "issend"), _SEND_OBJECT),
    **dict.fromkeys(("Irecv", "irecv"), _RECEIVE),
    "Isendrecv": _EXCHANGE,
    "Isendrecv_replace": _REPLACE,
}

#: Calls that move data or make ranks wait and are not recorded.
UNSEEN = (
    "one-sided operations (Win)",
    "parallel files (File)",
    "making communicators (Dup, Split, …)",
    "matched probes (mprobe)",
    "persistent and partitioned requests (Send_init, Psend_init, …)",
    "neighbourhood collectives",
)
LIMIT = (
    "mpi4py: persistent requests, one-sided operations, parallel files, neighbourhood collectives, "
    "and what a C library asks of MPI underneath are not seen"
)


def argument(
    name: str, parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The argument of a call for a parameter; None without one."""
    if name in kwargs:
        return kwargs[name]
    at = parameters.index(name)
    return args[at] if at < len(args) else None


def size_and_type(buffer: Any) -> tuple[int, int]:
    """Size in bytes and element type of a buffer or object; 0 for unknown."""
    try:
        size, kind = buffer.nbytes, _CODES[buffer.dtype.char]  # an array, as nearly always
        if type(size) is int and size >= 0:
            return size, kind
    except Exception:
        pass
    return nbytes(buffer), dtype(buffer)


def nbytes(buffer: Any) -> int:
    """Size in bytes; 0 for unknown. Any object may be sent, and its `nbytes` may be anything."""
    try:
        return _size(buffer)
    except Exception:
        return 0


def _size(buffer: Any) -> int:
    size = getattr(buffer, "nbytes", None)
    if size is not None:
        return max(int(size), 0)
    if isinstance(buffer, (list, tuple)):
        return _size_of_specification(buffer)
    if isinstance(buffer, (bytes, bytearray)):
        return len(buffer)
    return memoryview(buffer).nbytes


def _size_of_specification(buffer: Sequence[Any]) -> int:
    """Size of a message specification: [data, type], [data, count, type], [data, counts, …]."""
    if not buffer:
        return 0
    kind = getattr(buffer[-1], "Get_size", None)
    if len(buffer) > 2 and kind is not None and isinstance(buffer[1], int):
        return int(buffer[1] * kind())
    return nbytes(buffer[0]) if not isinstance(buffer[0], (list, tuple)) else 0


#: Struct and array codes, which numpy's `dtype.char` shares.
_CODES: dict[str, int] = {
    "f": DType.FLOAT32, "d": DType.FLOAT64, "e": DType.FLOAT16, "?": DType.BOOL,
    "b": DType.INT8, "B": DType.UINT8, "h": DType.INT16, "i": DType.INT32,
    "l": DType.INT64, "q": DType.INT64, "F": DType.COMPLEX, "D": DType.COMPLEX,
}  # fmt: skip


def dtype(buffer: Any) -> int:
    """Our number of a buffer's element type; 0 for unknown."""
    try:
        if isinstance(buffer, (list, tuple)):
            buffer = buffer[0] if buffer else None
        code = getattr(getattr(buffer, "dtype", None), "char", None) or getattr(
            buffer, "typecode", None
        )
    except Exception:
        return 0
    return _CODES.get(code, int(DType.OTHER)) if isinstance(code, str) else 0


#: Operations whose output is as long as the inputs of all ranks.
_GATHERS = frozenset({Op.ALL_GATHER, Op.GATHER})


def bytes_in_and_out(
    call: MpiCollective, bytes_in: int, bytes_out: int, ranks: int
) -> tuple[int, int]:
    """(bytes in, bytes out); for an operation in place, one follows from the other."""
    if not bytes_in and bytes_out:
        bytes_in = bytes_out // max(ranks, 1) if call.op in _GATHERS else bytes_out
    elif not bytes_out and bytes_in and call.op is Op.SCATTER:
        bytes_out = bytes_in // max(ranks, 1)
    return bytes_in, bytes_out
