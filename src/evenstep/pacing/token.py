"""The token of a shared link: a job begins its exchange when the jobs ahead have ended theirs.

Every job on the link posts when it asked for the link, when it entered, and how long its exchange
takes alone. Let r be what is left of another job's exchange, m the length of ours, and η the share
of the link's goodput that two concurrent exchanges keep. If we wait, we end at r + m, and at 2 m /
η otherwise; the other job ends at r, and later otherwise. So the wait costs us nothing up to r = (2
/ η - 1) m, and both jobs together nothing up to (4 / η - 2) m. A job therefore waits for exchanges
that end within `WORTH` of its own. Jobs of nearly equal periods then stay apart for good. There is
no arbiter: a job that died overstays its exchange, and the others stop waiting for it.

Only the jobs of a link together can tell whether that pays, so all act in the same blocks of the
clock. The first job leads: it judges by the gains of all, and the others follow its orders; a job
that certainly loses stops on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evenstep.pacing.account import TrialBudget
from evenstep.pacing.random_trial import BLOCK_STEPS, RandomTrial
from evenstep.pacing.slack import RollingWindow

TOKEN = "token"
MOST_WAIT = 0.25  # of the median step, all delays of the step together
WINDOW, QUICK = 256, 0.1  # exchanges, and the quantile taken as the length of one alone
FEWEST_EXCHANGES = 8
WORTH = 1.5  # longest wait in own exchanges: free for us at η = .8, for both jobs at any η < 1
OVERDUE = 3.0  # exchanges alone by which a job overstays before it counts as dead
POLL_SHARE = 1 / 64  # shortest poll interval, in own exchanges, but at least:
SHORTEST_POLL_NS = 50_000
SHORTEST_BLOCK_NS = 1_000_000
LOOK_STEPS = 64
LEAST = 0.01  # shortest exchange, as a share of a step, worth a trial
MET = 1 / 32  # smallest share of steps with contention worth a trial
MILLION = 1_000_000
SEED = "link"  # all jobs draw the same order of blocks


class Post(NamedTuple):
    """The published state of a job; times in nanoseconds of a clock that all jobs share."""

    asked_ns: int = 0  # 0: the job is not at its exchange
    entered_ns: int = 0  # 0: the job is not on the link
    alone_ns: int = 0  # length of its exchange on an idle link; 0: not known yet
    step_ns: int = 0  # median of its last steps; 0: the job takes no part
    pairs: int = 0  # compared so far
    gain: int = 0  # of the last pair, in millionths of a step
    cost: int = 0  # of the last pair, in millionths of a step
    span: int = 0  # orders of this job, in force while it leads: span and scale of its trial …
    scale: int = 0
    block_ns: int = 0  # … and length of a block


class Token:
    """One job's side of the token, held by one of its ranks."""

    def __init__(self, account: TrialBudget, *, guarded: bool = True) -> None:
        self.post = Post()
        self.trial = RandomTrial(account, seed=SEED)
        self.trial.wanted = False
        self.waited_ns = 0  # in the running step
        # Of this exchange: its latest beginning, when to ask again, the host's longest oversleep …
        self._deadline_ns = self._again_ns = self._overslept_ns = 0
        self._guarded = guarded
        self._exchanges = RollingWindow(WINDOW)
        self._oversleeps = RollingWindow(LOOK_STEPS)  # … and before the last ones
        self._steps_ns = RollingWindow(LOOK_STEPS)
        self._starved_ns = RollingWindow(LOOK_STEPS)
        self._block, self._acts = 0, False
        self.steps = self._met = self._block_ns = 0
        self._counted_pairs: dict[int, int] = {}  # by neighbour

    def ask(self, now_ns: int, others: Sequence[Post], held_ns: int = 0) -> int:
        """Return how long to wait before asking again; 0: the exchange begins now.

        `held_ns`: for how long the running step was held before the first time, for whatever
        reason; that counts towards the bound.
        """
        post = self.post
        if not post.asked_ns:
            self._met += any(other.entered_ns for other in others)
            post = self.post = post._replace(asked_ns=now_ns)
            self._deadline_ns = now_ns + int(MOST_WAIT * post.step_ns * self._acts) - held_ns
            self._overslept_ns = 0
        else:
            self._overslept_ns = max(self._overslept_ns, now_ns - self._again_ns)
        self.waited_ns = now_ns - post.asked_ns
        overslept_ns = max(self._oversleeps.quantile(1.0), self._overslept_ns)
        room_ns = self._deadline_ns - max(overslept_ns, self._starved_ns.quantile(0.5)) - now_ns
        ahead_ns = _ahead_ns(post, now_ns, others) if room_ns > 0 and post.alone_ns else 0
        if not ahead_ns:
            self.post = post._replace(entered_ns=now_ns)
            return 0
        poll_ns = max(SHORTEST_POLL_NS, int(POLL_SHARE * post.alone_ns))
        # Half of what is left: few sleeps, of which a host may end each late.
        wait_ns = min(max(ahead_ns // 2, poll_ns), room_ns)
        self._again_ns = now_ns + wait_ns
        return wait_ns

    def leave(self, now_ns: int) -> None:
        """End the exchange."""
        post = self.post
        if post.entered_ns:
            self._exchanges.push(now_ns - post.entered_ns)
            self._oversleeps.push(self._overslept_ns)
        alone_ns = post.alone_ns
        if len(self._exchanges) >= FEWEST_EXCHANGES:
            alone_ns = self._exchanges.quantile(QUICK)
        self.post = post._replace(asked_ns=0, entered_ns=0, alone_ns=alone_ns)

    def end_step(
        self, step: int, step_ns: int, now_ns: int, others: Sequence[Post],
        leader: Post | None = None, exchange_ns: int | None = None, starved_ns: int = 0,
    ) -> None:  # fmt: skip
        """Take a finished steady step; `leader`: the leading job, None where this job leads.

        `exchange_ns`: the part of the step that the token can change (exchange and wait for it);
        `starved_ns`: in which the rank was ready without a core, as it would be after a sleep.
        """
        trial = self.trial
        trial.account.tick(step)
        trial.leads = leader is None
        trial.learn(self._block, step_ns, self._acts, exchange_ns)
        self._steps_ns.push(step_ns)
        self._starved_ns.push(starved_ns)
        usual_ns = max(1, self._steps_ns.quantile(0.5))
        self.steps += 1
        if self.steps % LOOK_STEPS == 0:
            matters = self.post.alone_ns >= LEAST * usual_ns
            trial.wanted = matters and self._met >= MET * LOOK_STEPS
            self._met = 0
        if leader is None:
            self._lead(usual_ns, others)
        else:
            self._block_ns = leader.block_ns
            trial.follow(leader.span, leader.scale)
        pairs, gain, cost = trial.last_pair
        self.post = self.post._replace(
            step_ns=usual_ns, pairs=pairs, gain=int(MILLION * gain),
            cost=int(MILLION * cost), span=trial.span, scale=trial.scale, block_ns=self._block_ns,
        )  # fmt: skip
        self._block = now_ns // self._block_ns if self._block_ns else 0
        self._acts = trial.acts(self._block) if self._guarded else self.steps > LOOK_STEPS

    def _lead(self, usual_ns: int, others: Sequence[Post]) -> None:
        """Take the other jobs' new pairs; set the length of a block."""
        for number, other in enumerate(others):
            if other.pairs != self._counted_pairs.get(number, other.pairs):
                self.trial.peer_pairs.append((other.gain / MILLION, other.cost / MILLION))
            self._counted_pairs[number] = other.pairs
        if not self.trial.span:
            longest_ns = max([usual_ns, *(other.step_ns for other in others)])
            self._block_ns = SHORTEST_BLOCK_NS
            while self._block_ns < BLOCK_STEPS * longest_ns:
                self._block_ns *= 2


def _ahead_ns(own: Post, now_ns: int, others: Sequence[Post]) -> int:
    """The longest remaining exchange among the jobs ahead that are worth a wait."""
    found = 0
    for other in others:
        if not other.alone_ns:
            continue
        if other.entered_ns:
            left_ns = other.entered_ns + other.alone_ns - now_ns
            if left_ns < -OVERDUE * other.alone_ns:
                continue  # dead, or delayed by something else
            left_ns = max(left_ns, other.alone_ns // 16)
        elif 0 < other.asked_ns < own.asked_ns and now_ns - other.asked_ns < own.step_ns:
            left_ns = other.alone_ns
        else:
            continue
        if left_ns <= WORTH * own.alone_ns:
            found = max(found, left_ns)
    return found
