"""The page of a package index: README.md, whose links there lead to where it was published from.

A hook of hatchling. Where the build knows the project's address (on GitHub it does), links and
pictures become absolute and the package has its URLs; elsewhere links become plain text and
pictures are left out, since an index resolves neither.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
_PAGES = {"Documentation": "blob/{ref}/docs/get-started.md", "Changes": "blob/{ref}/CHANGELOG.md"}


class PackagePage(MetadataHookInterface):
    """Sets what of the metadata depends on where the package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and, where the address is known, `urls`."""
        home, ref = address(os.environ)
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": page(text, home, ref)}
        metadata["urls"] = urls(home, ref)


def address(environment: Mapping[str, str]) -> tuple[str, str]:
    """The project's address and the tag or branch that is built; empty where nothing tells."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_REF_NAME")
    server, repository, ref = (environment.get(name, "") for name in names)
    return (f"{server}/{repository}", ref) if server and repository and ref else ("", "")


def urls(home: str, ref: str) -> dict[str, str]:
    """The URLs of the package by their labels; none without a home."""
    if not home:
        return {}
    pages = {label: f"{home}/{path.format(ref=ref)}" for label, path in _PAGES.items()}
    return {"Source": home, "Issues": f"{home}/issues"} | pages


def page(text: str, home: str, ref: str) -> str:
    """Markdown whose links and pictures an index can follow."""

    def absolute(link: re.Match[str]) -> str:
        picture, label, path = link.groups()
        if home:
            return f"{picture}[{label}]({home}/{'raw' if picture else 'blob'}/{ref}/{path})"
        return "" if picture else label

    return _LINK.sub(absolute, text)
