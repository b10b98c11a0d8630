"""The package's own sources, parsed once for all tests that read them."""

import ast
from functools import cache
from pathlib import Path

OLDEST = (3, 10)


@cache
def tree(path: Path) -> ast.Module:
    """As the oldest Python that the project names reads it."""
    return ast.parse(path.read_text("utf-8"), str(path), feature_version=OLDEST)


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of it, in the order of `ast.walk`."""
    return tuple(ast.walk(tree(path)))
