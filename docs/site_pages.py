"""What the site has beside the pages of docs/: hooks of mkdocs, see `mkdocs.yml`.

In the repository pages link each other, README.md and the examples by path. On the site each of
these is a page of its own, so links are led there; an example becomes a page with its code.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs loads hooks by their file

from docs import site_reference  # noqa: E402

#: Pages of the repository outside docs/, and what they are on the site.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/thresholds.md": "thresholds.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
LANGUAGES = {".py": "python", ".c": "c", ".toml": "toml", ".yaml": "yaml", ".sbatch": "bash"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that docs/ does not have."""
    for source, uri in ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    for source in sorted(_linked_files(files)):
        files.append(File.generated(config, _on_site(source), content=_listing(source)))
    for uri, content in site_reference.pages().items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where things are on the site."""
    del config, files
    here = page.file.src_uri
    source = _in_repository(here)

    def led(match: re.Match[str]) -> str:
        target = _on_site(posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1])))
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return LINK.sub(led, markdown)


def _linked_files(files: Files) -> Iterator[str]:
    """Files outside docs/ that pages link and that are no pages themselves, each once."""
    found = set()
    for page in files.documentation_pages():
        source = _in_repository(page.src_uri)
        for target in LINK.findall(page.content_string):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
            if not path.startswith("docs/") and path not in ELSEWHERE:
                found.add(path)
    return iter(found)


def _in_repository(uri: str) -> str:
    """Path of a page's source."""
    return next((source for source, page in ELSEWHERE.items() if page == uri), f"docs/{uri}")


def _on_site(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{path}.md"


def _listing(path: str) -> str:
    """An example as a page."""
    language = LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"# {path}\n\n````{language}\n{(ROOT / path).read_text()}\n````\n"
