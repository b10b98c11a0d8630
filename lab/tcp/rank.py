"""One rank of a tcp trial: the agent attached, pacing by the arm whose turn it is, then the job.

`python -m lab.tcp.rank TRIAL JOB`, with the variables of a launcher. The job itself is
`training.py`, which knows nothing of this. Ended by SIGTERM, which closes the trace in order.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import evenstep
from evenstep.agent.actions.link import LinkToken
from evenstep.agent.rank import Agent
from evenstep.attachment import agent as agents
from evenstep.pacing import TrialBudget
from evenstep.trace.spool.layout import RECORD_BYTES
from lab.board import Board, Pulse
from lab.fair.rank import records
from lab.realtime import precise
from lab.tcp.order import path_of
from lab.tier import LabError, Trial
from lab.turns import TurnPacer

ACCOUNTS = "lab_accounts"  # a fact of the trace: what each arm's pacer did on this rank
PERIOD_S = 0.2  # between two exchanges of what ranks share
TRAINING = Path(__file__).with_name("training.py")


def main(argv: list[str]) -> None:
    """Run one rank until it is ended."""
    trial = Trial.read(Path(argv[0]))
    number, rank = int(argv[1]), int(os.environ["RANK"])
    agent = attached(trial, number)
    tokens = tokens_of(agent, trial, number, rank)
    pacer = turns(agent, trial, number, rank, tokens)
    agent._work.pace.pacer = pacer
    signal.signal(signal.SIGTERM, lambda *_: _leave(agent, pacer, tokens))
    if trial.scenario.real_time:
        precise()  # also for the threads of gloo, which are not there yet
    sys.argv[:] = [str(TRAINING), str(path_of(trial.folder, number))]
    runpy.run_path(str(TRAINING), run_name="__main__")


def attached(trial: Trial, number: int) -> Agent:
    """The agent of this rank, as `evenstep run` attaches it. Raises `LabError` without one."""
    job, schedule = trial.scenario.jobs[number], trial.schedule
    evenstep.attach(
        out=trial.job_folder(number),
        ring_bytes=RECORD_BYTES * records(trial, job),
        sample_period_s=PERIOD_S,
        pace_mode="on",
        pace_sharing=trial.scenario.pacing.sharing or any(arm.sharing for arm in schedule.arms),
        verdict=False,
    )
    agent = agents.current()
    if agent is None:
        raise LabError("the agent did not attach; what it said stands above")
    return agent


def tokens_of(agent: Agent, trial: Trial, number: int, rank: int) -> list[LinkToken | None]:
    """The token of each arm in which this rank asks for its job."""

    def nobody(gate: Callable[[], None] | None) -> None:
        del gate  # it is the arm's turn that decides

    return [
        None
        if link is None or rank
        else LinkToken(agent.recorder, TrialBudget(), group=link[0], gate_by=nobody,
                       guarded=link[1])
        for link in trial.links(number)
    ]  # fmt: skip


def turns(
    agent: Agent, trial: Trial, number: int, rank: int, tokens: Sequence[LinkToken | None]
) -> TurnPacer:
    """A pacer that follows the board, and with it the token of the arm whose turn it is."""
    settings = trial.pacers(number, rank, exchange_ns=int(PERIOD_S * 1e9))
    board, pulse = Board(trial.board_path), Pulse(trial.folder, number)
    pulse.enter(rank, os.getpid())

    def arm_now(step: int) -> int:
        if rank == 0:
            pulse.beat(step)
        arm = trial.schedule.arm_at(board.block)
        token = tokens[arm]
        if agent._conductor.turns != [token] * (token is not None):
            for other in agent._conductor.turns:
                other.turns[0].leave(time.monotonic_ns())
            agent._conductor.turns = [] if token is None else [token]
            agent.gate_by(None if token is None else token.before_collective)
        return arm

    return TurnPacer(settings, arm_now)


def _leave(agent: Agent, pacer: TurnPacer, tokens: Sequence[LinkToken | None]) -> None:
    """Close the trace; nothing of torch is taken down, since the other ranks may be gone."""
    try:
        agent.spool.add_fact(ACCOUNTS, pacer.told(tokens))
        for token in tokens:
            if token is not None:
                token.stop()
        evenstep.detach()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
