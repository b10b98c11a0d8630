"""What a run of the laboratory has shown, as plain values and as a page of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from lab import tier as tiers
from lab.arms import AGAIN, BASELINE, FEWEST_STEPS
from lab.outcome import FEWEST_ROUNDS, HARM, ArmOutcome, Interval
from lab.run import Record
from lab.scenario import Scenario

SCHEMA = "evenstep.lab.comparison/1"


def document(
    scenario: Scenario, record: Record, arms: Sequence[ArmOutcome], asked_rounds: int
) -> dict[str, Any]:
    """The comparison as JSON has it; what is not known is null."""
    return {
        "schema": SCHEMA,
        "scenario": scenario.name,
        "fabric": scenario.fabric,
        "seed": scenario.seed,
        "rounds": {"asked": asked_rounds, "counted": arms[0].rounds},
        "partial": bool(record.ended),
        "ended": record.ended or None,
        "real_time": record.real_time,
        "arms": [_arm(arm) for arm in arms],
        "findings": [finding.to_json() for finding in tiers.findings(scenario, arms)],
    }


def _arm(arm: ArmOutcome) -> dict[str, Any]:
    compared = arm.name != BASELINE
    return {
        "arm": arm.name,
        "verdict": arm.verdict if compared and arm.name != AGAIN else None,
        "gain": _interval(arm.gain) if compared else None,
        "worst_job": _interval(arm.worst) if compared else None,
        "cv": _interval(arm.cv),
        "cv_ratio": _interval(arm.cv_ratio) if compared else None,
        "tail": known(arm.tail),
        "jobs": [
            {
                "job": job.name,
                "paced": job.paced,
                "steps": job.steps,
                "step_ms": known(job.step_ns / 1e6),
                "gain": _interval(job.gain) if compared else None,
                "cv": _interval(job.cv),
                "held_share": known(job.held),
            }
            for job in arm.jobs
        ],
    }


def _interval(interval: Interval) -> dict[str, float | None]:
    return {name: known(value) for name, value in interval.to_json().items()}


def known(value: float | None) -> float | None:
    """A number, or that it is not known."""
    return value if value is not None and math.isfinite(value) else None


# -- as text ---------------------------------------------------------------------------------------


def text(found: Mapping[str, Any]) -> str:
    """The comparison as a page."""
    rounds = found["rounds"]
    lines = [found["scenario"] or "a scenario without a name"]
    lines += [_about(found, rounds), ""]
    rows: list[Sequence[str]] = [("", "gain (95 % interval)", "worst job", "CV", "p99/p50", "")]
    rows += [_row(arm) for arm in found["arms"]]
    lines += [*columns(rows), "", *_jobs(found["arms"]), ""]
    for finding in found["findings"]:
        lines += [*_finding(finding), ""]
    lines += _notes(found)
    return "\n".join(lines)


def _about(found: Mapping[str, Any], rounds: Mapping[str, int]) -> str:
    counted = f"{rounds['counted']} rounds"
    if rounds["counted"] < rounds["asked"]:
        counted += f" of {rounds['asked']}"
    ended = f"; partial: {found['ended']}" if found["partial"] else ""
    return f"fabric {found['fabric']}, {counted} counted{ended}"


def _row(arm: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        arm["arm"],
        percent(arm["gain"]),
        percent(arm["worst_job"]),
        plain(arm["cv"]),
        "" if arm["tail"] is None else f"{arm['tail']:.2f}",
        arm["verdict"] or "",
    )


def _jobs(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [("step", *(arm["arm"] for arm in arms))]
    for index, job in enumerate(arms[0]["jobs"]):
        name = job["job"] + ("" if job["paced"] else " (not paced)")
        rows.append((name, *(_step(arm["jobs"][index]) for arm in arms)))
    return columns(rows)


def _finding(finding: Mapping[str, Any]) -> list[str]:
    """What is seen, why, and the first remedy."""
    first = finding["options"][0]
    gain = {name: first[name] for name in ("low", "high")} | {"value": first["gain"]}
    said = [
        f"seen   {finding['observation']}",
        f"cause  {finding['cause']}",
        f"do     {first['action']} [gives back {percent(gain)} of the step; {first['method']}]",
    ]
    return [line for text in said for line in wrap(text, 80, subsequent_indent=7 * " ")]


def _step(job: Mapping[str, Any]) -> str:
    if job["step_ms"] is None:
        return "-"
    held = job["held_share"] or 0.0
    return f"{job['step_ms']:.2f} ms" + (f", held {100 * held:.1f} %" if held > 5e-4 else "")


def _notes(found: Mapping[str, Any]) -> list[str]:
    again = next((arm for arm in found["arms"] if arm["arm"] == AGAIN), None)
    notes = []
    if again is not None:
        notes.append(f"{AGAIN!r} is the scenario against itself: what no difference looks like.")
    notes.append("A gain is one where the interval is above 0;")
    notes.append(f"no harm, where no job's is below {100 * HARM:.1f} %.")
    if not found["rounds"]["counted"] and not found["partial"]:
        notes.append(f"No block had {FEWEST_STEPS} steps of every job: take a longer run.block_s.")
    elif found["rounds"]["counted"] < FEWEST_ROUNDS:
        notes.append(f"{FEWEST_ROUNDS} rounds are needed for an interval: take more run.rounds.")
    if found["fabric"] != "mpi" and not found["real_time"]:
        notes.append("Sleeping ranks ran beside ordinary work: its load is part of the noise.")
    return notes


def percent(interval: Mapping[str, float | None] | None) -> str:
    """A gain with its interval."""
    if interval is None or interval["value"] is None:
        return ""
    value = f"{100 * interval['value']:+.1f} %"
    low, high = interval["low"], interval["high"]
    return (
        value if low is None or high is None else f"{value} ({100 * low:+.1f} to {100 * high:+.1f})"
    )


def plain(interval: Mapping[str, float | None] | None) -> str:
    """A CV with its interval."""
    if interval is None or interval["value"] is None:
        return ""
    value, low, high = f"{interval['value']:.3f}", interval["low"], interval["high"]
    if low is None or high is None:
        return value
    return f"{value} ({low:.3f} to {high:.3f})"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, every column as wide as its widest cell."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
