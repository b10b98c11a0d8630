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

from benchmarks.independent.cases import WORTH, Case
from benchmarks.independent.faults import Fault, NarrowFabric

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
        case.write(Path(folder))
        try:
            found = diagnosed([Path(folder)])
        except Exception as error:  # a crash is a wrong answer, and the corpus goes on
            verdict.failed = f"{type(error).__name__}: {error}"
            verdict.first = False if case.faults else None
            return verdict
    verdict.said = [_said(finding) for finding in found["findings"]]
    verdict.identity = _identity(found)
    if len(case.faults) == 1:
        _one_cause(verdict, case, case.faults[0])
    elif case.faults:
        _two_causes(verdict, case)
    verdict.false = _false(verdict.said, case)
    return verdict


def _said(finding: Mapping[str, Any]) -> dict[str, Any]:
    where = finding.get("where") or {}
    return {
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


def named(finding: Mapping[str, Any], fault: Fault, per_node: int) -> bool:
    """Whether a finding blames exactly those at fault."""
    if fault.culprits is None:
        return True
    if set(finding["ranks"]) == set(fault.culprits):
        return True
    nodes = {f"node{number:03d}" for number in fault.nodes}
    inside = {rank // per_node for rank in finding["ranks"]} <= set(fault.nodes)
    return bool(nodes) and set(finding["nodes"]) == nodes and inside


def _one_cause(verdict: Verdict, case: Case, fault: Fault) -> None:
    said, per_node = verdict.said, case.spec.per_node
    verdict.first = bool(said) and said[0]["mode"] in fault.modes
    if fault.culprits is not None and verdict.first:
        verdict.culprits = named(said[0], fault, per_node)
    mine = [one for one in said if one["mode"] in fault.modes and named(one, fault, per_node)]
    severity = sum(one["severity"] for one in mine)
    low = high = case.loss
    if isinstance(fault, NarrowFabric):
        high = max(case.gain(no_transfer=True), low)
    if verdict.first:
        verdict.error = severity / low - 1 if severity < low else max(severity / high - 1, 0.0)
        verdict.cost = abs(verdict.error) <= COST


def _two_causes(verdict: Verdict, case: Case) -> None:
    said, per_node = verdict.said, case.spec.per_node
    wanted = {mode for fault, part in zip(case.faults, case.parts, strict=True)
              for mode in fault.modes if part >= WORTH}  # fmt: skip
    verdict.first = bool(said) and said[0]["mode"] in wanted
    for fault, part in zip(case.faults, case.parts, strict=True):
        if part < WORTH:
            continue
        mine = [one for one in said if one["mode"] in fault.modes and named(one, fault, per_node)]
        severity = sum(one["severity"] for one in mine)
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
        known = case.loss if mode in accepted else 0.0
        total = together if mode in accepted else share
        if total - known < WORTH:
            continue
        known += structure(case, mode)
        if total - known >= WORTH:
            excess[mode] = round(total - known, 4)
    return excess


def structure(case: Case, mode: str) -> float:
    """What a job gives back whose structure of this mode is idealised."""
    ideal = _STRUCTURE.get(mode, ())
    if mode == "workload_imbalance" and case.spec.coupled:
        ideal = _STRUCTURE["synchronization_amplification"]
    return max(case.gain(**dict.fromkeys(ideal, True)), 0.0) if ideal else 0.0
