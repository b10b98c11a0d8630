"""`make docs` builds a site that opens from disk."""

import os
import re
import subprocess
import sys

import pytest

from docs import site_reference
from evenstep.cli.main import COMMANDS
from tests.docs.markdown import ROOT

pytest.importorskip("material", reason="needs mkdocs-material: make docs installs it")
pytest.importorskip("mkdocstrings_handlers", reason="needs mkdocstrings: make docs installs it")

LOADED = re.compile(r"<(?:script|img|iframe|link)[^>]*(?:src|href)=\"([^\"]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built strictly: whatever mkdocs warns of is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_pages_ask_no_network_and_no_server(site):
    for page in set(site.rglob("*.html")) - {site / "404.html"}:  # only a server would show it
        loaded = LOADED.findall(page.read_text())
        assert loaded
        assert not [link for link in loaded if re.match(r"https?:|/", link)], page


def test_every_page_of_the_repository_is_on_the_site(site):
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page.with_suffix(".html")).is_file()} == set()
    assert {"index.html", "changes.html", "benchmarks.html"} <= {
        page.name for page in site.iterdir()
    }


def test_the_reference_shows_what_docstrings_say(site):
    page = (site / "reference" / "python.html").read_text()
    for names in site_reference.PYTHON.values():
        for name in names:
            assert f'id="{name}"' in page
    assert "Observe this rank from now on" in page


def test_the_reference_has_the_help_of_every_command(site):
    page = (site / "reference" / "commands.html").read_text()
    for command in COMMANDS:
        assert f"usage: evenstep {command.name}" in page
