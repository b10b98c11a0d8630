import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigError
from evenstep.simulate.formulas.steps import pipeline
from evenstep.simulate.job.pipeline import run_pipeline
from tests.simulate.worlds import scenario


def length(stages, batches, interleaved, hop=0.0):
    shape = (1, stages)
    alike = [np.full(shape, value) for value in (1.0, 2.0, hop)]
    return run_pipeline(np.zeros(shape), *alike, batches, interleaved=interleaved).max()


@given(st.integers(2, 8), st.integers(1, 4), st.integers(1, 6))
def test_chunks_shorten_the_bubble_as_published(stages, groups, interleaved):
    """(m + (p - 1)/v) t, Narayanan et al. 2021, section 2.2."""
    batches = groups * stages
    closed = pipeline(batches, stages=stages, interleaved=interleaved, per_micro_batch=3.0)
    assert length(stages, batches, interleaved) == pytest.approx(closed)


def test_chunks_send_more_often():
    """With free hops chunks are faster; with dear ones their many hops cost more."""
    assert length(4, 4, 4) < length(4, 4, 1)
    assert length(4, 4, 4, hop=3.0) > length(4, 4, 1, hop=3.0)


def test_chunks_need_whole_groups_of_micro_batches():
    with pytest.raises(ConfigError, match="multiple of the 4 stages, found 6"):
        scenario("cluster.nodes=4", "work.kind=pipeline", "work.pipeline_parallel=4",
                 "work.micro_batches=6", "work.interleaved=2")  # fmt: skip
