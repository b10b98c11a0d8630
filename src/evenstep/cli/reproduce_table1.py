"""`evenstep reproduce table1`: the paper's table beside the model's."""

from __future__ import annotations

import argparse
import csv
import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evenstep.cli import files
from evenstep.cli.arguments import add_files, add_json
from evenstep.cli.progress import counting, ticking
from evenstep.cli.terminal import show
from evenstep.errors import UsageError

SCHEMA = "evenstep.table1/1"
SEEDS, STEPS = 3, 4000
WIDTH = 80
ARMS = ("paper", "token")
TITLES = {"paper": "the paper's rule", "token": "token"}
LIMITS = (
    "The parameters are fitted to the baseline columns; everything under the other heads is "
    "predicted.",
    "Every job on the core follows the arm; a job sees its exchange as its last rank does. That "
    "all of them do is why the paper's rule gains: it takes contention for waiting, as any rank "
    "must that sees only its own collectives. In a job that has its links to itself it only costs; "
    "the token does nothing there.",
    "A sign, not a size: a model with two numbers fitted to five points says which way "
    "coordination goes, not how far.",
    "Each family is one account of the baseline among several; contention that another cause "
    "explains is not cured by pacing.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evenstep reproduce table1`."""
    add = parser.add_argument
    add_json(parser, "the tables")
    add_files(parser, csv="write the rows", svg="draw throughput, CV and a timeline of ranks")
    add("--seed", type=int, default=101, help="of the first world")
    add("--seeds", type=int, default=SEEDS, help=f"worlds averaged, {SEEDS} unless given")
    add("--steps", type=int, default=STEPS, help=f"of each job, {STEPS} unless given")
    add("--refit", action="store_true", help="search the fitted parameters again (minutes)")


def main(args: argparse.Namespace) -> int:
    """Predict both families, show them, and write what was asked for."""
    _check(args)
    from evenstep.reproduce import table_one

    families: list[dict[str, Any]] = []
    for family in table_one.FAMILIES:
        chosen = _refitted(family) if args.refit else family
        seeds = range(args.seed, args.seed + args.seeds)
        with counting(f"{family.name}: {{}} of {{}} sizes") as tell:
            rows = table_one.predict(chosen, seeds=seeds, steps=args.steps, progress=tell)
        shown = table_one.timelines(chosen, seed=args.seed, steps=args.steps)
        families.append({**table_one.to_json(chosen, rows), "timeline": shown})
    data = {
        "schema": SCHEMA,
        "reproduction": "table1",
        "source": table_one.SOURCE,
        "seeds": [args.seed, args.seed + args.seeds - 1],
        "steps": args.steps,
        "families": families,
        "limits": list(LIMITS),
    }
    show(data, lambda: "\n".join(_text(data)), as_json=args.json)
    if args.csv is not None:
        files.write(args.csv, _csv(families))
    if args.svg is not None:
        from evenstep.report.page.table_one_figure import draw

        files.write(args.svg, draw(families))
    return 0


def _refitted(family: Any) -> Any:
    from evenstep.reproduce import table_one

    with ticking(f"fitting {family.name}"):
        return table_one.fit(family)[0]


def _check(args: argparse.Namespace) -> None:
    for name, least in (("seeds", 1), ("steps", 200), ("seed", 0)):
        if getattr(args, name) < least:
            raise UsageError(f"--{name} must be at least {least}, found {getattr(args, name)}")
    files.check_free(args.csv, args.svg, force=args.force)


def _text(data: Mapping[str, Any]) -> Iterator[str]:
    yield f"{data['source']}: printed beside predicted (change of throughput, CV)"
    for family in data["families"]:
        yield ""
        yield from _family_text(family)
    yield ""
    for limit in data["limits"]:
        yield from textwrap.wrap(limit, WIDTH)


def _family_text(family: Mapping[str, Any]) -> Iterator[str]:
    from evenstep.report.terminal.style import table

    fitted, error = family["parameters"], family["fit_error"]
    yield (
        f"{family['family']}: {fitted['jobs']} jobs, η {fitted['goodput']:g}, exchange at 64 nodes "
        f"{fitted['exchange']:g} of compute"
    )
    yield (
        f"  fit: throughput off by {100 * error['throughput_rms']:.1f} % (rms; worst "
        f"{100 * error['throughput_worst']:+.1f} %), CV by {error['cv_rms']:.3f} (worst "
        f"{error['cv_worst']:+.3f})"
    )
    heads = ("baseline", "fitted", "printed gain", *(TITLES[arm] for arm in ARMS))
    rows = [("nodes", *heads), *((str(row["nodes"]), *_cells(row)) for row in family["rows"])]
    yield from table(rows, gap=" ")
    most = ", ".join(f"{100 * row['alone']['gain']:+.1f}" for row in family["rows"])
    yield f"  with the other jobs gone, the most there is: {most} %"
    for arm in ARMS:
        costs = ", ".join(f"{100 * row['lone'][arm]:+.1f}" for row in family["rows"])
        yield f"  {TITLES[arm]}, in a job alone on its links: {costs} %"
    for arm in ARMS:
        yield f"  {TITLES[arm]}, 64 nodes, 95 % over seeds: {_span(family['rows'][-1][arm])}"


def _span(figure: Mapping[str, Any]) -> str:
    if figure["low"] is None:
        return "unknown from one seed"
    gain, low, high = (100 * figure[key] for key in ("gain", "low", "high"))
    return f"{gain:+.1f} % ({low:+.1f} to {high:+.1f})"


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    printed = row["published"]
    yield f"{printed['baseline']:.0f} ({printed['baseline_cv']:.2f})"
    yield f"{row['baseline']['throughput']:.0f} ({row['baseline']['cv']:.2f})"
    gain = printed["coordinated"] / printed["baseline"] - 1
    yield f"{100 * gain:+.1f} % ({printed['coordinated_cv']:.2f})"
    for arm in ARMS:
        yield f"{100 * row[arm]['gain']:+.1f} % ({row[arm]['cv']:.2f})"


def _csv(families: Sequence[Mapping[str, Any]]) -> str:
    """One line per family, size and arm; the paper's own lines are called printed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["family", "nodes", "arm", "throughput_samples_per_s", "gain", "cv"])
    for family in families:
        for row in family["rows"]:
            printed, nodes = row["published"], row["nodes"]
            gain = printed["coordinated"] / printed["baseline"] - 1
            lines = [
                ("printed baseline", printed["baseline"], 0.0, printed["baseline_cv"]),
                ("printed coordination", printed["coordinated"], gain, printed["coordinated_cv"]),
            ]
            lines += [
                (arm, *(row[arm][key] for key in ("throughput", "gain", "cv")))
                for arm in ("baseline", *ARMS, "alone")
            ]
            for name, *values in lines:
                writer.writerow([family["family"], nodes, name, *(f"{v:.6g}" for v in values)])
    return out.getvalue()
