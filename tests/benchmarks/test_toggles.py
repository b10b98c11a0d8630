import numpy as np

from benchmarks.toggles import _followed


def test_a_change_that_the_next_overtook_is_missed_by_that_rank_alone() -> None:
    asked = [64, 78, 92]
    assert _followed(asked, np.array([66, 80, 94])).tolist() == [66, 80, 94]
    assert np.isnan(_followed(asked, np.array([66, 94]))).tolist() == [False, True, False]
    assert np.isnan(_followed(asked, np.array([66, 80]))).tolist() == [False, False, True]
