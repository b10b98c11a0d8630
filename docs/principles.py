"""Writes `principles.md` from the failure modes themselves: `python docs/principles.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from evenstep.diagnose.modes.catalog import MODES, Mode

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Diagnostic principles

All failure modes that evenstep diagnoses: symptom, what to look at, remedies, and an experiment
that confirms the diagnosis. `evenstep explain MODE` prints the same for one mode.

The cost of a mode is the time that a replay of the run's dependency graph saves without it, in
absolute times; the shares of several modes are their Shapley values. Modes are diagnosed in the
order below: modes with direct evidence (a recorded pause, a placement) come before modes that only
see lateness.

Three rules apply to all modes.

- **Wait is not transfer.** The time of a collective in flight is waiting for the last rank, then
  moving data. Averages of fabric utilization show neither.
- **The rank that waits is the victim.** Look for the rank that does not wait.
- **Change one thing.** Each entry ends with an experiment that could refute the diagnosis.

| mode | usual layer |
| --- | --- |
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| [{_title(mode)}](#{mode.name.replace('_', '-')}) | {mode.layer} |" for mode in MODES
    ]
    return HEAD + "\n".join(rows) + "\n" + "".join("\n" + "\n".join(_section(m)) for m in MODES)


def _section(mode: Mode) -> Iterator[str]:
    yield f"## {_title(mode)}\n"
    yield f"{mode.symptom}\n"
    yield "Look at:\n"
    yield from _list(mode.look_at)
    yield "\nDo, best first:\n"
    yield from _list(mode.remedy)
    yield f"\n*To be sure:* {mode.confirm}\n"


def _list(items: Sequence[str]) -> Iterator[str]:
    return (f"- {item}" for item in items)


def _title(mode: Mode) -> str:
    return mode.name.replace("_", " ").capitalize()


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"Wrote {PAGE}")
