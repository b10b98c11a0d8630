"""The numbers of each topic of `evenstep explain`, from its inputs by key.

`topics.toml` says what they mean. To add a topic: a function here and a table there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from evenstep import allreduce, checkpoints
from evenstep.allreduce import ALGORITHMS, Cost, Link
from evenstep.errors import UsageError
from evenstep.explain.topic import CitedFormula, Numbers, Worked
from evenstep.simulate import formulas

Values = Mapping[str, Any]


# -- moving bytes ----------------------------------------------------------------------------------

_HIERARCHICAL = CitedFormula(
    "T = 2S(g−1)/(gB_i) + 2(g−1)α_i + 2(N−1)α + 2S(N−1)/(N·g·B)",
    "rings inside N nodes of g ranks, then g rings between nodes, each of one rank's link",
)
_TORUS = CitedFormula("T = 2Σ(k_d−1)α + 2S(n−1)/(n·2d·B)", "Sack and Gropp 2015, multi-port torus")


def link(values: Values) -> Link:
    """The link of one rank; raises `UsageError` unless its speed is given exactly once."""
    gigabytes, gigabits = values["gBps"], values["gbps"]
    if (gigabytes is None) == (gigabits is None):
        raise UsageError(
            "give the link's speed once: --gBps in gigabytes per second or --gbps in gigabits "
            "(400 Gb/s are 50 GB/s)"
        )
    return Link(gigabits / 8 if gigabytes is None else gigabytes, values["latency_ns"])


def price(
    size_bytes: float, ranks: int, values: Values, name: str = ""
) -> tuple[CitedFormula, Cost]:
    """Formula and cost of an all-reduce, by the algorithm of this name or of the options."""
    name, wire = name or values["algorithm"], link(values)
    if name == "hierarchical":
        return _HIERARCHICAL, _hierarchical(size_bytes, ranks, wire, values)
    if name == "torus":
        return _TORUS, _torus(size_bytes, ranks, wire, values)
    text, source, cost = ALGORITHMS[name]
    return CitedFormula(text, source), cost(size_bytes, ranks, wire)


def _hierarchical(size_bytes: float, ranks: int, outer: Link, values: Values) -> Cost:
    per_node, speed = values["ranks_per_node"], values["node_gBps"]
    if not per_node or not speed:
        raise UsageError("--algorithm hierarchical needs --ranks-per-node and --node-gBps")
    if ranks % per_node:
        raise UsageError(
            f"--ranks {ranks} is no multiple of --ranks-per-node {per_node}; nodes must be full"
        )
    inner = Link(speed, values["node_latency_ns"])
    return allreduce.hierarchical(size_bytes, ranks // per_node, per_node, inner=inner, outer=outer)


def _torus(size_bytes: float, ranks: int, wire: Link, values: Values) -> Cost:
    shape = values["shape"]
    if not shape:
        raise UsageError("--algorithm torus needs --shape, such as 16x16x16")
    if (places := math.prod(shape)) != ranks:
        raise UsageError(
            f"--shape {'x'.join(map(str, shape))} has {places} places, but --ranks is {ranks}"
        )
    return allreduce.torus(size_bytes, shape, wire)


def explain_allreduce(values: Values) -> Worked:
    size, ranks, wire = values["bytes"], values["ranks"], link(values)
    formula, cost = price(size, ranks, values)
    each, count = cost.time_ns + values["launch_ns"], values["per_layer"] * values["layers"]
    numbers: Numbers = {
        "time_ns": each, "latency_ns": cost.latency_ns, "transfer_ns": cost.transfer_ns,
        "rounds": cost.rounds,
        "pass_ns": size / wire.gBps, "limit_ns": allreduce.limit_ns(size, wire.gBps),
        "bus_gBps": allreduce.bus_gBps(size, ranks, each) if each and ranks > 1 else None,
        "collectives": count, "total_ns": each * count,
    }  # fmt: skip
    others = [name for name in ALGORITHMS if name != "in-switch"]
    others += ["hierarchical"] * bool(values["ranks_per_node"] and values["node_gBps"])
    others += ["torus"] * bool(values["shape"])
    for name in others:
        if name != values["algorithm"]:
            _, other = price(size, ranks, values, name)
            numbers[f"{name.replace('-', '_')}_ns"] = other.time_ns + values["launch_ns"]
    notes = []
    if values["algorithm"] == "halving-doubling" and ranks & (ranks - 1):
        notes.append("With a number of ranks that is no power of two, folding the rest in adds up "
                     "to 2(α + S/B).")  # fmt: skip
    if values["latency_ns"] == 0:
        notes.append("Latency is taken as 0; give --latency to see when it matters.")
    return Worked(numbers, first=[formula], notes=notes)


def explain_busbw(values: Values) -> Worked:
    bus = allreduce.bus_gBps(values["bytes"], values["ranks"], values["time_ns"])
    numbers = {"algorithm_gBps": values["bytes"] / values["time_ns"], "bus_gBps": bus}
    if values["peak_gBps"]:
        numbers["share"] = bus / values["peak_gBps"]
    return Worked(numbers)


# -- a whole step ----------------------------------------------------------------------------------


def explain_efficiency(values: Values) -> Worked:
    ranks, model = values["ranks"], values["model_ranks"]
    (compute, derived), size, replicas = _compute_ns(values), _bytes(values), ranks // model
    if ranks % model:
        raise UsageError(f"--ranks {ranks} is no multiple of --model-ranks {model}")
    formula, cost = price(size, replicas, values)
    transfer = cost.time_ns * values["passes"]
    alone = formulas.serial(compute=compute, transfer=transfer, hidden=values["hidden"])
    waiting = compute * values["cv"] * formulas.normal_exact(ranks)
    exposed, communication = alone.exposed + values["other_ns"], transfer + values["other_ns"]
    step = compute + exposed + waiting
    numbers = {
        "step_ns": step, "compute_ns": compute, "exposed_ns": exposed, "waiting_ns": waiting,
        "efficiency": compute / step, "communication_ns": communication,
        "communication_to_compute": communication / compute, "gradient_bytes": size,
        "replicas": replicas,
    }  # fmt: skip
    if derived:
        numbers["of_peak"] = values["mfu"] * compute / step
    return Worked(numbers, first=[formula], last=derived)


def _compute_ns(values: Values) -> tuple[float, list[CitedFormula]]:
    """Time of a rank's own work: given, or from the size of the model with its formula."""
    if values["compute_ns"] is not None:
        return float(values["compute_ns"]), []
    missing = [name for name in ("parameters", "tokens", "tflops") if values[name] is None]
    if missing:
        raise UsageError(
            f"explain efficiency needs --compute, or --parameters, --tokens and --tflops; "
            f"--{missing[0]} is missing"
        )
    recomputed = values["recompute"] == "yes"
    flops = formulas.transformer_flops(
        values["parameters"], values["tokens"], recomputed=recomputed
    )
    text = f"compute = {8 if recomputed else 6}·P·D ÷ (peak × share reached)"
    source = "Kaplan et al. 2020" + ("; Narayanan et al. 2021" if recomputed else "")
    return flops / (values["tflops"] * 1e3 * values["mfu"]), [CitedFormula(text, source)]


def _bytes(values: Values) -> float:
    if values["bytes"] is not None:
        return float(values["bytes"])
    if values["parameters"] is None:
        raise UsageError("explain efficiency needs --bytes, or --parameters for 2 bytes each")
    return float(2 * values["parameters"] / values["model_ranks"])


# -- waiting for the slowest rank ------------------------------------------------------------------

_RARE = CitedFormula(
    "E = c + D·q, q = 1 − (1−p)^n, CV = D√(q(1−q))/E", "Bernoulli delays: at least one of n"
)
_NORMAL = CitedFormula("E[max] = μ + σ∫x d(Φ(x)^n)", "order statistics by quadrature")


def explain_slowest(values: Values) -> Worked:
    ranks, step, probability = values["ranks"], values["step_ns"], values["probability"]
    if probability is None and values["cv"] is None:
        raise UsageError("explain slowest needs --cv, or --probability with --delay")
    delay = values["delay_ns"]
    if delay is None and values["delay_share"] is not None:
        delay = values["delay_share"] * step
    if probability is None:
        numbers = _growth(
            lambda n: step * (1 + values["cv"] * formulas.normal_exact(n)), step, ranks
        )
        numbers |= {"lost": 1 - step / numbers["slowest_ns"], "beyond_p99": 1 - 0.99**ranks}
        return Worked(numbers, _facts(ranks), first=[_NORMAL])
    if delay is None:
        raise UsageError("rare delays need --probability and --delay (or --delay-share of a step)")

    def hit(n: int) -> formulas.RareHit:
        return formulas.rare_hit(n, compute=step, delay=delay, probability=probability)

    now = hit(ranks)
    growth = _growth(lambda n: hit(n).mean, hit(1).mean, ranks)
    numbers = {"chance": now.chance, **growth, "lost": 1 - step / now.mean, "cv": now.cv}
    return Worked(numbers, _facts(ranks), first=[_RARE])


def _growth(slowest: Callable[[int], float], mean: float, ranks: int) -> dict[str, float]:
    """What the step waits for, over what one rank takes, with these ranks and more."""
    now = slowest(ranks)
    more = {f"amplification_{by}x": slowest(by * ranks) / mean for by in (2, 4)}
    return {"slowest_ns": now, "mean_ns": mean, "amplification": now / mean, **more}


def _facts(ranks: int) -> dict[str, int]:
    return {"twice": 2 * ranks, "fourfold": 4 * ranks}


# -- long runs -------------------------------------------------------------------------------------


def explain_checkpoint(values: Values) -> Worked:
    write, mtbf, restart = values["write_ns"], values["mtbf_ns"], values["restart_ns"]
    interval = values["interval_ns"] or checkpoints.daly(write, mtbf)
    return Worked(
        {
            "young_ns": checkpoints.young(write, mtbf), "daly_ns": checkpoints.daly(write, mtbf),
            "best_ns": checkpoints.best_interval(write, mtbf), "interval_ns": interval,
            **checkpoints.shares(write, mtbf, interval=interval, restart=restart)._asdict(),
            "waste": checkpoints.waste(write, mtbf, interval=interval, restart=restart),
        }
    )  # fmt: skip


def explain_failures(values: Values) -> Worked:
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
    mttf = formulas.mttf_ns(rate, gpus=gpus, gpus_per_node=per_node)
    known = mttf if math.isfinite(mttf) else None
    hours = known and known / formulas.HOUR_NS
    per_day = formulas.DAY_NS / mttf
    return Worked(
        {"mttf_ns": known, "mttf_hours": hours, "per_day": per_day, "per_1000_node_days": rate}
    )


def explain_goodput(values: Values) -> Worked:
    given = {
        **values,
        "interval_ns": values["interval_ns"]
        or checkpoints.daly(values["write_ns"], values["mtbf_ns"]),
        "slow_every_ns": values["slow_every_ns"] or math.inf,
    }
    result = formulas.expected_goodput(formulas.OperatingConditions(**given))
    shares = result._asdict()
    per_day = shares.pop("interruptions_per_day")
    return Worked(
        {
            **shares, "reruns": result.reruns, "interruptions_per_day": per_day,
            "interval_ns": given["interval_ns"],
        }
    )  # fmt: skip
