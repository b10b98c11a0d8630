import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.report.page import overview
from evenstep.report.page.overview import BOXES, QUANTILES
from evenstep.trace.columns import Columns
from evenstep.trace.spool.layout import Phase


def table(times_ns: np.ndarray) -> Columns:
    """(ranks, steps) of forward times; input is nothing but rounding."""
    ranks, steps = times_ns.shape
    return Columns(
        {
            "rank": np.repeat(np.arange(ranks), steps),
            "start_ns": np.zeros(ranks * steps),
            "end_ns": times_ns.reshape(-1) + 1,
            "phase_input_ns": np.full(ranks * steps, 1e-3),
            "phase_forward_ns": times_ns.reshape(-1),
        }
    )


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_quantiles_are_those_of_numpy(ranks: int, steps: int, seed: int) -> None:
    times = np.random.default_rng(seed).uniform(1e6, 9e6, (ranks, steps))
    found = overview.distributions(table(times))
    for name, share in QUANTILES.items():
        assert found[name] == pytest.approx(np.quantile(times, share, axis=1) / 1e3, rel=1e-6)


def test_a_phase_that_takes_no_time_to_speak_of_is_left_out() -> None:
    found = overview.distributions(table(np.full((2, 3), 1e6)))
    assert set(found.phase.tolist()) == {int(Phase.FORWARD)}


def test_of_very_many_ranks_neighbours_share_a_box() -> None:
    found = overview.distributions(table(np.full((2 * BOXES + 1, 2), 1e6)))
    assert len(found) <= BOXES
    assert found["rank"][0] == 0
    assert found.last_rank[-1] == 2 * BOXES
    assert (found["rank"][1:] == found.last_rank[:-1] + 1).all()


def test_without_a_step_there_is_no_box() -> None:
    assert len(overview.distributions(table(np.zeros((2, 0))))) == 0
