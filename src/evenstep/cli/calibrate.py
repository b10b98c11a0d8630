"""`evenstep calibrate`: a scenario fitted to a measured run."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from evenstep.cli import files, progress, traces
from evenstep.cli.terminal import print_json
from evenstep.diagnose.levels import MINOR
from evenstep.diagnose.measure.grid import StepGrid, step_grid
from evenstep.diagnose.measure.transfers import transfers
from evenstep.documents import plain
from evenstep.errors import TraceError
from evenstep.report.terminal.style import PLAIN, precise
from evenstep.scenario import schema
from evenstep.simulate.calibrate.calibrate import (
    PHASES,
    Calibration,
    CalibrationDocument,
    Observed,
    SteadyTimes,
    calibrate,
)
from evenstep.simulate.calibrate.links import MESSAGE, ObservedCollectives, ObservedPipeline
from evenstep.simulate.simulation import simulate
from evenstep.trace.spool.layout import Flag, Kind, Op, Phase
from evenstep.trace.trace import Trace

TOLERANCE = 0.05  # of the step time


def main(args: argparse.Namespace) -> int:
    files.check_free(args.out, force=args.force, piped=not args.json)
    trace, read_s = traces.read_timed(args.trace)
    with progress.ticking(f"fitting {trace.world:,} ranks", traces.TO_READING * read_s):
        document = _document(trace, calibrate(observe(trace)))
    fitted = schema.to_toml(document["scenario"])
    text = f"# Fitted to {args.trace} by evenstep calibrate.\n{fitted}"
    out = args.out or files.STANDARD_OUTPUT
    if args.json:
        print_json(plain(document))
    else:
        print(_page(document), file=sys.stderr if out == files.STANDARD_OUTPUT else sys.stdout)
    if args.out or not args.json:
        files.write(out, text)
    return 0


def _document(trace: Trace, found: Calibration) -> CalibrationDocument:
    """Simulate the fitted scenario and return it beside the measured step times."""
    result = simulate(found.scenario)
    step = result.step_time
    simulated: SteadyTimes = {
        "steps": result.steps, "mean_ns": step.mean_ns, "cv": step.cv, "p99_ns": step.p99_ns
    }  # fmt: skip
    return {
        "schema": "evenstep.calibration/1",
        "run": {"run_id": trace.run.get("run_id"), "attempt": trace.attempt, "world": trace.world},
        "measured": found.measured,
        "simulated": simulated,
        "fits": found.fits,
        "scenario": schema.plain(found.scenario),
        "limits": [*trace.limits, *found.limits, *_apart(found.measured, simulated)],
    }


def _apart(measured: SteadyTimes, simulated: SteadyTimes) -> list[str]:
    """Return a limit if the step times differ by more than `TOLERANCE`."""
    off = simulated["mean_ns"] / measured["mean_ns"] - 1
    if abs(off) <= TOLERANCE:
        return []
    why = (
        "longer than the run's: it hides less of its communication behind compute than the run, or "
        "waits more often"
        if off > 0
        else "shorter than the run's: it leaves out waits that no collective explains (pipeline "
        "bubbles, checkpoints, other jobs, competition for cores)"
    )
    return [f"the scenario's step is {100 * abs(off):.0f} % {why}"]


def _page(document: CalibrationDocument) -> str:
    lines = [f"{'':10} {'step time':>12} {'CV':>7} {'p99':>12}"]
    for name in ("measured", "simulated"):
        one = document[name]
        mean, p99 = precise(one["mean_ns"]), precise(one["p99_ns"])
        lines.append(f"{name:10} {mean:>12} {one['cv']:7.3f} {p99:>12}")
    return "\n".join([*lines, *PLAIN.items(document["limits"])])


# -- observations from the trace -------------------------------------------------------------------


def observe(trace: Trace) -> Observed:
    """Return the arrays of a trace that a scenario is fitted to."""
    grid = step_grid(trace)
    if not grid.start_ns.size:
        raise TraceError("no step was finished by all ranks; record a longer run")
    rare = grid.phase_ns[Phase.CHECKPOINT] + grid.phase_ns[Phase.EVALUATION]
    steady = (rare == 0).all(axis=1)
    phases = {name: grid.phase_ns[Phase[name.upper()]][steady].astype(float) for name in PHASES}
    samples, moved = np.unique(grid.samples[steady]), _moved(trace, grid)
    return Observed(
        name=str(trace.run.get("name") or trace.run.get("run_id") or "a run"),
        node=tuple(trace.ranks[int(rank)].node for rank in grid.ranks),
        work_ns=grid.work_ns[steady].astype(float), phase_ns=phases,
        pause_ns=grid.pause_ns[steady].astype(float), step_ns=_step_ns(grid, steady),
        collectives=tuple(one for one in moved if one.operation != MESSAGE),
        messages=tuple(one for one in moved if one.operation == MESSAGE),
        overlapped=_is_overlapped(trace, grid),
        samples=int(samples[0]) if len(samples) == 1 else 0, pipeline=_pipeline(trace, grid),
        sends=bool(len(trace.of_kind(Kind.POINT_TO_POINT))),
        micro_batches=_micro_batches(trace, grid), stops=int((~steady).sum()),
    )  # fmt: skip


def _step_ns(grid: StepGrid, steady: Any) -> Any:
    """Return the time between step ends (ns); a step ends when its last rank ends it."""
    end = grid.end_ns.max(axis=1)
    follows = np.diff(grid.steps, prepend=grid.steps[:1] - 2) == 1
    length = np.where(follows, np.diff(end, prepend=end[:1]), grid.step_ns)
    return length[steady].astype(float)


def _moved(trace: Trace, grid: StepGrid) -> tuple[ObservedCollectives, ...]:
    """Collectives, and messages from one rank to another."""
    found = transfers(grid)
    rows, kinds = found.rows, found.kinds
    steps = max(int(grid.sampled.sum()), 1)
    place = {int(rank): index for index, rank in enumerate(grid.ranks)}
    calls = trace.of_kind(Kind.COLLECTIVE)
    later = _later(grid)
    seen = []
    for number in range(len(kinds)):
        mine = rows.select(rows.kind == number)
        ends, group = (int(mine.source[0]), int(mine.target[0])), int(kinds.group[number])
        alike = (calls.group == group) & (calls.op == kinds.op[number])
        flags = calls.flags[alike][:1] & int(Flag.ASYNC | Flag.ON_DEVICE)
        members = ends if min(ends) >= 0 else trace.groups[group].ranks
        seen.append(
            ObservedCollectives(
                operation=MESSAGE if min(ends) >= 0 else Op(int(kinds.op[number])).name.lower(),
                members=tuple(place[rank] for rank in members if rank in place),
                bytes=float(kinds.size_bytes[number]),
                per_step=len(mine) / steps,
                transfer_ns=float(np.mean(mine.transfer_ns + later[mine.operation])),
                floor_ns=float(kinds.floor_ns[number]),
                blocking=not flags.any(),
            )
        )
    return tuple(seen)


def _pipeline(trace: Trace, grid: StepGrid) -> ObservedPipeline | None:
    """The stages between which micro-batches are sent; None where ranks send in another order.

    A stage with several chunks of layers sends each micro-batch on as often, and the last sends it
    back to the first once less. Between two stages backwards go the same ways, once less and as
    often: v forwards of a micro-batch come with 2 v - 1 messages onward.
    """
    messages = trace.of_kind(Kind.POINT_TO_POINT)
    messages = messages.select(np.isin(messages.step, grid.steps))
    sent = messages.select(messages.op == int(Op.SEND))
    ahead = sent.peer_or_root - sent["rank"]
    apart = np.unique(np.abs(ahead))
    if not len(apart):
        return None
    around, sent = np.sum(ahead == -apart[-1]), sent.select(ahead == apart[0])
    chains = trace.world - len(np.unique(sent["rank"]))  # last stages send nothing onward
    last = np.setdiff1d(messages["rank"], sent["rank"])[:1]
    stages, rest = divmod(trace.world, chains)
    spans = ([apart[0]], [apart[0], apart[0] * (stages - 1)])
    if rest or stages < 2 or not len(last) or apart.tolist() not in spans:
        return None
    each = len(grid.steps) * chains
    passes = round(len(sent) / (each * (stages - 1)))
    batches = passes - round(around / each) if len(apart) > 1 else passes
    if batches < 1 or not sent.bytes_out.any():  # a ring, or messages of unknown sizes
        return None
    mine = messages.select((messages["rank"] == last) & (messages.step == grid.steps[-1]))
    received, returned = (mine.enter_ns[mine.op == int(op)] for op in (Op.RECV, Op.SEND))
    phases = trace.of_kind(Kind.PHASE)
    phases = phases.select((phases["rank"] == last) & (phases.step == grid.steps[-1]))
    forwards, backwards = (
        int(np.sum(phases.op == int(one))) for one in (Phase.FORWARD, Phase.BACKWARD)
    )
    if stages == 2 and passes < 2 * forwards < 2 * passes:
        passes, batches = forwards, 2 * forwards - passes
    schedule = "1f1b"
    if backwards == 2 * passes:  # gradients of weights apart
        schedule = "zero_bubble"
    elif len(received) and len(returned) and received.max() < returned.min():
        schedule = "gpipe"
    return ObservedPipeline(stages, int(apart[0]), batches, float(sent.bytes_out.mean()), schedule,
                            passes // batches)  # fmt: skip


def _micro_batches(trace: Trace, grid: StepGrid) -> int:
    """Backwards of a step, where gradients leave in the last of them; else 1."""
    backward, calls = (
        rows.select((rows["rank"] == int(grid.ranks[0])) & (rows.step == grid.steps[-1]))
        for rows in (trace.of_kind(Kind.PHASE), trace.of_kind(Kind.COLLECTIVE))
    )
    backward = backward.select(backward.op == int(Phase.BACKWARD))
    if not len(backward) or not len(calls) or calls.enter_ns.min() < backward.enter_ns.max():
        return 1
    return len(backward)


def _later(grid: StepGrid) -> Any:
    """Return the mean delay from the end of an operation until its waiting hosts continue (ns)."""
    rows, operations = grid.graph.rows, grid.graph.operations
    waiting = np.flatnonzero((rows.wait >= 0) & ~grid.graph.device[rows.lane])
    number = rows.wait[waiting]
    since = np.maximum(operations.over_ns[number], rows.at_ns[waiting])
    behind = np.bincount(number, np.maximum(rows.until_ns[waiting] - since, 0), len(operations))
    return behind / np.maximum(operations.members, 1)


def _is_overlapped(trace: Trace, grid: StepGrid) -> bool:
    """Whether collectives start during backward in most steps of the first rank; without a record
    of backward, whether compute hides more than a minor part of the transfers."""
    rank = int(grid.ranks[0])
    phases = trace.of_kind(Kind.PHASE)
    backward = phases.select((phases["rank"] == rank) & (phases.op == int(Phase.BACKWARD)))
    calls = trace.of_kind(Kind.COLLECTIVE)
    calls = calls.select(calls["rank"] == rank)
    if not len(backward):
        hidden = float(grid.hidden_ns.sum())
        return hidden > MINOR * (hidden + float(grid.blocked_ns.sum()))
    if not len(calls):
        return False
    at = np.searchsorted(backward.enter_ns, calls.enter_ns, side="right") - 1
    behind = backward.exit_ns[np.maximum(at, 0)]
    length = behind - backward.enter_ns[np.maximum(at, 0)]
    during = (at >= 0) & (calls.enter_ns < behind - 0.02 * length)
    return bool(np.isin(backward.step, calls.step[during]).mean() > 0.5)
