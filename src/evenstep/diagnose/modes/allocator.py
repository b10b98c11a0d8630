"""Lateness of ranks whose caching allocator had to give memory back and try again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep import words
from evenstep.diagnose.finding import Evidence, Finding, Option
from evenstep.diagnose.lateness.case import Case, found
from evenstep.diagnose.lateness.delays import Cause
from evenstep.diagnose.measure.patterns import when
from evenstep.diagnose.measure.samples import growth
from evenstep.diagnose.modes import projection

Array = npt.NDArray[Any]

RETRIES = "allocator.retries_count"
ONE = 1e-9  # of a retry: an interval of samples reaches a little into the next step


def explained(late: Array, retried: Array) -> Array:
    """Late cells in intervals with retries, of ranks that are late there more often than elsewhere.

    Late cells must be at least twice as frequent in the intervals as outside of them: else the
    retries are a bystander.
    """
    hit = retried > ONE
    inside = (late & hit).sum(axis=0) / np.maximum(hit.sum(axis=0), 1)
    outside = (late & ~hit).sum(axis=0) / np.maximum((~hit).sum(axis=0), 1)
    return np.asarray(late & hit & (inside > 2 * outside)[None, :])


def retrying(case: Case) -> Finding | None:
    """The late cells that go with retries, as one finding of `runtime_jitter`."""
    retried = growth(case.trace, case.grid, RETRIES)
    if not retried.any():
        return None
    free = case.claims.free(case.delays.cells(Cause.WORK))
    cells = case.claims.cells(explained(free, retried))
    if not cells.any():
        return None
    share = case.share(case.loss(cells))
    ranks = case.culprits(cells)
    verb = "gives" if len(ranks) == 1 else "give"
    return found(
        "runtime_jitter",
        "runtime",
        share,
        observation=case.waiting(cells),
        cause=(
            f"allocator: {case.named(ranks)} {verb} cached memory back to the driver and tries "
            f"again, {words.duration(case.typical_excess_ns(cells))} each time"
        ),
        where=case.where(ranks),
        when=when(cells, case.grid.steps),
        projected=projection.constant(share, len(case.grid.ranks)),
        options=[
            Option(
                "less fragmentation: PYTORCH_ALLOC_CONF=expandable_segments:True (older torch: "
                "PYTORCH_CUDA_ALLOC_CONF), batches of equal shape, or a little less memory in use",
                *share.rounded(),
                "an environment variable and a restart",
                "replay of the trace without the steps' excess",
            )
        ],
        evidence=[
            *case.wait_evidence(cells),
            Evidence("allocator_retries", round(float(retried.sum()), 1), 0, "retries"),
        ],
        change=case.relieved(cells),
    )
