"""Is the right cause found? The diagnosis on labelled traces: modes, culprits, losses, silence."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from benchmarks.labelled import faults, simulated, worlds
from benchmarks.labelled.example import Judged, judged
from benchmarks.measure import Row
from evenstep.cli.arguments import Parser, engine_of
from evenstep.workers import Engine

RIGHT_MODE, RIGHT_CULPRIT, SILENT = 0.95, 0.98, 0.98
TOLERANCE = 0.10
HEALTHY = 4  # times as many seeds of every healthy kind
COMMAND = "python -m benchmarks corpus"
CORPORA = {"closed-form corpus": worlds, "simulated corpus": simulated}


def add_arguments(parser: Parser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--seeds", type=int, default=5, help="of every cause and severity")
    parser.add_argument("--first-seed", type=int, default=1000, help="below: used while tuning")
    parser.add_argument("--only", default="", help="causes whose name has this in it")
    parser.add_argument("--real", action="store_true", help="real gloo jobs instead: ten minutes")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2, 4], help="sizes of the real jobs"
    )
    parser.add_argument("--wrong", action="store_true", help="list what was judged wrongly")
    parser.engine()
    parser.workers("one for each core; real jobs need the machine, so 1")


class Batch(NamedTuple):
    """All examples of one corpus and seed, disturbed or healthy: what a worker judges."""

    number: int
    corpus: str
    sick: bool
    seed: int
    only: str


def run(args: argparse.Namespace) -> list[Row]:
    """Traces disturbed and healthy; the confusion matrix goes to standard error."""
    if args.real:
        sizes = tuple(args.ranks)
        corpus = f"real gloo jobs of {' and '.join(map(str, sizes))} ranks"
        sick = [judged(example) for example in faults.disturbed(sizes)]
        return _shown(sick, [judged(example) for example in faults.healthy(sizes, 3)], corpus, args)
    carrier = engine_of(args)
    return [row for corpus in CORPORA for row in _rows_of(corpus, carrier, args)]


def _rows_of(corpus: str, carrier: Engine, args: argparse.Namespace) -> list[Row]:
    """One corpus: a batch for each seed, judged by the engine's workers."""
    first = args.first_seed
    last = {True: first + args.seeds, False: first + HEALTHY * args.seeds}
    wanted = [(sick, seed) for sick in last for seed in range(first, last[sick])]
    batches = [Batch(n, corpus, sick, seed, args.only) for n, (sick, seed) in enumerate(wanted)]
    found = dict(carrier.carried(batches, judged_batch))
    disturbed, healthy = (
        [item for batch in batches if batch.sick is sick for item in found[batch.number]]
        for sick in (True, False)
    )
    return _shown(disturbed, healthy, corpus, args)


def judged_batch(batch: Batch) -> tuple[int, list[Judged]]:
    """The batch's number, and its examples judged, without what made their traces."""
    corpus, seeds = CORPORA[batch.corpus], range(batch.seed, batch.seed + 1)
    examples = (corpus.disturbed if batch.sick else corpus.healthy)(seeds, only=batch.only)
    return batch.number, [_without_trace(judged(example)) for example in examples]


def _without_trace(item: Judged) -> Judged:
    """The same without the function that made the trace, which no other process could be sent."""
    kept = partial(dict, findings=item.findings)
    return replace(item, example=replace(item.example, diagnosis=kept))


def _shown(
    sick: Sequence[Judged], healthy: Sequence[Judged], corpus: str, args: argparse.Namespace
) -> list[Row]:
    disturbed = [item for item in sick if item.counts]
    print(f"{corpus}\n{confusion([*disturbed, *healthy])}", file=sys.stderr)
    if args.wrong:
        print("\n".join(mistakes([*disturbed, *healthy])), file=sys.stderr, flush=True)
    return rows(disturbed, healthy, corpus)


def rows(disturbed: Sequence[Judged], healthy: Sequence[Judged], corpus: str) -> list[Row]:
    """The four bars."""
    modes = [item.right_mode for item in disturbed]
    culprits = [item.right_culprit for item in disturbed if item.right_culprit is not None]
    found = [
        _row(f"the injected cause comes first, {corpus}", RIGHT_MODE, modes),
        _row(f"just the culprits are named, {corpus}", RIGHT_CULPRIT, culprits),
        _row(
            f"nothing above 5 % in healthy traces, {corpus}",
            SILENT,
            [h.right_mode for h in healthy],
        ),
    ]
    errors = [abs(item.error) for item in disturbed if item.error is not None]
    return found + ([_losses(errors, corpus)] if errors else [])


def _losses(errors: Sequence[float], corpus: str) -> Row:
    within = [error <= TOLERANCE for error in errors]
    return Row(
        f"lost time attributed against injected, {corpus}",
        f"within {TOLERANCE:.0%}",
        f"within it in {sum(within)} of {len(within)}; median error "
        f"{sorted(errors)[len(errors) // 2]:.1%}, worst {max(errors):.1%}",
        all(within),
        COMMAND,
    )


def _row(what: str, bar: float, right: Sequence[bool]) -> Row:
    share = sum(right) / max(len(right), 1)
    shown = f"{share:.1%} ({sum(right)} of {len(right)})"
    return Row(what, f"≥ {bar:.0%}", shown, share >= bar, COMMAND)


def confusion(found: Iterable[Judged]) -> str:
    """A line per injected cause: what came first, how often."""
    table: dict[str, Counter[str]] = {}
    for item in found:
        injected = item.example.label.mode or "nothing"
        table.setdefault(injected, Counter())[item.first or "nothing"] += 1
    width = max(map(len, table), default=0)
    lines = [f"{'injected':{width}}  came first"]
    for injected, counts in table.items():
        shown = ", ".join(f"{mode} {number}" for mode, number in counts.most_common())
        lines.append(f"{injected:{width}}  {shown}")
    return "\n".join(lines)


def mistakes(found: Iterable[Judged]) -> list[str]:
    """Every example that was judged wrongly, with what was found."""
    lines = []
    for item in found:
        error = item.error
        if not item.right_mode or item.right_culprit is False or abs(error or 0) > TOLERANCE:
            heard = "; ".join(
                f"{f['mode']} {f['severity']:.3f} {f['where']['ranks']}" for f in item.findings[:3]
            )
            label = item.example.label
            wanted = f"{sorted(label.culprits or [])} lost {label.lost}"
            lines.append(f"{item.example.name}: {label.mode} {wanted} | {heard}")
    return lines
