"""A part of a job: some ranks, nodes, partitions of a cluster, or its first nodes.

Nodes are written as Slurm writes them, `gpu0[01-16],login1`, and never expanded: names are matched
against the text.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import NamedTuple

from evenstep import values
from evenstep.trace.ranks import MOST_RANKS
from evenstep.trace.spool.identity import Identity
from evenstep.values import ValueKind

ALL = "all"
MOST_BRACKETS = 3  # in a name: the ways to split its digits among them grow fast

_SPAN = r"(?a)(\d+)(?:-(\d+))?"  # compiled when they are used: most jobs select no part
_BRACKETS = r"\[([^\[\]]*)\]"
_NODES = r"(?a)(?:[^,\[\]\s]|\[[\d,-]+\])+"
_NAME = r"[^,\s\[\]]+"
#: A scheduler's name of this node, which may differ from the host's own.
_NODE_VARIABLES = ("SLURMD_NODENAME", "NODE_NAME")
_PARTITION_VARIABLE = "SLURM_JOB_PARTITION"


class Whereabouts(NamedTuple):
    """The place of a rank, by which a part of a job is selected."""

    rank: int
    node: int  # counted from 0 in the job
    hosts: frozenset[str]  # all names of its node
    partition: str  # "" if unknown


class Selection(NamedTuple):
    """The ranks that match all given fields; None matches all ranks.

    Texts are valid: they come from `ranks_text`, `nodes_text` and `names_text`.
    """

    ranks: str | None = None
    nodes: str | None = None
    partitions: str | None = None
    first_nodes: int | None = None

    def holds(self, place: Whereabouts) -> bool:
        """Whether the rank there is selected."""
        nodes = None if self.nodes is None else _split(self.nodes)
        return (
            (self.ranks is None or _among(place.rank, self.ranks))
            and (nodes is None or any(_is(node, host) for host in place.hosts for node in nodes))
            and (self.partitions is None or place.partition in self.partitions.split(","))
            and (self.first_nodes is None or place.node < self.first_nodes)
        )

    def __str__(self) -> str:
        """The part in words; "" for the whole job."""
        forms = ("ranks {}", "nodes {}", "partitions {}", "the first {} nodes")
        parts = zip(forms, self, strict=True)
        return " and ".join(form.format(part) for form, part in parts if part is not None)


def whereabouts(identity: Identity, environ: Mapping[str, str]) -> Whereabouts:
    """The place of this process."""
    host = socket.gethostname()
    named = (environ.get(variable, "") for variable in _NODE_VARIABLES)
    names = {name for name in (host, *named) if name}
    short = {name.partition(".")[0] for name in names}
    partition = environ.get(_PARTITION_VARIABLE, "")
    return Whereabouts(identity.rank, identity.node, frozenset(names | short), partition)


def local_world(environ: Mapping[str, str]) -> int:
    """Number of ranks on this node by torchrun's environment; 1 where that does not say."""
    text = environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(text), 1) if text.isdecimal() else 1


def ranks_text(value: object) -> str | None:
    """Ranks in ascending order ("0-7,16"); None for "all". Raises ValueError."""
    text = _text(value)
    if text == ALL:
        return None
    spans = sorted(_span(part) for part in text.split(","))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def nodes_text(value: object) -> str | None:
    """A list of nodes as Slurm writes it; None for "all". Raises ValueError."""
    text = _text(value)
    if text == ALL:
        return None
    items = _split(text)
    if not all(re.fullmatch(_NODES, item) and item.count("[") <= MOST_BRACKETS for item in items):
        raise ValueError(text)
    for inner in re.findall(_BRACKETS, text):
        for part in inner.split(","):
            _span(part)
    return ",".join(items)


def names_text(value: object) -> str | None:
    """Names separated by commas; None for "all". Raises ValueError."""
    text = _text(value)
    if text == ALL:
        return None
    names = text.split(",")
    if not all(re.fullmatch(_NAME, name) for name in names):
        raise ValueError(text)
    return ",".join(names)


def _text(value: object) -> str:
    """The text of a value from a file, a variable or an argument: text, a number, or a list."""
    if isinstance(value, bool) or not isinstance(value, (str, int, list, tuple)):
        raise ValueError(value)
    parts = value if isinstance(value, (list, tuple)) else [value]
    text = re.sub(r"\s*,\s*", ",", ",".join(str(part).strip() for part in parts))
    if not text:
        raise ValueError(value)
    return text


def _split(nodes: str) -> list[str]:
    """The items of a list of nodes; commas in brackets do not separate."""
    return re.split(r",(?![^\[\]]*\])", nodes)


def _span(text: str) -> tuple[int, int]:
    match = re.fullmatch(_SPAN, text)
    if match is None:
        raise ValueError(text)
    low, high = int(match[1]), int(match[2] or match[1])
    if not low <= high < MOST_RANKS:
        raise ValueError(text)
    return low, high


def _among(number: int, spans: str) -> bool:
    return any(low <= number <= high for low, high in map(_span, spans.split(",")))


def _is(item: str, host: str) -> bool:
    """Whether a host's name matches an item such as gpu0[01-16]."""
    parts = re.split(_BRACKETS, item)  # text and contents of brackets, in turns
    pattern = r"(\d+)".join(map(re.escape, parts[::2]))
    match = re.fullmatch(pattern, host, re.ASCII)
    return match is not None and all(map(_in_range, match.groups(), parts[1::2]))


def _in_range(digits: str, inner: str) -> bool:
    """Whether the digits are in "01-16,20"; numbers of a range have the width of its first."""
    for part in inner.split(","):
        low, _, high = part.partition("-")
        number = int(digits)
        if int(low) <= number <= int(high or low) and digits == f"{number:0{len(low)}d}":
            return True
    return False


# -- kinds of values of a job's settings, in addition to those of `evenstep.values` ----------------

AUTO, OFF, PACE = "auto", "off", "pace"
NAMED = ("gc", "token", PACE, "cores", "power")  # actions


def _actions(value: object) -> str:
    """Actions in the order of `NAMED`, or off."""
    text = str(value).strip().lower()
    names = {part.strip() for part in text.split(",")}
    if text == OFF:
        return text
    if text == AUTO:
        names = set(NAMED)
    if isinstance(value, bool) or not names <= set(NAMED):
        raise ValueError(value)
    return ",".join(name for name in NAMED if name in names)


def link(value: object) -> str:
    """A link group, with the address of its server if it has one; raises `ValueError`."""
    text = str(value)
    found = re.fullmatch(r"[\w.-]{1,64}(@[\w.:\[\]-]+:(\d{1,5}))?", text, re.ASCII)
    if isinstance(value, bool) or not found or not int(found[2] or 0) < 1 << 16:
        raise ValueError(value)
    return text


COUNT = values.count(1)
LINK = ValueKind("a name of letters, digits, dots and dashes, or NAME@HOST:PORT", link)
RANKS = ValueKind("ranks such as 0-7,16, or all", ranks_text)
NODES = ValueKind("nodes such as gpu0[01-16],login1, or all", nodes_text)
NAMES = ValueKind("names separated by commas, or all", names_text)
ACTIONS = ValueKind(f"some of {','.join(NAMED)}, auto for all of them, or off", _actions)
COUNT_OR_ALL = ValueKind(
    f"{COUNT.expects}, or all", lambda value: None if value == ALL else COUNT.parse(value)
)
