"""How much hangs on each number: every constant of the diagnosis moved by half, verdicts compared.

A constant is a module-level number; its unit and origin are the comment behind or before it. A
verdict flips where another mode comes first among the findings that count, or other ranks are its
culprits. A trace is judged anew only where code that reads the constant ran on it, and opened anew
only where that was code that opens it.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import NamedTuple

import numpy as np

import evenstep
from benchmarks.independent.cases import build
from benchmarks.labelled import calm, worlds
from benchmarks.labelled.example import SEVERE
from benchmarks.measure import Row
from evenstep.diagnose.engine import find
from evenstep.diagnose.lateness.case import Case, Claims, open_case
from evenstep.trace.trace import Trace

COMMAND = "python -m benchmarks thresholds"
ROOT = Path(evenstep.__file__).parent
MOVED = (0.5, 1.5)
FLIPS = 0.01
LARGEST = 16_000  # records of a trace: larger ones take as long as all others together
SEVERITY, SEED = 0.15, 3  # of the closed-form corpus' examples, below the seeds of its final rows

MODES = {f"diagnose.modes.{path.stem}" for path in (ROOT / "diagnose/modes").glob("*.py")}

Said = tuple[str | None, tuple[int, ...]]


class Constant(NamedTuple):
    """A number, where it stands, and what is said of it."""

    module: str
    name: str
    value: float
    origin: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--only", default="", help="constants whose module.NAME has this in it")
    parser.add_argument("--cases", type=int, default=32, help="of the independent corpus")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write all of them there")


def run(args: argparse.Namespace) -> list[Row]:
    """Move each constant and count; the table goes to the file asked for."""
    every = list(constants())
    chosen = [one for one in every if args.only in f"{one.module}.{one.name}"]
    traces = (*closed_form(), *independent(args.cases))
    judged = [judge(trace) for trace in traces if len(trace.events) <= LARGEST]
    flips: dict[Constant, int] = {}
    for constant in chosen:
        flips[constant] = _flips(constant, judged)
        print(f"{flips[constant]:4} {constant.module}.{constant.name}", file=sys.stderr, flush=True)
    if args.table:
        whole = len(judged) * len(MOVED)
        counts = {one: f"{n} of {whole}" for one, n in flips.items()}
        args.table.write_text(table(every, {**counted(args.table, every), **counts}))
    worst = max(flips, key=lambda one: flips[one])
    share = flips[worst] / len(judged) / len(MOVED)
    over = sum(count > FLIPS * len(judged) * len(MOVED) for count in flips.values())
    return [
        Row(
            f"{len(every)} constants of the diagnosis, each moved by ±50 %, verdicts that flip",
            f"≤ {FLIPS:.0%} for any one",
            f"{share:.1%} at most ({worst.module}.{worst.name}); {over} of {len(flips)} above, "
            f"{len(judged)} traces",
            share <= FLIPS,
            COMMAND,
        )
    ]


# -- the constants ---------------------------------------------------------------------------------


def constants(package: str = "diagnose") -> Iterator[Constant]:
    """Numbers that modules name, in order of modules."""
    for path in sorted((ROOT / package).rglob("*.py")):
        text = path.read_text()
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(text).body:
            value = getattr(node, "value", None)
            names = _names(node)
            numbers = value.elts if isinstance(value, ast.Tuple) and len(names) > 1 else [value]
            origin = _origin(text.splitlines(), getattr(node, "lineno", 1) - 1)
            for one, number in zip(names, numbers, strict=False):
                if isinstance(number, ast.Constant) and type(number.value) in (int, float):
                    yield Constant(name, one, number.value, origin)


def _origin(lines: Sequence[str], at: int) -> str:
    """The comment behind a line, or else those before it that document it."""
    if behind := re.search(r"#\s*(.*)$", lines[at]):
        return str(behind[1])
    before = [*takewhile(lambda line: line.startswith("#:"), reversed(lines[:at]))]
    return " ".join(line.removeprefix("#:").strip() for line in reversed(before))


def _names(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    parts = targets[0].elts if targets and isinstance(targets[0], ast.Tuple) else targets
    return [one.id for one in parts if isinstance(one, ast.Name) and one.id.isupper()]


@contextmanager
def moved(constant: Constant, factor: float) -> Iterator[None]:
    """The constant times that, in its module and wherever it was imported from there."""
    home = importlib.import_module(f"evenstep.{constant.module}")
    users = [home, *_importers(home.__name__, constant.name)]
    value = constant.value * factor
    if 0 < constant.value < 1:  # a share or a quantile stays one
        value = min(value, 1.0)
    for user in users:
        setattr(user, constant.name, round(value) if isinstance(constant.value, int) else value)
    try:
        yield
    finally:
        for user in users:
            setattr(user, constant.name, constant.value)


def _importers(module: str, name: str) -> Iterable[ModuleType]:
    line = re.compile(rf"from {re.escape(module)} import (\([^)]*\b{name}\b|.*\b{name}\b)")
    for loaded in list(sys.modules.values()):
        file = getattr(loaded, "__file__", None)
        ours = file and file.startswith(str(ROOT)) and hasattr(loaded, name)
        if ours and line.search(Path(file).read_text()):
            yield loaded


def table(every: Sequence[Constant], flips: Mapping[Constant, str]) -> str:
    """All constants as a page; `flips`: how many verdicts each changed, and of how many."""
    head = (
        "# Every constant of the diagnosis\n\n"
        f"Written by `{COMMAND} --table benchmarks/thresholds.md`. Flips: how many verdicts change "
        "when it is halved or half as large again, and of how many; empty where it was not moved "
        "since it has this value. With `--only` the others keep the flips of earlier runs. "
        "Traces are closed-form worlds of every cause and healthy ones, and cases of the "
        "independent corpus.\n\n"
        "| constant | value | unit and origin | flips |\n| --- | --- | --- | --- |\n"
    )
    return head + "".join(f"{_cells(one)} {flips.get(one, '')} |\n" for one in every)


def _cells(one: Constant) -> str:
    return f"| `{one.module}.{one.name}` | {one.value:g} | {one.origin} |"


def counted(page: Path, every: Sequence[Constant]) -> dict[Constant, str]:
    """The flips that a page of an earlier run tells of constants that still have their values."""
    lines = page.read_text().splitlines() if page.exists() else []
    told = {tuple(line.split(" | ")[:2]): line.rpartition(" | ")[2] for line in lines}
    found = {one: told.get(tuple(_cells(one).split(" | ")[:2]), "") for one in every}
    return {one: text.removesuffix(" |") for one, text in found.items() if " of " in text}


# -- the traces ------------------------------------------------------------------------------------


def closed_form() -> Iterator[Trace]:
    """One example of every cause, and of every healthy kind."""
    for cause in worlds.CAUSES.values():
        trace = cause(np.random.default_rng([SEED, round(1000 * SEVERITY)]), SEVERITY).trace()
        if isinstance(trace, Trace):
            yield trace
    for kind in calm.KINDS.values():
        trace = kind(np.random.default_rng([SEED, 0])).trace()
        assert isinstance(trace, Trace)
        yield trace


def independent(cases: int) -> Iterator[Trace]:
    """The first cases of the independent corpus that are one run."""
    with tempfile.TemporaryDirectory(prefix="thresholds-") as folder:
        for number in range(cases):
            case = build(number, "")
            paths = case.write(Path(folder) / str(number)) if case else []
            if len(paths) == 1:
                yield evenstep.load(paths[0])


# -- verdicts --------------------------------------------------------------------------------------


class JudgedTrace(NamedTuple):
    """A trace opened and judged, with the names that the code which ran reads."""

    case: Case
    said: Said
    opening: frozenset[str]
    judging: frozenset[str]


def judge(trace: Trace) -> JudgedTrace:
    """Open and judge a trace, and note which names of which files were read."""
    case: list[Case] = []
    said: list[Said] = []

    def opened() -> None:
        case.append(open_case(trace))

    opening = names_read(opened)
    judging = names_read(lambda: said.append(verdict(case[0])))
    return JudgedTrace(case[0], said[0], opening, judging)


def names_read(run: Callable[[], None]) -> frozenset[str]:
    """Global names and attributes that our functions read which are called meanwhile."""
    codes: set[CodeType] = set()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    ours = (code for code in codes if code.co_filename.startswith(str(ROOT)))
    return frozenset(name for code in ours for name in code.co_names)


def verdict(case: Case) -> Said:
    """What comes first of the findings that count, and who is to blame."""
    fresh = copy(case)  # with what has been worked out of it
    object.__setattr__(fresh, "claims", Claims(case.grid.shape, case.delays.rest_ns))
    counting = [one for one in find(fresh) if one.severity > SEVERE]
    first = counting[0] if counting else None
    return (first.mode, tuple(sorted(first.where.ranks))) if first else (None, ())


def _flips(constant: Constant, judged: Sequence[JudgedTrace]) -> int:
    """Verdicts that change. A case is kept for constants of modes alone: what they read of it has
    been worked out."""
    count = 0
    for factor in MOVED:
        with moved(constant, factor):
            for one in judged:
                opening = constant.name in one.opening
                if not opening and constant.name not in one.judging:
                    continue
                kept = not opening and constant.module in MODES
                case = one.case if kept else open_case(one.case.trace)
                count += verdict(case) != one.said
    return count
