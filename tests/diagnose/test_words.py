import pytest

from evenstep import words


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([7], "rank 7"),
        ([0, 1], "ranks 0 and 1"),
        ([0, 1, 2], "ranks 0-2"),
        ([3, 0, 2], "ranks 0, 2 and 3"),
        ([0, 1, 2, 3, 8], "ranks 0-3 and 8"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
        (range(0, 4000, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 1,992 more"),
    ],
)
def test_ranks_read_like_a_sentence(numbers, text):
    assert words.ranks(list(numbers)) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(51_234_567, "51.2 ms"), (2e9, "2 s"), (1_500, "1.5 µs"), (12, "12 ns"), (0, "0 ns")],
)
def test_durations_have_three_digits_and_a_unit(nanoseconds, text):
    assert words.duration(nanoseconds) == text


@pytest.mark.parametrize(("share", "text"), [(0.1234, "12 %"), (0.0512, "5.1 %"), (1, "100 %")])
def test_percentages_have_a_decimal_only_below_ten(share, text):
    assert words.percent(share) == text
