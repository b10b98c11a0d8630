"""`input_pipeline`: batches are not ready when the step begins, on one rank or on all."""

from __future__ import annotations

import numpy as np

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Option, When, Where
from evenstep.diagnose.lateness.case import SMALLEST_SHARE, Case, found
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.measure.patterns import when
from evenstep.diagnose.modes import projection
from evenstep.diagnose.modes.mode import Mode
from evenstep.diagnose.verdict import NAMED
from evenstep.statistics.interval import Share
from evenstep.trace.spool.layout import Phase

LATE = 2.0  # times the usual: a batch that was not ready
COMMON = 0.25  # of the longest: where every rank waits so much for input, it is everybody's


def find(case: Case) -> list[Finding]:
    """Ranks whose input is late, or all of the input where every rank waits for it."""
    findings = [_everybody(case) or _late_ranks(case)]
    return [finding for finding in findings if finding and finding.severity >= SMALLEST_SHARE]


def _late_ranks(case: Case) -> Finding | None:
    cells = case.delays.cells(Cause.INPUT)
    if not cells.any():
        return None
    share = case.share(case.loss(cells, Cause.INPUT))
    ranks = case.culprits(cells, Cause.INPUT)
    recurrence = when(cells, case.grid.steps)
    more = words.duration(case.typical_excess_ns(cells, Cause.INPUT))
    lead = (
        f"the late rank changes ({words.ranks(ranks)} take turns)"
        if recurrence.pattern == "rotating"
        else case.named(ranks)
    )
    return found(
        "input_pipeline",
        "framework",
        share,
        observation=case.waiting(cells),
        cause=f"{lead}: its DataLoader hands over the batch {more} later than the others'",
        where=case.where(ranks),
        when=recurrence,
        projected=projection.constant(share, len(case.grid.ranks)),
        options=_of_ranks(case, share, ranks),
        evidence=[*case.wait_evidence(cells), _input_evidence(case, ranks)],
        change=case.relieved(cells, Cause.INPUT),
    )


def _input_evidence(case: Case, ranks: list[int]) -> Evidence:
    columns = np.isin(case.grid.ranks, ranks)
    values = case.grid.phase_ns[Phase.INPUT]
    others = values[:, ~columns]
    expected = round(float(np.median(others))) if others.size else 0
    return Evidence("input_per_step", round(float(np.median(values[:, columns]))), expected, "ns")


def _everybody(case: Case) -> Finding | None:
    """All input, where even the ranks that wait least for it wait: nobody in particular is late."""
    values = case.grid.phase_ns[Phase.INPUT]
    if not values.size:
        return None
    usual = np.median(values, axis=0)
    if usual.min() < COMMON * max(usual.max(), 1.0):
        return None
    change = case.taken(values, Cause.INPUT)
    share = case.share(case.saved(change))
    late = np.quantile(values, 0.95) > LATE * max(float(np.median(values)), 1.0)
    if share.value < (SMALLEST_SHARE if late else NAMED):  # handing a batch over takes time, too
        return None
    steps = case.grid.steps
    return found(
        "input_pipeline",
        "framework",
        share,
        observation=(
            f"every rank waits {words.duration(float(np.median(values)))} for its DataLoader "
            "in the median step"
        ),
        cause="the input pipeline is slower than the model: batches are not ready in time",
        where=Where(),
        when=When([(int(steps[0]), int(steps[-1]))], "chronic"),
        projected=projection.constant(share, len(case.grid.ranks)),
        options=_of_everybody(share, "replay of the trace with batches always ready"),
        evidence=[Evidence("input_per_step", round(float(np.median(values))), 0, "ns")],
        change=change,
    )


def _of_ranks(case: Case, share: Share, ranks: list[int]) -> list[Option]:
    """Others have the same loader and the same settings: what differs is the host, or the data."""
    gain = share.rounded()
    hosts = words.some(case.where(ranks).nodes) or "its host"
    whose = words.ranks(ranks)
    method = "replay of the trace with these ranks' input as fast as the others'"
    return [
        Option(
            f"find what the loader of {whose} waits for that others' do not: its part of the data, "
            f"or storage and free cores of {hosts}",
            *gain,
            "looking at one loader; no change of the job",
            method,
        ),
        Option(
            f"if it moves with the host: copy the data to disks of {hosts}, or take another host",
            *gain,
            "a copy, or one restart and a spare host",
            method,
        ),
    ]


def _of_everybody(share: Share, method: str) -> list[Option]:
    gain = share.rounded()
    return [
        Option(
            "more DataLoader workers and prefetching (num_workers, prefetch_factor, "
            "persistent_workers, pin_memory)",
            *gain,
            "CPU cores and host memory for the workers",
            method,
        ),
        Option(
            "faster storage or data prepared ahead (larger files, decoded or tokenized once)",
            *gain,
            "a preparation pass over the data",
            method,
        ),
    ]


MODE = Mode(
    name="input_pipeline",
    layer="framework",
    symptom="Steps begin with a wait for the batch, on one rank or on all of them.",
    look_at=(
        "time inside the DataLoader's next() per step and rank",
        "whether all ranks wait alike (the pipeline is too slow) or a few (their storage or host)",
        "CPU use of the workers, and what storage delivers",
    ),
    remedy=(
        "more workers and prefetching (num_workers, prefetch_factor, persistent_workers)",
        "pin memory and copy asynchronously",
        "data decoded or tokenized ahead, in larger files, on nearer storage",
    ),
    confirm="Train a hundred steps on one cached batch: the wait at the step's beginning is gone.",
    find=find,
)
