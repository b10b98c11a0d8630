"""Examples in closed form: jobs that never ran, with a loss that is known by arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.labelled import calm, fabrics, late_ranks, runs, work
from benchmarks.labelled.example import Example
from benchmarks.labelled.ordinary import Made
from evenstep.trace.trace import Trace

SEVERITIES = (0.08, 0.15, 0.35)  # the disturbance, as a share of an undisturbed step
CAUSES = {**late_ranks.CAUSES, **fabrics.CAUSES, **work.CAUSES, **runs.CAUSES}


def disturbed(
    seeds: range, severities: Collection[float] = SEVERITIES, only: str = ""
) -> Iterator[Example]:
    """Every cause × severity × seed; `only` those whose name has this in it."""
    for name, cause in CAUSES.items():
        for severity in severities:
            for seed in seeds if only in name else ():
                random = np.random.default_rng([seed, round(1000 * severity)])
                yield _example(f"{name}, {severity:g}, seed {seed}", cause(random, severity))


def healthy(seeds: range, only: str = "") -> Iterator[Example]:
    """Jobs in which nothing is wrong: every kind × seed."""
    for name, kind in calm.KINDS.items():
        for seed in seeds if only in name else ():
            yield _example(f"{name}, seed {seed}", kind(np.random.default_rng([seed, 0])))


def _example(name: str, made: Made) -> Example:
    return Example(name=name, label=made.label, diagnosis=partial(_diagnosed, made))


def _diagnosed(made: Made) -> dict[str, Any]:
    traces = made.trace()
    return diagnose_trace(traces) if isinstance(traces, Trace) else diagnose_sizes(traces)


def diagnose_trace(trace: Trace) -> dict[str, Any]:
    """What `diagnose --json` prints of it."""
    from evenstep.diagnose.engine import diagnose

    return diagnose(trace).to_json()


def diagnose_sizes(traces: list[Trace]) -> dict[str, Any]:
    """What `diagnose --json` prints of runs of several sizes together."""
    from evenstep.diagnose.engine import diagnose
    from evenstep.diagnose.modes.scaling_collapse import diagnose_together
    from evenstep.diagnose.predict.scaling import scaling_point

    return diagnose_together([scaling_point(one, diagnose(one)) for one in traces]).to_json()
