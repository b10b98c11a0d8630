"""Whether an action pays: a trial in pairs of blocks whose order is drawn by chance.

Steps are cut into blocks; of each pair one block acts and one does not, by a coin that the world
has not seen. Two facts follow, whatever the job does and however its steps are correlated.

No effect: exchanging the two blocks changes nothing but the sign of their difference D, so given
|D| its sign is a coin, E[exp(λD) / cosh(λD)] = 1, and the product over pairs is a test martingale.
It ever exceeds 1/α with probability at most α (Ville 1939). The n-th trial of an action has α /
(n(n + 1)) of the error, so all of them together say "pays" wrongly with probability at most α.

Loss: over the coin, D is the mean effect of the pair. So what was lost less what was booked is a
martingale, and as a trial ends when its bookings exceed `CREDIT` steps and `SHARE` of all steps,
the expected loss is at most that and one pair (optional stopping). One path may lose more: with
noise σ of a step that is correlated over τ of K steps, none could promise less than about
σ sqrt(2 τ ln(1/α) / K). Of an action that takes some time itself and does no other harm, no more
is booked than it took: a few steps are less than the noise of one pair of long blocks.

What acting leaves behind is covered by neither. It is measured: of two blocks in a row without, the
first follows acting and the second does not. Where they surely differ, blocks are lengthened, and
what the first one costs is taken off the gain. What lasts longer than blocks is not seen.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from math import copysign, inf, log, sqrt

from evenstep.pacing.account import SHARE, TrialBudget, TrialVerdict
from evenstep.pacing.evidence import ALPHA, EvidenceProcess, standing

BLOCK_STEPS = 8  # short: neighbouring steps are alike, and a pair cannot lose much
FEWEST_STEPS = 4  # of a block that has settled, or its pair does not count
PAIR, LONGEST_SPAN = 2, 16  # blocks of which one is left out: on trial, and where it pays
ALWAYS = 1  # the span of what nobody tries
SPANS = (0, ALWAYS, 2, 4, 8, 16)
ALARM = 0.05  # of ending wrongly, from any pair on, what pays
LEARNING_STEPS = 64  # before the first trial
FIRST_REST_STEPS, LONGEST_REST_STEPS = 300, 4000  # after a trial that failed; doubled each time
MOST_PAIRS = 256  # of a trial that becomes certain of nothing
OUTLIER = 3.0  # a step longer than so many mean ones is something else, and counts as that long …
RARE = 30.0  # … but where rare long steps are what the action is against
FEWEST_LEFT, LEFT_SURE = 3, 2.5  # blocks that show what is left behind, and standard errors
LENGTHENED, LONGEST_SCALE = 4, 8  # doublings of a block: those found necessary, and any
OWN = 2.0  # times its allowance that a job may lose for the gain of all


@lru_cache(maxsize=64)
def left_out(seed: str, block: int, span: int) -> int:
    """The block that does not act among the `span` (a power of two) aligned ones around `block`.

    Whoever knows the seed draws the same. A longer span leaves out a block that a shorter one
    leaves out as well.
    """
    first = block - block % span
    while span > 1:
        span //= 2
        drawn = blake2b(f"{seed}\0{span}\0{first}".encode(), digest_size=1).digest()
        first += span * (drawn[0] & 1)
    return first


def acts(seed: str, block: int, span: int, scale: int = 0) -> bool:
    """Whether a block is acted in by those who leave out one of `span`; 0: never, 1: always.

    Blocks are doubled `scale` times.
    """
    block >>= scale
    return span == ALWAYS or (span > 0 and left_out(seed, block, span) != block)


class _Block:
    """One block's steps as they come."""

    __slots__ = ("acted", "count", "fresh", "index", "settled", "squares", "steps", "sums", "total")

    def __init__(self, index: int, *, acted: bool) -> None:
        self.index = index
        self.acted = acted
        self.fresh = False  # the block before was of the other kind
        self.count, self.total = 0, 0.0  # all steps
        self.settled, self.sums, self.squares = 0, 0.0, 0.0  # after the turn
        self.steps = 0.0  # whole ones, after it

    @property
    def mean(self) -> float:
        return self.sums / self.settled

    @property
    def variation(self) -> float:
        """Coefficient of variation; steadier than 1e-4 is not told apart."""
        mean = self.mean
        return max(1e-4, sqrt(max(0.0, self.squares / self.settled - mean * mean)) / mean)


class RandomTrial:
    """The trial of one action, told of every steady step and asked before the next.

    A step's `loss` is the part of it that the action can change, all of it where nothing else is
    told. `objective` is what must improve: the mean loss ("throughput") or its steadiness
    ("stability"). The stop-loss is of throughput always: `share` of it may go where the objective
    is another. Blocks begin `scale` times doubled. No step counts for more than `outlier` ones.
    `leaves`: acting is known to leave something behind, for half a block at most. `bounded`: acting
    costs no more than what it is said to have spent.
    """

    def __init__(
        self,
        account: TrialBudget,
        *,
        seed: str,
        objective: str = "throughput",
        share: float = SHARE,
        scale: int = 0,
        outlier: float = OUTLIER,
        leaves: bool = False,
        bounded: bool = False,
    ) -> None:
        self.account = account
        self.objective = objective
        self._seed = seed
        self.first_scale = scale
        self._leaves = leaves
        self._bounded = bounded
        self._outlier = outlier
        self._grace = share - SHARE  # of every step, what the objective may cost beside
        self.leads = True  # decides; else it does as it is told, unless that surely costs
        self.told: tuple[int, float, float] = (0, 0.0, 0.0)  # pairs, gain and cost of the last one
        self.heard: list[tuple[float, float]] = []  # the same of others who act in the same blocks
        self.reset()

    def reset(self) -> None:
        """Batch or world has changed: what was learned is of another job."""
        self.account.close(self)
        self.wanted = True  # there is something to gain: the host's part
        self.word = "untested"
        self.span = 0  # 0: not acting; else all but one block of so many
        self.mean_ns = 0.0  # of a step, outside trials: by which a step counts as an outlier
        self.scale = self.first_scale  # blocks are so often doubled
        self._learned = 0
        self._trials = 0
        self._rest, self._wake = FIRST_REST_STEPS, self.account.steps + LEARNING_STEPS
        self._begin()

    def _begin(self) -> None:
        self.gains: list[float] = []  # D of each pair
        self._squares = 0.0  # sum of D²
        self._for, self._against = EvidenceProcess(), EvidenceProcess()
        self._loss = 0.0  # steps, less what was gained
        self._spent = 0.0 if self._bounded else inf  # steps: no more was lost
        self._own = 0.0  # the same of us alone, where others are heard
        self._steps = self.account.steps
        self._acted = [0, 0.0]  # steps acted in since the last pair, and their loss
        self._leaves_anew()

    def _try(self) -> None:
        self._trials += 1
        self._begin()

    def _leaves_anew(self) -> None:
        self._left: list[float] = []  # what the first block after acting takes above the second
        self._block: _Block | None = None
        self._partner: _Block | None = None

    @property
    def turn(self) -> int:
        """Steps of a block that do not count: all of a longer one that may be left behind."""
        half = BLOCK_STEPS << self.scale >> 1
        return half if self._leaves or self.scale > self.first_scale else 1

    def acts(self, block: int) -> bool:
        """Whether a step of this block (a step's number over `BLOCK_STEPS`) is to be acted in."""
        return acts(self._seed, block, self.span, self.scale)

    def learn(self, block: int, step: float, acted: bool, loss: float | None = None) -> None:
        """Take a finished steady step, and what of it is `loss` where that is not all of it."""
        if not self.span:
            self._rest_on(step)
            return
        now = self._block
        if now is None or now.index != block >> self.scale:
            if now is not None:
                self._close(now)
                if not self.span:
                    return
            now = self._block = _Block(block >> self.scale, acted=acted)
        if acted is not now.acted:
            return
        most = self._outlier * self.mean_ns
        whole = min(step, most)
        loss = whole if loss is None else min(loss, most)
        now.count += 1
        now.total += loss
        if now.count <= self.turn:
            return
        now.settled += 1
        now.sums += loss
        now.squares += loss * loss
        now.steps += whole

    def spend(self, spent_ns: float) -> None:
        """Acting itself took so long."""
        if self.mean_ns:
            self._spent += spent_ns / self.mean_ns

    def _rest_on(self, step: float) -> None:
        """Learn how long a step is while nothing is done; begin when it is time."""
        self._learned = learned = min(LEARNING_STEPS, self._learned + 1)
        self.mean_ns += (step - self.mean_ns) / learned
        account = self.account
        if not self.wanted or learned < LEARNING_STEPS or account.steps < self._wake:
            return
        if self.leads and account.holder is None and account.room() > 1.0:
            account.holder = self
            self.word, self.span = "on trial", PAIR
            self.scale = max(self.scale, self.first_scale)
            self._try()

    def follow(self, span: int, scale: int) -> None:
        """Do as whoever leads does, but where that surely cost us of late."""
        if span not in SPANS or not 0 <= scale <= LONGEST_SCALE:
            return  # no order of ours
        if span and not self.span:
            if self._learned < LEARNING_STEPS or self.account.steps < self._wake:
                return
            self._try()
        if scale != self.scale:
            self.scale = scale
            self._leaves_anew()
        self.span = span
        self.word = "on trial" if span == PAIR else "pays" if span else self.word

    def _close(self, block: _Block) -> None:
        other, self._partner = self._partner, block
        before = other if other is not None and other.index == block.index - 1 else None
        if block.acted:
            self._acted[0] += block.count
            self._acted[1] += block.total
        if before is None or min(block.settled, before.settled) < FEWEST_STEPS:
            return
        block.fresh = block.acted is not before.acted
        if before.fresh and not (block.fresh or block.acted):
            self._left.append(before.mean - block.mean)
        if block.index % 2 and block.fresh:
            self._pair(*((before, block) if block.acted else (block, before)))

    def _pair(self, off: _Block, on: _Block) -> None:
        """Enter the difference of a pair, and book what acting has cost since the last one."""
        gain, (count, total) = self._gain(off, on), self._acted
        cost = total - count * off.mean
        self._acted = [0, 0.0]
        left, error = self._left_behind
        if abs(left) > LEFT_SURE * error:
            self._lengthen(self.scale + 1)
            # Three in four blocks without follow acting: they look worse, and are worse, by it.
            cost += 1.75 * left * (BLOCK_STEPS << self.scale)
        cost /= _usual(off, on)
        self.told = self.told[0] + 1, gain, cost
        self._own += cost
        self._against.add(-gain)
        harms = self._against.log
        together = bool(self.heard) or not self.leads
        if harms > -log(ALARM) or (together and self._own > OWN * self.account.granted):
            self._stop("does not pay")
            return
        if harms < 0.0 and self.word == "pays":  # watched for a change from here on
            self._against = EvidenceProcess()
        if self.leads:
            self._enter(gain, cost)

    def _enter(self, gain: float, cost: float) -> None:
        """Judge by a pair of ours, and what others say of theirs."""
        heard, self.heard = self.heard, []
        if heard:
            gain = (gain + sum(each for each, _ in heard)) / (1 + len(heard))
            cost = (cost + sum(each for _, each in heard)) / (1 + len(heard))
        if len(self.gains) < 8 * MOST_PAIRS:
            self.gains.append(gain)
            self._squares += gain * gain
        self._for.add(gain)
        self._loss += cost
        self.account.book(self, min(self._loss, self._spent))
        self._judge(gain)

    @property
    def _left_behind(self) -> tuple[float, float]:
        """What acting adds to a step of the next block, and the standard error of that."""
        left, count = self._left, len(self._left)
        if count < FEWEST_LEFT:
            return 0.0, inf
        mean = sum(left) / count
        return mean, sqrt(sum((each - mean) ** 2 for each in left) / (count * (count - 1)))

    def _gain(self, off: _Block, on: _Block) -> float:
        """As a share of what is usual in this pair: alike whichever block has acted."""
        if self.objective == "stability":
            return 2 * (off.variation - on.variation) / (off.variation + on.variation)
        return (off.mean - on.mean) / _usual(off, on)

    def _judge(self, gain: float) -> None:
        account = self.account
        allowed = account.room(self) + self._grace * (account.steps - self._steps)
        if min(self._loss, self._spent) > allowed:
            self._stop("does not pay")
        elif self.word == "pays":
            self._go_on(gain)
        elif self._for.log > self._needed and (self._leaves or self._left_behind[1] < inf):
            self.word, self._rest = "pays", FIRST_REST_STEPS
            account.release(self)
        elif len(self.gains) >= MOST_PAIRS:
            self._stop("undecided")

    def _lengthen(self, scale: int) -> None:
        if self.scale < scale <= LENGTHENED:
            self.scale = scale
            self._leaves_anew()

    @property
    def _needed(self) -> float:
        """Log of the evidence at which this trial says that acting pays."""
        return log(self._trials * (self._trials + 1) / ALPHA)

    def _go_on(self, gain: float) -> None:
        """Leave out less where the gains so far cover the error, more where the last pair lost."""
        error = 2.0 * sqrt(self._squares / len(self.gains))  # of the mean of a block
        at_stake = error * 2 * self.span * (BLOCK_STEPS << self.scale)
        if gain < 0.0:
            self.span = max(PAIR, self.span // 2)
        elif self.span < LONGEST_SPAN and -self._loss > at_stake:
            self.span = 2 * self.span
        elif -self._loss > at_stake:
            self._lengthen(1)

    def _stop(self, word: str) -> None:
        self.account.close(self)
        self.word, self.span, self._learned = word, 0, 0
        self._wake = self.account.steps + self._rest
        self._rest = min(LONGEST_REST_STEPS, 2 * self._rest)

    @property
    def verdict(self) -> TrialVerdict:
        """Where the comparison stands."""
        return TrialVerdict(self.word, len(self.gains), *map(_of_without, standing(self.gains)))


def _usual(off: _Block, on: _Block) -> float:
    """What a step of this pair takes, whichever of its blocks has acted."""
    return (off.steps / off.settled + on.steps / on.settled) / 2


def _of_without(gain: float) -> float:
    """A gain in shares of the mean of with and without, in shares of without."""
    return gain / (1 + gain / 2) if -2 < gain < inf else copysign(inf, gain)
