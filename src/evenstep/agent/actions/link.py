"""`token`: a job's exchange waits until those ahead of it have left the link (`pacing.token`).

One rank of a job asks, since a collective starts with its last rank. It does so before the first
collective of a step, on the training thread alone; the others wait for it as they always do. The
exchange counts as over when the last collective of the step had ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from evenstep.agent.actions.board import LinkBoard, board_path
from evenstep.agent.recorder import Recorder
from evenstep.agent.steps import ClosedStep
from evenstep.pacing.account import TrialBudget, TrialVerdict
from evenstep.pacing.token import TOKEN, Token
from evenstep.trace.spool.layout import WORD_EXIT, Actuator, Flag, Kind

_get_ident = threading.get_ident


class LinkToken:
    """The token in the hands of this rank. Raises `EvenstepError` where there is no board."""

    def __init__(
        self,
        recorder: Recorder,
        account: TrialBudget,
        *,
        group: str,
        gate_by: Callable[[Callable[[], None] | None], None],
        held: Callable[[int], None],
        guarded: bool = True,
    ) -> None:
        self.token = Token(account, guarded=guarded)
        self._held = held  # told of time that was neither work nor exchange
        self._recorder = recorder
        self._board = LinkBoard(board_path(group))
        self._gate_by = gate_by
        self._asked = False
        gate_by(self.before_collective)

    def before_collective(self) -> None:
        """A collective is about to be issued on this thread."""
        if self._asked or _get_ident() != self._recorder.ident:
            return
        self._asked = True
        token, board = self.token, self._board
        begin_ns = now_ns = time.monotonic_ns()
        while wait_ns := token.ask(now_ns, board.others(now_ns)):
            board.say(token.post, now_ns)
            time.sleep(wait_ns * 1e-9)
            now_ns = time.monotonic_ns()
        board.say(token.post, now_ns)
        if token.waited_ns:
            self._held(now_ns - begin_ns)
            self._record(begin_ns, now_ns)

    def _record(self, begin_ns: int, end_ns: int) -> None:
        self._recorder.spool.put(
            begin_ns,
            end_ns,
            int(Kind.PACING),
            int(Actuator.BEFORE_EXCHANGE),
            self._recorder.stack.step,
            held_ns=end_ns - begin_ns,
            flags=int(Flag.APPLIED),
        )

    def end_step(self, closed: ClosedStep) -> None:
        """A step is over, and its exchange with it."""
        if not self._asked:
            return
        self._asked = False
        now_ns, token, board = time.monotonic_ns(), self.token, self._board
        token.leave(self._over_ns(closed) or now_ns)
        if not closed.unsteady:
            others, leader = board.others(now_ns), board.leader(now_ns)
            step_ns = closed.end_ns - closed.start_ns
            token.end_step(closed.number, step_ns, now_ns, others, leader)
        board.say(token.post, now_ns)

    def _over_ns(self, closed: ClosedStep) -> int:
        """When the last of the step's collectives that have ended on the host had ended."""
        words, slot = self._recorder.spool.words, self._recorder.spool.word_of
        ends = (
            words[base + WORD_EXIT]
            for seq, *_ in closed.collectives
            if words[base := slot(seq)] == seq
        )
        return max(ends, default=0)

    def stop(self, *, remove: bool = False) -> None:
        """Wait no more, and leave the board; `remove`: nobody comes after us."""
        self._gate_by(None)
        self._board.close()
        if remove:
            self._board.path.unlink(missing_ok=True)

    @property
    def verdict(self) -> TrialVerdict:
        """What its trial found."""
        return self.token.trial.verdict

    def account_of(self) -> dict[str, Any]:
        """What it did and what its trial found; JSON-able."""
        word, pairs, gain, *_ = self.verdict
        return {"action": TOKEN, "word": word, "pairs": pairs, "gain": gain}
