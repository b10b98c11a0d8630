"""Answers to what-if questions as text: one line each, then how they were found."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.diagnose.what_if.what_if import WhatIfGain
from evenstep.report.terminal.style import Style
from evenstep.words import duration, interval, percent, printable


def render(answers: Sequence[WhatIfGain], *, width: int | None = None) -> str:
    """A table of the answers, as wide as the terminal; empty where nothing was asked."""
    if not answers:
        return ""
    style = Style.of(width, color=False)
    widest = max(len(printable(answer.spec)) for answer in answers)
    lines = ["What if"]
    for answer in answers:
        head = f" {printable(answer.spec):<{widest}}  "
        lines += style.wrap(_outcome(answer), first=head, indent=4)
    for method in dict.fromkeys(answer.method for answer in answers if answer.method):
        lines += style.wrap(method, first=" by ", indent=4)
    return "\n".join(lines)


def _outcome(answer: WhatIfGain) -> str:
    """What is gained or lost, or why nobody can tell."""
    if answer.gain is None or answer.low is None or answer.high is None:
        return f"cannot be told: {answer.reason}"
    gives = answer.gain >= 0
    low, high = (answer.low, answer.high) if gives else (-answer.high, -answer.low)
    share = f"{percent(abs(answer.gain))} of step time {interval(low, high)}".rstrip()
    times = f"{duration(answer.step_ns_before)} becomes {duration(answer.step_ns_after)}"
    return f"{'gives back' if gives else 'costs'} {share}; {times}"
