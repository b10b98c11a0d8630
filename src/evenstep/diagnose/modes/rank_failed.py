"""`rank_failed`: the rank whose end ended the job: who died first, of what, and inside what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep import words
from evenstep.diagnose.finding import Effect, Evidence, Finding, Option, When
from evenstep.diagnose.measure.deaths import Death, ended_ns
from evenstep.diagnose.modes.hang import last_of
from evenstep.diagnose.sentences import say
from evenstep.diagnose.verdict import CERTAIN

if TYPE_CHECKING:
    from evenstep.diagnose.lateness.case import Case

LAST_HEARD = 0.8  # confidence: by whether the moment of the end is known
MEMORY = ("OutOfMemory", "MemoryError", "not enough memory", "out of memory", "alloc")
INVALID = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")


def find(case: Case) -> list[Finding]:
    """The first death, where no hang came before it."""
    return [_finding(case, case.failed)] if case.failed else []


def _finding(case: Case, failed: list[Death]) -> Finding:
    first = failed[0]
    ranks = [death.rank for death in failed]
    steps = case.grid.steps
    last = int(steps[-1]) if len(steps) else 0
    share = round(1.0 - case.running_share, 4)
    followed = [death for death in case.dead if death.rank not in ranks]
    return Finding(
        mode="rank_failed",
        layer=_layer(first),
        severity=share,
        confidence=CERTAIN if ended_ns(case.trace.ranks[first.rank]) else LAST_HEARD,
        observation=f"{case.named(ranks)} died after step {last}{_followed(first, followed)}",
        cause=f"{words.ended(first.facts)}{_inside(case, first)}",
        where=case.where(ranks),
        when=When([(last, last)], "transient"),
        effect=Effect(share),
        options=[Option(_remedy(first), None, None, None, "none", "how the rank ended")],
        title=f"{words.ranks(ranks)} died: {words.ended(first.facts, brief=True)}",
        evidence=[
            Evidence("ranks_failed_first", len(ranks), 0, "ranks"),
            Evidence("ranks_failed", len(case.dead), 0, "ranks"),
        ],
    )


def _followed(first: Death, others: list[Death]) -> str:
    if not others:
        return ""
    within = words.duration(max(others[-1].at_ns - first.at_ns, 0))
    return f"; {words.ranks([death.rank for death in others])} followed within {within}"


def _inside(case: Case, first: Death) -> str:
    """The last collective it was in, or had been in."""
    last = last_of(case.trace, first.rank)
    return f"; the last it entered was {last}" if last else ""


def _layer(first: Death) -> str:
    if first.facts.get("raised"):
        return "model"
    return "node" if (first.facts.get("ended") or {}).get("out_of_memory_kills") else "framework"


def _remedy(first: Death) -> str:
    """What to look at next, by how it ended."""
    ended, raised = first.facts.get("ended") or {}, first.facts.get("raised") or {}
    said = f"{raised.get('type', '')} {raised.get('message', '')}"
    holding = {
        "memory": ended.get("out_of_memory_kills") or any(word in said for word in MEMORY),
        "raised": raised,
        "invalid": ended.get("signal") in INVALID,
        "signal": ended.get("signal"),
        "exit": ended.get("exit_code") is not None,
        "unknown": True,
    }
    how = next(name for name, holds in holding.items() if holds)
    return say(f"rank_failed.do.{how}", type=raised.get("type"))
