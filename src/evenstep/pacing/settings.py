"""What a user decides about pacing; the rest adapts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evenstep.errors import ConfigError

MODES = ("off", "observe", "on")
OBJECTIVES = ("throughput", "stability", "energy")
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
    stability_cost: float = 0.006  # throughput that steadier steps, or less energy, may cost
    loss_share: float = 0.005  # ε of the ledger
    sharing: bool = False  # decide by the published plan and shared work, not alone
    exchange_ns: int = 0  # how often ranks exchange what they share; a plan lasts two of these
    guarded: bool = True
    run_id: str = ""
    attempt: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_flags()
        self._check_share("imbalance", below=1.0)
        self._check_share("max_delay", below=0.5)
        self._check_share("stability_cost", below=0.1)
        self._check_share("loss_share", below=0.1)
        self._check_integers()

    def _check_choices(self) -> None:
        for name, choices in (
            ("mode", MODES),
            ("controller", CONTROLLERS),
            ("objective", OBJECTIVES),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise _refuse(name, "one of " + ", ".join(choices), value)

    def _check_flags(self) -> None:
        for name in ("sharing", "guarded"):
            if not isinstance(getattr(self, name), bool):
                raise _refuse(name, "true or false", getattr(self, name))
        if not isinstance(self.run_id, str):
            raise _refuse("run_id", "text", self.run_id)

    def _check_share(self, name: str, *, below: float) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0.0 <= value < below:
            raise _refuse(name, f"a fraction from 0 to below {below:g}", value)

    def _check_integers(self) -> None:
        for name, least in (
            ("max_delay_ns", 0), ("exchange_ns", 0), ("attempt", 0), ("world", 1), ("rank", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise _refuse(name, f"a whole number of at least {least}", value)
        if self.rank >= self.world:
            raise _refuse("rank", f"below pace.world, which is {self.world}", self.rank)


def _refuse(name: str, expected: str, found: Any) -> ConfigError:
    return ConfigError(f"pace.{name} must be {expected}, got {found!r}")
