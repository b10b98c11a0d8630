"""Whether an action pays: a randomised trial in pairs of blocks of steps.

In each pair the action is on in one block and off in the other, by a fair coin independent of the
job. Two facts follow, however the steps are correlated.

No effect: exchanging the blocks only changes the sign of their difference D, so given |D| its sign
is a coin, and evidence over pairs is a test martingale (`EvidenceProcess`): it exceeds 1/α with
probability at most α. The first trial of an action has .8 of the error, the n-th .2 / (n(n - 1)):
together they say "pays" wrongly with probability at most α. A pair multiplies the evidence by 2 at
most, so the first needs five pairs (six with half of the error).

Loss: the mean of D over the coin is the effect of the pair. So the true loss less the booked loss
is a martingale. As a trial ends when its bookings exceed `CREDIT` steps and `SHARE` of all steps,
the expected loss is at most that and one pair (optional stopping). One path may lose more: with
noise σ of a step that is correlated over τ of K steps, no method can promise less than about
σ sqrt(2 τ ln(1/α) / K). An action whose only harm is the time it takes (`bounded`) is booked at
most that time, as the noise of one pair of long blocks exceeds a few steps. In spans of more blocks
than a pair, all acted in are booked what the pair around the one left out has shown: which it is is
drawn, so the mean is the same, and neighbouring steps share most of their noise.

Once the action is found to pay and its gain has an interval, one block in as many as the gains
cover, `LONGEST_SPAN` at most, is left out, the job as it would be without the action: enough to see
it begin to harm. After a pair that has lost, one in half as many.

Aftereffects are measured: of two blocks without the action in a row, the first follows a block with
it and the second does not. Where these certainly differ, blocks are lengthened, and the cost of the
first is subtracted from the gain. Aftereffects longer than a block are not detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import copysign, exp, inf, log, log1p, sqrt
from statistics import fmean

from evenstep.pacing.account import SHARE, TrialBudget, TrialVerdict

BLOCK_STEPS = 8  # short: neighbouring steps are alike, and a pair cannot lose much
FEWEST_STEPS = 4  # counted steps of a block without which its pair is ignored
PAIR, LONGEST_SPAN = 2, 16  # blocks of which one is left out: on trial, and at most
ALWAYS = 1  # the span of an action without a trial
SPANS = (0, ALWAYS, 2, 4, 8, 16)
FIRST = 0.8  # share of the error that an action's first trial has
ALARM = 0.05  # probability of wrongly ending an action that pays, from any pair on
LEARNING_STEPS = 64  # before the first trial
FIRST_REST_STEPS, LONGEST_REST_STEPS = 300, 4000  # after a failed trial; doubled each time
MOST_PAIRS = 256  # after which a trial ends undecided
OUTLIER = 3.0  # a longer step, in mean steps, has another cause and counts as that long …
RARE = 30.0  # … but for an action against rare long steps
FEWEST_AFTER, AFTER_SURE = 3, 2.5  # blocks that show an aftereffect, and its standard errors
MOST_LENGTHENED, LONGEST_SCALE = 4, 8  # doublings of a block: by this trial, and by any order
OWN = 2.0  # in allowances: most that a job may lose for the gain of all jobs
ALPHA, LOG_2 = 0.05, log(2)
FIRST_LOOK = 5  # differences; fewer can reject no effect
PRECISION = 1e-3  # of an interval, as a share of its width
_RATES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)  # λ: from noisy differences to quiet ones


@lru_cache(maxsize=64)
def left_out(seed: str, block: int, span: int) -> int:
    """The block without the action among the `span` (a power of two) aligned ones around `block`.

    A function of the seed. A block left out by a longer span is left out by a shorter one too.
    """
    first = block - block % span
    while span > 1:
        span //= 2
        drawn = blake2b(f"{seed}\0{span}\0{first}".encode(), digest_size=1).digest()
        first += span * (drawn[0] & 1)
    return first


def acts(seed: str, block: int, span: int, scale: int = 0) -> bool:
    """Whether the action is on in `block` when one of `span` is left out; 0: never, 1: always.

    The length of a block is doubled `scale` times.
    """
    block >>= scale
    return span == ALWAYS or (span > 0 and left_out(seed, block, span) != block)


class _Block:
    """Sums over the steps of one block."""

    def __init__(self, index: int, *, acted: bool) -> None:
        self.index = index
        self.acted = acted
        self.switched = False  # whether the action was off before and is on now, or the reverse
        self.count, self.total = 0, 0.0  # all steps, and the sum of their losses
        # Without the first `transition_steps`:
        self.settled, self.sums, self.squares = 0, 0.0, 0.0  # steps; losses, and their squares
        self.steps = 0.0  # sum of the whole steps

    @property
    def mean(self) -> float:
        return self.sums / self.settled

    @property
    def variation(self) -> float:
        """Coefficient of variation, at least 1e-4."""
        mean = self.mean
        return max(1e-4, sqrt(max(0.0, self.squares / self.settled - mean * mean)) / mean)


class RandomTrial:
    """The trial of one action: takes every steady step and says whether to act in the next.

    A step's `loss` is the part of it that the action can change, by default the whole step.
    `objective` is what must improve: the mean loss ("throughput") or its steadiness ("stability").
    The stop-loss is always of throughput; `share` is what another objective may cost of it. Blocks
    are doubled `scale` times from the start. No step counts for more than `outlier` mean ones.
    `aftereffect`: the action is known to have one, of half a block at most. `bounded`: the action
    costs no more than the time passed to `spend`.
    """

    def __init__(
        self, account: TrialBudget, *, seed: str, objective: str = "throughput",
        share: float = SHARE, scale: int = 0, outlier: float = OUTLIER,
        aftereffect: bool = False, bounded: bool = False,
    ) -> None:  # fmt: skip
        self.account = account
        self.objective = objective
        self._seed = seed
        self.first_scale = scale
        self._has_aftereffect = aftereffect
        self._bounded = bounded
        self._outlier = outlier
        self._grace = share - SHARE  # share of every step that the objective may cost in addition
        self.leads = True  # decides for all jobs; else follows, unless that certainly costs
        self.last_pair = (0, 0.0, 0.0)  # number of pairs, gain and cost of the last one
        self.peer_pairs: list[tuple[float, float]] = []  # gain and cost in other jobs, not yet used
        self.reset()

    def reset(self) -> None:
        """Start anew after the batch size or the world has changed."""
        self.account.close(self)
        self.wanted = True  # set by the host: whether there is something to gain
        self.word = "untested"
        self.span = 0  # 0: not acting; else one of so many blocks is left out
        self.mean_ns = 0.0  # of steps outside trials; the unit of outliers
        self.scale = self.first_scale
        self._learned = 0
        self._trials = -1  # before the first; `_start` counts
        self._rest, self._wake = FIRST_REST_STEPS, self.account.steps + LEARNING_STEPS
        self._start()

    def _start(self) -> None:
        self._trials += 1
        self.gains: list[float] = []  # D of each pair
        self._for, self._against = EvidenceProcess(), EvidenceProcess()
        self._loss = 0.0  # net, in steps; the mean over jobs where others act as well
        self._spent = 0.0 if self._bounded else inf  # steps; upper bound of the loss
        self._own_loss = 0.0  # net, in steps, of this job
        self._steps = self.account.steps
        self._acted = 0  # steps with the action since the last pair
        self._clear_blocks()

    def _clear_blocks(self) -> None:
        #: Means of first blocks after acting, less those of the second ones.
        self._after: list[float] = []
        self._block: _Block | None = None
        self._partner: _Block | None = None

    @property
    def transition_steps(self) -> int:
        """First steps of a block that are not counted: half of it where there are aftereffects."""
        half = BLOCK_STEPS << self.scale >> 1
        return half if self._has_aftereffect or self.scale > self.first_scale else 1

    def acts(self, block: int) -> bool:
        """Whether to act in the steps of this block (a step's number over `BLOCK_STEPS`)."""
        return acts(self._seed, block, self.span, self.scale)

    def learn(self, block: int, step: float, acted: bool, loss: float | None = None) -> None:
        """Take the length of a finished steady step, and its `loss` where that is not all of it."""
        if not self.span:
            self._rest_step(step)
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
        if now.count <= self.transition_steps:
            return
        now.settled += 1
        now.sums += loss
        now.squares += loss * loss
        now.steps += whole

    def spend(self, spent_ns: float) -> None:
        """Add time that the action itself took."""
        if self.mean_ns:
            self._spent += spent_ns / self.mean_ns

    def _rest_step(self, step: float) -> None:
        """Learn the mean step while the action is off; start a trial when one is due."""
        self._learned = learned = min(LEARNING_STEPS, self._learned + 1)
        self.mean_ns += (step - self.mean_ns) / learned
        account = self.account
        if not self.wanted or learned < LEARNING_STEPS or account.steps < self._wake:
            return
        if self.leads and account.holder is None and account.room() > 1.0:
            account.holder = self
            self.word, self.span = "on trial", PAIR
            self.scale = max(self.scale, self.first_scale)
            self._start()

    def follow(self, span: int, scale: int) -> None:
        """Follow the leader's orders, except while resting after a loss; ignore invalid ones."""
        if span not in SPANS or not 0 <= scale <= LONGEST_SCALE:
            return
        if span and not self.span:
            if self._learned < LEARNING_STEPS or self.account.steps < self._wake:
                return
            self._start()
        if scale != self.scale:
            self.scale = scale
            self._clear_blocks()
        self.span = span
        self.word = "on trial" if span == PAIR else "pays" if span else self.word

    def _close(self, block: _Block) -> None:
        other, self._partner = self._partner, block
        before = other if other is not None and other.index == block.index - 1 else None
        if block.acted:
            self._acted += block.count
        if before is None or min(block.settled, before.settled) < FEWEST_STEPS:
            return
        block.switched = block.acted is not before.acted
        if before.switched and not (block.switched or block.acted):
            self._after.append(before.mean - block.mean)
        if block.index % 2 and block.switched:
            self._pair(*((before, block) if block.acted else (block, before)))

    def _pair(self, off: _Block, on: _Block) -> None:
        """Enter the difference of a pair, and book the cost of acting since the last one."""
        gain, unseen, self._acted = self._gain(off, on), self._acted - on.count, 0
        cost = on.total - on.count * off.mean + unseen * (on.mean - off.mean)
        after, error = self._aftereffect
        if abs(after) > AFTER_SURE * error:
            if self.scale < MOST_LENGTHENED:
                self.scale += 1
                self._clear_blocks()
            # 3/4 of the blocks without the action follow one with it: their steps are longer by
            # the aftereffect, which makes `cost` too small, and is a cost itself.
            cost += 1.75 * after * (BLOCK_STEPS << self.scale)
        cost /= _mean_step(off, on)
        self.last_pair = self.last_pair[0] + 1, gain, cost
        self._own_loss += cost
        self._against.add(-gain)
        harms = self._against.log
        has_peers = bool(self.peer_pairs) or not self.leads
        if harms > -log(ALARM) or (has_peers and self._own_loss > OWN * self.account.granted):
            self._stop("does not pay")
            return
        if harms < 0.0 and self.word == "pays":  # watched for a change from here on
            self._against = EvidenceProcess()
        if self.leads:
            self._enter(gain, cost)

    def _enter(self, gain: float, cost: float) -> None:
        """Judge by a pair of this job and those of its peers."""
        pairs, self.peer_pairs = [(gain, cost), *self.peer_pairs], []
        gain, cost = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        if len(self.gains) < 8 * MOST_PAIRS:
            self.gains.append(gain)
        self._for.add(gain)
        self._loss += cost
        self.account.book(self, min(self._loss, self._spent))
        self._judge(gain)

    @property
    def _aftereffect(self) -> tuple[float, float]:
        """What acting adds to a step of the next block, with its standard error."""
        after, count = self._after, len(self._after)
        if count < FEWEST_AFTER:
            return 0.0, inf
        mean = sum(after) / count
        return mean, sqrt(sum((each - mean) ** 2 for each in after) / (count * (count - 1)))

    def _gain(self, off: _Block, on: _Block) -> float:
        """Difference over the mean of both: exchanging the blocks only flips its sign."""
        if self.objective == "stability":
            return 2 * (off.variation - on.variation) / (off.variation + on.variation)
        return (off.mean - on.mean) / _mean_step(off, on)

    def _judge(self, gain: float) -> None:
        account = self.account
        allowed = account.room(self) + self._grace * (account.steps - self._steps)
        if min(self._loss, self._spent) > allowed:
            self._stop("does not pay")
        elif self.word == "pays":
            self.span = max(PAIR, self.span // 2) if gain < 0.0 else self._covered_span()
        elif self._for.log > self._needed and (self._has_aftereffect or self._aftereffect[1] < inf):
            self.word, self.span, self._rest = "pays", self._covered_span(), FIRST_REST_STEPS
            account.release(self)
        elif len(self.gains) >= MOST_PAIRS:
            self._stop("undecided")

    def _covered_span(self) -> int:
        """The longest span in which what noise may book is covered by the gains so far.

        A bounded action is booked no noise. Pairs go on until the gain has an interval.
        """
        if len(self.gains) <= FIRST_LOOK:
            return PAIR
        mean = fmean(self.gains)
        error = 2.0 * sqrt(fmean([(each - mean) ** 2 for each in self.gains]))  # of one gain
        at_stake = error * 2 * (BLOCK_STEPS << self.scale)
        span = PAIR
        while span < LONGEST_SPAN and (self._bounded or -self._loss > span * at_stake):
            span *= 2
        return span

    @property
    def _needed(self) -> float:
        """Log of the evidence at which this trial finds that the action pays."""
        later = (1 - FIRST) / (self._trials * (self._trials - 1)) if self._trials > 1 else FIRST
        return -log(ALPHA * later)

    def _stop(self, word: str) -> None:
        self.account.close(self)
        self.word, self.span, self._learned = word, 0, 0
        self._wake = self.account.steps + self._rest
        self._rest = min(LONGEST_REST_STEPS, 2 * self._rest)

    @property
    def verdict(self) -> TrialVerdict:
        """The result so far."""
        return TrialVerdict(self.word, len(self.gains), *map(_of_without, interval(self.gains)))


def _mean_step(off: _Block, on: _Block) -> float:
    """Mean of the two blocks' mean steps."""
    return (off.steps / off.settled + on.steps / on.settled) / 2


def _of_without(gain: float) -> float:
    """Convert a gain from shares of the mean of both blocks to shares of the one without."""
    return gain / (1 + gain / 2) if -2 < gain < inf else copysign(inf, gain)


class EvidenceProcess:
    """Anytime-valid evidence against "no effect"; grows with differences above 0.

    Given |D|, its sign is then a fair coin, so E[exp(λD) / cosh(λD)] = 1 for any λ, and the product
    over differences is a test martingale (de la Peña 1999): it ever exceeds 1/α with probability at
    most α (Ville 1939). Several λ are averaged, because the noise of the differences is unknown.
    """

    __slots__ = ("_logs",)

    def __init__(self) -> None:
        self._logs = [0.0] * len(_RATES)

    def add(self, difference: float) -> None:
        """Enter a difference."""
        for index, rate in enumerate(_RATES):
            self._logs[index] += _log_factor(rate * difference)

    @property
    def log(self) -> float:
        """Log of the martingale."""
        return _log_mean_exp(self._logs)


def interval(gains: Sequence[float]) -> tuple[float, float, float]:
    """Mean and confidence interval (low, high) of paired differences in random order.

    The test inverted: under a constant effect of m, the signs of D - m are fair coins. Valid at all
    times, at level 1 - `ALPHA`: so those after fewer gains, at looks in geometric steps, are
    intersected (running intersection of a confidence sequence, Howard et al. 2021). An empty
    intersection means that the effect has changed: then it is the interval of all gains.
    """
    low, high = last = _nearest_rejected(gains, -1.0, -inf), _nearest_rejected(gains, 1.0, inf)
    looks = FIRST_LOOK
    while looks < len(gains):
        low = _nearest_rejected(gains[:looks], -1.0, low)
        high = _nearest_rejected(gains[:looks], 1.0, high)
        looks += 1 + looks // 8
    return sum(gains) / max(1, len(gains)), *((low, high) if low <= high else last)


def _nearest_rejected(gains: Sequence[float], sign: float, known: float) -> float:
    """The nearest rejected effect above (`sign` 1) or below (-1) the mean; `known` if nearer."""
    mean = sum(gains) / max(1, len(gains))
    reach = max((abs(gain - mean) for gain in gains), default=0.0)
    near, far = 0.0, min(1.0 + 16.0 * reach, sign * (known - mean))  # distances from the mean

    def rejects(distance: float) -> bool:
        away = [distance - sign * (gain - mean) for gain in gains]
        logs = [sum([_log_factor(rate * each) for each in away]) for rate in _RATES]
        return _log_mean_exp(logs) >= log(2 / ALPHA)

    if far <= 0 or not rejects(far):
        return known
    while far - near > max(PRECISION * far, 1e-9):
        middle = (near + far) / 2 if near else far / 8
        near, far = (near, middle) if rejects(middle) else (middle, far)
    return mean + sign * far


def _log_factor(value: float) -> float:
    """log(exp(x) / cosh(x)), without overflow."""
    return LOG_2 - log1p(exp(-2 * value)) if value > -300.0 else LOG_2 + 2 * value


def _log_mean_exp(logs: Sequence[float]) -> float:
    most = max(logs)
    return most + log(sum(exp(each - most) for each in logs)) - log(len(logs))
