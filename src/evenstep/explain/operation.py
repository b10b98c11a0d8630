"""Topics of long runs: failures, checkpoints, goodput."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evenstep import checkpoints
from evenstep.errors import UsageError
from evenstep.explain.measures import (
    COUNT,
    FACTOR,
    NUMBER,
    POSITIVE,
    RANKS,
    SHARE,
    TIME,
    TIME_ABOVE_0,
)
from evenstep.explain.topic import Answer, CitedFormula, Parameter, Quantity, Topic
from evenstep.simulate.formulas import reliability
from evenstep.simulate.formulas.reliability import Goodput, OperatingConditions, expected_goodput

_DALY = CitedFormula(
    "τ = √(2CM)(1 + ⅓√(C/2M) + C/(18M)) − C", "Daly 2006; √(2CM) alone is Young 1974"
)
_EXACT = CitedFormula(
    "useful = τ / (M e^(R/M) (e^((τ+C)/M) − 1))", "Daly 2006, exponential failures"
)
_SYMBOLS = "C write, M mean time between failures, R restart, τ work between checkpoints."


def _checkpoint(values: Mapping[str, Any]) -> Answer:
    write, mtbf, restart = values["write_ns"], values["mtbf_ns"], values["restart_ns"]
    best = checkpoints.best_interval(write, mtbf)
    interval = values["interval_ns"] or checkpoints.daly(write, mtbf)
    shares = checkpoints.shares(write, mtbf, interval=interval, restart=restart)
    waste = checkpoints.waste(write, mtbf, interval=interval, restart=restart)
    rows = [
        Quantity("young_ns", checkpoints.young(write, mtbf), "ns", "best interval, Young"),
        Quantity("daly_ns", checkpoints.daly(write, mtbf), "ns", "best interval, Daly"),
        Quantity("best_ns", best, "ns", "best interval, exact"),
        Quantity("interval_ns", interval, "ns", "interval used below"),
        Quantity("useful", shares.useful, "share", "of the time is useful"),
        Quantity("writing", shares.writing, "share", "goes into checkpoints"),
        Quantity("lost", shares.lost, "share", "is thrown away by failures"),
        Quantity("down", shares.down, "share", "goes into restarts"),
        Quantity("waste", waste, "share", "lost in all, first order: C/τ + τ/(2M) + R/M"),
    ]
    return Answer(rows, [_DALY, _EXACT], [_SYMBOLS])


def _failures(values: Mapping[str, Any]) -> Answer:
    per_node, gpus = values["gpus_per_node"], values["gpus"]
    rate = values["per_1000_node_days"]
    observed = [values[name] for name in ("interruptions", "days", "observed_gpus")]
    if rate is None and None in observed:
        raise UsageError(
            "give --per-1000-node-days, or --interruptions with --days and --observed-gpus"
        )
    if rate is None:
        nodes = math.ceil(values["observed_gpus"] / per_node)
        rate = values["interruptions"] / (nodes * values["days"]) * 1000
    mttf = reliability.mttf_ns(rate, gpus=gpus, gpus_per_node=per_node)
    known = mttf if math.isfinite(mttf) else None
    rows = [
        Quantity("mttf_ns", known, "ns", f"mean time to failure on {gpus:,} GPUs"),
        Quantity("mttf_hours", known and known / reliability.HOUR_NS, "h", "the same in hours"),
        Quantity("per_day", reliability.DAY_NS / mttf, "1/day", "interruptions a day"),
        Quantity("per_1000_node_days", rate, "", "failures per 1,000 node-days"),
    ]
    formula = CitedFormula("MTTF = 1000/(r·N) days, N nodes", "Kokolis et al. 2025, section 4")
    return Answer(rows, [formula], ["Failures are taken as independent, at a constant rate."])


def _goodput(values: Mapping[str, Any]) -> Answer:
    write, mtbf = values["write_ns"], values["mtbf_ns"]
    job = OperatingConditions(
        interval_ns=values["interval_ns"] or checkpoints.daly(write, mtbf),
        write_ns=write, mtbf_ns=mtbf, detect_ns=values["detect_ns"],
        restart_ns=values["restart_ns"],
        node_share=values["node_share"], repair_ns=values["repair_ns"], spares=values["spares"],
        slow_every_ns=values["slow_every_ns"] or math.inf, slowdown=values["slowdown"],
        notice_ns=values["notice_ns"],
    )  # fmt: skip
    result = expected_goodput(job)
    meanings = ("of the time is useful", "goes into checkpoints", "is thrown away by failures",
                "goes into noticing failures and restarts", "is spent waiting for a node",
                "is what slow nodes add")  # fmt: skip
    rows = [
        *(Quantity(name, value, "share", meaning)
          for name, value, meaning in zip(Goodput._fields, result, meanings, strict=False)),
        Quantity("reruns", result.reruns, "share", "of all work is done a second time"),
        Quantity("interruptions_per_day", result.interruptions_per_day, "1/day", "failures"),
        Quantity("interval_ns", job.interval_ns, "ns", "work between checkpoints"),
    ]  # fmt: skip
    formulas = [
        _EXACT,
        CitedFormula("waiting = ErlangB(spares + 1, node share × repair/M)", "Erlang 1917"),
        CitedFormula(
            "a node is slow for 1 − e^(−notice/every) of the time", "busy periods of M/D/∞"
        ),
    ]
    independent = "Spare nodes, slow nodes and failures are put together as if independent."
    return Answer(rows, formulas, [_SYMBOLS, independent])


_WRITE = Parameter("write", TIME_ABOVE_0, "how long a checkpoint holds the job up", required=True)
_MTBF = Parameter("mtbf", TIME_ABOVE_0, "mean time between failures of the job", required=True)
_RESTART = Parameter("restart", TIME, "from a failure until training goes on", "0")
_INTERVAL = Parameter("interval", TIME_ABOVE_0, "work between checkpoints; Daly's unless given")
CHECKPOINT = Topic(
    "checkpoint",
    "how often to save, and what failures cost",
    (_WRITE, _MTBF, _RESTART, _INTERVAL),
    _checkpoint,
    "--write 60s --mtbf 3h",
)
FAILURES = Topic(
    "failures",
    "how often a job of some size is interrupted",
    (
        Parameter("gpus", RANKS, "GPUs of the job", required=True),
        Parameter("gpus-per-node", RANKS, "GPUs of one node", "8"),
        Parameter("per-1000-node-days", NUMBER, "failures per 1,000 node-days"),
        Parameter("interruptions", COUNT, "or: interruptions seen"),
        Parameter("days", POSITIVE, "in so many days"),
        Parameter("observed-gpus", RANKS, "on so many GPUs"),
    ),
    _failures,
    "--gpus 16384 --per-1000-node-days 6.5",
)
GOODPUT = Topic(
    "goodput",
    "what is left for training after everything that interrupts it",
    (
        _WRITE, _MTBF, _RESTART, _INTERVAL,
        Parameter("detect", TIME, "from a failure until it is noticed", "0"),
        Parameter("node-share", SHARE, "of failures take a node out", "0"),
        Parameter("repair", TIME, "until such a node is back", "0"),
        Parameter("spares", COUNT, "spare nodes", "0"),
        Parameter("slow-every", TIME_ABOVE_0, "mean time between nodes turning slow"),
        Parameter("slowdown", FACTOR, "step time with a slow node ÷ without", "1"),
        Parameter("notice", TIME, "until a slow node is replaced", "0"),
    ),
    _goodput,
    "--write 60s --mtbf 3h --restart 10min --node-share 60% --repair 2d --spares 16",
)  # fmt: skip
