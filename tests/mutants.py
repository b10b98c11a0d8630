"""Changes the code a little, many times, and counts how often a test notices.

`python -m tests.mutants [PACKAGE …] [--sample N] [--seed S] [--workers N]`

One change a time, drawn by chance from all there are in a package: a comparison, an operator, a
number, a condition turned round, a result or a statement left out. Which tests a line needs is
learned first, from one run of the package's tests under coverage; a line that only processes run by
tests execute gets the package's `jobs`. What is changed lies in a copy of the tree. Settings in
capitals, texts, what an exception says and annotations are let be: they are choices, not logic.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LEAST = 0.85  # of the mutants have to be noticed
ENOUGH_S = 12.0  # of tests for one mutant, the quickest first
PATIENCE_S = 60.0  # a test that hangs has noticed
MEMORY_BYTES = 16 << 30
LEARNED = "EVENSTEP_MUTANTS_LEARN"


class Package(NamedTuple):
    """Files to change, the tests that should notice, and those that run the code in processes."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    jobs: tuple[str, ...] = ()


PACKAGES = {
    "trace": Package(
        ("trace/**/*.py",),
        ("tests/trace", "tests/importers/test_operation_tables.py",
         "tests/importers/test_repetition.py", "tests/cli/test_sql.py"),
    ),
    "pacing": Package(("pacing/*.py",), ("tests/pacing",)),
    "agent": Package(("agent/**/*.py",), ("tests/agent",), ("tests/agent/test_agent.py",)),
    "hooks": Package(
        ("hooks/**/*.py",), ("tests/hooks",),
        ("tests/hooks/test_collectives.py", "tests/hooks/test_mpi.py", "tests/hooks/test_jax.py"),
    ),
    "graph": Package(
        ("diagnose/graph/*.py",),
        ("tests/diagnose/test_graph.py", "tests/diagnose/test_schedule.py",
         "tests/diagnose/test_attribution.py",
         "tests/diagnose/test_delays.py", "tests/diagnose/test_dynamics.py",
         "tests/diagnose/test_pieces.py", "tests/diagnose/test_transfer.py"),
    ),
    "engine": Package(
        ("simulate/wires/*.py", "simulate/job/engine.py"),
        ("tests/simulate/test_world.py", "tests/simulate/test_laws.py",
         "tests/simulate/test_network.py", "tests/simulate/test_neighbours.py",
         "tests/simulate/test_pipeline.py", "tests/simulate/test_priority.py"),
    ),
    "importers": Package(
        ("importers/**/*.py",), ("tests/importers",), ("tests/importers/test_recorded_sources.py",)
    ),
}  # fmt: skip


class Mutant(NamedTuple):
    """One change: the `index`-th of all that a file has."""

    package: str
    file: str
    line: int
    statement: range  # its lines: coverage knows only some of those that one takes
    index: int
    text: str  # what it is, for the list of survivors


OTHER: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.And: ast.Or, ast.Or: ast.And,
    ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """What could stand in a node's place."""
    match node:
        case ast.Compare(ops=[op, *_]) | ast.BinOp(op=op) | ast.BoolOp(op=op):
            if type(op) in OTHER and not _text(node):
                changed: Any = copy.copy(node)
                if isinstance(node, ast.Compare):
                    changed.ops = [OTHER[type(op)](), *node.ops[1:]]
                else:
                    changed.op = OTHER[type(op)]()
                yield changed
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=inner):
            yield inner
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.If() | ast.While() | ast.IfExp():
            turned = copy.copy(node)
            turned.test = ast.UnaryOp(ast.Not(), node.test)
            yield turned
        case ast.Return(value=ast.AST() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Break() | ast.Continue():
            yield OTHER[type(node)]()


def _text(node: ast.AST) -> bool:
    """A union of types or a sum of texts."""
    return any(
        isinstance(one, ast.Constant) and (one.value is None or isinstance(one.value, str))
        for one in ast.walk(node)
    ) and isinstance(node, ast.BinOp)


class Changes(ast.NodeTransformer):
    """Visits what may be changed; puts the `wanted`-th variant in its place."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.found = wanted, []  # type: ignore[var-annotated]

    def visit(self, node: ast.AST) -> Any:
        for variant in variants(node):
            self.found.append((node, variant))
            if len(self.found) - 1 == self.wanted:
                return variant
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return node
        if isinstance(node, ast.Assign | ast.AnnAssign) and _setting(node):
            return node
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(value, list):
                value[:] = [self.visit(one) if isinstance(one, ast.AST) else one for one in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node


def _setting(node: ast.Assign | ast.AnnAssign) -> bool:
    """A name in capitals, or what Python itself reads."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [one.id for one in targets if isinstance(one, ast.Name)]
    return bool(names) and all(name.isupper() or name.startswith("__") for name in names)


def mutants(package: str) -> list[Mutant]:
    """Everything that could be changed in a package."""
    found = []
    folder = ROOT / "src" / "evenstep"
    files = {path for glob in PACKAGES[package].sources for path in folder.glob(glob)}
    for path in sorted(files):
        changes, statements = Changes(), _statements(path.read_text())
        changes.visit(ast.parse(path.read_text()))
        for index, (before, after) in enumerate(changes.found):
            line = getattr(before, "lineno", 0)
            text = f"{_short(before)}  ->  {_short(after)}"
            statement = statements.get(line, range(line, line + 1))
            found.append(Mutant(package, str(path.relative_to(ROOT)), line, statement, index, text))
    return found


def _statements(text: str) -> dict[int, range]:
    """The lines of the innermost statement of each line; of one that has a body, its head."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            inner = getattr(node, "body", None)
            end = inner[0].lineno - 1 if inner else node.end_lineno or node.lineno
            lines = range(node.lineno, max(end, node.lineno) + 1)
            found |= dict.fromkeys(lines, lines)
    return found


def _short(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).partition("\n")[0][:70]


def changed(mutant: Mutant) -> str:
    """The file's text with the change."""
    tree = ast.parse((ROOT / mutant.file).read_text())
    return ast.unparse(ast.fix_missing_locations(Changes(mutant.index).visit(tree)))


# As a plugin of pytest (`-p tests.mutants`): learns which tests execute a line, and how long they
# take; without EVENSTEP_MUTANTS_LEARN it only keeps Hypothesis from making a failure small.

_took: dict[str, float] = {}


def pytest_configure(config: pytest.Config) -> None:
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", deadline=None, derandomize=True, phases=phases)
    settings.load_profile("mutants")
    if os.environ.get(LEARNED):
        import coverage

        watch = coverage.Coverage(data_file=None, config_file=False, source_pkgs=["evenstep"])
        watch.start()
        config.stash[_WATCH] = watch


_WATCH: pytest.StashKey[Any] = pytest.StashKey()


def _spent_s() -> float:
    """CPU time of this process and those it has seen end: the same on a busy machine."""
    return sum(os.times()[:4])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = _spent_s()
    if _WATCH in item.config.stash:
        item.config.stash[_WATCH].switch_context(item.nodeid)
    yield
    _took[item.nodeid] = _spent_s() - began


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _WATCH in session.config.stash:
        watch = session.config.stash[_WATCH]
        watch.stop()
        data = watch.get_data()
        lines = {
            str(Path(file).relative_to(Path.cwd())): data.contexts_by_lineno(file)
            for file in data.measured_files()
        }
        Path(os.environ[LEARNED]).write_text(json.dumps({"took": _took, "lines": lines}))


class Learned(NamedTuple):
    """Seconds of each test, and of each file's lines the tests that execute them."""

    took: dict[str, float]
    lines: dict[str, dict[str, list[str]]]

    def tests(self, mutant: Mutant) -> list[str]:
        """Quickest first, as many as fit; of a line no test executes itself, the jobs."""
        here = self.lines.get(mutant.file, {})
        rows = [here.get(str(line), []) for line in mutant.statement]
        names = {name for row in rows for name in row if name in self.took}
        if not names:
            whole = {name for row in here.values() for name in row if name in self.took}
            names = sorted(whole, key=self.took.__getitem__)[:30]
            jobs, folder = PACKAGES[mutant.package].jobs, Path(mutant.file).parent.name
            return [*([job for job in jobs if folder in Path(job).stem] or jobs), *names]
        chosen, spent = [], 0.0
        for name in sorted(names, key=self.took.__getitem__):
            if chosen and spent + self.took[name] > ENOUGH_S:
                break
            chosen.append(name)
            spent += self.took[name]
        return chosen


def tree(folder: Path) -> Path:
    """A copy of what is tracked or new, to be changed."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src"], cwd=folder, check=False)
    return folder


def environment(folder: Path) -> dict[str, str]:
    path = f"{folder / 'src'}{os.pathsep}{folder}"
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def learn(package: str, folder: Path) -> Learned:
    """Runs the package's tests once, under coverage."""
    file = folder / f"learned-{package}.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants", "-m", "not clock"]
    subprocess.run(
        [*command, *PACKAGES[package].tests], cwd=folder, check=False, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env=environment(folder) | {LEARNED: str(file)},
    )  # fmt: skip
    return Learned(**json.loads(file.read_text()))


def noticed(mutant: Mutant, tests: list[str], folder: Path) -> bool:
    """Whether a test fails, or none ends, with the change. Forks: what tests import is there."""
    if not tests:
        return False
    target = folder / mutant.file
    before = target.read_bytes()
    target.write_text(changed(mutant))
    for cached in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
        cached.unlink()
    child = os.fork()
    if child == 0:
        os.setsid()
        os._exit(_run(tests, folder))
    try:
        return _ended(child) != 0
    finally:
        target.write_bytes(before)


def _run(tests: list[str], folder: Path) -> int:
    silence = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(silence, number)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.chdir(folder)
    os.environ.update(environment(folder))
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(folder / "src"), str(folder)]
    for name in [one for one in sys.modules if one.partition(".")[0] in ("evenstep", "tests")]:
        del sys.modules[name]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants", "-m", "not clock"]
    return int(pytest.main([*options, *tests]))


def _ended(child: int) -> int:
    due = time.monotonic() + PATIENCE_S
    while time.monotonic() < due:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def work(share: list[tuple[Mutant, list[str]]]) -> list[tuple[Mutant, bool]]:
    """A worker's share, in a tree of its own."""
    for name in ("numpy", "torch", "scipy.stats", "hypothesis", "duckdb", "msgspec"):
        try:
            __import__(name)
        except ImportError:
            continue
    with tempfile.TemporaryDirectory() as folder:
        mine = tree(Path(folder))
        return [(mutant, noticed(mutant, tests, mine)) for mutant, tests in share]


def main() -> int:
    """0 where at least `LEAST` of each package's mutants were noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", help=f"of {', '.join(PACKAGES)}; default: all")
    parser.add_argument("--sample", type=int, default=40, help="mutants of a package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    result = 0
    for package in args.packages or PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            learned = learn(package, tree(Path(folder)))
        everything = mutants(package)
        drawn = random.Random(args.seed).sample(everything, min(args.sample, len(everything)))
        tasks = [(mutant, learned.tests(mutant)) for mutant in drawn]
        with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
            shares = [tasks[number :: args.workers] for number in range(args.workers)]
            outcome = [one for share in pool.map(work, shares, chunksize=1) for one in share]
        result |= report(package, outcome, len(everything), learned)
    return result


def report(
    package: str, outcome: list[tuple[Mutant, bool]], everything: int, learned: Learned
) -> int:
    """One line a package, and every mutant that nobody noticed."""
    killed = sum(seen for _, seen in outcome)
    share = killed / max(len(outcome), 1)
    print(
        f"{package}: {killed} of {len(outcome)} noticed ({share:.0%}), of {everything}", flush=True
    )
    survivors: dict[str, list[Mutant]] = defaultdict(list)
    for mutant, seen in outcome:
        if not seen:
            survivors[mutant.file].append(mutant)
    for file, rows in sorted(survivors.items()):
        for one in sorted(rows, key=lambda one: one.line):
            run = any(str(line) in learned.lines.get(file, {}) for line in one.statement)
            held = "" if run else "  (no test runs it)"
            print(f"  {file}:{one.line}  {one.text}{held}", flush=True)
    return int(share < LEAST)


if __name__ == "__main__":
    sys.exit(main())
