"""The package runs on every Python that the project says: nothing newer than the oldest is used."""

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.sources import OLDEST, nodes

ROOT = Path(__file__).parent.parent
#: Names of the standard library that came later; "" is the module itself.
NEWER = {
    "tomllib": {""}, "datetime": {"UTC"}, "enum": {"StrEnum", "ReprEnum", "verify"},
    "contextlib": {"chdir"}, "asyncio": {"TaskGroup", "timeout", "Runner"},
    "typing": {"Self", "Never", "assert_never", "LiteralString", "override", "Unpack", "Required"},
    "itertools": {"batched"}, "hashlib": {"file_digest"}, "http": {"HTTPMethod"},
    "math": {"cbrt", "exp2", "sumprod"}, "operator": {"call"}, "sys": {"exception", "monitoring"},
    "warnings": {"deprecated"}, "os": {"process_cpu_count", "unshare"},
    "builtins": {"ExceptionGroup", "BaseExceptionGroup"},
}  # fmt: skip
FILES = sorted(path for part in ("src", "lab") for path in (ROOT / part).rglob("*.py"))


def guarded(found: Iterable[ast.AST]) -> set[int]:
    """Lines of imports that are tried, or only for the type checker."""
    lines: set[int] = set()
    for node in found:
        if isinstance(node, ast.Try) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            lines |= {
                line for part in node.body for line in range(part.lineno, part.end_lineno + 1)
            }
    return lines


def newer(code: Sequence[ast.AST]) -> list[str]:
    """What is imported, or asked of a module, that the oldest Python has not."""
    safe, found = guarded(code), []
    for node in code:
        if getattr(node, "lineno", 0) in safe:
            continue
        if isinstance(node, ast.ImportFrom) and node.module in NEWER:
            names = {alias.name for alias in node.names} & (NEWER[node.module] | {""})
            found += [f"{node.module}.{name}" for name in names]
            found += [node.module] if "" in NEWER[node.module] else []
        elif isinstance(node, ast.Import):
            found += [one.name for one in node.names if "" in NEWER.get(one.name, ())]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NEWER.get(node.value.id, ()):
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Name) and node.id in NEWER["builtins"]:
            found.append(node.id)
    return found


def test_every_file_is_what_the_oldest_python_reads_and_has():
    wrong = {}
    for path in FILES:
        if names := newer(nodes(path)):
            wrong[str(path.relative_to(ROOT))] = names
    assert wrong == {}


def written(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


@pytest.mark.parametrize("source", ["import tomllib", "from typing import Self", "os.unshare(1)"])
def test_what_is_newer_is_seen(source):
    assert newer(written(source))


def test_what_is_tried_is_let_pass():
    assert not newer(written("try:\n    import tomllib\nexcept ImportError:\n    pass"))


def test_the_project_says_the_same():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'requires-python = ">={OLDEST[0]}.{OLDEST[1]}"' in text
    minors = [int(each) for each in re.findall(r"Python :: 3\.(\d+)", text)]
    assert minors == list(range(OLDEST[1], 15))
