"""What it takes to see a collective from Python before evenstep does anything.

`install` puts an empty mechanism in place: a kernel or a pair of hooks, and an empty callback on
the work's future. With `reading` it also asks torch what any observer must know (which group, how
many bytes, of which type, on which device) and forgets it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HOOK_ID = 0x7E57


def name(torch: Any) -> str:
    """The mechanism this torch offers."""
    group = torch.distributed.ProcessGroup
    return "process-group hooks" if hasattr(group, "register_pre_hook") else "dispatcher"


def install(torch: Any, *, reading: bool) -> Callable[[], None]:
    """Put the mechanism in place for all-reduce; returns how to remove it."""
    if name(torch) == "dispatcher":
        return _dispatcher(torch, reading=reading)
    return _hooks(torch.distributed.group.WORLD, reading=reading)


def _nothing(_: Any) -> None:
    return


def _dispatcher(torch: Any, *, reading: bool) -> Callable[[], None]:
    redispatch = torch.ops.c10d.allreduce_.default.redispatch
    below = torch._C.DispatchKey.BackendSelect
    unbox = torch._C._distributed_c10d.Work.unbox
    unbox_group = torch._C._distributed_c10d.ProcessGroup.unbox

    def empty(keyset: Any, *args: Any) -> Any:
        result = redispatch(keyset.remove(below), *args)
        unbox(result[-1]).get_future().add_done_callback(_nothing)
        return result

    def reads(keyset: Any, *args: Any) -> Any:
        tensor = args[0][0]
        _ = unbox_group(args[1]).group_name, tensor.nbytes, tensor.dtype, tensor.is_cuda
        result = redispatch(keyset.remove(below), *args)
        unbox(result[-1]).get_future().add_done_callback(_nothing)
        return result

    library = torch.library.Library("c10d", "IMPL")
    kernel = reads if reading else empty
    library.impl("allreduce_", kernel, "BackendSelect", with_keyset=True)
    return lambda: library._destroy()


def _hooks(group: Any, *, reading: bool) -> Callable[[], None]:
    def reads(call: Any) -> None:
        tensors = call.input_tensors
        if tensors:  # a barrier has none
            tensor = tensors[0]
            _ = call.name.value, call.async_op, tensor.nbytes, tensor.dtype, tensor.is_cuda

    def after(call: Any) -> None:
        call.work.get_future().add_done_callback(_nothing)

    group.register_pre_hook(HOOK_ID, reads if reading else _nothing)
    group.register_post_hook(HOOK_ID, after)

    def remove() -> None:
        group.unregister_pre_hook(HOOK_ID)
        group.unregister_post_hook(HOOK_ID)

    return remove
