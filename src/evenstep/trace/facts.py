"""What a rank's spool tells beside its records, and the shape that each fact must have."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec


class HooksFact(TypedDict, total=False):
    """How calls are seen, and what is not."""

    mechanism: str
    instead: str | None  # why it is not the one that costs least
    unseen: list[str]


class CostFact(TypedDict, total=False):
    """What evenstep took of the rank."""

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
    """An action, and the word of its trial."""

    action: str
    word: str


class ActedFact(TriedFact, total=False):
    """What one action did, and what its trial found."""

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
    "ended": EndedFact,
    "hooks": HooksFact,
    "locality": dict[str, Any],
    "pace": dict[str, Any],
    "pacing_account": AccountFact,
    "raised": RaisedFact,
}


def check(key: str, value: Any) -> None:
    """Raises `ValueError` for a value of another shape; of keys not known here any will do."""
    try:
        msgspec.convert(value, SHAPES.get(key, Any) | None)
    except msgspec.ValidationError as error:
        raise ValueError(f"fact {key}: {error}") from error
