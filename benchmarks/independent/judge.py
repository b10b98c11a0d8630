"""A diagnosis beside the truth: which of its answers are right. It reads JSON and nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.independent.case import WORTH, Case
from benchmarks.independent.faults import Fault
from benchmarks.independent.job import Job

COST, CAUSE = 0.10, 0.25  # relative errors that are still right: of one loss, of one of two

#: What each mode of structure is removed by; see the rules in the package's docstring.
_STRUCTURE: Mapping[str, tuple[str, ...]] = {
    "synchronization_amplification": ("even_noise", "even_spread"),
    "straggler": ("even_spread",),
    "locality": ("even_spread",),
    "workload_imbalance": ("even_spread",),
    "bandwidth_bound": ("no_transfer",),
    "latency_bound": ("no_latency",),
    "fabric_contention": ("even_transfer",),
    "collective_topology_mismatch": ("even_transfer",),
    "incast": ("even_transfer",),
}

_OF_THE_FABRIC = ("fabric_contention", "collective_topology_mismatch", "incast")


@dataclass
class Verdict:
    """How one case was answered; None: not asked."""

    name: str
    row: str
    ranks: int
    loss: float
    modes: list[list[str]]
    parts: list[float]
    said: list[dict[str, Any]]
    first: bool | None = None
    culprits: bool | None = None
    cost: bool | None = None
    error: float | None = None  # of the cost, relative
    causes: list[bool] = field(default_factory=list)
    false: dict[str, float] = field(default_factory=dict)
    failed: str = ""
    identity: float | None = None

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        asked = (self.first, self.culprits, self.cost, *self.causes)
        return not self.failed and all(one is not False for one in asked) and not self.false

    def as_dict(self) -> dict[str, Any]:
        """For a file of all verdicts."""
        return asdict(self)


def diagnosed(paths: Sequence[Path]) -> Any:
    """What `evenstep diagnose … --json` prints of these traces."""
    from evenstep.cli.main import main

    out, log = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(log):
        code = main(["diagnose", *map(str, paths), "--json"])
    if code not in (0, 1):
        raise RuntimeError(f"exit code {code}: {log.getvalue().strip()[-400:]}")
    return json.loads(out.getvalue())


def judged(case: Case) -> Verdict | None:
    """The verdict on one case; None where it loses too little to be asked about."""
    if case.faults and case.loss < WORTH:
        return None
    verdict = Verdict(
        case.name, case.row, case.spec.world, case.loss, [list(f.modes) for f in case.faults],
        list(case.parts), [],
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="independent-") as folder:
        paths = case.write(Path(folder))
        try:
            found = diagnosed(paths)
        except Exception as error:  # a crash is a wrong answer, and the corpus goes on
            verdict.failed = f"{type(error).__name__}: {error}"
            verdict.first = False if case.faults else None
            return verdict
    found = (
        found[-1] if isinstance(found, list) else found
    )  # of several runs: what they say together
    verdict.said = [_said(finding) for finding in found["findings"]]
    verdict.identity = _identity(found)
    if len(case.faults) == 1:
        _one_cause(verdict, case, case.faults[0])
    elif case.faults:
        _two_causes(verdict, case)
    verdict.false = (
        _false(verdict.said, case) if case.row != "terminal" else _unasked(verdict.said, case)
    )
    return verdict


def _said(finding: Mapping[str, Any]) -> dict[str, Any]:
    where = finding.get("where") or {}
    gains = [option for option in finding.get("options") or [] if option.get("gain") is not None]
    return {
        "low": (gains[0].get("low") if gains else None) or 0.0,
        "high": (gains[0].get("high") if gains else None) or 0.0,
        "mode": finding["mode"],
        "severity": finding.get("severity") or 0.0,
        "ranks": list(where.get("ranks") or []),
        "nodes": list(where.get("nodes") or []),
    }


def _identity(found: Mapping[str, Any]) -> float | None:
    """By how much the replay misses the run it replays, where the diagnosis says so."""
    summary = found.get("summary") or {}
    for key in ("replay_error", "identity_error", "unexplained"):
        if isinstance(summary.get(key), int | float):
            return float(summary[key])
    return None


def _one_cause(verdict: Verdict, case: Case, fault: Fault) -> None:
    said = verdict.said
    first = _first(said, case)
    verdict.first = first is not None and first["mode"] in fault.modes
    if first is None or not verdict.first:
        return
    job = case.recorded
    verdict.culprits = fault.named(first["ranks"], first["nodes"], job)
    if case.row == "terminal":
        return
    low, high = case.band
    severity = _severity(said, fault, job)
    verdict.error = severity / low - 1 if severity < low else max(severity / high - 1, 0.0)
    verdict.cost = abs(verdict.error) <= COST
    if case.unknown:  # then the interval is the answer
        verdict.cost &= first["low"] <= case.loss <= first["high"]


def _first(said: Sequence[Mapping[str, Any]], case: Case) -> Mapping[str, Any] | None:
    """The first finding, structure passed over that is in the job and truly costs more."""
    accepted = {mode for fault in case.faults for mode in fault.modes}
    for one in said:
        structural = one["mode"] in _STRUCTURE and one["mode"] not in accepted
        if case.row == "terminal" or not structural:
            return one
        if structure(case, one["mode"]) < max(case.parts):
            return one
    return None


def _severity(said: Sequence[Mapping[str, Any]], fault: Fault, job: Job) -> float:
    """What all findings of a fault's modes cost that blame those at fault."""
    mine = [one for one in said if one["mode"] in fault.modes]
    return sum(
        one["severity"] for one in mine if fault.named(one["ranks"], one["nodes"], job) is not False
    )


def _two_causes(verdict: Verdict, case: Case) -> None:
    causes = [pair for pair in zip(case.faults, case.parts, strict=True) if pair[1] >= WORTH]
    wanted = {mode for fault, _ in causes for mode in fault.modes}
    first = _first(verdict.said, case)
    verdict.first = first is not None and first["mode"] in wanted
    for fault, part in causes:
        severity = _severity(verdict.said, fault, case.recorded)
        verdict.causes.append(abs(severity / part - 1) <= CAUSE)


def _false(said: Sequence[Mapping[str, Any]], case: Case) -> dict[str, float]:
    """Modes that claim at least 5 % more than their removal gives back."""
    claimed: dict[str, float] = {}
    for one in said:
        claimed[one["mode"]] = claimed.get(one["mode"], 0.0) + one["severity"]
    excess = {}
    accepted = {mode for fault in case.faults for mode in fault.modes}
    together = sum(share for mode, share in claimed.items() if mode in accepted)
    for mode, share in claimed.items():
        known = max([case.loss, *case.unknown]) if mode in accepted else 0.0
        total = together if mode in accepted else share
        if total - known < WORTH:
            continue
        of = accepted & set(claimed) if mode in accepted else {mode}
        known += max(structure(case, one) for one in of)
        if total - known >= WORTH:
            excess[mode] = round(total - known, 4)
    return excess


def _unasked(said: Sequence[Mapping[str, Any]], case: Case) -> dict[str, float]:
    """Findings of something terminal where nothing is."""
    known = {"hang", "rank_failed", "restart_amplification", "scaling_collapse", "async_staleness"}
    wanted = {mode for fault in case.faults for mode in fault.modes}
    return {
        one["mode"]: one["severity"]
        for one in said
        if one["mode"] in known - wanted and one["severity"] >= WORTH
    }


def structure(case: Case, mode: str) -> float:
    """What a job gives back whose structure of this mode is idealised."""
    ideal = _STRUCTURE.get(mode, ())
    if mode in _OF_THE_FABRIC and case.spec.world == case.spec.per_node:
        return 0.0  # all ranks share one host
    if mode == "workload_imbalance" and case.spec.coupled:
        ideal = _STRUCTURE["synchronization_amplification"]
    return max(case.gain(**dict.fromkeys(ideal, True)), 0.0) if ideal else 0.0
