"""`token`: a job waits for its turn on a shared link or shared storage (`pacing.token`).

On a link one rank of a job asks, since a collective starts with its last rank: before the first
collective of a step, on the training thread. The exchange ends with backward, where that waits for
all of its collectives; else with the last collective of the step, which is reported at the end of
the step. On storage every rank asks, before it reads its input and before it writes a checkpoint.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from evenstep.agent.actions.board import LinkBoard, board_path
from evenstep.agent.actions.served import LINK, ServedBoard
from evenstep.agent.recording.recorder import Recorder
from evenstep.agent.recording.steps import ClosedStep, Turns
from evenstep.pacing.account import TrialBudget
from evenstep.pacing.token import TOKEN, Post, Token
from evenstep.trace.spool.layout import Actuator, Flag, Kind, Phase

_get_ident = threading.get_ident
INPUT, BACKWARD, CHECKPOINT = int(Phase.INPUT), int(Phase.BACKWARD), int(Phase.CHECKPOINT)


class Turn:
    """This rank's token of one topic. Raises `EvenstepError` without a board."""

    def __init__(self, topic: str, group: str, token: Token, recorder: Recorder) -> None:
        self.topic = topic
        self.token = token
        self.board: LinkBoard | ServedBoard = (  # of NAME on this host, or NAME@HOST:PORT
            ServedBoard(group, topic) if "@" in group else LinkBoard(board_path(f"{group}-{topic}"))
        )
        self.asked_ns = 0  # by this host's clock; 0: has not asked
        self._recorder = recorder

    def ask(self, begin_ns: int) -> int:
        """Wait for the turn; return when it came."""
        self.asked_ns = begin_ns
        token, board, now_ns, recorder = self.token, self.board, begin_ns, self._recorder
        shift_ns, held_ns = board.shift_ns, recorder.held_ns
        while wait_ns := token.ask(now_ns + shift_ns, self._others(now_ns), held_ns):
            board.publish(token.post, now_ns + shift_ns)
            time.sleep(max(0, now_ns + wait_ns - time.monotonic_ns()) * 1e-9)
            now_ns = time.monotonic_ns()
        board.publish(token.post, now_ns + shift_ns)
        if token.waited_ns:
            recorder.held_ns += now_ns - begin_ns
            recorder.spool.put(
                begin_ns, now_ns, int(Kind.PACING), int(Actuator.BEFORE_EXCHANGE),
                recorder.step, held_ns=now_ns - begin_ns, flags=int(Flag.APPLIED),
            )  # fmt: skip
        return now_ns

    def _others(self, now_ns: int) -> list[Post]:
        return [post for ours, post in self.board.posts(now_ns + self.board.shift_ns) if not ours]

    def leave(self, end_ns: int) -> None:
        self.asked_ns = 0
        self.token.leave(end_ns + self.board.shift_ns)
        self.board.publish(self.token.post, end_ns + self.board.shift_ns)

    def end_step(
        self, number: int, step_ns: int, *, exchange_ns: int | None = None, starved_ns: int = 0
    ) -> None:
        """Take a finished steady step; arguments as of `Token.end_step`."""
        board, now_ns = self.board, time.monotonic_ns() + self.board.shift_ns
        posts = board.posts(now_ns)
        ours, first = next((each for each in posts if each[1].step_ns), (True, None))
        others = [post for mine, post in posts if not mine]
        leader = None if ours else first
        self.token.end_step(number, step_ns, now_ns, others, leader, exchange_ns, starved_ns)
        board.publish(self.token.post, now_ns)
        board.sync_clock()

    def account(self) -> dict[str, Any]:
        """The verdict of its trial; JSON-able."""
        word, pairs, gain, *_ = self.token.trial.verdict
        return {"action": TOKEN, "of": self.topic, "word": word, "pairs": pairs, "gain": gain}


class LinkToken(Turns):
    """The turns of a job's exchanges, on the rank that asks. Raises `EvenstepError`, as `Turn`."""

    def __init__(
        self, recorder: Recorder, account: TrialBudget, *, group: str,
        gate_by: Callable[[Callable[[], None] | None], None], guarded: bool = True,
    ) -> None:  # fmt: skip
        self.turn = Turn(LINK, group, Token(account, guarded=guarded), recorder)
        self.turns = (self.turn,)
        self._recorder = recorder
        self._gate_by = gate_by
        self._left = False  # whether the exchange of the running step has ended
        gate_by(self.before_collective)
        recorder.clock.turns.append(self)
        recorder.defer(later=False)  # the other jobs wait for the end of an exchange

    def before_collective(self) -> None:
        """Ask before the first collective of a step; called before every one."""
        if self.turn.asked_ns or self._left or _get_ident() != self._recorder.ident:
            return
        self.turn.ask(time.monotonic_ns())

    def ends(self, phase: int, now_ns: int) -> None:
        """The exchange ends with backward."""
        if phase == BACKWARD and self.turn.asked_ns:
            self._left = True
            self.turn.leave(now_ns)

    def end_step(self, closed: ClosedStep) -> None:
        """End a step, and its exchange if that has not ended."""
        turn, left, self._left = self.turn, self._left, False
        if turn.asked_ns:
            turn.leave(self._over_ns(closed) or time.monotonic_ns())
        elif not left:
            return
        if not closed.unsteady:
            step_ns = closed.end_ns - closed.start_ns
            turn.end_step(closed.number, step_ns, starved_ns=closed.used.run_delay_ns)

    def _over_ns(self, closed: ClosedStep) -> int:
        """When the last of the step's collectives ended, of those with an exit on the host."""
        issued = self._recorder.issued(closed.after, closed.upto)  # it may not be settled yet
        times = map(self._recorder.spool.times, (seq for seq, *_ in issued))
        return max((each[1] for each in times if each), default=0)

    def stop(self) -> None:
        """Ask no more."""
        self._gate_by(None)
        self._recorder.clock.turns.remove(self)
        self.turn.board.close()


class StorageTurns(Turns):
    """The turns of a rank on storage: reading input, by steps, and writing checkpoints.

    The step of the checkpoints' token lasts from the end of one to the end of the next. Raises
    `EvenstepError`, as `Turn`.
    """

    def __init__(self, recorder: Recorder, account: TrialBudget, *, group: str) -> None:
        self._clock = recorder.clock
        self._turns = {
            phase: Turn(topic, group, Token(account), recorder)
            for phase, topic in ((INPUT, "input"), (CHECKPOINT, "save"))
        }
        self.turns = tuple(self._turns.values())
        self._saved_ns = 0  # when the last checkpoint ended
        self._clock.turns.append(self)
        recorder.defer(later=False)  # a phase has to wait before it begins

    def begins(self, phase: int, now_ns: int) -> int:
        """Wait before a phase, on the training thread; return when it begins."""
        turn = self._turns.get(phase)
        return now_ns if turn is None else turn.ask(now_ns)

    def ends(self, phase: int, now_ns: int) -> None:
        """End the exchange with its phase."""
        turn = self._turns.get(phase)
        if turn is None or not turn.asked_ns:
            return
        took_ns = now_ns - turn.asked_ns
        turn.leave(now_ns)
        if phase == CHECKPOINT:
            if self._saved_ns:
                turn.end_step(turn.token.steps, now_ns - self._saved_ns, exchange_ns=took_ns)
            self._saved_ns = now_ns

    def end_step(self, closed: ClosedStep) -> None:
        if closed.phase_ns[INPUT] and not closed.unsteady:
            step_ns, starved_ns = closed.end_ns - closed.start_ns, closed.used.run_delay_ns
            self._turns[INPUT].end_step(closed.number, step_ns, starved_ns=starved_ns)

    def stop(self) -> None:
        """Ask no more."""
        self._clock.turns.remove(self)
        for turn in self.turns:
            turn.board.close()
