"""Arms: the controllers under comparison, and whose turn each block is.

An arm is a controller's name, `token`, or `baseline` for none, with modifiers: `slack+sharing`. A
tier may know arms of its own (`blocking` of mpi). Blocks come in rounds of one for each arm, in an
order drawn anew for each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from evenstep.errors import UsageError
from evenstep.pacing import CONTROLLERS, PacerSettings
from evenstep.pacing.token import TOKEN

RULES = (*CONTROLLERS, TOKEN)
BASELINE = "baseline"
AGAIN = "baseline again"  # the same once more: what the comparison says where nothing differs
FEWEST_STEPS = 8  # of a job in a block, or it does not count
MODIFIERS = ("sharing", "unguarded")


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison."""

    name: str  # as given, and as shown
    controller: str = ""  # "": nobody is held
    sharing: bool = False
    guarded: bool = True
    own: str = ""  # an arm only the tier understands; nobody is held in it

    def settings(self, **common: Any) -> PacerSettings:
        """The settings of a rank's pacer in this arm."""
        if self.controller not in CONTROLLERS:
            return PacerSettings(**{**common, "mode": "off", "sharing": False})
        modified = {"sharing": common.get("sharing", False) or self.sharing,
                    "guarded": common.get("guarded", True) and self.guarded}  # fmt: skip
        return PacerSettings(**{**common, **modified, "mode": "on", "controller": self.controller})


def arm(text: str, own: Sequence[str] = ()) -> Arm:
    """An arm by its name. Raises `UsageError` saying which there are; `own`: the tier's."""
    name, *modifiers = text.split("+")
    unknown = [word for word in modifiers if word not in MODIFIERS]
    if name in own and not modifiers:
        return Arm(text, own=name)
    if (name in (BASELINE, AGAIN) and not modifiers) or (name in RULES and not unknown):
        return Arm(
            text,
            name if name in RULES else "",
            "sharing" in modifiers,
            "unguarded" not in modifiers,
        )
    known = ", ".join([BASELINE, *RULES, *own])
    raise UsageError(
        f"there is no arm {text!r}; there are {known}, controllers also with +sharing or +unguarded"
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which arm's turn each block is, from the seed alone."""

    arms: tuple[Arm, ...]
    rounds: int
    warm_up_rounds: int
    seed: int

    @property
    def blocks(self) -> int:
        """How many there are in all, warm-up included."""
        return len(self.arms) * (self.rounds + self.warm_up_rounds)

    def round_of(self, block: int) -> int:
        """The round of a block; those below `warm_up_rounds` do not count."""
        return block // len(self.arms)

    def arm_at(self, block: int) -> int:
        """Number of the arm whose turn it is; the first before the first block and after the last.

        The order of a round is that of a keyed hash of its arms, so that nobody can foresee it.
        """
        if not 0 <= block < self.blocks:
            return 0
        number, place = divmod(block, len(self.arms))
        return sorted(range(len(self.arms)), key=lambda arm: self._key(number, arm))[place]

    def _key(self, number: int, arm: int) -> bytes:
        return blake2b(f"{self.seed}\0{number}\0{arm}".encode(), digest_size=8).digest()
