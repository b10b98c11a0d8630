"""Commands that predict a run, from a scenario or another run."""

from __future__ import annotations

from pathlib import Path

from evenstep import values
from evenstep.cli.arguments import Parser, argument, command, price, several, sizes

CONTROL = "strategy.kind=paced"
AXES = ("ranks", "jitter", "oversubscription", "load")


@command("simulate SCENARIO", "simulate a job that does not exist yet")
def simulate(parser: Parser) -> None:
    """Simulate a scenario: cluster, fabric, job and disturbances in one TOML file.

    With --out, the trace is written as a run folder that `evenstep diagnose` and every other
    command read like that of a live job. --set changes one field, as in --set cluster.nodes=64 or
    --set noise.0.sigma=0.05. --fields lists all fields, --presets the systems and models that a
    scenario can name in `preset`."""
    parser.value("scenario", "SCENARIO", Path, "", nargs="?")
    parser.several("--set", "NAME=VALUE", "change one field")
    parser.value("--out", "RUN", Path, "write the trace as a run folder")
    parser.files(html="diagnose the trace and write the report as a page")
    parser.json("the result")
    parser.flag("--fields", "list all fields of a scenario")
    parser.flag("--presets", "list systems and models")


@command("sweep SCENARIO", "simulate every combination of some values")
def sweep(parser: Parser) -> None:
    """Simulate a scenario with every combination of some values, on all cores of this machine or,
    with --engine ray, of a cluster.

      evenstep sweep job.toml --repeats 5 --out sweep --vary nodes=4,8,16 \\
          --vary fabric.oversubscription=1,2,4 --vary strategy=synchronous,paced

    Fields are named as in the scenario; nodes, ranks, placement, oversubscription, strategy,
    controller, algorithm, buckets, seed and steps can be given without their table. With --out
    every finished simulation is saved at once, and the same command resumes where it was stopped;
    results are byte-identical on every engine. Each repeat has its own seed; intervals are 95 % of
    the mean over repeats."""
    parser.value("scenario", "SCENARIO", Path, "")
    parser.several("--vary", "NAME=VALUE,…", "values of one field")
    parser.several("--set", "NAME=VALUE", "change one field in all simulations")
    parser.repeats(1)
    parser.value("--out", "DIR", Path, "save results here, and resume from them")
    parser.files(html="also write the results as a page")
    parser.json("the summary")
    parser.engine()
    parser.workers()


@command("scaling SCENARIO", "find how far a job scales, and its limit")
def scaling(parser: Parser) -> None:
    """Simulate a scenario at several sizes and report where its throughput peaks, and why.

    With weak scaling every rank keeps its batch; with strong scaling one batch is divided. Each
    size is also simulated with the changes of --control, shown as ratios to the first simulation.
    `bandwidth` is the prediction from bytes and link speeds alone.

      evenstep scaling job.toml --ranks 64,256,1024 --control strategy.kind=paced
      evenstep scaling job.toml --strong --target 1e9 --deadline 72"""
    parser.value("scenario", "SCENARIO", Path, "")
    ranks = "numbers of ranks (default: the scenario's, halved and doubled)"
    parser.value("--ranks", "N,N…", sizes, ranks)
    parser.flag("--strong", "strong scaling: one batch for all sizes")
    parser.several("--set", "NAME=VALUE", "change one field in all simulations")
    control = f"change of the second simulation, or none ({CONTROL})"
    parser.several("--control", "NAME=VALUE", control)
    amount = argument(values.number(0, above=True))
    parser.value("--target", "N", amount, "print hours and cost to process N samples (or steps)")
    deadline = "find the cheapest size that reaches --target in time"
    parser.value("--deadline", "HOURS", amount, deadline)
    parser.value("--price", "P", price, "price of one GPU for an hour")
    parser.repeats(1)
    parser.workers()
    parser.json("the curve")


@command("strategies SCENARIO", "compare ways to synchronize ranks")
def strategies(parser: Parser) -> None:
    """Simulate every synchronization strategy, collective algorithm and layout on a scenario's
    cluster and recommend one.

      evenstep strategies job.toml --limit cv=.1 --limit p99=250ms

    Limits: cv, p99 (step time; ms, s or us, else milliseconds), efficiency (at least) and staleness
    (mean updates). The default is CV at most 0.1. Margins tell how many ranks, how much jitter,
    oversubscription and other load an option tolerates before CV or efficiency crosses its limit.
    --write saves those settings of the recommendation that the agent can apply."""
    parser.value("scenario", "SCENARIO", Path, "")
    parser.several("--set", "NAME=VALUE", "change one field")
    parser.several("--limit", "NAME=VALUE", "only accept options within this limit")
    kind, margins = several(values.choice((*AXES, "none"))), ", ".join(AXES)
    what = f"margins to compute: {margins}; or none"
    parser.value("--margins", "AXIS,…", kind, what, ",".join(AXES))
    parser.workers()
    parser.files(write="write settings for the agent")
    parser.json("the table")


@command("calibrate TRACE", "fit a scenario to a measured run")
def calibrate(parser: Parser) -> None:
    """Fit a scenario to a measured run, simulate it, and show both step times.

    TRACE is any input of `evenstep diagnose`. Compute time of each phase and rank, noise
    distribution, garbage collection, buckets, sizes, and latency and bandwidth of the links are
    fitted to the trace. The scenario is written to -o FILE, or to standard output."""
    parser.value("trace", "TRACE", Path, "")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="write the scenario here")
    parser.flag("--force", "overwrite FILE")
    parser.json("scenario and fits")


@command("project TRACE…", "predict a run at other numbers of ranks")
def project(parser: Parser) -> None:
    """Predict throughput, CV and p99 of a measured run at other numbers of ranks.

    TRACE is any input of `evenstep diagnose`: a run folder, an attempt or a single trace. A model
    fitted to it predicts each value with an interval and lists what the trace cannot tell. Of
    several runs of one workload the largest is projected; the others show how contention grows with
    ranks."""
    parser.value("traces", "TRACE", Path, "", nargs="+")
    parser.value("--ranks", "N,N…", sizes, "sizes to predict: 8,16,64", required=True)
    what = "weak: every rank keeps its batch (default); strong: the same work for more ranks"
    parser.choice("--scaling", ("weak", "strong"), what, "weak")
    parser.json("the projection")
