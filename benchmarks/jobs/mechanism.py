"""What it takes to see a collective from Python before evenstep does anything.

`install` puts an empty mechanism in place: a kernel on the dispatcher, and an empty callback on
the work's future. With `reading` it also asks torch what any observer must know (which group, how
many bytes, of which type, on which device) and forgets it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _nothing(_: Any) -> None:
    return


def install(torch: Any, *, reading: bool) -> Callable[[], None]:
    """Put the mechanism in place for all-reduce; returns how to remove it."""
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
