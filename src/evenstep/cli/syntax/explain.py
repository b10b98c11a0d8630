"""Commands that read a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from evenstep.cli.arguments import Parser, address, command, price, severity, steps


@command("diagnose TRACE…", "report slow ranks, causes and fixes")
def diagnose(parser: Parser) -> None:
    """Report which rank, node or link a run waited for, the cost, the cause and the fix.

    Without TRACE, the latest run in ./evenstep-runs is diagnosed; a folder of several is listed.
    The report has fifteen lines; --verbose prints all of it, --html FILE writes a page.

    A TRACE is EXPECTED: one file per rank or a folder of them, compressed or not. The format is
    detected from the content. Files of one format form one trace, and so do the spools of one
    attempt; each folder is a trace of its own. Several traces are diagnosed one by one; runs of
    different sizes are also diagnosed together. With several traces --json prints a list. Logs of
    nccl-tests or of NCCL_DEBUG=INFO beside a trace tell the speed that its fabric can reach.

    The exit code is 1 if the severity of a finding (its share of step time) is above --fail-above.
    --workers and --engine ray diagnose several traces in parallel; one trace is never split."""
    from evenstep.importers.opening import EXPECTED

    parser.description = (parser.description or "").replace("EXPECTED", EXPECTED)
    parser.value("traces", "TRACE", Path, "", nargs="*")
    form = parser.add_mutually_exclusive_group()
    parser.json("the diagnosis", form)
    form.add_argument("--verbose", "-v", action="store_true", help="print the full report")
    form.add_argument("--markdown", action="store_true", help="print Markdown for a chat or issue")
    parser.files(html="also write the report as a page")
    names = "replace host names by node-0, node-1 …, and leave out paths and user names"
    parser.flag("--anonymise", names)
    parser.value("--fail-above", "SHARE", severity, "exit with 1 above this severity (0.05)", 0.05)
    floors = "speeds of these nodes measured by evenstep probe or nccl-tests, to compare with"
    parser.several("--floors", "FILE", floors, Path)
    money = "also print the cost of waiting and restarts in money"
    parser.value("--price-per-rank-hour", "MONEY", price, money)
    changes = "rank:3=median, op:all_reduce=floor, gc=off …; several are answered one by one"
    parser.several("--what-if", "SPEC", f"predict the gain of a change: {changes} and together")
    parser.engine()
    parser.workers("1; each diagnoses one trace at a time")


@command("explain [TOPIC] …", "explain a failure mode or a formula")
def explain(parser: Parser) -> None:
    """Explain a failure mode, or compute a quantity of distributed training from its formula.

    `evenstep explain` lists all topics. A failure mode is explained by symptom, what to look at,
    remedy and how to confirm. A quantity takes options, which `evenstep explain TOPIC --help`
    lists, and prints numbers, formula and source:

      evenstep explain straggler
      evenstep explain allreduce --bytes 20GB --gBps 50 --ranks 512
      evenstep explain efficiency --preset data-parallel-512
      evenstep explain published"""
    meaning = "a failure mode or a quantity"
    words = parser.add_argument("words", metavar="TOPIC", nargs=argparse.PARSER, help=meaning)
    words.required = False
    parser.json("the answer")


@command("compare A B…", "report what changed between runs")
def compare(parser: Parser) -> None:
    """Report what changed between runs, with confidence intervals, and whether it is better.

    The first TRACE is the baseline; every other one is compared with it: throughput, step time, CV
    and percentiles, shares of step time, and each finding, all with 95 % intervals. A change whose
    interval includes zero (or 0.1 %) is reported as "no evidence". The difference of the mean step
    is split into parts that add up to it: compute, floor (transfers as in quiet steps), contention,
    wait, locality, input, other.

    --fail-if NAME:LIMIT exits with 1 if a run is worse than the baseline by more than LIMIT and
    noise alone does not explain it: slower:2%, p99:10%, cv:20% are relative; wait:3%,
    communication:3%, input:3% and finding:3% are percentage points of step time. Repeat the option
    or separate several with commas."""
    parser.value("traces", "TRACE", Path, "", nargs="+")
    parser.json("the comparison")
    parser.files(html="also write the comparison as a page")
    parser.flag("--normalised", "show ratios to the baseline only, no absolute numbers")
    limit = "exit with 1 if a run is worse by more: slower:2%%, p99:10%%, finding:3%% …"
    parser.several("--fail-if", "NAME:LIMIT", limit)


@command("history DIR", "report how step time and cost of runs developed")
def history(parser: Parser) -> None:
    """Report how step time and cost of the runs in a folder developed.

    DIR holds run folders (or folders of them). For each run: attempts, step time and CV as
    `evenstep diagnose` reports them, rank-hours per 1000 units of progress, and joules per unit
    where the accelerators measure energy; below it, unless the run is healthy, the first finding
    and its share of step time. A unit is a sample if the batch size is known, else a step; steps
    repeated after a restart cost time but are no progress. Runs of one script with equally many
    ranks are compared as re-runs: their spread and trend are reported with intervals."""
    parser.value("folder", "DIR", Path, "")
    parser.json("the history")
    parser.value("--price-per-rank-hour", "MONEY", price, "also print costs in money")


@command("export RUN", "write a run in the formats of other tools")
def export(parser: Parser) -> None:
    """Write a run in the formats of other tools; several formats can be written at once.

    RUN is any input of `evenstep diagnose`: a run folder, an attempt, a spool or another tool's
    trace. `-` as FILE is standard output. With --anonymise the output has no host names, paths or
    user names. --serve exposes Prometheus metrics while the job runs; start it once on each node.
    :PORT listens on localhost only; with any other address (0.0.0.0:PORT) requests must send the
    bearer token that is printed at start, or that of EVENSTEP_METRICS_TOKEN."""
    parser.value("run", "RUN", Path, "", nargs="?")
    parser.value("--perfetto", "FILE", Path, "a timeline for ui.perfetto.dev")
    parser.value("--steps", "A-B", steps, "write only these steps with --perfetto")
    parser.value("--parquet", "DIR", Path, "events, steps and findings as tables")
    parser.value("--store", "DIR", Path, "the whole trace as a compact store for `sql`")
    parser.value("--prometheus", "FILE", Path, "metrics for a textfile collector")
    parser.value("--serve", "HOST:PORT", address, "serve /metrics until interrupted")
    parser.value("--otlp", "URL", str, "push metrics to an OpenTelemetry collector, OTLP/HTTP JSON")
    parser.value("--webhook", "URL", str, "POST every finding above --above as JSON")
    parser.value("--above", "SHARE", severity, "lowest severity that --webhook sends (0.05)", 0.05)
    parser.value("--wandb", "PROJECT", str, "scalars to Weights & Biases, if installed")
    parser.value("--mlflow", "EXPERIMENT", str, "scalars to MLflow, if installed")
    parser.value("--tensorboard", "DIR", str, "scalars as TensorBoard events, if installed")
    parser.flag("--json", "print the diagnosis as JSON")
    schema = "print the JSON schema of a result (default: diagnosis)"
    parser.value("--json-schema", "NAME", str, schema, nargs="?", const="diagnosis")
    parser.flag("--anonymise", "no host names, paths or user names")
    parser.flag("--force", "overwrite existing output")


@command("sql QUERY RUN", "query a run in SQL")
def sql(parser: Parser) -> None:
    """Query a run in SQL.

        evenstep sql "select rank, median(step_ns) / 1e6 as ms from steps
                      group by rank order by ms" RUN

    RUN is any input of `evenstep diagnose`, or a store (`evenstep export RUN --store DIR`), of
    which only the parts that the query needs are read. --tables lists tables and columns. The SQL
    dialect is DuckDB's; traces are read-only. Without --json or --csv the first rows are printed as
    a table."""
    parser.value("query", "QUERY", str, "one SELECT", nargs="?")
    parser.value("run", "RUN", Path, "", nargs="?")
    parser.flag("--tables", "list tables and columns")
    form = parser.add_mutually_exclusive_group()
    parser.json("the rows", form)
    form.add_argument("--csv", action="store_true", help="print the rows as CSV")
