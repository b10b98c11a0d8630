"""Writes `principles.md` from the failure modes themselves: `python docs/principles.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from evenstep.diagnose.modes.catalog import MODES, Mode

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# Diagnostic principles

Every way of failing to scale that evenstep looks for: what you see, what to look at, what to do,
and the experiment that proves it. `evenstep explain MODE` prints the same for one of them.

Each is costed by replaying the run's dependency graph without it, in absolute times; what one is
worth beside the others is its Shapley value. The order is that of naming: who has evidence of his
own (a recorded pause, a placement) is asked before who only sees lateness.

Three rules stand behind all of them.

- **Wait is not transfer.** A collective's time in flight is waiting for the last rank, then moving
  data. Averages of a fabric's use show neither.
- **The rank that waits is the victim.** Look for the one that does not wait.
- **Change one thing.** Each entry ends with an experiment that would prove the diagnosis wrong.

| mode | where it usually lives |
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
