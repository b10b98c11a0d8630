"""`docs/scenario.md` is the table of the scenario's fields."""

from docs.scenario import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python docs/scenario.py"
