"""Table 1 of "When Scaling Fails", by a model fitted to its baseline columns alone.

The model: a ring in random rank order over racks of 4 nodes crosses the shared core on about n - 4
hops, so that its exchange there grows as κ(n - 4); J jobs with periods 1 % apart use that core. The
columns with coordination are predicted: none of their numbers enters. In the second family a tenth
of the time is taken by a flow that does not yield.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

from evenstep.documents import Amount, Positive, plain
from evenstep.reproduce.link_pacing import paced, timeline
from evenstep.reproduce.link_worlds import LinkJob, LinkWorld, Outcome, unpaced
from evenstep.simulate.study.sweep import interval

RACK = 4
APART = 0.01  # of neighbouring periods
SOURCE = "When Scaling Fails, table 1"
SHOWN_RANKS, SHOWN_STEPS, SHOWN_AFTER = 4, 3, 1000  # of the timeline


class Published(NamedTuple):
    """A row of the paper's table: samples/s and CV without and with coordination."""

    nodes: Positive
    baseline: Amount
    baseline_cv: Amount
    coordinated: Amount
    coordinated_cv: Amount


PUBLISHED = (
    Published(4, 1024, 0.02, 1018, 0.02),
    Published(8, 1980, 0.04, 1995, 0.03),
    Published(16, 3600, 0.09, 3720, 0.05),
    Published(32, 5800, 0.15, 6250, 0.07),
    Published(64, 8200, 0.22, 9100, 0.09),
)
FIRST = PUBLISHED[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOneFit:
    """Parameters of the model: `jobs`, `goodput` and `exchange` are fitted, the others given."""

    name: str
    jobs: Positive  # J, ours among them
    goodput: Amount  # η
    exchange: Amount  # on the core at 64 nodes, over compute: 60 κ
    jitter: Amount = FIRST.baseline_cv  # σ: the CV at 4 nodes, where no tenant is on the links
    flows: Amount = 0.0
    on: Amount = 1.0  # mean time, in computes
    off: Amount = 9.0


#: The best of a grid by the squared errors of the baseline columns (log throughput, and CV); the
#: search is `tests/simulate/table_one_fit.py`.
QUIET = TableOneFit(name="no unresponsive bursts", jobs=2, goodput=0.7, exchange=0.6)
BURSTS = TableOneFit(name="unresponsive bursts", jobs=3, goodput=0.8, exchange=0.4, flows=1.0)
FAMILIES = (QUIET, BURSTS)


class Figure(NamedTuple):
    """Throughput of our job in samples/s, its change, and the CV of its steps.

    `low` and `high` are the 95 % interval of the change over seeds; None where there is one seed.
    """

    throughput: Amount
    gain: float
    cv: Amount
    low: float | None = None
    high: float | None = None


class TableOneRow(NamedTuple):
    """One size: the paper's numbers, and the model's for each arm."""

    published: Published
    baseline: Figure
    arms: dict[str, Figure]
    alone: Figure  # our job without the others: no pacing can reach more
    lone: dict[str, float]  # the change by each arm where the job has its links to itself


#: Settings of the controllers beside the baseline. The paper's rule has no guard.
ARMS: Mapping[str, Mapping[str, Any]] = {
    "paper": {"controller": "paper", "guarded": False},
    "token": {"controller": "token"},
}


def world(family: TableOneFit, nodes: int, seed: int) -> LinkWorld:
    """Our job (the first) and its tenants, on as many nodes each; within one rack it is alone."""
    exchange = family.exchange * (nodes - RACK) / (64 - RACK)
    if exchange <= 0:
        lone = LinkJob(compute=1.0, exchange=1e-6, jitter=family.jitter)
        return LinkWorld(jobs=(lone,), seed=seed)
    first = LinkJob(compute=1.0, exchange=exchange, jitter=family.jitter)
    jobs = tuple(replace(first, compute=1 + APART * index) for index in range(family.jobs))
    fields = {name: getattr(family, name) for name in ("goodput", "flows", "on", "off")}
    return LinkWorld(jobs=jobs, **fields, seed=seed)


def predict(
    family: TableOneFit,
    *,
    seeds: Sequence[int],
    steps: int,
    progress: Callable[[int, int], None],
) -> list[TableOneRow]:
    """Baseline and arms at every size, over these seeds.

    `progress` is called with the number of sizes done, and of all.
    """
    rows: list[TableOneRow] = []
    first = 0.0
    for done, published in enumerate(PUBLISHED):
        progress(done, len(PUBLISHED))
        worlds = [world(family, published.nodes, seed) for seed in seeds]
        free = [unpaced(item, steps) for item in worlds]
        mean, cv = _mean_and_cv(free)
        first = first or mean
        # the paper's own throughput where all nodes are in one rack, scaled by nodes and step time
        scale = FIRST.baseline * published.nodes / FIRST.nodes * first
        baseline = Figure(scale / mean, 0.0, cv)
        arms = {
            name: _figure(free, [paced(item, steps, **settings) for item in worlds], scale)
            for name, settings in ARMS.items()
        }
        lone = [unpaced(replace(item, jobs=item.jobs[:1]), steps) for item in worlds]
        alone = _figure(free, lone, scale)
        rows.append(TableOneRow(published, baseline, arms, alone, _lone(worlds[0], steps)))
    progress(len(PUBLISHED), len(PUBLISHED))
    return rows


def _figure(before: Sequence[Outcome], after: Sequence[Outcome], scale: float) -> Figure:
    """The change of our job; `scale` is samples/s at a step of 1."""
    mean, cv = _mean_and_cv(after)
    gains = [one.mean(0) / other.mean(0) - 1 for one, other in zip(before, after, strict=True)]
    gain = interval(gains)
    return Figure(scale / mean, gain["value"], cv, gain["low"], gain["high"])


def _lone(world: LinkWorld, steps: int) -> dict[str, float]:
    """The change of our job by each arm without tenants: its ranks wait for each other, which the
    paper's rule takes for slack."""
    job = replace(world.jobs[0], ranks=SHOWN_RANKS)
    alone = LinkWorld(jobs=(job,), seed=world.seed)
    before = unpaced(alone, steps).mean(0)
    return {
        name: before / paced(alone, steps, **settings).mean(0) - 1
        for name, settings in ARMS.items()
    }


def timelines(family: TableOneFit, *, seed: int, steps: int) -> dict[str, Any]:
    """Our job's ranks and its tenants at the largest size, over a few steps before and after."""
    nodes = PUBLISHED[-1].nodes
    made = world(family, nodes, seed)
    made = replace(made, jobs=(replace(made.jobs[0], ranks=SHOWN_RANKS), *made.jobs[1:]))
    first_step = min(steps, SHOWN_AFTER) - SHOWN_STEPS
    arms: dict[str, Mapping[str, Any]] = {"before": {}, "after": ARMS["token"]}
    shown = {
        name: timeline(made, first_step=first_step, steps=SHOWN_STEPS, **settings)
        for name, settings in arms.items()
    }
    return {
        "nodes": nodes,
        "controller": "token",
        "first_step": first_step,
        "steps": SHOWN_STEPS,
        **{name: [span._asdict() for span in spans] for name, spans in shown.items()},
    }


def _mean_and_cv(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Mean step time and CV of our job over several runs."""
    return fmean(found.mean(0) for found in outcomes), fmean(found.cv(0) for found in outcomes)


def fit_errors(rows: Sequence[TableOneRow]) -> dict[str, float]:
    """Errors of the fitted columns: relative in throughput, absolute in CV."""
    throughput = [row.baseline.throughput / row.published.baseline - 1 for row in rows]
    cv = [row.baseline.cv - row.published.baseline_cv for row in rows]
    return {
        "throughput_rms": math.sqrt(fmean(e * e for e in throughput)),
        "throughput_worst": max(throughput, key=abs),
        "cv_rms": math.sqrt(fmean(e * e for e in cv)),
        "cv_worst": max(cv, key=abs),
    }


def to_json(family: TableOneFit, rows: Sequence[TableOneRow]) -> dict[str, Any]:
    """The results of a family as plain values."""
    return {
        "family": family.name,
        "parameters": asdict(family),
        "fitted_to": "the baseline columns",
        "fit_error": fit_errors(rows),
        "rows": [
            plain(
                {
                    "nodes": row.published.nodes,
                    "published": row.published,
                    "baseline": row.baseline,
                    **row.arms,
                    "alone": row.alone,
                    "lone": row.lone,
                }
            )
            for row in rows
        ],
    }
