import pytest

from benchmarks.__main__ import NAMES
from benchmarks.__main__ import PAGE as PUBLISHED
from benchmarks.measure import Row
from benchmarks.table import line, render, renew

PAGE = f"# Title\n\n{line(('what', 'bar', 'measured', 'command', 'machine'))}\n| --- |\n\nEnd.\n"


def row(what: str, measured: str, met: bool | None = True) -> Row:
    return Row(what, "< 1", measured, met, "make it")


def test_a_new_row_goes_below_the_others() -> None:
    page = renew(renew(PAGE, [row("a", "1")], "here"), [row("b", "2")], "here")
    assert page.index("| a |") < page.index("| b |") < page.index("End.")


def test_a_row_measured_again_takes_its_old_place() -> None:
    page = renew(PAGE, [row("a", "1"), row("b", "2")], "here")
    page = renew(page, [row("a", "9")], "there")
    assert page.count("| a |") == 1
    assert page.index("| a | < 1 | 9 | `make it` | there |") < page.index("| b |")


def test_the_rest_of_the_page_stays() -> None:
    assert renew(PAGE, [], "here") == PAGE


def test_a_page_without_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no table"):
        renew("# Title\n", [row("a", "1")], "here")


def test_a_missed_bar_says_so() -> None:
    assert "bar missed" in render([row("a", "5", met=False)], "here")
    assert "bar missed" not in render([row("a", "5", met=None)], "here")


def test_a_bar_in_a_text_does_not_end_its_cell() -> None:
    assert render([row("a|b", "1")], "here").splitlines()[-1].count(" | ") == 4


def test_the_page_says_how_each_benchmark_measures() -> None:
    page = PUBLISHED.read_text()
    assert [name for name in NAMES if f"**`{name}`**" not in page] == []
