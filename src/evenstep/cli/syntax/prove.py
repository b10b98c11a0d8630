"""Commands that show on this machine that what evenstep says is true."""

from __future__ import annotations

from pathlib import Path

from evenstep import values
from evenstep.cli.arguments import (
    MOST_REPEATS,
    MOST_STEPS,
    Parser,
    argument,
    command,
    several,
    sizes,
    whole,
)


@command("selftest", "delay one rank by 50 ms and check that it is found")
def selftest(parser: Parser) -> None:
    """Delay one rank of a small job by 50 ms a step and check that evenstep finds it here.

    Without a launcher two ranks are started on this machine. Under a launcher (torchrun … -m
    evenstep selftest, srun python -m evenstep selftest) every rank takes part and the last one is
    delayed; rank 0 diagnoses the ranks whose traces it can read. The exit code is 0 if exactly the
    delayed rank was named, else 1."""
    parser.json("the outcome")
    parser.value("--out", "DIR", Path, "keep the trace of the job here")


@command("demo", "train a small job here and see who waits for whom")
def demo(parser: Parser) -> None:
    """Train a small GPT on this machine, without a GPU, and diagnose the runs.

    Four ranks train twice: first undisturbed, then with one rank that collects garbage inside
    backward, with pacing on. Every command is printed before it runs, so you can repeat it. Each
    run ends with its verdict, and its report page is written to the run folder."""
    out = "parent of the demo's folder (evenstep-runs)"
    parser.value("--out", "DIR", Path, out, Path("evenstep-runs"))
    parser.value("--steps", "N", whole(MOST_STEPS), "steps of each run (260)", 260)
    parser.json("the paths of runs and pages")


@command("reproduce NAME", "recompute a published result")
def reproduce(parser: Parser) -> None:
    """Recompute a published result and show it beside the published numbers.

    `evenstep reproduce NAME --help` lists the options of a result."""
    from evenstep.pacing import CONTROLLERS

    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    what = "throughput and CV at 4 to 64 nodes, and pacing"
    table: Parser = names.add_parser("table1", help=what, allow_abbrev=False)
    table.json("the tables")
    table.files(csv="write the rows", svg="draw throughput, CV and a timeline of ranks")
    table.value("--seed", "SEED", argument(values.count(0)), "first random seed (101)", 101)
    table.value("--seeds", "SEEDS", whole(MOST_REPEATS), "number of seeds to average (3)", 3)
    table.value("--steps", "STEPS", argument(values.count(200)), "steps of each job (4000)", 4000)

    what = "clusters × placement × coordination"
    worlds: Parser = names.add_parser("evaluation", help=what, allow_abbrev=False)
    worlds.value("--nodes", "N,…", sizes, "numbers of nodes", "4,8,16,32,64")
    what = "oversubscription of the fabric (1,2,4)"
    worlds.value("--oversubscription", "R,…", several(values.number(1)), what, "1,2,4")
    places = ("packed", "scattered", "random")
    what = f"of ranks on nodes: {', '.join(places)}"
    worlds.value("--placement", "NAME,…", several(values.choice(places)), what, "packed,scattered")
    what = "controllers (slack,paper)"
    worlds.value(
        "--coordination", "NAME,…", several(values.choice(CONTROLLERS)), what, "slack,paper"
    )
    worlds.repeats(5)
    worlds.value("--steps", "N", whole(MOST_STEPS), "steps of each run (400)", 400)
    worlds.workers()
    worlds.files(csv="write the rows")
    worlds.json("the rows")
