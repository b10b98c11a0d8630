"""The topic of a whole step: compute, communication, waiting, and the share of compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.errors import UsageError
from evenstep.explain import links
from evenstep.explain.measures import (
    AMOUNT,
    POSITIVE,
    RANKS,
    RATIO,
    SHARE,
    SHARE_ABOVE_0,
    SIZE,
    TIME,
    TIME_ABOVE_0,
    choice,
)
from evenstep.explain.topic import Answer, CitedFormula, Parameter, Quantity, Topic
from evenstep.simulate.formulas import maxima, steps


def _compute_ns(values: Mapping[str, Any]) -> tuple[float, CitedFormula | None]:
    """Time of a rank's own work: given, or from the size of the model with its formula."""
    if values["compute_ns"] is not None:
        return float(values["compute_ns"]), None
    missing = [name for name in ("parameters", "tokens", "tflops") if values[name] is None]
    if missing:
        raise UsageError(
            f"explain efficiency needs --compute, or --parameters, --tokens and --tflops; "
            f"--{missing[0]} is missing"
        )
    recomputed = values["recompute"] == "yes"
    flops = steps.transformer_flops(values["parameters"], values["tokens"], recomputed=recomputed)
    text = f"compute = {8 if recomputed else 6}·P·D ÷ (peak × share reached)"
    source = "Kaplan et al. 2020" + ("; Narayanan et al. 2021" if recomputed else "")
    return flops / (values["tflops"] * 1e3 * values["mfu"]), CitedFormula(text, source)


def _bytes(values: Mapping[str, Any]) -> float:
    if values["bytes"] is not None:
        return float(values["bytes"])
    if values["parameters"] is None:
        raise UsageError("explain efficiency needs --bytes, or --parameters for 2 bytes each")
    return float(2 * values["parameters"] / values["model_ranks"])


def _efficiency(values: Mapping[str, Any]) -> Answer:
    ranks, model = values["ranks"], values["model_ranks"]
    (compute, derived), size, replicas = _compute_ns(values), _bytes(values), ranks // model
    if ranks % model:
        raise UsageError(f"--ranks {ranks} is no multiple of --model-ranks {model}")
    found = links.all_reduce(size, replicas, values)
    transfer = found.cost.time_ns * values["passes"]
    alone = steps.serial(compute=compute, transfer=transfer, hidden=values["hidden"])
    waiting = compute * values["cv"] * maxima.normal_exact(ranks)
    exposed = alone.exposed + values["other_ns"]
    step = compute + exposed + waiting
    rows = [
        Quantity("step_ns", step, "ns", "one step"),
        Quantity("compute_ns", compute, "ns", "a rank's own work"),
        Quantity("exposed_ns", exposed, "ns", "communication that nothing hides"),
        Quantity("waiting_ns", waiting, "ns", "for the slowest rank"),
        Quantity("efficiency", compute / step, "share", "of the step is compute"),
        Quantity("communication_ns", transfer + values["other_ns"], "ns", "before hiding any"),
        Quantity("communication_to_compute", (transfer + values["other_ns"]) / compute, "",
                 "communication ÷ compute"),
        Quantity("gradient_bytes", size, "bytes", "a rank exchanges once"),
        Quantity("replicas", replicas, "", "ranks that exchange them"),
    ]  # fmt: skip
    if derived is not None:
        rows.append(Quantity("of_peak", values["mfu"] * compute / step, "share",
                             "of the peak arithmetic of the machine is used"))  # fmt: skip
    text = "efficiency = c/(c + m(1−hidden) + other + cσE[max of n])"
    formulas = [found.formula, CitedFormula(text, "compute ÷ step; E[max] by quadrature")]
    notes = [f"Communication is counted {values['passes']:g} times an all-reduce."]
    return Answer(rows, formulas + ([derived] if derived else []), notes)


EFFICIENCY = Topic(
    "efficiency",
    "what share of a step is compute, at a size",
    (
        Parameter("ranks", RANKS, "all ranks of the job", required=True),
        Parameter("compute", TIME_ABOVE_0, "a rank's own work in a step"),
        Parameter("parameters", AMOUNT, "of the model, instead of --compute and --bytes"),
        Parameter("tokens", AMOUNT, "a step, per rank (with model parallelism: per rank's share)"),
        Parameter("tflops", POSITIVE, "peak of one rank in 10^12 FLOP/s"),
        Parameter("mfu", SHARE_ABOVE_0, "share of the peak reached while computing", "50%"),
        Parameter("recompute", choice("no", "yes"), "whether activations are recomputed", "no"),
        Parameter("bytes", SIZE, "a rank exchanges; 2 per parameter unless given"),
        Parameter("model-ranks", RANKS, "ranks that share one copy of the model", "1"),
        Parameter("passes", POSITIVE, "all-reduces' worth of traffic: 1.5 for fully sharded", "1"),
        *links.LINK,
        Parameter("hidden", SHARE, "share of the exchange that compute hides", "0"),
        Parameter("other", TIME, "other exposed communication of a step", "0"),
        Parameter("cv", RATIO, "standard deviation ÷ mean of a rank's own work", "0"),
    ),
    _efficiency,
    "--ranks 512 --compute 1.6s --bytes 20GB --gbps 200",
)  # fmt: skip
