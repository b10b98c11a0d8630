"""What a user decides about pacing; the rest adapts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenstep.errors import ConfigError

MODES = ("off", "observe", "on")
OBJECTIVES = ("throughput", "stability")
CONTROLLERS = ("slack", "paper")


@dataclass(frozen=True, slots=True, kw_only=True)
class PacerSettings:
    """How a job may be paced. Raises `ConfigError` naming the field that is out of range.

    Shares are fractions of the median step. `guarded=False` switches the trial and the ledger off:
    for comparisons in the simulator, never for a job somebody needs.
    """

    mode: str = "observe"
    controller: str = "slack"
    objective: str = "throughput"
    imbalance: float = 0.03  # slack below this share of a step is left alone
    max_delay: float = 0.10  # no step is ever held longer than this share of the median step
    max_delay_ns: int = 1_000_000_000  # ... nor longer than this
    stability_cost: float = 0.006  # throughput that steadier steps may cost
    loss_share: float = 0.005  # ε of the ledger
    sharing: bool = False  # decide by the published plan and shared work, not alone
    exchange_ns: int = 0  # how often ranks exchange what they share; a plan lasts two of these
    guarded: bool = True
    run_id: str = ""
    attempt: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        for names, expected, holds in _CHECKS:
            for name in names.split():
                value = getattr(self, name)
                if not holds(value):
                    raise ConfigError(f"pace.{name} must be {expected}, got {value!r}")
        if self.rank >= self.world:
            expected = f"below pace.world, which is {self.world}"
            raise ConfigError(f"pace.rank must be {expected}, got {self.rank!r}")


_Check = tuple[str, str, Callable[[Any], bool]]


def _one_of(name: str, *choices: str) -> _Check:
    return name, "one of " + ", ".join(choices), lambda value: value in choices


def _share(names: str, below: float) -> _Check:
    def holds(value: Any) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and 0.0 <= value < below

    return names, f"a fraction from 0 to below {below:g}", holds


def _whole(names: str, least: int) -> _Check:
    expected = f"a whole number of at least {least}"
    return names, expected, lambda value: type(value) is int and value >= least


#: Names of fields, what they must be, and whether a value is.
_CHECKS: tuple[_Check, ...] = (
    _one_of("mode", *MODES),
    _one_of("controller", *CONTROLLERS),
    _one_of("objective", *OBJECTIVES),
    ("sharing guarded", "true or false", lambda value: isinstance(value, bool)),
    ("run_id", "text", lambda value: isinstance(value, str)),
    _share("imbalance", 1.0),
    _share("max_delay", 0.5),
    _share("stability_cost loss_share", 0.1),
    _whole("max_delay_ns exchange_ns attempt rank", 0),
    _whole("world", 1),
)
