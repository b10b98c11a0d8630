"""The c10d operations: our operation for each, and how to read its arguments.

Used by compiled kernels and Python's own; imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from evenstep.trace.spool.layout import DType, Op


class DispatcherOperation(NamedTuple):
    """How a dispatcher call of one c10d operation is read.

    `group_at` is the position of the process group among the arguments, `async_at` of the async
    flag (None: the operation has none). The dispatcher leaves trailing defaults out, and the
    default is asynchronous: an absent flag means asynchronous.
    """

    name: str
    op: Op
    sizes: Callable[[Any], tuple[int, int, Any]]
    group_at: int = 1
    async_at: int | None = None
    peer_at: int | None = None
    tag_at: int | None = None
    coalesced: bool = False

    @property
    def reading(self) -> int:
        """The index of `sizes` in `_READINGS`."""
        return _READINGS.index(self.sizes)


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


COLLECTIVES: tuple[DispatcherOperation, ...] = (
    DispatcherOperation("allreduce_", Op.ALL_REDUCE, _in_place, async_at=4),
    DispatcherOperation(
        "allreduce_coalesced_", Op.ALL_REDUCE, _in_place, async_at=3, coalesced=True
    ),
    DispatcherOperation("broadcast_", Op.BROADCAST, _in_place, async_at=4, peer_at=2),
    DispatcherOperation("reduce_", Op.REDUCE, _in_place, async_at=5, peer_at=3),
    DispatcherOperation("allgather_", Op.ALL_GATHER, _lists, group_at=2, async_at=3),
    DispatcherOperation("_allgather_base_", Op.ALL_GATHER, _from_first, group_at=2, async_at=3),
    DispatcherOperation(
        "allgather_coalesced_", Op.ALL_GATHER, _lists, group_at=2, async_at=3, coalesced=True
    ),
    DispatcherOperation(
        "allgather_into_tensor_coalesced_",
        Op.ALL_GATHER,
        _lists,
        group_at=2,
        async_at=3,
        coalesced=True,
    ),
    DispatcherOperation("reduce_scatter_", Op.REDUCE_SCATTER, _lists, group_at=2, async_at=4),
    DispatcherOperation(
        "_reduce_scatter_base_", Op.REDUCE_SCATTER, _from_first, group_at=2, async_at=4
    ),
    DispatcherOperation(
        "reduce_scatter_tensor_coalesced_",
        Op.REDUCE_SCATTER,
        _lists,
        group_at=2,
        async_at=4,
        coalesced=True,
    ),
    DispatcherOperation("gather_", Op.GATHER, _lists, group_at=2, async_at=4, peer_at=3),
    DispatcherOperation(
        "gather_into_tensor_", Op.GATHER, _from_first, group_at=2, async_at=4, peer_at=3
    ),
    DispatcherOperation("scatter_", Op.SCATTER, _lists, group_at=2, async_at=4, peer_at=3),
    DispatcherOperation("alltoall_", Op.ALL_TO_ALL, _lists, group_at=2, async_at=3),
    DispatcherOperation("alltoall_base_", Op.ALL_TO_ALL, _from_first, group_at=2, async_at=5),
    DispatcherOperation("barrier", Op.BARRIER, _nothing, async_at=3),
    DispatcherOperation("monitored_barrier_", Op.BARRIER, _nothing),
)

POINT_TO_POINT: tuple[DispatcherOperation, ...] = (
    DispatcherOperation("send", Op.SEND, _in_place, peer_at=2, tag_at=3),
    DispatcherOperation("recv_", Op.RECV, _in_place, peer_at=2, tag_at=3),
    DispatcherOperation("recv_any_source_", Op.RECV, _in_place, tag_at=2),
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
