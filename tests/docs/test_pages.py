"""What the pages promise exists."""

import re

import pytest

import evenstep
from evenstep.cli.main import COMMANDS
from tests.docs.markdown import FENCED, PAGES, ROOT

README = (ROOT / "README.md").read_text()


def anchors(page):
    """Ids of a page's headings, as Markdown renderers make them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        linked = (page.parent / file) if file else page
        assert linked.is_file(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}"


def test_the_readme_lists_the_commands_there_are():
    table = README.partition("## Commands")[2].partition("##")[0]
    assert re.findall(r"`evenstep (\w+)", table) == [command.name for command in COMMANDS]


def test_the_readme_names_what_python_offers():
    sentence = README.partition("In Python:")[2].partition("\n\n")[0]
    offered = {name for name in evenstep.__all__ if name.islower() and not name.startswith("_")}
    assert set(re.findall(r"`(\w+)`", sentence)) == offered


def test_the_readme_states_the_version_of_python_that_is_required():
    required = re.search(r'requires-python = ">=(.+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert f"Python {required} or newer" in README


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", README, re.MULTILINE))
def test_make_has_the_targets_of_the_readme(target):
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_the_changes_name_the_current_version():
    assert f"## {evenstep.__version__}" in (ROOT / "CHANGELOG.md").read_text()
