"""`docs/schemas.md` is the table of the published schemas."""

from docs.schemas import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python docs/schemas.py"
