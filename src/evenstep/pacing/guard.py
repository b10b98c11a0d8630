"""The guard: pacing goes on only while a comparison with unpaced steps says that it pays.

Steps alternate in randomised pairs of paced and unpaced blocks until the interval of the paired
difference decides: keep, drop, or undecided. What was dropped is tried again later, after twice the
time each time; what was kept is watched by a drift alarm and compared anew now and then.
"""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

from evenstep.pacing.blocks import BLOCK_STEPS, block_is_paced
from evenstep.pacing.comparison import FEWEST_PAIRS, Cusum, PairedComparison
from evenstep.pacing.observation import Stance, StepObservation

WORTH = 0.003  # an effect surely below this is not worth pacing for
MOST_PAIRS = 60
FEWEST_STEPS = 5  # steady steps a block must have to count
FIRST_REST_STEPS = 500
LONGEST_REST_STEPS = 4000
_BLOCKS, _ON = Stance.BLOCKS, Stance.ON  # an enumeration looks its members up by name


class Verdict(NamedTuple):
    """What the guard knows, for the report."""

    stance: Stance
    word: str  # "untested", "pays", "does not pay", "undecided", "too costly", "no power samples"
    pairs: int
    gain: float  # mean of log T_off - log T_on: the change of throughput
    low: float
    high: float


class _Block:
    """The steps of one block as they come."""

    __slots__ = ("energies_mj", "held", "index", "mixed", "paced", "steps_ns")

    def __init__(self, index: int, paced: bool) -> None:
        self.index = index
        self.paced = paced
        self.mixed = False  # not every step followed the schedule
        self.held = False  # some rank really was delayed
        self.steps_ns: list[int] = []
        self.energies_mj: list[int] = []

    @property
    def usable(self) -> bool:
        return not self.mixed and len(self.steps_ns) >= FEWEST_STEPS

    @property
    def log_mean(self) -> float:
        return log(sum(self.steps_ns) / len(self.steps_ns))

    @property
    def log_unsteadiness(self) -> float:
        """Log of the block's coefficient of variation; steadier than 1e-4 is not told apart."""
        mean = sum(self.steps_ns) / len(self.steps_ns)
        variance = sum((t - mean) ** 2 for t in self.steps_ns) / len(self.steps_ns)
        return log(max(1e-4, sqrt(variance) / mean))

    @property
    def log_energy(self) -> float | None:
        """Log of the energy per step, if every step was sampled."""
        if len(self.energies_mj) < len(self.steps_ns) or min(self.energies_mj) <= 0:
            return None
        return log(sum(self.energies_mj) / len(self.energies_mj))


class _Trial:
    """One comparison from its first pair to its verdict."""

    def __init__(self, objective: str) -> None:
        self.objective = objective
        self.throughput = PairedComparison()
        self.aim = self.throughput if objective == "throughput" else PairedComparison()
        self.unmeasured = 0  # pairs without the power samples they would need
        self.paced_logs: list[float] = []
        self._times_ns: tuple[list[int], list[int]] = ([], [])  # unpaced, paced

    def add(self, unpaced: _Block, paced: _Block) -> None:
        if self.objective == "energy":
            before, after = unpaced.log_energy, paced.log_energy
            if before is None or after is None:
                self.unmeasured += 1
                return
            self.aim.add(before - after)
        elif self.objective == "stability":
            self.aim.add(unpaced.log_unsteadiness - paced.log_unsteadiness)
        self.throughput.add(unpaced.log_mean - paced.log_mean)
        self.paced_logs.append(paced.log_mean)
        self._times_ns[0].extend(unpaced.steps_ns)
        self._times_ns[1].extend(paced.steps_ns)

    def tail_is_no_worse(self) -> bool:
        """Whether the 99 % quantile of paced steps does not exceed that of unpaced ones."""
        unpaced, paced = (sorted(times)[int(0.99 * (len(times) - 1))] for times in self._times_ns)
        return paced <= unpaced

    def word(self, cost: float) -> str:
        """The verdict, or "" while there is none."""
        if self.unmeasured >= FEWEST_PAIRS:
            return "no power samples"
        if self.aim.count < FEWEST_PAIRS:
            return ""
        if self.objective != "throughput" and self.throughput.high < -cost:
            return "too costly"
        if self.aim.low > 0.0 and self._affordable(cost):
            return "pays"
        if self.aim.high < WORTH:
            return "does not pay"
        return "undecided" if self.aim.count >= MOST_PAIRS else ""

    def _affordable(self, cost: float) -> bool:
        if self.objective == "throughput":
            return True
        steady = self.objective != "stability" or self.tail_is_no_worse()
        return steady and self.throughput.low > -cost


class Guard:
    """Decides whether pacing goes on; fed with finished steps, asked before the next."""

    def __init__(self, *, objective: str, cost: float, run_id: str, attempt: int) -> None:
        self._objective = objective
        self._cost = cost
        self._run = (run_id, attempt)
        self._asked = (-1, False)
        self.reset()

    def reset(self) -> None:
        """Forget what was compared: batch or world has changed, so it must be learned anew."""
        self.stance = Stance.BLOCKS
        self.word = "untested"
        self._rest_steps = FIRST_REST_STEPS
        self._wake_step = 0  # when a settled stance is questioned again
        self._alarm: Cusum | None = None
        self._begin()

    def _begin(self) -> None:
        self._trial = _Trial(self._objective)
        self._block: _Block | None = None
        self._partner: _Block | None = None

    def paces(self, step: int, stance: Stance | None = None) -> bool:
        """Whether `step` is one to be paced, under our own stance or a published one."""
        stance = self.stance if stance is None else stance
        if stance is not _BLOCKS:
            return stance is _ON
        block, paced = step // BLOCK_STEPS, self._asked
        if paced[0] != block:
            paced = self._asked = (block, block_is_paced(*self._run, block))
        return paced[1]

    def learn(self, seen: StepObservation, paced: bool, held: bool) -> None:
        """Take a finished steady step: was it due to be paced, and was any rank held."""
        index = seen.step // BLOCK_STEPS
        block = self._block
        if block is None or block.index != index:
            if block is not None:
                self._close(block, seen.step)
            block = self._block = _Block(index, paced)
        block.steps_ns.append(seen.step_ns)
        if seen.energy_mj is not None:
            block.energies_mj.append(seen.energy_mj)
        if paced != block.paced:
            block.mixed = True
        if held:
            block.held = True

    def disturb(self) -> None:
        """Something else has changed: what the running block shows is not what pacing does."""
        if self._block is not None:
            self._block.mixed = True

    def _close(self, block: _Block, step: int) -> None:
        if self.stance is Stance.BLOCKS:
            self._pair(block, step)
        elif step >= self._wake_step or self._drifts(block):
            self.stance = Stance.BLOCKS
            self._begin()

    def _drifts(self, block: _Block) -> bool:
        if self._alarm is None or not block.usable or not block.paced:
            return False
        return self._alarm.rings(block.log_mean)

    def _pair(self, block: _Block, step: int) -> None:
        other, self._partner = self._partner, block
        if other is None or other.index != block.index - 1 or other.index % 2:
            return
        if not (block.usable and other.usable) or block.paced == other.paced:
            return
        unpaced, paced = (other, block) if block.paced else (block, other)
        if paced.held:  # where nobody was held there is nothing to compare
            self._trial.add(unpaced, paced)
            self._conclude(step)

    def _conclude(self, step: int) -> None:
        word = self._trial.word(self._cost)
        if not word:
            return
        self.word = word
        if word == "pays":
            self.stance = Stance.ON
            self._alarm = Cusum(self._trial.paced_logs)
            self._rest_steps = FIRST_REST_STEPS
            self._wake_step = step + LONGEST_REST_STEPS
        else:
            self.stance = Stance.OFF
            self._alarm = None
            self._wake_step = step + self._rest_steps
            self._rest_steps = min(LONGEST_REST_STEPS, 2 * self._rest_steps)

    @property
    def verdict(self) -> Verdict:
        """Where the comparison stands."""
        test = self._trial.throughput
        return Verdict(self.stance, self.word, test.count, test.mean, test.low, test.high)
