"""The package's own sources, parsed once for all tests that read them."""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

OLDEST = (3, 10)


@cache
def tree(path: Path) -> ast.Module:
    """As the oldest Python that the project names reads it."""
    with kept():
        return ast.parse(path.read_text("utf-8"), str(path), feature_version=OLDEST)


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of it, in the order of `ast.walk`."""
    whole = tree(path)
    with kept():
        return tuple(ast.walk(whole))


@contextmanager
def kept() -> Iterator[None]:
    """What is made here stays: searching it for garbage takes as long as making it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
