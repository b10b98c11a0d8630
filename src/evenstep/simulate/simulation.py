"""Run a scenario from beginning to end: set up, simulate every step, sum up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from evenstep.errors import ConfigError
from evenstep.scenario.parts import Run
from evenstep.scenario.scenario import AVERAGING, Scenario
from evenstep.simulate.fabric.flows import CollectiveLibrary, Flow
from evenstep.simulate.fabric.network import Network
from evenstep.simulate.fabric.noise import DELAYS, NoiseSources
from evenstep.simulate.fabric.placement import Placement, place
from evenstep.simulate.job import neighbours, program, strategies
from evenstep.simulate.job.archive import FolderArchive, RunInfo
from evenstep.simulate.job.engine import JobEngine, StepSums, step_shares
from evenstep.simulate.job.fabric_map import link_loads
from evenstep.simulate.job.graph import FinishedStep, JobGraph
from evenstep.simulate.job.recording import BlockSink, SimulatedRecorder, StepRows, pauses
from evenstep.simulate.job.strategies import Extra, Pace, Paced
from evenstep.simulate.result import Result, summed_up
from evenstep.simulate.wires.carriage import FlowUse, carriages
from evenstep.simulate.wires.interface import PAUSED, STUCK
from evenstep.simulate.wires.world import make_world
from evenstep.trace.columns import Array
from evenstep.trace.spool.folder import RunFolder
from evenstep.trace.trace import Trace

#: Called with the number of finished steps and of all steps.
Progress = Callable[[int, int], None]
#: Whether these durations of steps, in ns, are enough; also from the messages followed in a step.
Enough = Callable[[Array, float], bool]

MOST_HOPS = 4_000_000  # of messages and over links, of all libraries that are kept
_LIBRARIES: dict[tuple[Scenario, float], CollectiveLibrary] = {}  # the latest used is the last
_LIBRARIES_LOCK = Lock()
SETTLING = 8  # most steps until those of a calm job are alike
SETTLED = 1e-10  # of a step: entries of ranks that differ by less are equal
AT_A_TIME = 1_000_000  # messages and rates, between two looks at what is finished
AHEAD = 8  # steps that a neighbour is fed at a time: they depend on no time
#: Seconds on one core of a message that meets no others, of one that may, of a rate solved for one
#: as others come and go, of a rank's operation.
ALONE_S, MESSAGE_S, RATE_S, OPERATION_S = 5e-8, 1e-7, 1.2e-7, 1e-7


@dataclass(frozen=True)
class Setup:
    """A scenario that is set up: everything that does not change from step to step."""

    scenario: Scenario
    network: Network
    placement: Placement
    library: CollectiveLibrary
    graph: JobGraph
    between: JobGraph  # of steps between two averages of parameters; else the same as `graph`
    info: RunInfo

    def graph_of(self, number: int) -> JobGraph:
        return self.graph if (number + 1) % self.scenario.strategy.every == 0 else self.between

    def compute_ns(self, counted: int) -> float:
        """Compute without noise of a step, on average of so many after the warm-up."""
        first, every = self.scenario.run.warm_up, self.scenario.strategy.every
        averages = (first + counted) // every - first // every
        rare_ns = self.graph.compute_ns - self.between.compute_ns
        return self.between.compute_ns + rare_ns * averages / max(counted, 1)

    @property
    def flows(self) -> list[Flow]:
        """The distinct collectives of a step."""
        return list(dict.fromkeys(flow for flow in self.graph.flows if flow.stages))


def set_up(scenario: Scenario, *, load_gBps: float = 0.0) -> Setup:  # noqa: N803
    """Build network, placement and graph. Raises `ConfigError` where these do not fit.

    `load_gBps`: background traffic in a ring over the cards of the job's nodes, which never yields.
    """
    library = _library(Scenario(
        cluster=scenario.cluster, fabric=scenario.fabric, job=scenario.job,
        collectives=scenario.collectives, neighbours=scenario.neighbours,
        run=Run(seed=scenario.run.seed),
    ), load_gBps)  # fmt: skip
    network, placement = library.network, library.placement
    graph = between = program.build(scenario, library)
    if scenario.strategy.kind in AVERAGING:
        between = program.build(scenario, library, exchanges=False)
    names = strategies.REASONS if scenario.strategy.kind == "paced" else ()
    info = RunInfo(scenario, placement, network.machines, graph.partitions, names)
    return Setup(scenario, network, placement, library, graph, between, info)


def _library(place_of: Scenario, load_gBps: float) -> CollectiveLibrary:  # noqa: N803
    """Collectives on a network; scenarios that differ in nothing else have the same."""
    key = (place_of, load_gBps)
    with _LIBRARIES_LOCK:
        found = _LIBRARIES.pop(key, None)
        while len(_LIBRARIES) > 1 and sum(one.hops for one in _LIBRARIES.values()) > MOST_HOPS:
            del _LIBRARIES[next(iter(_LIBRARIES))]
        if found is None:
            network = Network(place_of.cluster, place_of.fabric, place_of.run.seed)
            placement = place(place_of, network)
            if load_gBps:
                network.take(load_gBps * neighbours.ring_messages(network, placement.node))
            found = CollectiveLibrary(network, placement, place_of.collectives)
        _LIBRARIES[key] = found
    return found


def simulate(scenario: Scenario, *, progress: Progress | None = None) -> Result:
    """Run a scenario without keeping a trace."""
    return simulate_set_up(set_up(scenario), progress=progress)


def simulate_set_up(setup: Setup, *, progress: Progress | None = None) -> Result:
    """Run a scenario that is set up, without keeping a trace."""
    check_runs(setup)
    return _Run(setup, None).result(progress)


def step_times(setup: Setup, enough: Enough, most: float = math.inf) -> Array:
    """Durations of the steps after the warm-up, of a run that ends once these are `enough`, or in a
    first step with more than `most` messages; then there are none."""
    check_runs(setup)
    run, scenario = _Run(setup, None, most), setup.scenario
    if not isinstance(run.pace, Paced):  # nothing depends on what it would sum up
        run.pace = Pace()
    is_calm, first = _is_calm(scenario), scenario.run.warm_up
    over, found = np.zeros(scenario.run.steps + 1), np.empty(0)
    for done in run.steps():
        if not done.number:
            over[0] = done.begin.max()
        over[done.number + 1] = done.over.max()
        found = over[first + 1 : done.number + 2] - over[first : done.number + 1]
        if enough(found, run.followed / (scenario.run.steps if is_calm else done.number + 1)):
            break
    return found


def simulate_trace(scenario: Scenario) -> tuple[Result, Trace]:
    """Run a scenario and read its trace."""
    from tempfile import TemporaryDirectory

    from evenstep.trace.loading import load  # what a run alone does not need

    with TemporaryDirectory() as folder:
        return simulate_to(Path(folder) / "run", scenario), load(Path(folder) / "run")


def simulate_to(folder: Path, scenario: Scenario, *, progress: Progress | None = None) -> Result:
    """Run a scenario and write its trace as a run folder, block by block.

    Interrupted, it leaves the steps that were finished, and the result says that it is partial.
    """
    setup = set_up(scenario)
    check_runs(setup)
    singles = len(scenario.noise) + 1  # pauses, and a decision of pacing
    widest = max(len(role.operations) for role in setup.graph.roles)
    most = (1 + 2 * widest + singles) * scenario.run.steps
    archive = FolderArchive(setup.info, RunFolder(folder), most=most, steps=scenario.run.steps)
    run = _Run(setup, archive.keep)
    result = run.result(progress)
    archive.close(run.extras)
    return result


def estimate_run(setup: Setup) -> tuple[int, float]:
    """Estimate the messages that a run will follow, and its seconds: from a step with all of its
    collectives; of one in which more than `AT_A_TIME` messages may meet, from as many messages and
    rates, and how far these bring it."""
    scenario = setup.scenario
    steps = 1 if _is_calm(scenario) else scenario.run.steps
    often = Counter(map(setup.graph_of, range(steps)))
    jobs = _Jobs(setup, list(often), _Run(setup, None)._near)
    messages, shared = (
        sum(n * jobs.world.messages(jobs.graphs[graph], shared=one) for graph, n in often.items())
        for one in (False, True)
    )
    alone = max(messages - shared, 0)
    tried = max(often, key=lambda graph: jobs.world.messages(jobs.graphs[graph], shared=True))
    engine = jobs.engine(lambda _: tried, Pace())
    is_over = any(jobs.run(engine, 1, is_trial=shared > AT_A_TIME * steps))
    done = 1.0 if is_over else jobs.world.progress(jobs.graphs[tried]) or 1.0
    likely, rated = (
        int(number / done) * often[tried] for number in (jobs.world.followed, jobs.world.rated)
    )
    messages = max(messages, likely if is_over else min(likely, shared))
    sizes = np.array([len(role.operations) for role in setup.graph.roles])
    operations = int(sizes[setup.graph.role].sum())
    spent = alone * ALONE_S + (messages - alone) * MESSAGE_S + rated * RATE_S
    return messages, spent + operations * steps * OPERATION_S


def step_ns(setup: Setup) -> float:
    """Duration of an undisturbed step."""
    found = _Run(setup, None).settled(setup.graph, SETTLING)
    return found[1] if found is not None else 0.0


def check_runs(setup: Setup) -> None:
    """Raise `ConfigError` where a step takes no time, or parameters may never be averaged."""
    scenario, graph = setup.scenario, setup.graph
    delayed = any(noise.kind in DELAYS for noise in scenario.noise)  # factors of nothing are none
    if not (graph.compute_ns or setup.flows or delayed or scenario.work.input_bytes):
        raise ConfigError("work: a step takes no time; give work.forward_ms, or another time")
    counted, every = scenario.run.steps - scenario.run.warm_up, scenario.strategy.every
    if scenario.strategy.kind in AVERAGING and every > counted:
        raise ConfigError(
            f"strategy.every is {every}, but {counted} steps are counted (run.steps less "
            "run.warm_up), in which parameters may never be averaged; run as many steps"
        )


class _Run:
    """One run: its jobs in a world, and the sums and records of its steps."""

    def __init__(self, setup: Setup, sink: BlockSink | None, most: float = math.inf) -> None:
        self._most = most  # messages of the first step: with more it is the last, unfinished
        self._setup, scenario = setup, setup.scenario
        self._near: list[neighbours.NeighbourJob] = []
        if scenario.neighbours:
            found = neighbours.neighbour_jobs(scenario, setup.network, setup.placement)
            self._near = neighbours.within_reach(setup.flows, found, len(setup.network.capacity))
        self.pace = strategies.pace_of(scenario, setup.info.run_id)
        self._account = StepSums(scenario.run.steps, scenario.ranks, scenario.run.warm_up)
        self._peak = np.zeros(len(setup.network.capacity))
        self.followed = self.rated = 0  # messages and their rates, see `World`
        self._times: Counter[Flow] = Counter()  # how often each collective was run
        self._before: FinishedStep | None = None  # the step that was kept last
        self.extras: list[Extra] = []
        self._recorders: list[tuple[StepRows, SimulatedRecorder]] = []
        if sink is not None:
            for number in range(len(setup.graph.roles)):
                mine = np.flatnonzero(setup.graph.role == number)
                samples = scenario.work.samples_per_rank
                step_rows = StepRows(number, mine, setup.graph.partitions, samples)
                self._recorders.append((step_rows, SimulatedRecorder(mine, sink)))

    def result(self, progress: Progress | None) -> Result:
        """Simulate all steps and sum them up."""
        setup, account = self._setup, self._account
        try:
            for done in self.steps():
                self._keep(done)
                if progress is not None:
                    progress(account.done, setup.scenario.run.steps)
        except KeyboardInterrupt:
            pass  # finished steps are kept, and the result says how many they are
        for _, recorder in self._recorders:
            recorder.flush()
        elapsed_ns = float(account.end_ns[account.done - 1]) if account.done else 0.0
        counted = max(account.done - account.warm_up, 0)
        loads = link_loads(setup.network, self._times.items(), self._near, self._peak, elapsed_ns)
        return summed_up(
            setup.scenario, account, flows=list(self._times), loads=loads,
            placement=setup.placement, compute_ns=setup.compute_ns(counted),
            pacing=self.pace.summary(), staleness=self.pace.staleness(),
        )  # fmt: skip

    # -- steps -------------------------------------------------------------------------------------

    def steps(self) -> Iterator[FinishedStep]:
        """Every step in turn."""
        return self._calm() if _is_calm(self._setup.scenario) else self._followed()

    def _followed(self) -> Iterator[FinishedStep]:
        setup, everybody = self._setup, np.arange(self._setup.scenario.ranks)
        graphs = [setup.graph] + ([setup.between] if setup.between is not setup.graph else [])
        jobs = _Jobs(setup, graphs, self._near)
        engine = jobs.engine(setup.graph_of, self.pace)
        for done in jobs.run(engine, setup.scenario.run.steps, self._most):
            engine.learn(done, everybody)
            self.followed, self.rated = jobs.world.followed, jobs.world.rated
            yield done
        self._peak = jobs.world.peak_gBps

    def _calm(self) -> Iterator[FinishedStep]:
        """The step that all steps are like: the one the first few settle to, else one that all
        ranks begin together."""
        setup = self._setup
        found = self.settled(setup.graph, SETTLING)
        if found is None:
            again = program.build(setup.scenario, setup.library)
            found = self.settled(program.in_lockstep(again, setup.library), 2)
        assert found is not None
        step, length = found
        step = step.moved(0, -float(step.begin.min()))
        self._before = step.moved(-1, -length)
        for number in range(setup.scenario.run.steps):
            yield step.moved(number, number * length)

    def settled(self, graph: JobGraph, most: int) -> tuple[FinishedStep, float] | None:
        """The first step that is equally long on all ranks, and its duration; None after `most`."""
        jobs = _Jobs(self._setup, [graph], [])
        engine = jobs.engine(lambda _: graph, Pace())
        for done in jobs.run(engine, most):
            self.followed, self.rated = jobs.world.followed, jobs.world.rated
            self._peak = jobs.world.peak_gBps
            lengths = done.over - done.begin
            length = float(done.over.max() - done.begin.max())
            if float(np.ptp(lengths)) <= SETTLED * length:
                return done, length
        return None

    def _keep(self, done: FinishedStep) -> None:
        """Add a step to the sums and record it."""
        spent, self._before = step_shares(done, self._before), done
        self._account.add(done, spent)
        self._times.update(flow for flow in done.graph.flows if flow.stages)
        for step_rows, recorder in self._recorders:
            recorder.step(done.number, step_rows.rows(done, spent["work"]))
        if self._recorders:
            self.extras += pauses(done) + self.pace.records(done.number, done.begin)


class _Jobs:
    """The job and the neighbours that can delay it, in one world."""

    def __init__(
        self, setup: Setup, graphs: list[JobGraph], near: list[neighbours.NeighbourJob]
    ) -> None:
        self._setup, self._near = setup, near
        theirs = [other.graph() for other in near]
        sizes = (setup.scenario.ranks, *(other.ranks for other in near))
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).tolist()
        uses = [
            FlowUse(flow, job, stream, firsts[job])
            for job, graph in [(0, graph) for graph in graphs] + list(enumerate(theirs, 1))
            for flow, stream in graph.uses
        ]
        capacity = setup.network.with_storage
        made = carriages(tuple(uses), len(capacity), sum(sizes))
        self.world = make_world(capacity, sizes, setup.scenario.fabric.incast_goodput)
        numbers = {flow: self.world.flow(one) for flow, one in made.items()}
        self.graphs = {g: self.world.graph(g.plan(numbers)) for g in [*graphs, *theirs]}
        self._theirs = [self.graphs[graph] for graph in theirs]
        strategy, work = setup.scenario.strategy, setup.scenario.work
        lag = strategy.bound if strategy.kind == "stale_synchronous" else 1
        self.world.job(0, np.zeros(sizes[0]), lag=max(lag, 1), slowdown=work.overlap_slowdown)
        for job, size in enumerate(sizes[1:], 1):
            self.world.job(job, np.zeros(size))

    def engine(self, graph_of: Callable[[int], JobGraph], pace: Pace) -> JobEngine:
        """The job in this world; `graph_of`: of a step."""
        noise = NoiseSources(self._setup.scenario, self._setup.placement)
        begin_ns = np.zeros(self._setup.scenario.ranks)
        return JobEngine(self.world, graph_of, self.graphs, noise, pace, begin_ns)

    def run(
        self, engine: JobEngine, steps: int, most: float = math.inf, *, is_trial: bool = False
    ) -> Iterator[FinishedStep]:
        """Yield the job's steps as they finish; none where the first has over `most` messages, or,
        of a trial, where it takes over `AT_A_TIME` messages and rates."""
        while engine.over < steps:
            left = AT_A_TIME if engine.over else min(AT_A_TIME, most + 1 - self.world.followed)
            if left <= 0:
                return
            wants, found = self.world.run(int(left)), False
            while engine.over < min(engine.fed, steps) and (done := engine.take()) is not None:
                found = True
                yield done
            if wants == 0:
                engine.serve(steps)
            elif wants > 0:
                for _ in range(AHEAD):
                    self._near[wants - 1].feed(self.world, wants, self._theirs[wants - 1])
            elif wants == PAUSED and is_trial:
                return
            elif wants == STUCK and not found:
                raise AssertionError("the operations of a step wait for each other")
        for job, other in enumerate(self._near, 1):
            other.count(self.world, job)


def _is_calm(scenario: Scenario) -> bool:
    """Whether all steps should be alike: no noise, no neighbours, synchronous ranks."""
    work = scenario.work
    unequal = work.batch_spread or work.sequence_lengths
    disturbed = scenario.noise or scenario.neighbours or unequal
    return not disturbed and scenario.strategy.kind == "synchronous"
