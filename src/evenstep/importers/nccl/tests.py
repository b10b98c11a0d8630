"""Read logs of nccl-tests (and rccl-tests) and of `evenstep probe`: the fabric's speed when no rank
is late.

Text is read by its header line, since columns differ (`root`, `error` or `#wrong`, time stamps,
per-iteration columns), and so is JSON: of `-J FILE`, and of rccl-tests (`-Z json`), a line per
result. Times are in µs. Sizes are as printed: of the larger of the two buffers, with the parts of
all ranks. Bandwidths are as nccl-tests defines them: algbw is size over time, busbw is algbw times
the factor of the operation.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from evenstep.errors import TraceError
from evenstep.importers.content import (
    SourceFile,
    TextLine,
    content,
    lines,
    parsed_json,
    unquoted,
    whole,
)
from evenstep.importers.draft import LONGEST_TEXT
from evenstep.importers.kineto.names import operation
from evenstep.trace.spool.layout import Op

NAME = "measurement of a fabric"
PROBED = b"evenstep.floors/1"  # the schema of what `evenstep probe` writes
MOST_BYTES = 256_000_000
MOST_FLOORS = 100_000  # rows kept of all files together
LARGEST = 1e15  # of any printed number: bytes, microseconds, GB/s
_RCCL = b'"algBw":'

_PROGRAM = re.compile(r"\b(\w+)_perf\b")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)")
#: Prefix of a line: by mpirun --tag-output, srun --label, torchrun, and collectors of logs.
_TAG = re.compile(
    r"\s*(?:\[[\w.,@-]{1,99}\](?:<\w+>)?:|\d{1,6}:\s|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*\s"
    r"|\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\s*"
)


@dataclass(slots=True)
class _Test:
    """One run of a test program within a log."""

    op: Op | None = None
    hosts: set[str] = field(default_factory=set)
    members: set[tuple[str, str]] = field(default_factory=set)  # group and rank
    columns: tuple[str, ...] = ()
    in_place: tuple[bool, ...] = (False, True)  # of each of the two groups of results
    rows: int = 0

    def enter(self, group: str, rank: str, host: str) -> None:
        self.hosts.add(host)
        self.members.add((group, rank))

    @property
    def ranks(self) -> int | None:
        """Number of ranks of one communicator; ranks that are split make several. None unknown."""
        sizes = Counter(group for group, _ in self.members)
        named = [int(rank) for _, rank in self.members if re.fullmatch("[0-9]{1,7}", rank)]
        if len(sizes) == 1 and named:  # also of a log whose beginning is missing
            return 1 + max(named)
        return max(sizes.values(), default=None)

    @property
    def nodes(self) -> int | None:
        """Number of hosts; None unknown."""
        return len(self.hosts) or None if len(self.members) >= (self.ranks or 0) else None


def recognises(source: SourceFile) -> bool:
    """Whether the head has a table of nccl-tests, or its JSON."""
    head = source.head
    if head.lstrip()[:1] == b"{":
        known = _RCCL in head or PROBED in head
        return known or (b'"nccl_version"' in head and b'"args"' in head)
    return re.search(rb"algbw\s+busbw", head) is not None or b"# nThread" in head


def read(sources: Sequence[SourceFile]) -> Mapping[str, Any]:
    """Read the floors of all files. Raises `TraceError` where there are none."""
    floors: list[dict[str, Any]] = []
    for source in sources:
        if _RCCL in source.head:
            floors += from_rccl(lines(source.path), source.path.name)
        elif source.head.lstrip()[:1] == b"{":
            floors += from_json(source.path, probed=PROBED in source.head)
        else:
            floors += from_lines(lines(source.path), source.path.name)
    if not floors:
        names = ", ".join(str(source.path) for source in sources)
        raise TraceError(f"{names} has no result of nccl-tests; was the run cut short?")
    return {"floors": floors[:MOST_FLOORS]}


# -- text ------------------------------------------------------------------------------------------


def from_lines(text: Iterable[TextLine], file: str) -> list[dict[str, Any]]:
    """Floors in the lines of a log; other lines are skipped."""
    found: list[dict[str, Any]] = []
    test = _Test(op=_program(file))
    for line in text:
        begin = 0  # behind the line's prefixes
        while tag := _TAG.match(line.text, begin):
            begin = tag.end()
        row = line.text[begin:].strip()
        if "_perf" in row or row.startswith("#"):
            test = _described_by(test, row)
        elif test.columns and row[:1].isdecimal() and len(found) < MOST_FLOORS:
            floors = list(_floors(test, row.split(), file))
            test.rows += bool(floors)
            found += floors
    return found


def _described_by(test: _Test, row: str) -> _Test:
    """The test that a comment or command belongs to, updated by it."""
    named, match = _program(row), _RANK.match(row)
    opens = "nThread" in row or "test starting" in row or match or named
    if test.rows and opens and "concluded" not in row:
        test = _Test(op=test.op)  # another run, of the same program unless named below
    test.op = named or test.op
    if match:
        test.enter(match[2] or "", match[1], match[3])
    _table(test, row.lstrip("#").split())
    return test


def _table(test: _Test, words: list[str]) -> None:
    """Take in a line of a table's head: the columns, the order of results."""
    if "algbw" in words and "busbw" in words:
        test.columns = tuple(words)
    elif "out-of-place" in words and "in-place" in words:
        first = words.index("in-place") < words.index("out-of-place")
        test.in_place = (first, not first)


def _program(text: str) -> Op | None:
    match = _PROGRAM.search(text)
    return operation(match[1]) if match else None


def _floors(test: _Test, words: list[str], file: str) -> Iterator[dict[str, Any]]:
    """The floors in a row, whose sizes and type are at the left and results at the right.

    The columns between (`redop`, `root`) may be blank, and so may the first group of results.
    """
    columns = test.columns
    if columns[-1] == "timestamp":
        columns, words = columns[:-1], words[:-2]  # a date and a time
    starts = [i for i, name in enumerate(columns) if name in ("time", "cputime")]
    if not starts:
        return
    begins = starts[0]
    groups = [columns[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    places = list(zip(test.in_place, groups, strict=False))
    if len(words) < len(columns) - len(groups[0]):
        return
    if len(words) <= len(columns) - len(groups[0]) and len(groups) == 2:
        places = places[1:]
    results = sum(len(names) for _, names in places)
    left, right = words[: len(words) - results], words[len(words) - results :]
    if not left or len(left) > begins:
        return
    row = dict(zip(columns[:begins], left, strict=False)) | {"size": left[0]}
    for in_place, names in places:
        values, right = dict(zip(names, right, strict=False)), right[len(names) :]
        yield from _floor(test, row | values, in_place, file)


# -- JSON ------------------------------------------------------------------------------------------


def from_json(path: Path, *, probed: bool) -> list[dict[str, Any]]:
    """Floors in a file of `-J`, or of `evenstep probe`. Raises `TraceError` for any other file."""
    value, key = parsed_json(content(path, MOST_BYTES), path), "floors" if probed else "results"
    results = value.get(key) if isinstance(value, dict) else None
    if not isinstance(results, list) or (probed and not all(map(_is_floor, results))):
        raise TraceError(f"{path} has no list of {key}; was the run cut short?")
    if probed:
        return [{**row, "file": path.name, "by": "evenstep probe"} for row in results]
    test, found = _describe(value), list[dict[str, Any]]()
    for row in results[:MOST_FLOORS]:
        for key, in_place in (("out_of_place", False), ("in_place", True)):
            if isinstance(row, dict) and isinstance(side := row.get(key), dict):
                named = {_IN_JSON.get(name, name): value for name, value in side.items()}
                found += _floor(test, row | named, in_place, path.name)
    return found


def from_rccl(text: Iterable[TextLine], file: str) -> Iterator[dict[str, Any]]:
    """Floors in the JSON lines of rccl-tests; other lines are skipped."""
    for line in islice(text, MOST_FLOORS):
        row = unquoted(line.text)
        if isinstance(row, dict) and "algBw" in row:
            named = {str(_IN_JSON.get(name, name)): value for name, value in row.items()}
            test = _Test(op=operation(str(row.get("name"))[:LONGEST_TEXT]))
            yield from _floor(test, named, bool(row.get("inPlace")), file)


def _is_floor(row: Any) -> bool:
    names = "bytes", "time_ns", "algbw_gBps", "busbw_gBps"
    return isinstance(row, dict) and isinstance(row.get("op"), str) and all(
        isinstance(one := row.get(name), int | float) and 0 <= one < LARGEST for name in names
    )  # fmt: skip


#: Columns of results as JSON calls them.
_IN_JSON = {"alg_bw": "algbw", "bus_bw": "busbw", "nwrong": "#wrong", "cpu_time": "cputime",
            "algBw": "algbw", "busBw": "busbw"}  # fmt: skip


def _describe(value: Mapping[str, Any]) -> _Test:
    """The program and the hosts of the run in a JSON file."""
    arguments, config = value.get("args"), value.get("config")
    named = arguments[0] if isinstance(arguments, list) and arguments else ""
    test = _Test(op=_program(str(named)[:LONGEST_TEXT]))
    devices = config.get("devices") if isinstance(config, dict) else None
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict):
            said = [str(device.get(name))[:LONGEST_TEXT] for name in ("group", "rank", "hostname")]
            test.enter(*said)
    return test


# -- a floor ---------------------------------------------------------------------------------------


def _floor(
    test: _Test, row: Mapping[str, Any], in_place: bool, file: str
) -> Iterator[dict[str, Any]]:
    """The floor that a row of results measured, by its columns; none where it has no time."""
    size, algbw, busbw = (_number(row.get(name)) for name in ("size", "algbw", "busbw"))
    time_us = _number(row.get("time", row.get("cputime")))
    if size is None or not time_us or size < 0 or time_us < 0:
        return
    wrong = _number(row.get("#wrong", row.get("error")))
    yield {
        "op": test.op.name.lower() if test.op is not None else None, "bytes": int(size),
        "time_ns": round(1e3 * time_us), "algbw_gBps": algbw, "busbw_gBps": busbw,
        "ranks": test.ranks or max(whole(row.get("ranks")), 0) or None,
        "nodes": test.nodes or max(whole(row.get("nodes")), 0) or None,
        "in_place": in_place, "dtype": str(row.get("type", ""))[:LONGEST_TEXT],
        "wrong": None if wrong is None else int(wrong), "file": file,
    }  # fmt: skip


def _number(value: Any) -> float | None:
    """A finite number below `LARGEST`; None for "N/A", "nan" and everything else."""
    try:
        number = float(value if isinstance(value, int | float) else str(value)[:LONGEST_TEXT])
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) < LARGEST else None
