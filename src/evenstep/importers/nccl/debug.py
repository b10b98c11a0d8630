"""Read logs of `NCCL_DEBUG=INFO`: the rings and trees that NCCL built, transports and warnings.

Lines of several ranks may be mixed in one file or lie in several; each line names the process that
wrote it. RCCL prints the same. If the log is also one of nccl-tests, its floors are read, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import TraceError
from evenstep.importers.content import SourceFile, TextLine, beginning, lines
from evenstep.importers.draft import LONGEST_TEXT
from evenstep.importers.nccl.tests import from_lines
from evenstep.trace.ranks import MOST_MEMBERS, MOST_RANKS

NAME = "NCCL_DEBUG log"
MOST_CHANNELS = 256
MOST_WARNINGS = 50  # different ones
MOST_CHOICES = MOST_VARIABLES = 1_000
MOST_COMMUNICATORS = 4_096

_LINE = re.compile(
    r"(?<![\w.\-])(?P<host>[\w.\-]{1,255}):(?P<pid>\d{1,10}):\d{1,10} \[(?P<device>-?\d{1,4})\] "
    r"(?P<place>[^\[\]]{0,200}?)NCCL (?P<level>INFO|WARN|VERSION) ?(?P<text>.*)"
)
_VERSION = re.compile(r"\b([NR]CCL) version ([\w.+\-]+)")
_COMM = re.compile(
    r"comm (0x[0-9a-f]+) rank (\d{1,7}) n[rR]anks (\d{1,7})(?: nNodes (\d{1,7}))?"
    r"(?:.{0,80}? cudaDev (\d{1,6}))?(?:.{0,80}? busId ([0-9a-f]+))?"
    r"(?:.{0,80}? commId (0x[0-9a-f]+))?"
)
_RING = re.compile(r"Channel (\d{1,4})(?:/(\d{1,4}))? :((?:\s+\d{1,7})+)\s*$")  # cut if long
_TREE = re.compile(r"\[(\d{1,4})\] -?\d+(?:/-?\d+)*->(\d{1,7})->(-?\d{1,7})(?:/-?\d+)*")
_LINK = re.compile(
    r"(?:Channel|Ring) (\d{1,4})(?:/\d+)? : (\d{1,7})(?:\[\w+\])? -> (\d{1,7})(?:\[\w+\])?"
    r"(?: \[(?P<way>send|receive)\])? via (?P<via>\S+)"
)
_CHANNELS = re.compile(
    r"(?<!\d)(\d{1,6}) coll channels, (?:\d+ collnet channels, )?\d+ nvls channels"
)
_USING = re.compile(r"NET/(\w+) : Using (.*)")
_NETWORK = re.compile(r"Using network (.{0,80})")
_NIC = re.compile(r"\[\d+\](\S+)")
_SET = re.compile(r"\b((?:[NR]CCL|HSA)_\w+) set by environment to (.*?)\.?$")
_GDR = re.compile(r"GPU Direct RDMA (Enabled|Disabled)")
_CHOICE = re.compile(r"(?:\b(\w{1,40}): )?\b(\d{1,18}) Bytes -> Algo (\w{1,40}) proto (\w{1,40})")
#: Numbers that older versions print instead of names (nccl's `ncclAlgoStr`, `ncclProtoStr`).
_ALGORITHMS = {"0": "Tree", "1": "Ring", "2": "CollNetDirect", "3": "CollNetChain", "4": "NVLS",
               "5": "NVLSTree", "6": "PAT"}  # fmt: skip
_PROTOCOLS = {"0": "LL", "1": "LL128", "2": "Simple"}

_Process = tuple[str, str, str]  # host, pid, device


@dataclass(slots=True)
class _Communicator:
    """One communicator and the processes of its ranks."""

    size: int
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    nodes: int | None = None


@dataclass(slots=True)
class _Log:
    """The facts read so far."""

    version: str | None = None
    communicators: dict[str, _Communicator] = field(default_factory=dict)
    current: dict[_Process, str] = field(default_factory=dict)  # communicator being set up
    rings: dict[int, dict[int, list[int]]] = field(default_factory=dict)  # by size, by channel
    trees: dict[int, dict[int, int]] = field(default_factory=dict)  # by channel: parent of a rank
    channels: int | None = None
    transports: Counter[str] = field(default_factory=Counter)
    direct: Counter[bool] = field(default_factory=Counter)  # network links: by GPU direct RDMA
    gdr: Counter[str] = field(default_factory=Counter)  # the plugin's words: Enabled, Disabled
    network: str | None = None
    nics: dict[str, list[str]] = field(default_factory=dict)  # by host
    sends: dict[int, set[str]] = field(default_factory=dict)  # by rank: network devices
    environment: dict[str, str] = field(default_factory=dict)
    choices: Counter[tuple[str, int, str, str]] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    lines: int = 0  # of NCCL


def recognises(source: SourceFile) -> bool:
    """Whether some lines of a text are NCCL's."""
    return any("NCCL " in text and _LINE.search(text) for text in beginning(source))


def read(sources: Sequence[SourceFile]) -> Mapping[str, Any]:
    """Read the facts of all logs. Raises `TraceError` where they have no line of NCCL."""
    log = _Log()
    floors: list[dict[str, Any]] = []
    for source in sources:
        floors += from_lines(_other_lines(log, source), source.path.name)
    if not log.lines:
        names = ", ".join(str(source.path) for source in sources)
        raise TraceError(f"{names} has no line of NCCL; run with NCCL_DEBUG=INFO")
    return {"nccl": _facts(log)} | ({"floors": floors} if floors else {})


def _other_lines(log: _Log, source: SourceFile) -> Iterator[TextLine]:
    """Take in NCCL's lines of a file and yield the others, which may be of nccl-tests."""
    for line in lines(source.path):
        match = _LINE.search(line.text)
        if match is not None:
            log.lines += 1
            _take(log, match)
            continue
        if version := _VERSION.search(line.text[:LONGEST_TEXT]):
            log.version = log.version or version[2]
        yield line


def _take(log: _Log, match: re.Match[str]) -> None:
    """Take in one line of NCCL."""
    process = match["host"], match["pid"], match["device"]
    text = match["text"]
    if match["level"] == "WARN":
        text = text[:LONGEST_TEXT]
        if len(log.warnings) < MOST_WARNINGS or text in log.warnings:
            log.warnings[text] += 1
        return
    for phrase, pattern, parser in _PARSERS:
        for found in pattern.finditer(text) if phrase in text else ():
            parser(log, process, found)


# -- parsers of each kind of line ------------------------------------------------------------------


def _single(log: _Log, _: _Process, match: re.Match[str]) -> None:
    """Take in a line that states a single fact."""
    if match.re is _VERSION:
        log.version = log.version or match[2]
    elif match.re is _NETWORK:
        log.network = match[1].strip() or log.network
    elif match.re is _CHANNELS:
        log.channels = max(log.channels or 0, int(match[1]))
    elif match.re is _GDR:
        log.gdr[match[1]] += 1
    elif len(log.environment) < MOST_VARIABLES:
        log.environment.setdefault(match[1], match[2][:LONGEST_TEXT])


def _communicator(log: _Log, process: _Process, match: re.Match[str]) -> None:
    rank, size = int(match[2]), int(match[3])
    # Only the id is the same on all ranks; older versions print none: the size takes its place.
    known = log.current.get(process, "")
    alike = known and log.communicators[known].size == size
    name = match[7] or (known if alike else f"of {size} ranks")
    full = len(log.communicators) >= MOST_COMMUNICATORS and name not in log.communicators
    if full or not 0 < size <= MOST_RANKS:
        return
    communicator = log.communicators.setdefault(name, _Communicator(size))
    if rank >= communicator.size:
        return
    log.current[process] = name
    described = communicator.ranks.setdefault(rank, {"host": process[0], "pid": int(process[1])})
    if match[5]:
        described["gpu"] = int(match[5])
    if match[6]:
        described["bus_id"] = match[6]
    if match[4]:
        communicator.nodes = int(match[4])


def _ring(log: _Log, _: _Process, match: re.Match[str]) -> None:
    order = [int(rank) for rank in match[3].split()]
    log.channels = max(log.channels or 0, int(match[2] or 0)) or None
    if int(match[1]) < MOST_CHANNELS:
        log.rings.setdefault(len(order), {}).setdefault(int(match[1]), order)


def _tree(log: _Log, _: _Process, match: re.Match[str]) -> None:
    channel, rank, parent = int(match[1]), int(match[2]), int(match[3])
    if channel < MOST_CHANNELS and rank < MOST_RANKS:
        log.trees.setdefault(channel, {}).setdefault(rank, parent)


def _link(log: _Log, _: _Process, match: re.Match[str]) -> None:
    parts = match["via"].split("/")
    network = parts[0] == "NET"
    log.transports["/".join(parts[: 2 if network else 1])] += 1
    if network:
        log.direct["GDRDMA" in parts] += 1
        if match["way"] == "send" and len(parts) > 2 and int(match[2]) < MOST_RANKS:
            log.sends.setdefault(int(match[2]), set()).add(parts[2][:LONGEST_TEXT])


def _using(log: _Log, process: _Process, match: re.Match[str]) -> None:
    named = [nic for nic in _NIC.findall(match[2].partition("; OOB")[0])[:64] if nic != "RO"]
    log.nics.setdefault(process[0], named)
    log.network = log.network or match[1]


def _choice(log: _Log, _: _Process, match: re.Match[str]) -> None:
    names = _ALGORITHMS.get(match[3], match[3]), _PROTOCOLS.get(match[4], match[4])
    choice = (match[1] or "", int(match[2]), *names)
    if choice in log.choices or len(log.choices) < MOST_CHOICES:
        log.choices[choice] += 1


#: A phrase that is fast to search for, the pattern of its line, and the parser of a match.
_PARSERS: Sequence[tuple[str, re.Pattern[str], Callable[[_Log, _Process, re.Match[str]], None]]] = (
    ("CCL version", _VERSION, _single), ("comm 0x", _COMM, _communicator),
    ("Channel ", _RING, _ring), ("Trees ", _TREE, _tree), (" via ", _LINK, _link),
    ("NET/", _USING, _using), ("Using network ", _NETWORK, _single),
    ("set by environment", _SET, _single), ("coll channels", _CHANNELS, _single),
    ("GPU Direct RDMA", _GDR, _single), ("Bytes -> Algo", _CHOICE, _choice),
)  # fmt: skip


# -- facts -----------------------------------------------------------------------------------------


def _facts(log: _Log) -> dict[str, Any]:
    """Facts as plain values, with rings and trees of the largest communicator; None if unknown."""
    world = max(log.communicators.values(), key=lambda c: c.size, default=_Communicator(0))
    rings = log.rings.get(world.size or max(log.rings, default=0), {})
    channels = max((channel + 1 for channel in (*rings, *log.trees)), default=0)
    for rank, nics in log.sends.items():
        if rank in world.ranks:
            world.ranks[rank]["nics"] = sorted(nics)
    nodes = len({described["host"] for described in world.ranks.values()})
    return {
        "version": log.version, "world": world.size or None, "nodes": world.nodes or nodes or None,
        "ranks": {str(rank): world.ranks[rank] for rank in sorted(world.ranks)},
        "communicators": [
            {"id": name, "size": item.size, "ranks_heard": len(item.ranks)}
            for name, item in log.communicators.items()
        ],
        "channels": log.channels or channels or None,
        "rings": {str(channel): rings[channel] for channel in sorted(rings)},
        "trees": _trees(log.trees, world.size), "transports": dict(log.transports),
        "network": log.network, "nics": log.nics, "gpu_direct_rdma": _direct(log),
        "choices": [
            {"op": op or None, "bytes": size, "algorithm": name, "protocol": protocol, "times": n}
            for (op, size, name, protocol), n in sorted(log.choices.items())
        ],
        "environment": dict(sorted(log.environment.items())),
        "warnings": [{"text": text, "times": n} for text, n in log.warnings.most_common()],
    }  # fmt: skip


def _trees(trees: Mapping[int, Mapping[int, int]], size: int) -> dict[str, list[int | None]]:
    """The trees of all channels, by the parent of every rank: -1 for the root, None for a rank
    without a line. None if forged lines claim millions of ranks."""
    ranks = max(size, *(rank + 1 for tree in trees.values() for rank in tree), 0)
    if ranks * len(trees) > MOST_MEMBERS:
        return {}
    return {
        str(channel): [tree.get(rank) for rank in range(max([size, *(one + 1 for one in tree)]))]
        for channel, tree in sorted(trees.items())
    }


def _direct(log: _Log) -> bool | None:
    """Whether the network accesses GPU memory directly: in all links, else as the plugin says."""
    if log.direct:
        return not log.direct[False]
    return "Disabled" not in log.gdr if log.gdr else None
