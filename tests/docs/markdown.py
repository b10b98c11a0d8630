"""What tests read from the pages: their links, headings and code blocks."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
RUNS = "<!-- runs -->"  # before a block whose commands a test runs, and compares what they print
FENCED = re.compile(rf"({RUNS}\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"""(?<!`)\bevenstep ((?:"[^"]*"|'[^']*'|[^;&|>)"'\n])+)""")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    text: str
    runs: bool

    @property
    def commands(self):
        """The arguments of each `evenstep` command that a reader would type."""
        typed = self.text.replace("\\\n", " ")
        if typed.startswith("$ "):  # what is not typed is printed
            typed = "\n".join(piece.partition("\n…")[0] for piece, _ in self.typed_and_printed)
        return [shlex.split(found, comments=True) for found in COMMAND.findall(typed)]

    @property
    def typed_and_printed(self):
        """Pairs of a command and what the page says it prints."""
        pieces = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        return [_divided(piece) for piece in pieces]


def _divided(piece):
    """A command goes on after a backslash, and inside quotes."""
    lines = piece.split("\n")
    for count in range(1, len(lines) + 1):
        typed = "\n".join(lines[:count]).replace("\\\n", " ")
        if not typed.endswith("\\") and typed.count('"') % 2 == 0:
            return typed, "\n".join(lines[count:])
    raise AssertionError(f"a quote is not closed: {piece}")


def blocks(*languages):
    """The pages' blocks in these languages."""
    return [
        Block(page, language, text, bool(runs))
        for page in PAGES
        for runs, language, text in FENCED.findall(page.read_text())
        if language in languages
    ]


def named(block):
    """A block's name in a test: its page, and how it begins."""
    begin = block.text.partition("\n")[0][:40]
    return f"{block.page.relative_to(ROOT)}: {begin}"
