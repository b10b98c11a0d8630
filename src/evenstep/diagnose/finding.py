"""Findings and the diagnosis that holds them: what `evenstep diagnose --json` prints.

A finding answers four questions in this order: what is seen (`observation`), what causes it
(`cause`, `layer`, `mode`), what it costs (`effect`) and what can be done (`options`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from numbers import Integral
from typing import Annotated, Any, ClassVar

from evenstep import words
from evenstep.diagnose.levels import LISTED
from evenstep.documents import Document, Meta, Natural, Portion, Positive

SCHEMA = "evenstep.diagnosis/1"

LAYERS = ("model", "framework", "runtime", "node", "fabric", "coupling")
TERMINAL = ("rank_failed", "hang")  # modes that end a job: they come first, whatever they cost
PATTERNS = ("chronic", "transient", "bursty", "rotating", "oscillating")
#: Columns of a table of findings.
ROW: Mapping[str, Any] = {
    "title": str, "mode": str, "layer": str, "severity": float, "confidence": float,
    "ranks": list[int], "nodes": list[str], "cause": str, "action": str, "step_ns": int,
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class Where:
    """The culprits, largest share first; never the victims."""

    ranks: Sequence[Natural] = ()
    nodes: Sequence[str] = ()
    links: Sequence[str] = ()
    groups: Sequence[str] = ()


@dataclass(slots=True, frozen=True)
class When:
    """Steps concerned, as closed ranges, and how they recur (one of `PATTERNS`, None unknown)."""

    steps: Sequence[tuple[Natural, Natural]] = ()
    pattern: Annotated[str | None, Meta(enum=(*PATTERNS, None))] = None


@dataclass(slots=True, frozen=True)
class Projection:
    """Share of step time lost at another number of ranks, with its interval."""

    ranks: Positive
    share: float
    low: float
    high: float


@dataclass(slots=True, frozen=True)
class Effect:
    """Share of step time gained without the cause, once causes with a larger part are gone; and the
    share lost at other sizes."""

    now: Portion
    projected: Sequence[Projection] = ()


@dataclass(slots=True, frozen=True)
class Option:
    """A remedy: the share of step time that it gives back, its cost, and how it was predicted."""

    action: str
    gain: float | None
    low: float | None
    high: float | None
    cost: str
    method: str


@dataclass(slots=True, frozen=True)
class Evidence:
    """A measured number beside the one expected of a healthy run."""

    metric: str
    measured: float | None
    expected: float | None
    unit: str

    def rounded(self) -> Evidence:
        """The evidence as reported: whole nanoseconds and bytes, four digits of everything else."""
        measured, expected = (_round(one, self.unit) for one in (self.measured, self.expected))
        return Evidence(self.metric, measured, expected, self.unit)


WHOLE = ("ns", "bytes")


def _round(value: float | None, unit: str) -> float | None:
    if value is None or isinstance(value, Integral):
        return value if value is None else int(value)
    return round(value) if unit in WHOLE else float(f"{value:.4g}")


@dataclass(slots=True, frozen=True)
class CallStack:
    """A call stack of a late rank's training thread, innermost frame first."""

    rank: int
    share: Portion  # of this rank's stack samples, or time in collections that were called there
    frames: Sequence[str] = ()  # "file:line function", files of Python and torch in brackets


@dataclass(slots=True, frozen=True)
class Finding(Document):
    """One failure mode at work. `severity` is the recoverable share of total step time, 0 to 1."""

    mode: Annotated[
        str,
        Meta(
            "The failure mode; `evenstep explain MODE` says what it means.",
            pattern="^[a-z][a-z_]*$",
        ),
    ]
    layer: Annotated[str, Meta(enum=LAYERS)]
    severity: Annotated[
        Portion,
        Meta("Recoverable share of the total step time; those of a diagnosis sum to at most 1."),
    ]
    confidence: Portion
    observation: Annotated[str, Meta("What is seen.")]
    cause: Annotated[str, Meta("What causes it.")]
    where: Annotated[
        Where, Meta("The culprits, largest share first; victims stand in the evidence.")
    ]
    when: Annotated[When, Meta("Closed ranges of steps, and how they recur.")]
    effect: Annotated[Effect, Meta("Share of step time lost now, and at other numbers of ranks.")]
    options: Annotated[
        Sequence[Option],
        Meta("Remedies: what they give back, what they cost, how that was predicted."),
    ] = ()
    evidence: Sequence[Evidence] = ()
    title: Annotated[
        str, Meta('The cause in about five words: "Garbage collection on rank 1".')
    ] = ""
    stacks: Annotated[
        Sequence[CallStack],
        Meta("What a rank's training thread was in when it was late, where that was looked at."),
    ] = ()
    #: The graph's `Change` that removes the cause, or a function from all other changes to one.
    change: Any = field(default=None, compare=False, repr=False)


def whole(findings: Sequence[Finding]) -> str:
    """What the shares of one run's findings are of, in words: also of time between steps where some
    of that was lost."""
    between = (*TERMINAL, "restart_amplification")
    return "the job's time" if any(one.mode in between for one in findings) else "step time"


@dataclass(slots=True)
class Diagnosis(Document):
    """Findings, worst first, the summary they rest on, and what the trace cannot tell."""

    schema: ClassVar[str] = SCHEMA

    run: Mapping[str, Any]
    summary: dict[str, Any]
    findings: list[Finding]
    limits: list[str] = field(default_factory=list)

    @property
    def whole(self) -> str:
        """What the shares of its findings are of, in words."""
        return whole(self.findings)

    @property
    def verdict(self) -> str:
        """The diagnosis in a sentence or two: culprits, cost, cause, action."""
        return str(self.summary["verdict"])

    def rows(self) -> list[dict[str, Any]]:
        """Findings as flat rows for a table, worst first; each has the mean step of the run."""
        step_ns = (self.summary.get("step_time") or {}).get("mean_ns")
        return [
            dict(zip(ROW, (
                one.title, one.mode, one.layer, one.severity, one.confidence, list(one.where.ranks),
                list(one.where.nodes), one.cause, one.options[0].action if one.options else "",
                step_ns,
            ), strict=True))
            for one in self.findings
        ]  # fmt: skip

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame. Raises ImportError without pandas."""
        import pandas

        return pandas.DataFrame(self.rows(), columns=list(ROW))

    def to_polars(self) -> Any:
        """The rows as a polars DataFrame. Raises ImportError without polars."""
        import polars

        return polars.DataFrame(self.rows(), schema=ROW)

    def _repr_html_(self) -> str:
        """Verdict, step time and findings, as a notebook shows them; names are escaped."""
        time = self.summary.get("step_time") or {}
        numbers = [(name, time.get(f"{name}_ns")) for name in ("mean", "p99")]
        step = ", ".join(f"{words.duration(at)} {name}" for name, at in numbers if at is not None)
        rows = self.rows()[:LISTED]
        head = "".join(f"<th>{name}</th>" for name in (rows or [{}])[0])
        lines = [f"<p>step {step}</p>"] if step else []
        body = ("".join(f"<td>{_cell(value)}</td>" for value in row.values()) for row in rows)
        table = "".join(f"<tr>{cells}</tr>" for cells in (head, *body))
        more = len(self.findings) - len(rows)
        lines += [f"<table>{table}</table>"] if rows else []
        lines += [f"<p>{more} more in <code>findings</code></p>"] if more > 0 else []
        lines += [f"<p><small>{escape(limit)}</small></p>" for limit in self.limits]
        return f"<div><p><strong>{escape(self.verdict)}</strong></p>{''.join(lines)}</div>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return words.percent(value)
    if isinstance(value, list):
        return escape(", ".join(map(str, value)))
    return "" if value is None else escape(str(value))
