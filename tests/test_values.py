"""What text and plain values become, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep import values
from evenstep.errors import ConfigError

UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20}


@given(st.integers(0, 10**15), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_a_whole_size_is_its_number_times_its_unit(number, unit, gap):
    assert values.bytes_of(f"{number}{gap}{unit}") == number * UNITS[unit]


@given(st.integers(0, 10**6), st.integers(0, 999))
def test_decimals_of_a_size_are_exact(whole, thousandths):
    text = f"{whole}.{thousandths:03d}kB"
    assert values.bytes_of(text) == whole * 1000 + thousandths


@given(st.text(max_size=12))
def test_any_other_text_is_refused_with_a_value_error(text):
    try:
        size = values.bytes_of(text)
    except ValueError:
        return
    assert size >= 0


@pytest.mark.parametrize("text", ["1.5B", "0.0001kB", "MB", "1e6", "-1", "1 2MB", "1XB", "٣MB"])
def test_what_is_no_whole_number_of_bytes_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        values.bytes_of(text)


@given(st.floats(0, 0.99))
def test_a_share_is_the_same_as_a_percentage(share):
    kind = values.share(1.0)
    assert kind.parse(f"{share * 100}%") == pytest.approx(kind.parse(share))


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (values.number(0, 1), ".5", 0.5),
        (values.number(0, 1), 1, 1.0),
        (values.number(0), 0, 0.0),
        (values.count(1), "8", 8),
        (values.count(1), 2.0, 2),
        (values.count(0, most=9), 9, 9),
        (values.byte_size(65_536), 65_536, 65_536),
        (values.byte_size(0), 3.0, 3),
        (values.share(0.5), "49%", 0.49),
        (values.share(1.0, whole=True), 1, 1.0),
        (values.choice(("mmap", "auto")), " MMAP ", "mmap"),
        (values.SWITCH, "On", True),
        (values.SWITCH, False, False),
        (values.TEXT, 7, "7"),
        (values.numbers(9.0), [1, 2.5], (1, 2.5)),
    ],
)
def test_what_can_be_is_what_it_says(kind, value, found):
    assert kind.parse(value) == found
    assert type(kind.parse(value)) is type(found)


@pytest.mark.parametrize(
    ("kind", "value", "expects"),
    [
        (values.number(0, 1), 1.01, "a number from 0 to 1"),
        (values.number(0, 1), -0.01, "a number from 0 to 1"),
        (values.number(0, 1), True, "a number from 0 to 1"),
        (values.number(0, above=True), 0, "a number above 0"),
        (values.number(0, 1, above=True), 0, "a number above 0, at most 1"),
        (values.number(0, above=True), 1e-10, "a number above 0, at least 1e-09"),
        (values.number(0, most=1e12), 1e13, "a number of at least 0, at most 1,000,000,000,000"),
        (values.number(0), float("inf"), "a number of at least 0"),
        (values.number(0), 1 << 1000, "a number of at least 0"),
        (values.count(1), 1.5, "a whole number of at least 1"),
        (values.count(1, 9), 10, "a whole number from 1 to 9"),
        (values.byte_size(10), 9, "a size in bytes such as 25MB or 8MiB, at least 10"),
        (values.byte_size(0, most=9), 10, "at least 0, at most 9"),
        (values.share(0.5), 0.5, "a share from 0 to below 0.5"),
        (values.choice(("mmap", "auto")), "map", "one of mmap, auto (did you mean 'mmap'?)"),
        (values.choice(("mmap", "auto")), "disk", "one of mmap, auto, found"),
        (values.choice(("", "tree")), "disk", 'one of "", tree, found'),
        (values.SWITCH, 2, "true or false"),
        (values.TEXT, True, "text"),
        (values.numbers(9.0), [1, "2"], "a list of numbers"),
        (values.numbers(9.0), 1, "a list of numbers"),
        (values.numbers(9.0), [1, -10], "a list of numbers, none beyond 9"),
        (values.PATH, " ", "a path"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(kind, value, expects):
    with pytest.raises(ConfigError) as error:
        kind.checked(value, "it")
    assert str(error.value).startswith("it must be ")
    assert expects in str(error.value)
    assert str(error.value).endswith(f"found {value!r}")
