"""Changes the code a little, many times, and counts how often a test notices.

`python -m tests.mutants [PACKAGE …] [--sample N] [--seed S] [--workers N]`

One change a time, drawn by chance from all there are in a package: a comparison, an operator, a
number, a condition turned round, a result or a statement left out. Which tests a line needs is
learned first, from one run of the package's tests and what they start under coverage, and kept
until its sources or tests change; a line that only forks and what is killed execute gets the
package's `jobs`. A test that fails with a change counts where it passes without, alone or behind
the same tests, and fails again.
What is changed lies in a copy of the tree. Settings in capitals, texts, what an exception says and
annotations are let be: they are choices, not logic.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
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
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LEAST = 0.85  # of the mutants have to be noticed
ENOUGH_S = 12.0  # of tests for one mutant, the quickest first
PATIENCE_S = 60  # of processor time: a test that never ends has noticed
STANDSTILL_S = 180.0  # the same of one that only waits; waiting for a processor does not count
MEMORY_BYTES = 16 << 30
LEARNED = "EVENSTEP_MUTANTS_LEARN"  # PACKAGE:FILE, to learn
CULPRIT = "EVENSTEP_MUTANTS_CULPRIT"  # the file that takes the name of the test that failed
KEPT = Path(tempfile.gettempdir()) / "evenstep-mutants"
#: Of a process that a test starts: `sitecustomize` beside the package while the tests of lines are
#: learned, with the place of its data and the files to watch.
WATCHED = """
import os
if test := os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]:
    import atexit, coverage
    watch = coverage.Coverage(
        data_file={!r}, data_suffix=True, config_file=False, include={!r}, context=test)
    watch.start()
    atexit.register(watch.save)
    atexit.register(watch.stop)
"""


class Package(NamedTuple):
    """Files to change, the tests that should notice, and those for lines of which it is not known
    which execute them: of processes, and of a module's own."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    jobs: tuple[str, ...] = ()


PACKAGES = {
    "trace": Package(
        ("trace/**/*.py",),
        ("tests/trace", "tests/importers/test_operation_tables.py",
         "tests/importers/test_opening.py", "tests/importers/test_repetition.py",
         "tests/cli/test_sql.py"),
        ("tests/docs/test_layout.py",),
    ),
    "pacing": Package(("pacing/*.py",), ("tests/pacing",)),
    "agent": Package(
        ("agent/**/*.py",), ("tests/agent", "tests/docs/test_configuration.py"),
        ("tests/docs/test_configuration.py", "tests/agent/test_arming.py",
         "tests/agent/test_agent.py"),
    ),
    "hooks": Package(
        ("hooks/**/*.py",), ("tests/hooks",),
        ("tests/hooks/test_collectives.py", "tests/hooks/test_mpi.py", "tests/hooks/test_jax.py"),
    ),
    "graph": Package(
        ("diagnose/graph/*.py",),
        ("tests/diagnose/graph", "tests/diagnose/test_graph.py", "tests/diagnose/test_schedule.py",
         "tests/diagnose/test_attribution.py", "tests/diagnose/test_micro_batches.py",
         "tests/diagnose/test_delays.py", "tests/diagnose/test_dynamics.py",
         "tests/diagnose/test_pieces.py", "tests/diagnose/test_pipeline_work.py",
         "tests/diagnose/test_transfer.py",
         "tests/diagnose/test_what_if_operations.py"),
    ),
    "engine": Package(
        ("simulate/wires/*.py", "simulate/job/engine.py"),
        ("tests/simulate/test_engine.py", "tests/simulate/test_world.py",
         "tests/simulate/test_laws.py", "tests/simulate/test_network.py",
         "tests/simulate/test_neighbours.py", "tests/simulate/test_pipeline.py",
         "tests/simulate/test_priority.py", "tests/simulate/test_strategies.py",
         "tests/simulate/test_link_worlds.py"),
    ),
    "importers": Package(
        ("importers/**/*.py",), ("tests/importers",), ("tests/importers/test_recorded_sources.py",)
    ),
    "modes": Package(("diagnose/modes/*.py",), ("tests/diagnose",)),
    "report": Package(
        ("report/**/*.py", "words.py", "diagnose/sentences.py"),
        ("tests/report", "tests/test_words.py", "tests/docs/test_principles.py"),
    ),
    "cli": Package(
        ("cli/**/*.py",),
        ("tests/cli", "tests/simulate/test_calibrate.py", "tests/report/test_live_tree.py"),
        ("tests/cli/test_run.py", "tests/cli/test_script.py", "tests/cli/test_selftest.py"),
    ),
    "watch": Package(
        ("watch/*.py",),
        ("tests/report/test_live_run.py", "tests/report/test_live_spool.py",
         "tests/report/test_live_terminal.py", "tests/report/test_live_tree.py",
         "tests/report/test_live_web.py", "tests/report/test_live_window.py",
         "tests/report/test_alerts.py", "tests/cli/test_watch.py", "tests/cli/test_deaths.py"),
    ),
    "scenario": Package(
        ("scenario/**/*.py",),
        ("tests/simulate/test_scenario.py", "tests/simulate/test_machines.py",
         "tests/simulate/test_presets.py", "tests/simulate/test_sweep.py",
         "tests/cli/test_simulate.py", "tests/docs/test_scenario.py"),
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
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return node
        for variant in variants(node):
            self.found.append((node, variant))
            if len(self.found) - 1 == self.wanted:
                return variant
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return node
        if isinstance(node, ast.keyword) and node.arg == "strict":  # as an assertion is
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
    named = [one for target in targets for one in getattr(target, "elts", [target])]
    names = [one.id if isinstance(one, ast.Name) else "" for one in named]
    return bool(names) and all(name.isupper() or name.startswith("__") for name in names)


def sources(package: str, root: Path) -> list[Path]:
    """The files of a package in a tree."""
    folder = root / "src" / "evenstep"
    return sorted({path for glob in PACKAGES[package].sources for path in folder.glob(glob)})


def mutants(package: str) -> list[Mutant]:
    """Everything that could be changed in a package."""
    found = []
    for path in sources(package, ROOT):
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


# As a plugin of pytest (`-p tests.mutants`): with EVENSTEP_MUTANTS_LEARN learns which tests execute
# a line, themselves or by a fixture that others share, and how long they take; else it names the
# test that fails and keeps Hypothesis from making a failure small.

_took: dict[str, float] = {}
_failed: set[str] = set()
_shared: dict[str, list[str]] = {}  # of each test the fixtures that it shares with others
_WATCH: pytest.StashKey[Any] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", deadline=None, derandomize=True, phases=phases)
    settings.load_profile("mutants")
    if package := os.environ.get(LEARNED, "").partition(":")[0]:
        import coverage

        files = [str(path) for path in sources(package, Path.cwd())]
        watch = coverage.Coverage(data_file=None, config_file=False, include=files)
        watch.start()
        config.stash[_WATCH] = watch


def _spent_s() -> float:
    """CPU time of this process and those it has seen end: the same on a busy machine."""
    return sum(os.times()[:4])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = _spent_s()
    if _WATCH in item.config.stash:
        item.config.stash[_WATCH].switch_context(item.nodeid)
        known = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
        _shared[item.nodeid] = [_name(one) for row in known for one in row if _is_shared(one)]
    yield
    _took[item.nodeid] = _spent_s() - began


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    watch = request.config.stash.get(_WATCH, None)
    if watch is None or not _is_shared(fixturedef):
        yield
        return
    watch.switch_context(_name(fixturedef))
    yield
    watch.switch_context(os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0])


def _is_shared(fixture: Any) -> bool:
    return str(fixture.scope) != "function"


def _name(fixture: Any) -> str:
    return f"fixture {fixture.argname} of {fixture.baseid}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    pytest_collectreport(report)


def pytest_collectreport(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)
        if file := os.environ.get(CULPRIT):
            Path(file).write_text(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _WATCH in session.config.stash:
        watch = session.config.stash[_WATCH]
        watch.stop()
        sharing = defaultdict(list)
        for test, fixtures in _shared.items():
            for fixture in fixtures:
                sharing[fixture].append(test)
        lines: Any = defaultdict(lambda: defaultdict(set))
        for data in (watch.get_data(), *map(_stored, Path.cwd().glob("watched.*"))):
            for file in data.measured_files():
                mine = lines[str(Path(file).relative_to(Path.cwd()))]
                for line, names in data.contexts_by_lineno(file).items():
                    mine[line].update(test for one in names for test in sharing.get(one, [one]))
        took = {test: spent for test, spent in _took.items() if test not in _failed}
        file = os.environ[LEARNED].partition(":")[2]
        Path(file).write_text(json.dumps({"took": took, "lines": lines}, default=sorted))


def _stored(file: Path) -> Any:
    """What a process that a test started has executed; nothing where it was killed meanwhile."""
    from coverage import CoverageData
    from coverage.exceptions import DataError

    data = CoverageData(str(file))
    with suppress(DataError):
        data.read()
    return data


class Learned(NamedTuple):
    """Seconds of each test, and of each file's lines the tests that execute them."""

    took: dict[str, float]
    lines: dict[str, dict[str, list[str]]]

    def tests(self, mutant: Mutant) -> list[str]:
        """As many as fit, then their neighbours, which may judge what was kept from the first use
        of a line; of a line no test executes itself, as what is run once, at import,
        the jobs, the tests of other lines of its file and those of the package."""
        here = self.lines.get(mutant.file, {})
        rows = [here.get(str(line), []) for line in mutant.statement]
        if names := {name for row in rows for name in row if name in self.took}:
            files = {name.partition("::")[0] for name in names}
            beside = {name for name in self.took if name.partition("::")[0] in files} - names
            return self._quickest(names, beside)
        whole = {name for row in here.values() for name in row if name in self.took}
        file, jobs = Path(mutant.file), PACKAGES[mutant.package].jobs
        far = {
            job: not {file.stem, file.parent.name} & set(Path(job).stem.split("_")) for job in jobs
        }
        return [*sorted(jobs, key=far.__getitem__), *self._quickest(whole, set(self.took) - whole)]

    def _quickest(self, *groups: set[str]) -> list[str]:
        """Of one group after the other, as many as fit: the quickest of each file, then the second
        of each, as the quickest of all often do no more than ask a command for its help."""
        chosen: list[str] = []
        spent = 0.0
        for some in groups:
            turns: Counter[str] = Counter()
            order = []
            for name in sorted(some, key=self.took.__getitem__):
                turns[name.partition("::")[0]] += 1
                order.append((turns[name.partition("::")[0]], self.took[name], name))
            for _, took, name in sorted(order):
                if not chosen or spent + took <= ENOUGH_S:
                    chosen.append(name)
                    spent += took
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


def learn(package: str) -> Learned:
    """Runs the package's tests once, under coverage; what did not change since is remembered."""
    KEPT.mkdir(exist_ok=True)
    file = KEPT / f"{package}-{_state(package)}.json"
    if not file.exists():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants", "-m", "not clock"]
        with tempfile.TemporaryDirectory() as folder:
            watched = [str(path) for path in sources(package, tree(Path(folder)))]
            child = WATCHED.format(f"{folder}/watched", watched)
            (Path(folder) / "src" / "sitecustomize.py").write_text(child)
            subprocess.run(
                [*command, *PACKAGES[package].tests], cwd=folder, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=environment(Path(folder)) | {LEARNED: f"{package}:{file}"},
            )  # fmt: skip
    return Learned(**json.loads(file.read_text()))


def _state(package: str) -> str:
    """A name of what the package's sources and tests are now."""
    tests = [ROOT / name for name in PACKAGES[package].tests]
    found = {path for test in tests for path in (test, *test.rglob("*.py")) if path.is_file()}
    found |= {ROOT / "tests" / "conftest.py", Path(__file__), *sources(package, ROOT)}
    digest = hashlib.sha256()
    for path in sorted(found):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Trials:
    """A worker's tree, in which one file after the other is changed and put back."""

    def __init__(self, folder: Path) -> None:
        self.folder = tree(folder)
        self._culprit = folder / "culprit"
        self._sound: dict[tuple[str, ...], bool] = {}  # whether these pass when nothing is changed

    def noticed(self, mutant: Mutant, tests: list[str]) -> bool:
        """Whether a test fails, or none ends, with the change: twice, and passes without it."""
        while tests:
            with self._changed(mutant):
                ended = self._ended(tests)
            if ended == 0:
                return False
            culprit = self._culprit.read_text() if self._culprit.exists() else ""
            for until in _reruns(tests, culprit):
                if self._are_sound(until):
                    with self._changed(mutant):
                        if self._ended(until) != 0:
                            return True
            if not culprit:
                return False
            file = culprit.partition("::")[0]  # the culprit itself where it cannot be collected
            whole = {one: one.partition("::")[0] for one in tests}
            tests = [one for one in tests if culprit not in (one, whole[one]) and one != file]
        return False

    def _are_sound(self, tests: list[str]) -> bool:
        """What fails behind others, or without their change, or by chance has noticed nothing.
        Raises `ValueError` where pytest knows one of them no more, as none would be run."""
        if (key := tuple(tests)) not in self._sound:
            ended = self._ended(tests)
            if (
                ended is not None
                and os.waitstatus_to_exitcode(ended) == pytest.ExitCode.USAGE_ERROR
            ):
                raise ValueError(f"tests have other names each time: among {', '.join(tests)}")
            self._sound[key] = ended == 0
        return self._sound[key]

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        target = self.folder / mutant.file
        before = target.read_bytes()
        target.write_text(changed(mutant))
        self._forget(target)
        try:
            yield
        finally:
            target.write_bytes(before)

    def _forget(self, target: Path) -> None:
        for cached in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
            cached.unlink()

    def _ended(self, tests: list[str]) -> int | None:
        """How pytest ended, None where it had to be ended. Forks: what tests import is there."""
        self._culprit.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os.setsid()
            os._exit(self._run(tests))
        due = time.monotonic() + STANDSTILL_S
        while time.monotonic() < due or time.monotonic() < due + _queued_s(child):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def _run(self, tests: list[str]) -> int:
        silence = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(silence, number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE_S, PATIENCE_S))
        os.chdir(self.folder)
        os.environ.update(environment(self.folder) | {CULPRIT: str(self._culprit)})
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(self.folder / "src"), str(self.folder)]
        anew = ("evenstep", "tests", "multiprocessing")  # the last: as in a process nobody spawned
        for name in [one for one in sys.modules if one.partition(".")[0] in anew]:
            del sys.modules[name]
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants", "-m", "not clock"]
        return int(pytest.main([*options, *tests]))


def _reruns(tests: list[str], culprit: str) -> list[list[str]]:
    """What to run again: the test that failed alone, as that is quick, then behind those before."""
    same = (one.startswith(culprit) or culprit.startswith(one) for one in tests)
    place = next((place for place, one in enumerate(same) if one), None) if culprit else None
    if place is None:
        return [tests]
    alone = max(culprit, tests[place], key=len)  # the other may be a file
    return [[alone], *([[*tests[:place], alone]] if place else [])]


def _queued_s(session: int) -> float:
    """How long the processes of a session have waited for a processor that others had."""
    waited = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if os.getsid(int(folder.name)) == session:
                tasks = folder.glob("task/*/schedstat")
                waited += max(int(one.read_text().split()[1]) for one in tasks)
    return waited / 1e9


def work(share: list[tuple[Mutant, list[str]]]) -> list[tuple[Mutant, bool]]:
    """A worker's share, in a tree of its own."""
    for name in ("numpy", "torch", "scipy.stats", "hypothesis", "duckdb", "msgspec"):
        try:
            __import__(name)
        except ImportError:
            continue
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder))
        return [(mutant, trials.noticed(mutant, tests)) for mutant, tests in share]


def main() -> int:
    """0 where at least `LEAST` of each package's mutants were noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", help=f"of {', '.join(PACKAGES)}; default: all")
    parser.add_argument("--sample", type=int, default=40, help="mutants of a package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    result = 0
    for package in args.packages or PACKAGES:
        learned = learn(package)
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
