"""The simulator's time and memory, whole processes with their imports, and how exact it is.

CPU seconds, of this process and of no other: the machine may be busy. Random worlds are judged by
the brute-force fluid network of the tests, which shares no code with the engine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import smpi
from benchmarks.measure import Row
from benchmarks.ranks import run_alone
from evenstep.simulate.study.margin import AXES

if TYPE_CHECKING:
    from evenstep.scenario.scenario import Scenario

COMMAND = "python -m benchmarks simulator"
JOB = "benchmarks.jobs.simulating"
SCENARIOS = Path(__file__).parents[1] / "examples" / "scenarios"
RING_BARS = {1024: 0.2, 4096: 0.3}  # ranks: seconds
FLAT = ((24, 1), (64, 1), (256, 1), (1024, 1), (1024, 5))  # ranks and steps
AGAIN = tuple((24, 10**power) for power in range(5))  # of messages that meet as often at all sizes
SHARED_BAR, FLAT_BAR, EXACT_BAR, JUMP_BAR = 20.0, 2.0, 1e-6, 0.005
PEER_RANKS, PEER_BAR = 256, 1e-3
WORLDS = 1000
GROWN = range(60, 71)  # ranks
RINGS_A_STEP = 3  # of a sharded job: all-gather forward and backward, reduce-scatter
BESIDE = 128  # nodes that neighbours need
SPINES = ("fabric.kind=leaf_spine", "fabric.nodes_per_leaf=32", "fabric.oversubscription=4")
MESH = (
    "cluster.nodes=128", "work.kind=pipeline", "work.tensor_parallel=8",
    "work.pipeline_parallel=8", "work.layers=96", "work.micro_batches=16", "work.forward_ms=900",
    "work.backward_ms=1800", "work.gradient_bytes=5GB", "work.message_bytes=50MB",
    "run.steps=20",
)  # fmt: skip
CROWDED = (
    "work.kind=collective", "work.operation=all_to_all", "work.buckets=1",
    "work.gradient_bytes=64MB", "fabric.kind=leaf_spine", "fabric.nodes_per_leaf=8",
    "fabric.oversubscription=4", "fabric.routing=ecmp",
    "noise=[{kind='normal', sigma=0.01}]", "run.steps=1",
)  # fmt: skip
EXPERTS = (
    "cluster.nodes=128", "work.kind=pipeline", "work.layers=8",
    "work.message_bytes=64MB", "work.gradient_bytes=4GB", "work.forward_ms=60",
    "work.backward_ms=120", "noise=[{kind='normal', sigma=0.01}]", "run.steps=10",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--worlds", type=int, default=WORLDS, help="drawn at random")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Exactness, then what each shape of job costs; each row as it is measured."""
    for name in args.only:
        print(f"simulator: {name}", file=sys.stderr, flush=True)
        yield from PARTS[name](args)


# -- exact -----------------------------------------------------------------------------------------


def _exact(args: argparse.Namespace) -> Iterator[Row]:
    yield _random(args.worlds)
    yield _grown()
    yield _grown_scattered()


def _random(worlds: int) -> Row:
    from evenstep.simulate.wires.world import CompiledWorld
    from tests.simulate.random_worlds import Drawn, furthest

    worst = 0.0
    for seed in range(10_000, 10_000 + worlds):
        drawn = Drawn(seed)
        worst = max(worst, furthest(drawn.told(CompiledWorld), drawn.by_definition()))
    return Row(
        f"{worlds:,} random worlds against a brute-force fluid network: furthest end",
        f"<= {EXACT_BAR:g}", f"{worst:.1e}", worst <= EXACT_BAR, COMMAND,
    )  # fmt: skip


def _grown() -> Row:
    """A job grown rank by rank: the largest change of its step."""
    from evenstep.simulate.simulation import simulate

    steps = [simulate(_sharded(ranks)).step_time.mean_ns for ranks in GROWN]
    jump = float(np.abs(np.diff(steps) / steps[:-1]).max())
    return Row(
        "a sharded job at 4:1 grown rank by rank from 60 to 70: largest change of its step",
        f"<= {100 * JUMP_BAR:.1f} %", f"{100 * jump:.2f} %", jump <= JUMP_BAR, COMMAND,
    )  # fmt: skip


def _grown_scattered() -> Row:
    """Where every hop crosses the spine, a rank more may hash a flow more to the fullest uplink:
    the change of the step is told beside what counting those flows gives."""
    from evenstep.simulate.simulation import set_up, simulate

    steps, counted, flows = [], [], []
    for ranks in GROWN:
        asked = _sharded(ranks, "job.placement=scattered")
        setup = set_up(asked)
        gpu = setup.placement.gpu
        link = setup.network.routes(gpu, np.roll(gpu, -1)).link
        on = np.bincount(link, minlength=len(setup.network.capacity))
        fullest = int((on / setup.network.capacity).argmax())
        sent = RINGS_A_STEP * asked.work.gradient_bytes * (ranks - 1) / ranks
        steps.append(simulate(asked).step_time.mean_ns)
        counted.append(sent * on[fullest] / setup.network.capacity[fullest])
        flows.append(int(on[fullest]))
    jump = float(np.abs(np.diff(steps) / steps[:-1]).max())
    left = float(np.abs(np.diff(np.subtract(steps, counted)) / steps[:-1]).max())
    return Row(
        "the same, scattered: largest change beyond that of the flows on the fullest uplink",
        f"<= {100 * JUMP_BAR:.1f} %",
        f"{100 * left:.2f} %; with it {100 * jump:.1f} %: {min(flows)} to {max(flows)} flows hash "
        "to the same uplink of a leaf that has two",
        left <= JUMP_BAR, COMMAND,
    )  # fmt: skip


def _sharded(ranks: int, *sets: str) -> Scenario:
    from evenstep.scenario import scenario

    return scenario.parse({}, [
        "cluster.nodes=70", *SPINES, "fabric.nodes_per_leaf=8", f"job.ranks={ranks}",
        "cluster.gpus_per_node=1", "work.kind=fsdp", "work.buckets=4", "work.forward_ms=30",
        "work.backward_ms=60", "work.gradient_bytes=400MB", "collectives.algorithm=ring", *sets,
    ])  # fmt: skip


# -- what it costs ---------------------------------------------------------------------------------


def _simulated(name: str, *sets: str) -> dict[str, Any]:
    flags = [part for one in sets for part in ("--set", one)]
    return run_alone(JOB, str(SCENARIOS / f"{name}.toml"), *flags)


def _row(what: str, bar: float, found: dict[str, Any]) -> Row:
    return Row(what, f"<= {bar:g} s of CPU", _cost(found), found["cpu"] <= bar, COMMAND)


def _cost(found: dict[str, Any]) -> str:
    return f"{found['cpu']:.2f} s, {found['megabytes']:.0f} MB"


def _ring(ranks: int, bar: float) -> Row:
    found = _simulated("ring", f"cluster.nodes={ranks}")
    closed_ns = 2 * (ranks - 1) * (2e3 + 1e8 / ranks / 12.5)
    error = abs(found["mean_ns"] / closed_ns - 1)
    cost = f"{_cost(found)}, off by {100 * error:.4f} %"
    return Row(
        f"ring all-reduce of {ranks:,} ranks on one switch", f"<= {bar:g} s of CPU", cost,
        found["cpu"] <= bar and error < 1e-3, COMMAND,
    )  # fmt: skip


def _rings(_: argparse.Namespace) -> Iterator[Row]:
    """Closed ones, then with ranks that enter at random and one slow link."""
    for ranks, bar in RING_BARS.items():
        yield _ring(ranks, bar)
    slow = "fabric.changes=[{links='node7.nic0.send', factor=0.5}]"
    found = _simulated(
        "ring", "cluster.nodes=1024", "work.forward_ms=10", "noise=[{kind='normal'}]", slow
    )
    yield _row("the same of 1,024 with noise and one slow link", RING_BARS[1024], found)


def _shared(_: argparse.Namespace) -> Iterator[Row]:
    """Rings in random order on a 4:1 fabric: every message by itself."""
    found = _simulated(
        "ring", "cluster.nodes=1024", *SPINES, "job.placement=random", "work.forward_ms=10",
        "noise=[{kind='normal'}]",
    )  # fmt: skip
    yield _row("ring of 1,024 in random order at 4:1, message by message", SHARED_BAR, found)
    yield from _flat("such rings, leaves of 8", FLAT)
    yield from _flat("one such ring of 24, step after step", AGAIN)


def _flat(what: str, sizes: Sequence[tuple[int, int]]) -> Iterator[Row]:
    """Time per message and per rate from the fewest messages to the most."""
    messages, rates, seconds = np.array([_followed(ranks, steps) for ranks, steps in sizes]).T
    told = ", ".join(f"{number:,.0f}" for number in messages)
    for of, counts in (("message", messages), ("rate that a message changes", rates)):
        each = seconds / counts * 1e6
        often = ", ".join(f"{number:.1f}" for number in counts / messages)
        yield Row(
            f"time per {of} of {what}: {told} messages",
            f"within {FLAT_BAR:g} ×",
            ", ".join(f"{value:.2f}" for value in each)
            + (" µs" if counts is messages else f" µs; {often} a message"),
            float(each.max() / each.min()) <= FLAT_BAR,
            COMMAND,
        )


def _scattered_ring(ranks: int, steps: int, *sets: str) -> Scenario:
    """One all-reduce a step, in random order."""
    from evenstep.scenario import scenario

    return scenario.parse({}, [
        f"cluster.nodes={ranks}", *SPINES, "fabric.nodes_per_leaf=8", "job.placement=random",
        "work.kind=collective", "work.gradient_bytes=100MB", "collectives.algorithm=ring",
        f"run.steps={steps}", *sets,
    ])  # fmt: skip


def _followed(ranks: int, steps: int) -> tuple[float, float, float]:
    """Messages of a job, the rates solved for them, and the CPU seconds of its engine; not of the
    collective by itself, which is simulated for what its ranks waited."""
    from evenstep.simulate import simulation
    from evenstep.simulate.wires.world import CompiledWorld

    asked = _scattered_ring(ranks, steps, "work.forward_ms=10", "noise=[{kind='normal'}]")
    found: dict[CompiledWorld, float] = {}  # seconds, the job's first
    run = CompiledWorld.run

    def timed(world: CompiledWorld, most: int) -> int:
        start = time.process_time()
        wants = run(world, most)
        found[world] = found.get(world, 0.0) + time.process_time() - start
        return wants

    CompiledWorld.run = timed  # type: ignore[method-assign]
    try:
        simulation.simulate(asked)
    finally:
        CompiledWorld.run = run  # type: ignore[method-assign]
    world, seconds = next(iter(found.items()))
    return world.followed, world.rated, seconds


def _beside_smpi(_: argparse.Namespace) -> Iterator[Row]:
    """The same ring by SimGrid, where it is installed, one after the other."""
    if not smpi.can_run():
        return
    from evenstep.simulate.simulation import simulate

    asked = _scattered_ring(PEER_RANKS, 1)
    start = time.process_time()
    own_ns = simulate(asked).collectives[0].alone_ns
    spent = time.process_time() - start
    peer = smpi.ring(asked)
    apart = abs(peer.end_ns / own_ns - 1)
    yield Row(
        f"ring of {PEER_RANKS} in random order at 4:1, leaves of 8, beside SimGrid SMPI: "
        "difference of their ends",
        f"<= {100 * PEER_BAR:g} %",
        f"{100 * apart:.4f} %; {spent:.2f} s of CPU, SMPI {peer.cpu_s:.2f} s",
        apart <= PEER_BAR,
        COMMAND,
    )


def _jobs(_: argparse.Namespace) -> Iterator[Row]:
    yield _row("sharded 8B on 128 H100, 100 steps", 1.0, _simulated("h100-fsdp"))
    yield _row(
        "1,024 GPUs, tensor 8 × pipeline 8 × data 16, 20 steps with noise", 10.0,
        _simulated("h100-fsdp", *MESH),
    )  # fmt: skip


def _experts(_: argparse.Namespace) -> Iterator[Row]:
    """All-to-alls of a model of 8 layers, on a fabric that blocks nobody; and some whose messages
    each change the rates of many, as ranks that enter at different times share links."""
    for experts, bar in ((64, 5.0), (1024, 60.0)):
        yield _row(
            f"1,024 GPUs, experts over {experts:,} of them, 10 steps with noise", bar,
            _simulated("h100-fsdp", *EXPERTS, f"work.expert_parallel={experts}"),
        )  # fmt: skip
    for nodes in (32, 64):
        yield _row(
            f"an all-to-all of {8 * nodes} GPUs at 4:1 by ECMP, leaves of 8, with noise", 60.0,
            _simulated("h100-fsdp", *CROWDED, f"cluster.nodes={nodes}"),
        )  # fmt: skip


def _large(_: argparse.Namespace) -> Iterator[Row]:
    """Jobs of many messages, of which few share links."""
    yield _row("1,000 steps of 1,024 ranks, 25 buckets, two neighbours and noise", 5.0,
               _oversubscribed(1024, 1000))  # fmt: skip
    yield _row("100 steps of 65,536 ranks, nobody beside them", 15.0,
               _oversubscribed(65536, 100, "neighbours=[]"))  # fmt: skip
    yield _row("the same beside two neighbours", 15.0, _oversubscribed(65536, 100))


def _strategies(_: argparse.Namespace) -> Iterator[Row]:
    """Many jobs: all options of one with a slow GPU."""
    yield _row("every strategy of a job of 256 ranks", 5.0, _compared(32))
    yield _row("the same with its margins, of 32 ranks", 5.0, _compared(4, *AXES))


def _compared(nodes: int, *axes: str) -> dict[str, Any]:
    """In this process."""
    from evenstep.scenario import scenario
    from evenstep.simulate.study.decision import Limits, compare

    start = time.process_time()
    asked = scenario.load(SCENARIOS / "straggler.toml", [f"cluster.nodes={nodes}"])
    compare(asked, Limits(), axes=axes)
    spent = time.process_time() - start
    return {"cpu": spent, "megabytes": getrusage(RUSAGE_SELF).ru_maxrss / 1000}


def _oversubscribed(ranks: int, steps: int, *sets: str) -> dict[str, Any]:
    return _simulated(
        "oversubscribed", f"cluster.nodes={ranks + BESIDE}", f"job.ranks={ranks}",
        f"run.steps={steps}", *sets,
    )  # fmt: skip


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "exact": _exact,
    "rings": _rings,
    "shared": _shared,
    "smpi": _beside_smpi,
    "jobs": _jobs,
    "experts": _experts,
    "large": _large,
    "strategies": _strategies,
}
