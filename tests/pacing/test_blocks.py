"""Which blocks of the clock are acted in."""

from hypothesis import given
from hypothesis import strategies as st

from evenstep.pacing.blocks import clock_block_acts
from evenstep.pacing.comparison import PairedComparison

BLOCKS = st.integers(0, 2**62)


@given(BLOCKS)
def test_of_each_pair_one_is_acted_in(pair: int) -> None:
    assert clock_block_acts(2 * pair, 2) != clock_block_acts(2 * pair + 1, 2)


@given(BLOCKS, st.sampled_from([8, 16, 32]))
def test_of_each_span_all_but_one(group: int, span: int) -> None:
    acts = [clock_block_acts(group * span + n, span) for n in range(span)]
    assert sum(acts) == span - 1


@given(BLOCKS, st.sampled_from([8, 16, 32]))
def test_who_leaves_out_one_of_a_span_leaves_it_out_with_those_who_compare(block, span) -> None:
    assert clock_block_acts(block, span) or not clock_block_acts(block, 2)


def test_the_order_within_pairs_is_not_one_order() -> None:
    first = [clock_block_acts(2 * pair, 2) for pair in range(1000)]
    assert 440 < sum(first) < 560  # 500 expected, 16 a deviation


def test_certainty_is_the_mean_in_standard_errors() -> None:
    # 1, 2, 3: mean 2, deviation 1, widened by 1 + 1.5 / 3; 2 √3 / 1.5
    test = PairedComparison()
    for value in (1.0, 2.0, 3.0):
        test.add(value)
    assert abs(test.certainty - 2 * 3**0.5 / 1.5) < 1e-6


def test_what_has_faded_counts_half_and_has_the_same_mean() -> None:
    test = PairedComparison()
    for value in range(8):
        test.add(float(value))
    test.fade()
    assert (test.count, test.mean) == (4, 3.5)
