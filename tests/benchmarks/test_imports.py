"""Benchmarks and their jobs are run by hand: what they import has to be there all the same."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = {"benchmarks": ROOT, "lab": ROOT, "evenstep": ROOT / "src"}
SOURCES = sorted((ROOT / "benchmarks").rglob("*.py"))


def bound(path: Path) -> set[str]:
    """Names that a module binds, and the modules of a package."""
    found = {each.stem for each in path.parent.iterdir()} if path.name == "__init__.py" else set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and path.name == "__init__.py":
            found.add(str(node.value))  # of the table of what a package imports when asked for it
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_that_a_benchmark_imports_exist(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in HOMES:
            home = HOMES[node.module.partition(".")[0]] / node.module.replace(".", "/")
            source = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
            assert {name.name for name in node.names} <= bound(source), node.module
