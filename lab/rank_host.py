"""A rank that the laboratory drives itself: the agent's own recorder, and a pacer for each arm.

The host is what `agent.rank` is to a job of torch, with the frame taken away: the loop says what
happens (`phase`, `bucket`, `end_step`), and its trace and its pacing are those of a live rank, made
by the same objects.

Standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from evenstep.agent.actions.link import LinkToken
from evenstep.agent.exchange.messages import Orders
from evenstep.agent.pace import PaceHost
from evenstep.agent.recording.collector import PauseWatch
from evenstep.agent.recording.entries import GroupState
from evenstep.agent.recording.recorder import Recorder
from evenstep.host.resources import ResourceMeter, resources_used
from evenstep.pacing import PacerSettings, Plan, TrialBudget
from evenstep.trace.ranks import format_ranks, group_uid
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.spool.layout import DType, Op, Phase
from evenstep.trace.spool.spool import Spool
from lab.turns import TurnPacer

SUMMARY_BYTES = 4_000_000
RECORDS_OF_A_STEP = 10  # beside those of its buckets: step, phases, pauses, decisions
GROUP = "world"

now_ns = time.monotonic_ns


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
        self.work_ns = 0  # of the last step, for those who share it
        self._ident = self.recorder.ident
        self._group = _entered(spool, world)
        self._block = 0
        self._turns = TurnPacer(settings, lambda _: arm_of(self._block))
        self._pace = PaceHost(self._turns, self.recorder, can_hold=True)
        self._links = [
            None
            if link is None or rank
            else LinkToken(self.recorder, TrialBudget(), group=link[0], gate_by=_nobody,
                           guarded=link[1])
            for link in links or [None] * len(settings)
        ]  # fmt: skip
        self._meter = ResourceMeter(threading.get_native_id())
        self._standing = self._meter.now()
        self._pauses = PauseWatch(self.recorder.pause)
        self._pauses.install()

    # -- the step --------------------------------------------------------------------------------

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """A stretch of the step: input, forward, backward, optimizer, checkpoint, evaluation."""
        self.recorder.stack.enter(int(phase), now_ns())
        try:
            yield
        finally:
            self.recorder.stack.leave(now_ns())
            if link := self._links[self._turns.arm]:
                link.ends(phase, now_ns())

    def bucket(self, nbytes: int, exchange: Callable[[], Any], *, op: Op = Op.ALL_REDUCE) -> Any:
        """A blocking collective of the job; a step's first one waits as the arm's token says."""
        recorder, link = self.recorder, self._links[self._turns.arm]
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
        recorder, pace = self.recorder, self._pace
        before, self._standing = self._standing, self._meter.now()
        closed = recorder.end_step(now_ns(), recorder.held_ns)
        recorder.held_ns = 0
        closed.used = resources_used(before, self._standing)
        recorder.settle(closed)
        if orders is not None:
            pace.take_orders(orders)
        closed.unsteady = closed.unsteady or self._turns.changed
        if (link := self._links[self._turns.arm]) is not None:
            link.end_step(closed)
        self._block = block
        row, _, decision = pace.after_step(closed)
        recorder.store_summary(closed)
        self.plan, self.work_ns = decision.plan, row.entry_ns
        begin = now_ns()
        pace.hold(decision, closed.number + 1)
        return now_ns() - begin if decision.delay_ns > 0 else 0

    # -- the end ---------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Say what the pacer of each arm did, and close the spool."""
        self._pauses.remove()
        self._meter.close()
        for link in self._links:
            if link is not None:
                link.stop()
        self.spool.add_fact("pacing_arms", self.account())
        self.spool.add_fact("closed", {"monotonic_ns": now_ns(), "reason": reason})
        self.recorder.summaries.release()
        self.spool.shut()

    def account(self) -> list[dict[str, object]]:
        """What the pacer of each arm did."""
        return self._turns.told(self._links)


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
