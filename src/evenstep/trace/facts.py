"""The facts that a rank's spool holds beside its records, and the shape of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec


def _object(*needed: str, **keys: Any) -> Any:
    """The shape of an object with values of these types, all optional but the needed ones."""
    return msgspec.defstruct(
        "Fact",
        [(key, kind) if key in needed else (key, kind, None) for key, kind in keys.items()],
        kw_only=True,
    )


_DEVICE: Any = _object(
    name=str | None, index=int | None, pci=str | None, numa_node=int | None, driver=str | None,
    speed_gbps=float | None, rate_gbps=float | None, pcie_lanes=int | None,
    pcie_lanes_max=int | None,
)  # fmt: skip
SHAPES: dict[str, Any] = {
    "absent": dict[str, str],
    # what one action did, and the verdict of its trial in one word
    "actions": list[  # type: ignore[misc]
        _object(
            *("action", "word"), action=str, word=str, of=str, reason=str, note=str,
            acted_steps=int, pairs=int, gain=float, low=float | None, high=float | None,
        )
    ],
    # when and why the spool was ended; a simulation gives its reason alone
    "closed": _object(monotonic_ns=int, reason=str) | str,
    # what observing cost the rank
    "cost": _object(ns_per_collective=float | None, background_cpu_ns=int | None),
    "dump": dict[str, Any],
    # how the launcher saw the process end
    "ended": _object(
        exit_code=int | None, signal=str, monotonic_ns=int, realtime_ns=int,
        out_of_memory_kills=int, asked=str, before=str, apart=str,
        xid=list[str], nccl_warnings=list[str],
    ),
    "heartbeat_ns": int,
    # how calls are observed, and which are not; `instead`: why it is not the cheapest mechanism;
    # one in `every` windows of steps is recorded
    "hooks": _object(
        mechanism=str, instead=str | None, unseen=list[str],
        every=Annotated[int, msgspec.Meta(ge=1)],
    ),
    "left": _object(by=str, frames=list[str]),  # where the script ended, by which call, if any
    "loader_workers": int,  # the fewest of any DataLoader
    # where the rank runs
    "locality": _object(
        rack=Any, device=int | None, gpu=str | None, gpu_nic=dict[str, dict[str, str]] | None,
        cpu=_object(model=str | None, allowed=str | None) | None,
        numa=list[_object("node", node=int, cpus=str | None)] | None,  # type: ignore[misc]
        gpus=list[_DEVICE] | None, nics=list[_DEVICE] | None, ib_ports=list[_DEVICE] | None,
    ),
    "pace": dict[str, Any],
    # what pacing did
    "pacing_account": _object(
        mode=str, steps=int, held_steps=int, held_ns=int, booked_ns=int | None,
        allowance_ns=int | None, verdict=dict[str, Any],
    ),
    # the exception that ended the script
    "raised": _object(type=str, message=str, frames=list[str], monotonic_ns=int),
}  # fmt: skip


#: Distances of devices in `locality`, from near to far, named as in `nvidia-smi topo -m`; NVLinks
#: are "NV" and their number.
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")


def level_order(level: str) -> int:
    """The place of a level in their order; NVLinks are nearest, unknown levels farthest."""
    if level.startswith("NV"):
        return -1
    return LEVELS.index(level) if level in LEVELS else len(LEVELS)


def nearest(levels: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """The nearest level, and the devices at it."""
    best = min(levels.values(), key=level_order, default=None)
    return best, [name for name, level in levels.items() if level == best]


def check(key: str, value: Any) -> None:
    """Raise `ValueError` for a value of the wrong shape; unknown keys take any value."""
    try:
        msgspec.convert(value, SHAPES.get(key, Any) | None)
    except msgspec.ValidationError as error:
        raise ValueError(f"fact {key}: {error}") from error
