"""What one rank does about other jobs on its links: phase or gaps, while they pay.

Gaps are the stronger of the two, but act only where a bucket has completed when the next one is
entered. Where buckets overlap (DDP's reducer enqueues them all) the phase is what is left.
"""

from __future__ import annotations

from evenstep.pacing.buckets import Buckets, Contended
from evenstep.pacing.gap import Gaps
from evenstep.pacing.phase import Phase
from evenstep.pacing.trial import LossTrial

SMOOTHING = 1 / 64  # weight of the newest step in the applicable share
_new = tuple.__new__  # a third of what a named tuple's own costs, once a step
SERIAL = 0.5  # gaps from this applicable share on


class Contention:
    """One rank's phase and gaps with their trial. `rule` is "phase", "gap" or "auto".

    `shared`: the leader's delay takes effect windows later, so a jump would come too late; what is
    published is the integral alone.
    """

    def __init__(
        self,
        rule: str,
        buckets: Buckets,
        *,
        guarded: bool,
        shared: bool,
        run_id: str,
        attempt: int,
    ) -> None:
        self._rule = rule
        self._guarded = guarded
        self._shared = shared
        self._buckets = buckets
        self._phase = Phase(run_id, attempt)
        self._trial = LossTrial()
        self.open = False  # contention is dealt with now, be it in a block that is left out
        self.applicable: float | None = None  # share of buckets that had completed at the next

    @property
    def word(self) -> str:
        """What the trial has concluded."""
        return self._trial.word if self._guarded else "unguarded"

    def acts(self, at_ns: int) -> bool:
        """Whether a step that begins at this time is one to act in."""
        return self.open and (not self._guarded or self._trial.acts(at_ns))

    @property
    def by_gaps(self) -> bool:
        """Whether gaps act, not the phase."""
        if self._rule == "auto":
            return self.applicable is not None and self.applicable >= SERIAL
        return self._rule == "gap"

    def learn(
        self,
        found: Contended | None,
        pauses: int,
        serial: int | None,
        step_ns: int,
        spent_ns: int,
        began_ns: int,
        acted: bool,
    ) -> None:
        """Take a finished steady step; `acted`: it was left to us, and delay and gaps took so long.

        `found` is what its buckets say, between which there was room for so many pauses. The other
        values are those of `StepObservation`.
        """
        if serial is not None and pauses > 0 and serial / pauses != self.applicable:
            self._count_serial(serial / pauses)
        if found is None:
            self.open = self.open and self._buckets.reference_ns > 0
            return
        if self.open and not self.by_gaps:
            self._shift(found, acted)
        if self._guarded:
            took_ns, excess_ns, _, _, _, _ = found
            trial = self._trial
            trial.learn(took_ns, spent_ns, step_ns, excess_ns, began_ns, acted)
            self.open = trial.open
        else:
            self.open = True
        if not self.open and self._phase.delay_ns:
            self._phase.rest()

    def _shift(self, found: Contended, acted: bool) -> None:
        """Work out the next phase."""
        if acted or self._shared:
            self._phase.learn(found)
        else:
            self._phase.pause()

    def _count_serial(self, share: float) -> None:
        """Keep the applicable share up to date."""
        before = self.applicable
        self.applicable = share if before is None else before + SMOOTHING * (share - before)

    def delay_ns(self, bound_ns: int) -> int:
        """How long the next step is held, if it is left to us."""
        if self.by_gaps:
            return 0
        planned = self._phase.integral_ns if self._shared else self._phase.delay_ns
        return min(int(planned), bound_ns)

    def gaps(self, bound_ns: int) -> Gaps | None:
        """The pauses allowed inside the next step, if it is left to us."""
        buckets = self._buckets
        if not self.by_gaps or bound_ns <= 0 or not buckets.reference_ns:
            return None
        first_ns = buckets.first_wait_ns if buckets.first_is_trusted else None
        return _new(
            Gaps, (buckets.reference_ns, buckets.threshold_ns, buckets.weights, bound_ns, first_ns)
        )
