"""A scenario run from beginning to end: builds everything, steps through it, sums it up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from evenstep.errors import ConfigError
from evenstep.scenario.scenario import Scenario
from evenstep.simulate.fabric.flows import Library
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.fabric.noise import Weather
from evenstep.simulate.fabric.placement import Placement, place
from evenstep.simulate.job import strategies
from evenstep.simulate.job.account import Account
from evenstep.simulate.job.archive import Cast, FolderArchive, MemoryArchive
from evenstep.simulate.job.engine import Engine
from evenstep.simulate.job.link_loads import link_loads
from evenstep.simulate.job.program import Program, build, without_exchange
from evenstep.simulate.job.recording import Recorder
from evenstep.simulate.job.strategies import Pace
from evenstep.simulate.result import SPARING, Result, summed_up
from evenstep.simulate.wires.exact import ExactWire
from evenstep.simulate.wires.learning import LearningWire
from evenstep.simulate.wires.neighbours import Timeline, timeline
from evenstep.simulate.wires.rehearsal import (
    MOST_LEARNED_FROM,
    affordable,
    is_unshared,
    rehearsed,
    teachable,
)
from evenstep.simulate.wires.wire import FastWire, LooseWire, Wire
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.trace import Trace

Array = npt.NDArray[Any]

#: told the number of finished steps and of all steps
Progress = Callable[[int, int], None]

SETTLING = 8  # steps at most
EXACT_STRATEGIES = ("synchronous", "paced", "local_sgd")


@dataclass(frozen=True)
class Setup:
    """A scenario made ready: everything that does not change from step to step."""

    scenario: Scenario
    network: Network
    placement: Placement
    library: Library
    program: Program
    cast: Cast
    coflows: bool = False  # every collective is one coflow, however few messages there are


def set_up(scenario: Scenario, *, coflows: bool = False) -> Setup:
    """Build network, placement and program. Raises `ConfigError` for what does not fit."""
    network = Network(scenario.cluster, scenario.fabric, scenario.run.seed)
    placement = place(scenario, network)
    library = Library(network, placement, scenario.collectives, rehearsed)
    program = build(scenario, library)
    names = strategies.REASONS if scenario.strategy.kind == "paced" else ()
    return Setup(
        scenario,
        network,
        placement,
        library,
        program,
        Cast(scenario, placement, program.partitions, names),
        coflows,
    )


def simulate(
    scenario: Scenario,
    *,
    exact: bool = False,
    coflows: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Run a scenario without keeping a trace. `coflows` is for many runs that are compared: none
    is followed message by message, whatever its length and strategy."""
    return simulate_set_up(set_up(scenario, coflows=coflows), exact=exact, progress=progress)


def simulate_set_up(
    setup: Setup, *, exact: bool = False, progress: Progress | None = None
) -> Result:
    """Run a scenario that is set up, without keeping a trace."""
    _check_takes_time(setup)
    return _run(setup, None, exact=exact, progress=progress)


def simulate_trace(scenario: Scenario, *, exact: bool = False) -> tuple[Result, Trace]:
    """Run a scenario and keep its trace in memory."""
    setup = set_up(scenario)
    archive = MemoryArchive()
    recorder = Recorder(scenario.ranks, archive)
    result = _run(setup, recorder, exact=exact, progress=None)
    return result, archive.trace(setup.cast, recorder)


def simulate_to(
    folder: Path, scenario: Scenario, *, exact: bool = False, progress: Progress | None = None
) -> Result:
    """Run a scenario and write its trace as a run folder, block by block.

    Interrupted, it leaves the steps that were finished, and the result says that it is partial.
    """
    setup = set_up(scenario)
    _check_takes_time(setup)
    program, singles = setup.program, len(scenario.noise) + 1  # pauses, and a decision of pacing
    most = 1 + 3 * len(program.items) + 2 * len(program.flows) + singles  # records of a step
    archive = FolderArchive(
        setup.cast, RunFolder(folder), most=most * scenario.run.steps, steps=scenario.run.steps
    )
    recorder = Recorder(scenario.ranks, archive)
    result = _run(setup, recorder, exact=exact, progress=progress)
    archive.close(setup.cast, recorder)
    return result


def _check_takes_time(setup: Setup) -> None:
    scenario, program = setup.scenario, setup.program
    if not (program.compute_ns or program.flows or scenario.noise or scenario.work.input_bytes):
        raise ConfigError("work: a step takes no time; give work.forward_ms, or another time")


def _run(
    setup: Setup, recorder: Recorder | None, *, exact: bool, progress: Progress | None
) -> Result:
    scenario = setup.scenario
    steps, ranks = scenario.run.steps, scenario.ranks
    account = Account(steps, ranks, scenario.run.warm_up)
    others = timeline(scenario, setup.network, setup.placement)
    pace = strategies.pace_of(scenario, setup.cast.run_id)
    calm = _is_calm(scenario)
    begin_ns = _stride(setup, exact=exact) if calm else None
    engine = _engine(
        setup,
        _wire(setup, others, exact=exact),
        pace,
        recorder=recorder,
        begin_ns=begin_ns,
        together=calm and begin_ns is None,
    )
    try:
        for number in engine.run(steps, account):
            if progress is not None:
                progress(number + 1, steps)
    except KeyboardInterrupt:
        pass  # what is finished is kept, and the result says how much that is
    if recorder is not None:
        recorder.flush()
    carried = engine.flow_steps.values()
    elapsed_ns = float(account.end_ns[account.done - 1]) if account.done else 0.0
    return summed_up(
        scenario,
        account,
        flows=[flow for flow, _ in carried],
        loads=link_loads(setup.network, carried, others, elapsed_ns),
        placement=setup.placement,
        compute_ns=setup.program.compute_ns,
        pacing=pace.summary(),
        staleness=pace.staleness(),
        exact=exact,
    )


def _wire(setup: Setup, others: Timeline | None, *, exact: bool) -> Wire:
    strategy, ranks = setup.scenario.strategy, setup.scenario.ranks
    if exact and strategy.kind not in EXACT_STRATEGIES:
        raise ConfigError(
            f"strategy.kind {strategy.kind!r} is not simulated message by message; exact mode "
            "knows " + ", ".join(EXACT_STRATEGIES)
        )
    if strategy.kind in ("asynchronous", "stale_synchronous"):
        return LooseWire(ranks)
    if exact or (strategy.kind in EXACT_STRATEGIES and _is_followed(setup, others)):
        return ExactWire(setup.network, ranks, others)
    spared = strategy.backups if strategy.kind in SPARING else 0
    fast = FastWire(setup.network, ranks, others, spared=spared)
    learns = others is None and strategy.kind in EXACT_STRATEGIES and _differs(setup)
    if learns and teachable(setup.program.flows):
        followed = ExactWire(setup.network, ranks, None)
        return LearningWire(followed, fast, MOST_LEARNED_FROM)
    return fast


def _is_followed(setup: Setup, others: Timeline | None) -> bool:
    """Whether the fast engine, too, takes message by message: where that is cheap and differs."""
    if setup.coflows:
        return False
    program = setup.program
    if others is None and not _differs(setup):
        return False
    return affordable(program.flows, setup.scenario.run.steps, program.compute_ns, others)


def _differs(setup: Setup) -> bool:
    """Whether messages do not just add up to coflows: those of one ring without shared links do."""
    flows = [flow for flow in setup.program.flows if flow.stages]
    return not all(is_unshared(flow) and len(flow.members) == 1 for flow in flows)


def _stride(setup: Setup, *, exact: bool) -> Array | None:
    """When ranks begin the first step of a calm job: as they come out of a step like it.

    Not all leave a collective at once, so a job whose ranks begin together takes a few steps until
    all are alike. None where they never are.
    """
    pace = strategies.pace_of(setup.scenario, setup.cast.run_id)
    return _engine(setup, _wire(setup, None, exact=exact), pace).settle(SETTLING)


def _is_calm(scenario: Scenario) -> bool:
    """Whether steps should be like each other: nothing disturbs them, and ranks keep together."""
    work = scenario.work
    unequal = work.batch_spread or work.sequence_lengths
    disturbed = scenario.noise or scenario.neighbours or unequal
    return not disturbed and scenario.strategy.kind == "synchronous"


def _engine(
    setup: Setup,
    wire: Wire,
    pace: Pace,
    *,
    recorder: Recorder | None = None,
    begin_ns: Array | None = None,
    together: bool = False,
) -> Engine:
    scenario = setup.scenario
    storage = scenario.cluster.storage_gBps
    return Engine(
        _programs(setup),
        Weather(scenario, setup.placement),
        wire,
        ranks=scenario.ranks,
        pace=pace,
        partitions=setup.program.partitions,
        storage_ns=scenario.work.input_bytes / storage if storage else 0.0,
        samples=scenario.work.samples_per_rank,
        overlap_slowdown=scenario.work.overlap_slowdown,
        dropping=scenario.strategy.kind == "backup_workers",
        begin_ns=begin_ns,
        together=together,
        recorder=recorder,
    )


def _programs(setup: Setup) -> Callable[[int], Program]:
    """The program of each step: with local SGD, gradients stay where they are in most of them."""
    strategy = setup.scenario.strategy
    if strategy.kind != "local_sgd" or strategy.every == 1:
        return lambda _: setup.program
    alone = without_exchange(setup.program)
    return lambda number: setup.program if (number + 1) % strategy.every == 0 else alone
