"""Whether phase or gaps pay, by the loss they are there to remove.

A step's loss is what its buckets took, plus what was spent on delays and gaps. Compute does not
enter, so its jitter does not hide the answer. Time is cut into blocks, of each pair of blocks one
is acted in, and the pair's difference is one measurement. Blocks follow the clock on the wall and
an order common to all jobs, so jobs that know nothing of each other act, and leave off, together:
what is compared is all of them pacing with none of them pacing. A job that yields alone only loses
to the others; where everybody yields in turn all may gain, and only a joint comparison shows it.

What a comparison costs is booked. One ends when it has cost more than is left in the account,
`CREDIT` steps and `SHARE` of all steps since, at the latest at twice that; so relative harm tends
to `SHARE` or less whatever the world does. What failed is tried again after twice the time. What
pays keeps a block in every few without, so that it goes on being compared.

Jobs that have come apart stay apart for a while, so a short block without is as good as those with
and the pairs show nothing. Hence a second comparison, with what the loss was before anybody acted:
while it has surely fallen since, it takes strong evidence of the pairs to end it. What was before
is learned anew now and then, since the world may have changed meanwhile.

Jobs can also come to meet in every step, with blocks and without alike, where before they drifted
through each other. So the loss is watched for a rise above what it was before as well (CUSUM, Page
1954), as far as that is known.
"""

from __future__ import annotations

from evenstep.pacing.blocks import clock_block_acts
from evenstep.pacing.comparison import PairedComparison

LEARNING_STEPS = 64
CHUNK_STEPS = 8  # neighbouring steps are alike: the error of their mean is read from chunks
WORTH = 0.005  # of a step: less contention than this is left alone
BLOCK_STEPS = 16  # a block has room for so many
SHORTEST_BLOCK_NS = 100_000_000
BLOCK_GROWTH = 2  # few lengths, so that jobs with steps of about the same length share theirs
TURN_STEPS = 2  # left out after each change
FEWEST_STEPS = 4  # of either kind, or a pair does not count
FEWEST_PAIRS, FEWEST_SPANS = 6, 3  # before the first verdict; a span is many more steps
CLEAR, FEWEST_CLEAR = 4.0, 4  # standard errors that end a comparison after so few pairs
MOST_PAIRS = 24
SURE = 2.0  # standard errors of the mean difference: it costs
LIKELY = 1.5  # ... and it pays
CLEARLY = 0.003  # of a step, where neither became certain
FALLEN = 1.5  # standard errors of the loss before, by which it has to have fallen since
NEWEST = 1 / 128  # weight of a step in the loss since
SPENDING = 1 / 64  # ... and in what is spent on delays and gaps
PAIR, SPAN, LONGEST_SPAN = 2, 8, 32  # blocks; of a span all but one are acted in
MEMORY_PAIRS = 12  # beyond it older spans count less
CREDIT = 6.0  # steps that comparisons may lose in all, and at most in any one
SHARE = 0.0005  # ... and of every step since
LEAST_ROOM = 2.0  # steps left in the account, or nothing is tried
DRIFT, FORGIVEN = 15.0, 0.005  # steps lost in all against before it began, and of each step
UNKNOWN = 2.0  # standard errors of the loss before that are forgiven as well
OUTLIER = 3.0  # mean steps: a longer loss is something else
FIRST_REST_STEPS, LONGEST_REST_STEPS = 300, 4000  # what the loss was before is as long trusted


class LossTrial:
    """Decides when contention is acted on; fed with every steady step's loss."""

    __slots__ = (
        "_before", "_block", "_block_ns", "_chunk_ns", "_drift", "_error_ns", "_excess",
        "_forgiven", "_group", "_harm", "_learned", "_level_ns", "_off", "_on", "_pairs", "_rest",
        "_seen", "_skip", "_span", "_spent_ns", "_steps", "_sum", "_times", "_wake", "_was_acted",
        "_without_ns", "booked", "open", "step_ns", "trials", "word",
    )  # fmt: skip

    def __init__(self) -> None:
        self.open = False  # compared or acted on, not learning or resting
        self.word = "untested"
        self.trials = 0
        self.booked = 0.0  # steps lost to comparisons that ended badly
        self.step_ns = 0.0  # mean, when last learned
        self._without_ns = 0.0  # mean loss then
        self._error_ns = 0.0  # its standard error
        self._forgiven = FORGIVEN
        self._learned = 0  # step
        self._steps = 0
        self._rest, self._wake = FIRST_REST_STEPS, LEARNING_STEPS
        self._span = PAIR
        self._block_ns = SHORTEST_BLOCK_NS
        self._block = (-1, False)  # the last one asked for
        self._learn_anew()
        self._compare_anew()

    def _learn_anew(self) -> None:
        self._seen = 0
        self._sum = self._times = self._excess = self._chunk_ns = 0.0
        self._before = PairedComparison()  # of no pairs, but of chunks

    def _compare_anew(self) -> None:
        self._pairs = PairedComparison()
        self._harm = 0.0  # steps lost since, less what was gained
        self._drift = 0.0  # steps lost against before, acted or not
        self._group = -1
        self._was_acted = False
        self._skip = TURN_STEPS
        self._off, self._on = [0, 0], [0, 0]  # steps and their loss in the running group
        self._level_ns = self._without_ns  # of the loss, acted or not
        self._spent_ns = 0.0  # of a step acted in

    @property
    def room(self) -> float:
        """Steps that the next comparison may lose."""
        return min(CREDIT, CREDIT + SHARE * self._steps - self.booked)

    def acts(self, at_ns: int) -> bool:
        """Whether a step that begins at this time is one to act in."""
        if not self.open:
            return False
        block = at_ns // self._block_ns
        if block != self._block[0]:
            self._block = (block, clock_block_acts(block, self._span))
        return self._block[1]

    def learn(
        self, took_ns: int, spent_ns: int, step_ns: int, excess_ns: int, began_ns: int, acted: bool
    ) -> None:
        """Take what a step's buckets took, what was spent on delay and pauses, the step itself, and
        what of it is surely contention.
        """
        self._steps += 1
        if self.open:
            self._compare(took_ns + spent_ns, spent_ns, began_ns, acted)
            return
        if acted:
            return
        self._seen = seen = self._seen + 1
        self._chunk_ns += took_ns
        if seen % CHUNK_STEPS == 0:
            self._before.add(self._chunk_ns / CHUNK_STEPS)
            self._chunk_ns = 0.0
        self._sum += took_ns
        self._times += step_ns
        self._excess += excess_ns
        if seen >= LEARNING_STEPS and self._steps >= self._wake:
            self._conclude_learning()

    def _conclude_learning(self) -> None:
        worth = self._excess >= WORTH * self._times and self._times > 0
        if worth and self.room >= LEAST_ROOM:
            self.step_ns, self._without_ns = self._times / self._seen, self._sum / self._seen
            self._error_ns, self._learned = self._before.error, self._steps
            self._forgiven = FORGIVEN + UNKNOWN * self._error_ns / self.step_ns
            self._block_ns = SHORTEST_BLOCK_NS
            while self._block_ns < BLOCK_STEPS * self.step_ns:
                self._block_ns *= BLOCK_GROWTH
            again = self.word == "learning anew" and self._fell
            self._enter(*((SPAN, "pays") if again else (PAIR, "on trial")))
            self.trials += not again
        elif not worth:
            self.word = "nothing to gain"
        self._learn_anew()

    def _enter(self, span: int, word: str) -> None:
        self.open, self.word, self._span, self._block = True, word, span, (-1, False)
        self._compare_anew()

    def _compare(self, loss_ns: int, spent_ns: int, began_ns: int, acted: bool) -> None:
        step_ns, drift = self.step_ns, self._drift
        if loss_ns > OUTLIER * step_ns:
            loss_ns = int(OUTLIER * step_ns)
        self._level_ns += NEWEST * (loss_ns - self._level_ns)
        drift += (loss_ns - self._without_ns) / step_ns - self._forgiven
        self._drift = drift = drift if drift > 0.0 else 0.0
        if drift > DRIFT:
            self._harm = max(LEAST_ROOM, self._harm + self._open_harm)
            self._stop()
            return
        group = began_ns // (self._block_ns * self._span)
        if group != self._group:
            if self._group >= 0:
                self._close_group()
            if not self.open:
                return
            self._group = group
        if acted != self._was_acted:
            self._was_acted, self._skip = acted, TURN_STEPS
        if self._skip:
            self._skip -= 1
            return
        told = self._on if acted else self._off
        told[0] += 1
        told[1] += loss_ns
        if acted:
            self._spent_ns += SPENDING * (spent_ns - self._spent_ns)

    @property
    def _open_harm(self) -> float:
        """What the running group has cost so far, against its own steps without or those before."""
        (off, off_ns), (on, on_ns) = self._off, self._on
        without_ns = off_ns / off if off else self._without_ns
        return (on_ns - on * without_ns) / self.step_ns

    def _close_group(self) -> None:
        (off, off_ns), (on, on_ns) = self._off, self._on
        if min(off, on) >= FEWEST_STEPS:
            gain = (off_ns / off - on_ns / on) / self.step_ns
            self._pairs.add(gain)
            self._harm = max(-CREDIT, self._harm - gain * on)
            if self._fell:  # pairs of jobs that stay apart differ by chance alone
                self._harm = min(0.0, self._harm)
            if self._is_time():
                self._judge()
            elif self._pairs.count > 1 and self._harm > 2 * self.room and not self._fell:
                self._stop()
        self._off, self._on = [0, 0], [0, 0]

    def _is_time(self) -> bool:
        """Whether enough pairs are known for a verdict."""
        count = self._pairs.count
        if self._span > PAIR:
            return count >= FEWEST_SPANS
        clear = count >= FEWEST_CLEAR and abs(self._pairs.certainty) > CLEAR
        return clear or count >= FEWEST_PAIRS

    @property
    def _fell(self) -> bool:
        """Whether the loss has surely fallen below what it was before anybody acted."""
        least_ns = max(FALLEN * self._error_ns, CLEARLY * self.step_ns)
        return self._without_ns - self._level_ns > least_ns

    def _judge(self) -> None:
        certainty, fell = self._pairs.certainty, self._fell
        if self._costs(certainty, fell):
            self._harm = max(LEAST_ROOM, self._harm) if fell else self._harm
            self._stop()
        elif self._span > PAIR:
            self._go_on(certainty, fell)
        elif fell or certainty > LIKELY:
            self._rest = FIRST_REST_STEPS
            self._enter(LONGEST_SPAN if certainty > CLEAR else SPAN, "pays")
        elif self._pairs.count >= MOST_PAIRS:
            self._settle()

    def _costs(self, certainty: float, fell: bool) -> bool:
        """Whether acting costs more than not, by the pairs."""
        if fell:
            return certainty < -CLEAR
        return certainty < -SURE or (self._harm > self.room and certainty < 0)

    def _settle(self) -> None:
        """Nothing became certain: what gains, or costs next to nothing, goes on."""
        cheap = self._spent_ns < CLEARLY * self.step_ns
        if cheap or self._pairs.mean > CLEARLY:
            self._enter(SPAN, "pays")
        else:
            self._stop()

    def _go_on(self, certainty: float, fell: bool) -> None:
        """It pays: forget the oldest, and do without more rarely where it pays surely."""
        if certainty > LIKELY and self._span < LONGEST_SPAN:
            self._span, self._group, self._block = 2 * self._span, -1, (-1, False)
        elif fell and certainty < LIKELY and self._steps - self._learned > LONGEST_REST_STEPS:
            self.open, self.word, self._wake = False, "learning anew", self._steps
            self._learn_anew()
        elif self._pairs.count >= MEMORY_PAIRS:
            self._pairs.fade()

    def _stop(self) -> None:
        self.open, self.word = False, "does not pay"
        self.booked += max(0.0, self._harm)
        self._wake = self._steps + self._rest
        self._rest = min(LONGEST_REST_STEPS, 2 * self._rest)
        self._learn_anew()
