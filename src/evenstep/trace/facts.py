"""The facts that a rank's spool holds beside its records, and the shape of each."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec


class HooksFact(TypedDict, total=False):
    """How calls are observed, and which are not."""

    mechanism: str
    instead: str | None  # why it is not the cheapest mechanism
    unseen: list[str]
    every: Annotated[int, msgspec.Meta(ge=1)]  # one in so many windows of steps is recorded


class CostFact(TypedDict, total=False):
    """What observing cost the rank."""

    ns_per_collective: float | None
    background_cpu_ns: int | None


class RaisedFact(TypedDict, total=False):
    """The exception that ended the script."""

    type: str
    message: str
    frames: list[str]
    monotonic_ns: int


class EndedFact(TypedDict, total=False):
    """How the launcher saw the process end."""

    exit_code: int | None
    signal: str
    monotonic_ns: int
    realtime_ns: int
    out_of_memory_kills: int
    asked: str
    xid: list[str]
    nccl_warnings: list[str]


class ClosedFact(TypedDict, total=False):
    """When and why the spool was ended."""

    monotonic_ns: int
    reason: str


class AccountFact(TypedDict, total=False):
    """What pacing did."""

    mode: str
    steps: int
    held_steps: int
    held_ns: int
    booked_ns: int | None
    allowance_ns: int | None
    verdict: dict[str, Any]


class TriedFact(TypedDict):
    """An action, and the verdict of its trial in one word."""

    action: str
    word: str


class ActedFact(TriedFact, total=False):
    """What one action did, and the result of its trial."""

    of: str
    reason: str
    note: str
    acted_steps: int
    pairs: int
    gain: float
    low: float | None
    high: float | None


SHAPES: dict[str, Any] = {
    "absent": dict[str, str],
    "actions": list[ActedFact],
    "closed": ClosedFact | str,  # a simulation gives its reason alone
    "cost": CostFact,
    "dump": dict[str, Any],
    "ended": EndedFact,
    "heartbeat_ns": int,
    "hooks": HooksFact,
    "locality": dict[str, Any],
    "pace": dict[str, Any],
    "pacing_account": AccountFact,
    "raised": RaisedFact,
}


def check(key: str, value: Any) -> None:
    """Raise `ValueError` for a value of the wrong shape; unknown keys take any value."""
    try:
        msgspec.convert(value, SHAPES.get(key, Any) | None)
    except msgspec.ValidationError as error:
        raise ValueError(f"fact {key}: {error}") from error
