"""The token of a shared link: a job's exchange waits until those ahead of it have left.

Every job on the link posts what it does: when it asked, when it entered, how long its exchange
takes alone. With r left of another's exchange and m of ours, and a share η of the link's goodput
kept when two are on it, we end at r + m if we wait and else at 2 m / η, they at r and else later:
the wait costs us nothing up to r = (2 / η - 1) m, and both together nothing up to (4 / η - 2) m. So
a job waits for those who will leave within `WORTH` of its own exchange. Jobs of nearly equal
periods part for good. Nobody grants anything: a job that is gone is seen to stay longer than it
can, and is not waited for.

Whether it pays only all jobs of the link together can tell, so all act in the same blocks of the
clock. The first of them leads: it judges by everybody's gains, and the others follow; a job that
surely loses leaves off on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evenstep.pacing.account import TrialBudget
from evenstep.pacing.random_trial import BLOCK_STEPS, RandomTrial
from evenstep.pacing.window import RollingWindow

TOKEN = "token"
MOST_WAIT = 0.25  # of a step
WINDOW, QUICK = 256, 0.1  # exchanges, and the quantile that is one alone
FEWEST_EXCHANGES = 8
WORTH = 1.5  # exchanges of ours; by what it costs us for η = .8, and both for any η below 1
OVERDUE = 3.0  # exchanges alone after which somebody on the link counts as gone
POLL_SHARE = 1 / 64  # of our exchange: looked at again at least so often, and …
SHORTEST_POLL_NS = 50_000
SHORTEST_BLOCK_NS = 1_000_000
LOOK_STEPS = 64
LEAST = 0.01  # of a step: less exchange is left alone
MET = 1 / 32  # of steps that met others: less contention is left alone
MILLION = 1_000_000
SEED = "link"  # the order of blocks is the same for all


class Post(NamedTuple):
    """What a job says of itself; times in nanoseconds of a clock that all jobs share."""

    asked_ns: int = 0  # 0: it computes
    entered_ns: int = 0  # 0: it is not on the link
    alone_ns: int = 0  # its exchange, when nobody else is there; 0: not known yet
    step_ns: int = 0  # 0: it takes no part
    pairs: int = 0  # compared so far; of the last one, in millionths of a step:
    gain: int = 0
    cost: int = 0
    span: int = 0  # these three are its orders, should it lead
    scale: int = 0
    block_ns: int = 0


class Token:
    """One job's part, in the hands of the one rank that asks for it."""

    def __init__(self, account: TrialBudget, *, guarded: bool = True) -> None:
        self.post = Post()
        self.trial = RandomTrial(account, seed=SEED)
        self.trial.wanted = False
        self.waited_ns = 0  # in the running step
        self._again_ns = 0  # when it is to ask again
        self._late_ns = 0  # by how much the host was of late: it sleeps for longer than it is told
        self._guarded = guarded
        self._exchanges = RollingWindow(WINDOW)
        self._block, self._acts = 0, False
        self.steps = self._met = 0
        self._block_ns = 0
        self._heard: dict[int, int] = {}  # pairs of each neighbour that were counted

    def ask(self, now_ns: int, others: Sequence[Post]) -> int:
        """How long to wait before asking again; 0: the exchange begins now."""
        post = self.post
        if not post.asked_ns:
            self._met += any(other.entered_ns for other in others)
            post = self.post = post._replace(asked_ns=now_ns)
            self._late_ns -= self._late_ns >> 3
        else:
            self._late_ns = max(self._late_ns, now_ns - self._again_ns)
        self.waited_ns = waited_ns = now_ns - post.asked_ns
        most_ns = int(MOST_WAIT * post.step_ns) - self._late_ns if self._acts else 0
        room_ns = most_ns - waited_ns
        ahead_ns = _ahead_ns(post, now_ns, others) if room_ns > 0 and post.alone_ns else 0
        if not ahead_ns:
            self.post = post._replace(entered_ns=now_ns)
            return 0
        poll_ns = max(SHORTEST_POLL_NS, int(POLL_SHARE * post.alone_ns))
        wait_ns = min(ahead_ns, poll_ns, room_ns)
        self._again_ns = now_ns + wait_ns
        return wait_ns

    def leave(self, now_ns: int) -> None:
        """The exchange is over."""
        post = self.post
        if post.entered_ns:
            self._exchanges.push(now_ns - post.entered_ns)
        alone_ns = post.alone_ns
        if len(self._exchanges) >= FEWEST_EXCHANGES:
            alone_ns = self._exchanges.quantile(QUICK)
        self.post = post._replace(asked_ns=0, entered_ns=0, alone_ns=alone_ns)

    def end_step(
        self,
        step: int,
        step_ns: int,
        now_ns: int,
        others: Sequence[Post],
        leader: Post | None = None,
        exchange_ns: int | None = None,
    ) -> None:
        """A steady step is over; `leader`: whose orders are in force, None where we lead.

        `exchange_ns`: what of it was exchange and waiting for it; the rest the token cannot change.
        """
        trial = self.trial
        trial.account.tick(step)
        trial.leads = leader is None
        trial.learn(self._block, step_ns, self._acts, exchange_ns)
        mean_ns = self.post.step_ns
        mean_ns += (step_ns - mean_ns) // min(self.steps + 1, LOOK_STEPS)
        self.steps += 1
        if self.steps % LOOK_STEPS == 0:
            noticed = self.post.alone_ns >= LEAST * mean_ns
            trial.wanted = noticed and self._met >= MET * LOOK_STEPS
            self._met = 0
        if leader is None:
            self._lead(mean_ns, others)
        else:
            self._block_ns = leader.block_ns
            trial.follow(leader.span, leader.scale)
        pairs, gain, cost = trial.told
        self.post = self.post._replace(
            step_ns=max(1, mean_ns), pairs=pairs, gain=int(MILLION * gain),
            cost=int(MILLION * cost), span=trial.span, scale=trial.scale, block_ns=self._block_ns,
        )  # fmt: skip
        self._block = now_ns // self._block_ns if self._block_ns else 0
        self._acts = trial.acts(self._block) if self._guarded else self.steps > LOOK_STEPS

    def _lead(self, mean_ns: int, others: Sequence[Post]) -> None:
        """Take in what the others say of pairs that we have not counted; set the blocks' length."""
        for number, other in enumerate(others):
            if other.pairs != self._heard.get(number, other.pairs):
                self.trial.heard.append((other.gain / MILLION, other.cost / MILLION))
            self._heard[number] = other.pairs
        if not self.trial.span:
            longest_ns = max([mean_ns, *(other.step_ns for other in others)])
            self._block_ns = SHORTEST_BLOCK_NS
            while self._block_ns < BLOCK_STEPS * longest_ns:
                self._block_ns *= 2


def _ahead_ns(own: Post, now_ns: int, others: Sequence[Post]) -> int:
    """How long those ahead that are worth a wait are still there."""
    found = 0
    for other in others:
        if not other.alone_ns:
            continue
        if other.entered_ns:
            left_ns = other.entered_ns + other.alone_ns - now_ns
            if left_ns < -OVERDUE * other.alone_ns:
                continue  # gone, or held up by something else
            left_ns = max(left_ns, other.alone_ns // 16)
        elif 0 < other.asked_ns < own.asked_ns and now_ns - other.asked_ns < own.step_ns:
            left_ns = other.alone_ns
        else:
            continue
        if left_ns <= WORTH * own.alone_ns:
            found = max(found, left_ns)
    return found
