"""The bare mechanism of seeing a collective: everything but what evenstep itself does.

A kernel or a pair of hooks that does nothing, and an empty callback on the work's future. What is
measured with it is the price of looking at all from Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HOOK_ID = 0x7E57


def name(torch: Any) -> str:
    """The mechanism this torch offers."""
    group = torch.distributed.ProcessGroup
    return "process-group hooks" if hasattr(group, "register_pre_hook") else "dispatcher"


def install(torch: Any) -> Callable[[], None]:
    """Put the empty mechanism in place for all-reduce; returns how to remove it."""
    if name(torch) == "dispatcher":
        return _dispatcher(torch)
    return _hooks(torch.distributed.group.WORLD)


def _nothing(_: Any) -> None:
    return


def _dispatcher(torch: Any) -> Callable[[], None]:
    redispatch = torch.ops.c10d.allreduce_.default.redispatch
    below = torch._C.DispatchKey.BackendSelect
    unbox = torch._C._distributed_c10d.Work.unbox

    def kernel(keyset: Any, *args: Any) -> Any:
        result = redispatch(keyset.remove(below), *args)
        unbox(result[-1]).get_future().add_done_callback(_nothing)
        return result

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", kernel, "BackendSelect", with_keyset=True)
    return lambda: library._destroy()


def _hooks(group: Any) -> Callable[[], None]:
    def after(args: Any) -> None:
        args.work.get_future().add_done_callback(_nothing)

    group.register_pre_hook(HOOK_ID, _nothing)
    group.register_post_hook(HOOK_ID, after)

    def remove() -> None:
        group.unregister_pre_hook(HOOK_ID)
        group.unregister_post_hook(HOOK_ID)

    return remove
