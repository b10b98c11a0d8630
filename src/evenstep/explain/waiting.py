"""Topics of waiting: for the slowest rank, asynchronous updates, and jobs on a shared link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.errors import UsageError
from evenstep.explain.measures import (
    COUNT,
    FACTOR,
    POSITIVE,
    RANKS,
    RATIO,
    SHARE,
    TIME,
    TIME_ABOVE_0,
    choice,
)
from evenstep.explain.topic import Answer, CitedFormula, Parameter, Quantity, Topic
from evenstep.simulate.formulas import contention, maxima, strategies

_RANKS = Parameter("ranks", RANKS, "ranks that wait for one another", required=True)
_STEP = Parameter("step", TIME_ABOVE_0, "mean time of one rank's own work in a step", "100ms")
_CV = Parameter("cv", RATIO, "standard deviation ÷ mean of that time")
_SYMBOLS = "n ranks, μ mean, σ = CV·μ; ranks and steps independent."


def _slowest(values: Mapping[str, Any]) -> Answer:
    if (values["wait_for"] or 0) > values["ranks"]:
        raise UsageError(f"--wait-for {values['wait_for']} is more than --ranks {values['ranks']}")
    kind = values["distribution"] or ("rare" if values["probability"] is not None else "normal")
    return _rare(values) if kind == "rare" else _draw(kind, values)


def _rare(values: Mapping[str, Any]) -> Answer:
    delay = values["delay_ns"]
    if delay is None and values["delay_share"] is not None:
        delay = values["delay_share"] * values["step_ns"]
    if delay is None or values["probability"] is None:
        raise UsageError("rare delays need --probability and --delay (or --delay-share of a step)")

    def hit(ranks: int) -> maxima.RareHit:
        return maxima.rare_hit(
            ranks, compute=values["step_ns"], delay=delay, probability=values["probability"]
        )

    now, one = hit(values["ranks"]), hit(1)
    rows = [
        Quantity("chance", now.chance, "share", "of steps have at least one delayed rank"),
        *_growth(lambda ranks: hit(ranks).mean, one.mean, values["ranks"]),
        Quantity("lost", 1 - values["step_ns"] / now.mean, "share", "of throughput lost"),
        Quantity("cv", now.cv, "share", "CV of the step time"),
    ]
    text = "E = c + D·q, q = 1 − (1−p)^n, CV = D√(q(1−q))/E"
    return Answer(rows, [CitedFormula(text, "Bernoulli delays: at least one of n")], [_SYMBOLS])


def _draw(kind: str, values: Mapping[str, Any]) -> Answer:
    mean = values["step_ns"]
    if kind == "normal" and values["cv"] is None:
        raise UsageError("explain slowest needs --cv, or --probability with --delay")
    if kind == "pareto" and values["alpha"] is None:
        raise UsageError("a Pareto distribution needs --alpha, above 1")

    def slowest(ranks: int) -> float:
        k = values["wait_for"] and values["wait_for"] * ranks // values["ranks"]  # the same share
        if kind == "exponential":
            return maxima.exponential(ranks, k, mean=mean)
        if kind == "pareto":
            alpha = values["alpha"]
            return maxima.pareto(ranks, k, alpha=alpha, smallest=mean * (alpha - 1) / alpha)
        return float(mean * (1 + values["cv"] * maxima.normal_exact(ranks, k)))

    ranks = values["ranks"]
    rows = [
        *_growth(slowest, mean, ranks),
        Quantity("lost", 1 - mean / slowest(ranks), "share", "of throughput lost"),
        Quantity("beyond_p99", 1 - 0.99**ranks, "share",
                 "of steps have a rank beyond its own 99th percentile"),
    ]  # fmt: skip
    if kind == "normal":
        blom = mean * (1 + values["cv"] * maxima.normal_blom(ranks, values["wait_for"]))
        rows.append(Quantity("blom_ns", blom, "ns", "the slowest by Blom's approximation"))
    return Answer(rows, [_FORMULAS[kind]], [_SYMBOLS])


def _growth(slowest: Any, mean: float, ranks: int) -> list[Quantity]:
    now = slowest(ranks)
    rows = [
        Quantity("slowest_ns", now, "ns", "what the step waits for, on average"),
        Quantity("mean_ns", mean, "ns", "what one rank takes"),
        Quantity("amplification", now / mean, "", "step ÷ one rank"),
    ]
    return rows + [
        Quantity(f"amplification_{factor}x", slowest(factor * ranks) / mean, "",
                 f"the same with {factor * ranks:,} ranks")
        for factor in (2, 4)
    ]  # fmt: skip


_FORMULAS = {
    "normal": CitedFormula(
        "E[max] = μ + σ∫x d(Φ(x)^n) ≈ μ + σΦ⁻¹((n−.375)/(n+.25))",
        "order statistics by quadrature; Blom 1958",
    ),
    "exponential": CitedFormula("E[max] = μ·H_n", "Rényi 1953"),
    "pareto": CitedFormula(
        "E[max] = x_m Γ(n+1)Γ(1−1/α)/Γ(n+1−1/α) ≈ x_m Γ(1−1/α) n^(1/α)", "Huang 1975"
    ),
}


def _staleness(values: Mapping[str, Any]) -> Answer:
    ranks, slow = values["ranks"], values["slow_ranks"]
    if slow >= ranks:
        raise UsageError(f"--slow-ranks {slow} must be fewer than the {ranks} ranks")
    step = values["step_ns"]
    times, counts = [step], [ranks - slow]
    if slow:
        times, counts = [step, step * values["slowdown"]], [ranks - slow, slow]
    result = strategies.asynchronous(times, counts)
    together = ranks / (max(times) * (1 + values["cv"] * maxima.normal_exact(ranks)))
    worst = max(result.by_time)
    rows = [
        Quantity("staleness", result.staleness, "updates", "mean age of a gradient"),
        Quantity("staleness_worst", worst, "updates", "of the slowest rank's gradients"),
        Quantity("rate_per_s", result.rate * 1e9, "1/s", "gradients applied per second"),
        Quantity("rate_ratio", result.rate / together, "", "÷ that of a synchronous job"),
        Quantity("stable_step_share", strategies.stable_step_share(result.staleness), "share",
                 "largest stable step size on a quadratic ÷ fresh; stability, not accuracy"),
    ]  # fmt: skip
    formulas = [
        CitedFormula("rate = Σ1/c_i; staleness of rank i = c_i Σ_{j≠i} 1/c_j, n−1 on average",
                "Mitliagkas et al. 2016"),
        CitedFormula("ηλ < 2 sin(π/(4τ+2))", "Levin and May 1976: delayed linear recursion"),
    ]  # fmt: skip
    if values["bound"] is not None:
        low, high = strategies.stale_synchronous(
            ranks, values["bound"], mean=max(times), cv=values["cv"]
        )
        rows += [
            Quantity("bounded_low_ns", low, "ns", "step time with the bound: at least"),
            Quantity("bounded_high_ns", high, "ns", "and at most"),
        ]
        formulas.append(CitedFormula("μ ≤ T ≤ μ + σE[max]/√(s+1)", "Ho et al. 2013, and a barrier "
                                "every s+1 steps"))  # fmt: skip
    return Answer(rows, formulas, [_SYMBOLS])


def _contention(values: Mapping[str, Any]) -> Answer:
    compute, transfer = values["compute_ns"], values["transfer_ns"]
    if compute + transfer == 0:
        raise UsageError("--compute and --transfer are both 0; a step takes some time")
    result = contention.drifting(compute, transfer, jobs=values["jobs"])
    alone = compute + transfer
    rows = [
        Quantity("step_ns", result.mean, "ns", "mean step time beside the other jobs"),
        Quantity("alone_ns", alone, "ns", "step time alone"),
        Quantity("lost", 1 - alone / result.mean, "share", "of throughput lost"),
    ]
    if values["jobs"] == 2:
        rows += [
            Quantity("cv", result.cv, "share", "CV of the step time"),
            Quantity("gap_ns", transfer**2 / result.mean, "ns",
                     "a neighbour slower by less than this is worth following"),
        ]  # fmt: skip
    text = "E[T] = c + m + m²/T; Var = (2m/T)(m²/3) − (m²/T)²"
    source = "two transfers x apart delay each other by m − x; uniform phase"
    if values["jobs"] != 2:
        text = "E[T] = c + R_J; R_J = m(1 + Q_{J−1}); Q_J = J·R_J/(c + R_J)"
        source = "mean value analysis of a shared link; Reiser and Lavenberg 1980"
    return Answer(
        rows, [CitedFormula(text, source)], ["c compute, m exposed communication, J jobs."]
    )


_CV_ZERO = _CV._replace(default="0")
SLOWEST = Topic(
    "slowest",
    "what waiting for the slowest of n ranks costs",
    (
        _RANKS, _STEP, _CV,
        Parameter("distribution", choice("normal", "exponential", "pareto", "rare"),
                  "normal, exponential, pareto or rare"),
        Parameter("alpha", POSITIVE, "tail of a Pareto distribution, above 1"),
        Parameter("probability", SHARE, "chance that a rank is delayed in a step"),
        Parameter("delay", TIME, "by how much"),
        Parameter("delay-share", RATIO, "the same as a share of --step"),
        Parameter("wait-for", RANKS, "wait for the first so many only"),
    ),
    _slowest,
    "--ranks 512 --cv 2%",
)  # fmt: skip
STALENESS = Topic(
    "staleness",
    "how old gradients are in asynchronous training",
    (
        _RANKS, _STEP, _CV_ZERO,
        Parameter("slow-ranks", COUNT, "ranks that are slower for good", "0"),
        Parameter("slowdown", FACTOR, "by this factor", "1"),
        Parameter("bound", COUNT, "steps a rank may be ahead (stale synchronous)"),
    ),
    _staleness,
    "--ranks 64 --cv 5% --bound 3",
)  # fmt: skip
CONTENTION = Topic(
    "contention",
    "jobs that share a link and drift past one another",
    (
        Parameter("compute", TIME, "compute of a step", required=True),
        Parameter("transfer", TIME, "exposed communication when alone", required=True),
        Parameter("jobs", RANKS, "jobs on the link", "2"),
    ),
    _contention,
    "--compute 1s --transfer 600ms",
)
