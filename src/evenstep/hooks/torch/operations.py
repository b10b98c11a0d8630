"""The c10d operations: our operation for each, and how to read its arguments.

Used by compiled kernels and Python's own; imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from evenstep.trace.spool.layout import DType, Op


class DispatcherOperation(NamedTuple):
    """A c10d operation, and what of its first two arguments is read and written."""

    name: str
    op: Op
    sizes: Callable[[Any], tuple[int, int, Any]]

    @property
    def message(self) -> bool:
        """Whether it is a send or receive."""
        return self.op in (Op.SEND, Op.RECV)

    @property
    def coalesced(self) -> bool:
        """Whether a call is several operations."""
        return "coalesced" in self.name

    @property
    def reading(self) -> int:
        """The index of `sizes` in `_READINGS`."""
        return _READINGS.index(self.sizes)


def positions(schema: Any) -> tuple[int, int | None, int | None, int | None]:
    """Where process group, async flag, root or peer, and tag are among an operation's arguments, by
    torch's schema, which differs between versions; None: it has none.

    The dispatcher leaves trailing defaults out: the flag is then true, the tag 0.
    """
    at = {argument.name: place for place, argument in enumerate(schema.arguments)}
    peers = (at[name] for name in ("root_rank", "dst", "src") if name in at)
    flag = at.get("async_op", at.get("asyncOp"))
    return at["process_group"], flag, next(peers, None), at.get("tag")


def _bytes(tensor: Any) -> int:
    """The bytes of a tensor; of a sparse one, which has no `nbytes`, as many as on all ranks."""
    return int(tensor.numel() * tensor.element_size())


def _in_place(args: Any) -> tuple[int, int, Any]:
    """(tensors, …): read and written in place."""
    tensors = args[0]
    first = tensors[0]
    size = _bytes(first) if len(tensors) == 1 else sum(map(_bytes, tensors))
    return size, size, first


def _from_first(args: Any) -> tuple[int, int, Any]:
    """(outputs, inputs, …), each a tensor."""
    return _bytes(args[1]), _bytes(args[0]), args[1]


def _lists(args: Any) -> tuple[int, int, Any]:
    """(output tensors, input tensors, …), lists or lists of lists."""
    outputs, inputs = _flat(args[0]), _flat(args[1])
    first = inputs[0] if inputs else outputs[0]
    return sum(map(_bytes, inputs)), sum(map(_bytes, outputs)), first


def _nothing(args: Any) -> tuple[int, int, Any]:
    """(tensor, …): a barrier moves no data of the user's."""
    return 0, 0, args[0]


def _flat(tensors: Any) -> list[Any]:
    if tensors and isinstance(tensors[0], (list, tuple)):
        return [tensor for inner in tensors for tensor in inner]
    return list(tensors)


OPERATIONS = tuple(
    DispatcherOperation(*row)
    for row in (
        ("allreduce_", Op.ALL_REDUCE, _in_place),
        ("allreduce_coalesced_", Op.ALL_REDUCE, _in_place),
        ("broadcast_", Op.BROADCAST, _in_place),
        ("reduce_", Op.REDUCE, _in_place),
        ("allgather_", Op.ALL_GATHER, _lists),
        ("_allgather_base_", Op.ALL_GATHER, _from_first),
        ("allgather_coalesced_", Op.ALL_GATHER, _lists),
        ("allgather_into_tensor_coalesced_", Op.ALL_GATHER, _lists),
        ("reduce_scatter_", Op.REDUCE_SCATTER, _lists),
        ("_reduce_scatter_base_", Op.REDUCE_SCATTER, _from_first),
        ("reduce_scatter_tensor_coalesced_", Op.REDUCE_SCATTER, _lists),
        ("gather_", Op.GATHER, _lists),
        ("gather_into_tensor_", Op.GATHER, _from_first),
        ("scatter_", Op.SCATTER, _lists),
        ("alltoall_", Op.ALL_TO_ALL, _lists),
        ("alltoall_base_", Op.ALL_TO_ALL, _from_first),
        ("barrier", Op.BARRIER, _nothing),
        ("monitored_barrier_", Op.BARRIER, _nothing),
        ("send", Op.SEND, _in_place),
        ("recv_", Op.RECV, _in_place),
        ("recv_any_source_", Op.RECV, _in_place),
    )
)

#: How arguments are read, in the order of `Reading` in recorder.cpp.
_READINGS = (_in_place, _from_first, _lists, _nothing)


def dtype_codes(torch: Any) -> dict[Any, int]:
    """Our number for each of torch's element types; the rest are `DType.OTHER`."""
    also = {"float8_e4m3fn": DType.FLOAT8, "float8_e5m2": DType.FLOAT8}
    also |= {"complex64": DType.COMPLEX, "complex128": DType.COMPLEX}
    named = {code.name.lower(): code for code in DType} | also
    return {
        found: int(code)
        for name, code in named.items()
        if isinstance(found := getattr(torch, name, None), torch.dtype)
    }
