"""`docs/principles.md` is what the failure modes say of themselves."""

from docs.principles import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python docs/principles.py"
