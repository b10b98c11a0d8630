"""A rank that the laboratory drives itself: the agent's own recorder, and a pacer for each arm.

The host is what `agent.rank` is to a job of torch, with the frame taken away: the loop says what
happens (`phase`, `bucket`, `end_step`), and its trace and its pacing are those of a live rank, made
by the same objects. Each arm has a pacer of its own that sees the steps of its own blocks and
counts them without holes; the first step after a change teaches it nothing.

Standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from evenstep.agent.actions.link import LinkToken
from evenstep.agent.exchange.messages import Orders
from evenstep.agent.pace import PaceHost
from evenstep.agent.recording.collector import PauseWatch
from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.recorder import Recorder
from evenstep.host.resources import ResourceMeter, used
from evenstep.pacing import Decision, Pacer, PacerSettings, Plan, Reason, TrialBudget
from evenstep.pacing.waits import WaitEstimator
from evenstep.trace.ranks import format_ranks, group_uid
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.layout import DType, Op, Phase
from evenstep.trace.spool.spool import Spool

SUMMARY_BYTES = 4_000_000
RECORDS_OF_A_STEP = 10  # beside those of its buckets: step, phases, pauses, decisions
GROUP = "world"

now_ns = time.monotonic_ns


class _ArmHost:
    """The pacer of one arm, and the steps it has seen."""

    def __init__(self, host: PaceHost) -> None:
        self.host = host
        self.steps = 0
        self.decision = Decision(0, Reason.LEARNING)


class RankHost:
    """Recorder and pacers of one rank, for a loop like this:

    while host.block >= 0 …:
        host.input(lambda: …)
        host.compute(lambda: …)
        for bucket in …:
            host.bucket(nbytes, lambda: …)     # blocks until all ranks have exchanged it
        host.end_step(block)                   # may sleep: the delay before the next step
    """

    def __init__(
        self,
        spool: Spool,
        *,
        rank: int,
        world: int,
        settings: Sequence[PacerSettings],
        arm_of: Callable[[int], int],
        links: Sequence[tuple[str, bool] | None] = (),
    ) -> None:
        self.recorder = Recorder(spool)
        self.spool = spool
        self.rank = rank
        self.plan: Plan | None = None  # to be told to all ranks of the job, when set
        self.work_ns = self.held_ns = 0  # of the last step, for those who share them
        self._ident = self.recorder.ident
        self._group = _entered(spool, world)
        self._arm_of = arm_of
        waits = WaitEstimator()  # one for all arms: floors are the links', not a controller's
        self._arms = []
        for chosen in settings:
            host = PaceHost(Pacer(chosen), self.recorder, can_hold=True)
            host.waits = waits
            self._arms.append(_ArmHost(host))
        self._links = [
            None
            if link is None or rank
            else LinkToken(self.recorder, TrialBudget(), group=link[0], gate_by=_nobody,
                           held=arm.host.held, guarded=link[1])
            for link, arm in zip_longest(links, self._arms)
        ]  # fmt: skip
        self.arm = 0  # whose steps are done now
        self._changed = True
        self._meter = ResourceMeter(threading.get_native_id())
        self._standing = self._meter.now()
        self._pauses = PauseWatch(self.recorder.pause)
        self._pauses.install()

    @property
    def arm_step(self) -> int:
        """The running step, as its arm's pacer counts it."""
        return self._arms[self.arm].steps

    # -- the step --------------------------------------------------------------------------------

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """A stretch of the step: input, forward, backward, optimizer, checkpoint, evaluation."""
        self.recorder.stack.enter(int(phase), now_ns())
        try:
            yield
        finally:
            self.recorder.stack.leave(now_ns())

    def bucket(self, nbytes: int, exchange: Callable[[], Any], *, op: Op = Op.ALL_REDUCE) -> Any:
        """A blocking collective of the job; a step's first one waits as the arm's token says."""
        recorder, link = self.recorder, self._links[self.arm]
        if link is not None:
            link.before_collective()
        begin = now_ns()
        recorder.collective(begin, self._group, int(op), nbytes, nbytes, 0, -1, int(DType.FLOAT32))
        try:
            return exchange()
        finally:
            recorder.host_waited(begin, now_ns(), ident=self._ident)

    def end_step(self, block: int, orders: Orders | None = None) -> int:
        """The step is over, and `block` is on for the next: learn, decide, and hold.

        `orders`: what all ranks of the job were told. Returns how long the rank was held, in ns.
        """
        recorder, arm = self.recorder, self._arms[self.arm]
        before, self._standing = self._standing, self._meter.now()
        closed = recorder.end_step(now_ns(), self._standing, arm.host.take_held())
        recorder.settle(closed, used(before, self._standing))
        if orders is not None and arm.host.pacer.settings.sharing:
            arm.host.hear(orders)
        number = closed.number
        closed.number = arm.steps
        closed.unsteady = closed.unsteady or self._changed
        if (link := self._links[self.arm]) is not None:
            link.end_step(closed)
        self._changed = False
        row, _, arm.decision = arm.host.after_step(closed)
        arm.steps += 1
        closed.number = number
        recorder.store_summary(closed)
        self.plan = arm.decision.plan
        self.work_ns, self.held_ns = row.entry_ns, row.delay_ns
        return self._begin(self._arm_of(block), number + 1)

    def _begin(self, number: int, step: int) -> int:
        """Hold as the next step's arm decided when its last block ended."""
        arm = self._arms[number]
        if number != self.arm:
            self._changed = True
            arm.host.take_held()
            self.arm = number
        begin = now_ns()
        arm.host.hold(arm.decision, step)
        return now_ns() - begin if arm.decision.delay_ns > 0 else 0

    # -- the end ---------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Say what the pacer of each arm did, and close the spool."""
        self._pauses.remove()
        self._meter.close()
        for link in self._links:
            if link is not None:
                link.stop()
                link.turn.remove()
        self.spool.add_fact("pacing_arms", self.account())
        self.spool.add_fact("closed", {"monotonic_ns": now_ns(), "reason": reason})
        self.recorder.summaries.release()
        self.spool.shut()

    def account(self) -> list[dict[str, Any]]:
        """What the pacer of each arm did."""
        found = []
        for arm, link in zip(self._arms, self._links, strict=True):
            account = arm.host.pacer.account
            found.append(
                {
                    "steps": arm.steps,
                    "held_steps": account.held_steps,
                    "held_ns": account.held_ns,
                    "verdict": (account.verdict if link is None else link.turn.token.trial).word,
                }
            )
        return found


def _nobody(gate: Callable[[], None] | None) -> None:
    """The loop itself asks before each bucket."""
    del gate


def open_spool(folder: RunFolder, identity: dict[str, Any], *, records: int) -> Spool:
    """The spool of a rank the laboratory starts, with room for so many records."""
    path = folder.spool_path(int(identity["attempt"]), int(identity["rank"]))
    return Spool.create(path, identity, ring_bytes=112 * records, summary_bytes=SUMMARY_BYTES)


def _entered(spool: Spool, world: int) -> GroupState:
    ranks = tuple(range(world))
    uid = group_uid(ranks, GROUP)
    index = spool.add_group(
        {"uid": uid, "name": GROUP, "ranks": format_ranks(ranks), "base": 0, "backend": "lab"}
    )
    return GroupState(index, uid, ranks, 0)
