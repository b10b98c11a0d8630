"""One rank of a tcp trial: the agent attached, pacing by the arm whose turn it is, then the job.

`python -m lab.tcp.rank TRIAL JOB`, with the variables of a launcher. The job itself is
`training.py`, which knows nothing of this. Ended by SIGTERM, which closes the trace in order.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

import evenstep
from evenstep.agent.rank import Agent
from evenstep.attachment import agent as agents
from evenstep.trace.spool.layout import RECORD_BYTES
from lab.board import Board
from lab.fair.rank import records
from lab.pulse import Pulse
from lab.realtime import precise
from lab.tcp.order import path_of
from lab.tcp.turns import TurnPacer, settings_of
from lab.tier import LabError, Trial

ACCOUNTS = "lab_accounts"  # a fact of the trace: what each arm's pacer did on this rank
PERIOD_S = 0.2  # between two exchanges of what ranks share
TRAINING = Path(__file__).with_name("training.py")


def main(argv: list[str]) -> None:
    """Run one rank until it is ended."""
    trial = Trial.read(Path(argv[0]))
    number, rank = int(argv[1]), int(os.environ["RANK"])
    agent = attached(trial, number)
    pacer = turns(trial, number, rank)
    agent._pace.pacer = pacer
    signal.signal(signal.SIGTERM, lambda *_: _leave(agent, pacer))
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


def turns(trial: Trial, number: int, rank: int) -> TurnPacer:
    """A pacer that follows the board."""
    job, arms = trial.scenario.jobs[number], trial.schedule.arms
    common = {
        **trial.arm_settings(), "rank": rank, "world": job.ranks, "exchange_ns": int(PERIOD_S * 1e9)
    }  # fmt: skip
    settings = [(arm if job.paced else arms[0]).settings(**common) for arm in arms]
    board, pulse = Board.open(trial.board_path), Pulse.open(trial.folder, number)
    pulse.enter(rank, os.getpid())

    def arm_now(step: int) -> int:
        if rank == 0:
            pulse.beat(step)
        return trial.schedule.arm_at(board.block)

    return TurnPacer(settings_of(settings), arm_now)


def _leave(agent: Agent, pacer: TurnPacer) -> None:
    """Close the trace; nothing of torch is taken down, since the other ranks may be gone."""
    try:
        agent.spool.add_fact(ACCOUNTS, pacer.told())
        evenstep.detach()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
