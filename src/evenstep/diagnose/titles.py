"""What a finding is called: its cause in about five words, and where."""

from __future__ import annotations

from dataclasses import replace

from evenstep import words
from evenstep.diagnose.finding import Finding
from evenstep.diagnose.sentences import TEXTS
from evenstep.trace.spool.layout import Phase

MOST_WORDS = 4  # of a cause's own head, as in "garbage collection: rank 1 collects …"

#: What a straggler does longer than its peers, by the place its cause names.
LATE = {
    words.PLACES[Phase.FORWARD]: "slow forward",
    words.PLACES[Phase.BACKWARD]: "slow backward",
    words.PLACES[Phase.OPTIMIZER]: "slow optimizer",
    words.PLACES[Phase.INPUT]: "late batches",
    words.PLACES[Phase.EVALUATION]: "slow evaluation",
    words.PLACES[Phase.OTHER]: "delay in the training loop",
    words.BEFORE_BACKWARD: "delay before backward",
}


def titled(finding: Finding) -> Finding:
    """The finding with a title, where its mode gave it none."""
    return finding if finding.title else replace(finding, title=title_of(finding))


def title_of(finding: Finding) -> str:
    """ "Garbage collection on rank 1", "Slow backward on rank 19", "Uneven work"."""
    head, _, rest = finding.cause.partition(":")
    if rest and len(head.split()) <= MOST_WORDS and not any(map(str.isdigit, head)):
        name = head
    elif finding.mode == "straggler":
        name = next((said for place, said in LATE.items() if place in finding.cause), "late entry")
    else:
        name = TEXTS[finding.mode]["title"]
    return words.capital(name) + place_of(finding)


def place_of(finding: Finding) -> str:
    """Where, as the end of a title; nothing where nobody in particular is to blame."""
    ranks, nodes = list(finding.where.ranks), list(finding.where.nodes)
    if finding.when.pattern == "rotating":
        return ", one rank after the other"
    if ranks and (len(ranks) == 1 or len(nodes) != 1):
        return f" on {words.ranks(ranks)}"
    if nodes:
        return f" on {words.some(nodes)}"
    if finding.where.links:
        return f" on {words.some(finding.where.links)}"
    return ""
