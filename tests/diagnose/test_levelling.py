"""What ranks that vary cost beside ranks that do not."""

from dataclasses import replace

import numpy as np
import pytest

from evenstep.diagnose.engine import diagnose
from evenstep.diagnose.lateness.levelling import levelled
from evenstep.diagnose.lateness.replay import Removed, program, saved
from evenstep.diagnose.measure.grid import step_grid
from evenstep.trace.spool.layout import Phase
from tests.diagnose.synthetic import MS, World


@pytest.mark.parametrize("style", ["overlapped", "blocking", "gathered"])
def test_noise_costs_what_the_same_job_saves_without_it(style):
    noisy = World(style=style, ranks=8, steps=150, noise=0.08)
    finding = next(
        f for f in diagnose(noisy.trace()).findings if f.mode == "synchronization_amplification"
    )
    lost = noisy.lost_against(replace(noisy, noise=0.0))
    assert finding.severity == pytest.approx(lost, rel=0.15)


def saved_ns(world, lasting):
    grid = step_grid(world.trace())
    plan = program(grid)
    nothing = Removed(np.zeros(len(plan.rows)), np.zeros(grid.shape))
    lead, end = saved(plan, levelled(plan, nothing, np.array(lasting)))
    return float(np.median(end[-1]) - np.median(lead[-1]))


def test_what_always_differs_is_evened_out_only_where_it_is_not_lasting():
    world = World(ranks=4, style="blocking").slow(1, Phase.FORWARD, 8 * MS)
    # at the mean of 8, 0, 0 and 0 ms everybody arrives 6 ms before the slow one did
    assert saved_ns(world, [False] * 4) == pytest.approx(6 * MS, rel=1e-3)
    assert saved_ns(world, [True] * 4) == pytest.approx(0, abs=1000)
