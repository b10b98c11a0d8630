"""The diagnosis judged on a corpus that another hand wrote: `benchmarks.independent`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.independent.cases import ENTRIES, FINAL, TUNING, build
from benchmarks.independent.judge import Verdict, judged
from benchmarks.measure import Row

COMMAND = "python -m benchmarks independent_corpus"
ROWS = {
    "hosts": "hosts, no pipeline",
    "device": "on a device stream",
    "pipelines": "pipelines with messages",
    "terminal": "hang, restarts, staleness, several sizes",
}
MODE, CULPRITS, WITHIN, FALSE, CAUSES = 0.97, 0.98, 0.90, 0.02, 0.90


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--cases", type=int, default=2 * len(ENTRIES), help="how many to build")
    parser.add_argument("--final", action="store_true", help="the seeds that nobody tunes on")
    parser.add_argument("--first", type=int, default=0, help="skip so many of the range")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="part of ROW/STACK/WHERE/FAULT#N"
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="stamp devices as kernels begin, not as compute comes",
    )
    parser.add_argument("--wrong", action="store_true", help="list every wrong case")
    parser.add_argument(
        "--verdicts", type=Path, metavar="FILE", help="append all verdicts as JSON lines"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="verdicts of other runs")


def run(args: argparse.Namespace) -> list[Row]:
    """Build, diagnose and judge the cases; the rows of the table."""
    lines = [line for file in args.merge for line in file.read_text().splitlines()]
    verdicts = [Verdict(**json.loads(line)) for line in lines]
    if not args.merge:
        begin = (FINAL if args.final else TUNING) + args.first
        for verdict in _with_progress(range(begin, begin + args.cases), args):
            verdicts.append(verdict)
            _freeze(args.verdicts, verdict)
    if args.wrong:
        for verdict in verdicts:
            if not verdict.right:
                print(_described(verdict))
    given = [option for option in ("final", "kernels") if getattr(args, option)]
    return rows(verdicts, " --".join([COMMAND, *given]))


def _freeze(file: Path | None, verdict: Verdict) -> None:
    """Append a verdict at once: what was judged stays judged, whatever ends the run."""
    if file is not None:
        with file.open("a") as lines:
            lines.write(json.dumps(verdict.as_dict()) + "\n")


def _judge(number_only_and_kernels: tuple[int, str, bool]) -> Verdict | None:
    number, only, kernels = number_only_and_kernels
    case = build(number, only, kernels=kernels)
    return None if case is None else judged(case)


def _with_progress(numbers: Sequence[int], args: argparse.Namespace) -> Iterator[Verdict]:
    began, wrong, last = time.monotonic(), 0, 0.0
    work = [(number, args.only, args.kernels) for number in numbers]
    for done, verdict in enumerate(_mapped(_judge, work, args.processes), start=1):
        wrong += verdict is not None and not verdict.right
        now = time.monotonic() - began
        if now - last > 20 or done == len(work):
            last = now
            print(f"{done} of {len(work)}, {wrong} wrong, {now:.0f} s", file=sys.stderr, flush=True)
        if verdict is not None:
            yield verdict


def _mapped(function: Callable, work: Sequence, processes: int) -> Iterable:
    if processes < 2:
        return map(function, work)
    return ProcessPoolExecutor(processes).map(function, work)


def _described(verdict: Verdict) -> str:
    said = ", ".join(
        f"{one['mode']} {one['severity']:.3f} {_short(one['ranks'])}{_short(one['nodes'])}"
        for one in verdict.said[:4]
    )
    flags = {"mode": verdict.first, "culprits": verdict.culprits, "cost": verdict.cost}
    wrong = [name for name, good in flags.items() if good is False]
    wrong += ["false" for _ in verdict.false] + ["cause" for good in verdict.causes if not good]
    parts = "+".join(f"{part:.3f}" for part in verdict.parts) or "healthy"
    off = "" if verdict.error is None else f" off {verdict.error:+.0%}"
    return (
        f"{verdict.name} ({verdict.ranks} ranks) {parts}{off}: wrong {' '.join(wrong)} "
        f"{verdict.failed or ''}{verdict.false or ''}\n    said {said or 'nothing'}"
    )


def _short(values: Sequence[object]) -> str:
    shown = ",".join(map(str, values[:6])) + ("…" if len(values) > 6 else "")
    return f"[{shown}]" if values else ""


# -- the table -----------------------------------------------------------------------------------


def rows(verdicts: Sequence[Verdict], command: str) -> list[Row]:
    """One row of the results for each line of the table that has cases, and one for two causes."""
    found = []
    for row, title in ROWS.items():
        mine = [one for one in verdicts if one.row == row]
        if mine:
            found.append(_line(title, mine, command))
    causes = [good for one in verdicts for good in one.causes]
    if causes:
        found.append(
            Row(
                "independent corpus, two causes at once",
                f"each within 25 % of its Shapley value in ≥ {CAUSES:.0%}",
                f"{_of(causes)}",
                _share(causes) >= CAUSES,
                command,
            )
        )
    known = [one.identity for one in verdicts if one.identity is not None]
    if known:
        found.append(
            Row(
                "independent corpus, identity of the replay",
                "≤ 0.5 % on every trace",
                f"{max(known):.3%} at most over {len(known)}",
                max(known) <= 0.005,
                command,
            )
        )
    return found


def _line(title: str, verdicts: Sequence[Verdict], command: str) -> Row:
    first = [bool(one.first) for one in verdicts if one.first is not None]
    culprits = [bool(one.culprits) for one in verdicts if one.culprits is not None]
    cost = [bool(one.cost) for one in verdicts if one.cost is not None]
    clean = [not one.false and not one.failed for one in verdicts]
    healthy = [not one.false and not one.failed for one in verdicts if one.first is None]
    met = (
        _share(first) >= MODE
        and _share(culprits) >= CULPRITS
        and _share(cost) >= WITHIN
        and _share(clean) >= 1 - FALSE
    )
    return Row(
        f"independent corpus, {title}",
        f"mode first ≥ {MODE:.0%}, culprits ≥ {CULPRITS:.0%}, cost within 10 % in ≥ {WITHIN:.0%}, "
        f"false findings ≥ 5 % in ≤ {FALSE:.0%}",
        f"mode {_of(first)}, culprits {_of(culprits)}, cost {_of(cost)}, "
        f"no false finding {_of(clean)} (healthy {_of(healthy)})",
        met,
        command,
    )


def _of(good: Sequence[bool]) -> str:
    return f"{sum(good)}/{len(good)}"


def _share(good: Sequence[bool]) -> float:
    return sum(good) / len(good) if good else 1.0
