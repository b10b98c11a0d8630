"""The text that `nvidia-smi topo -m` prints, from this or another machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from evenstep.doctor.topology import LEVELS, Topology
from evenstep.errors import UsageError

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")  # the head is underlined on a terminal
_DEVICE = re.compile(r"(GPU|NIC)\d+|mlx\w+|bnxt_re\d+|roce\w+|ib\w+|rdmap\w+|irdma\w+|hns_\w+")
_LEVEL = re.compile(rf"X|NV\d{{1,2}}|{'|'.join(LEVELS)}")
_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$")
MOST_BYTES = 1_000_000


def load(path: Path) -> Topology:
    """Read a file. Raises `UsageError` where it holds no such text."""
    try:
        text = path.read_bytes()[:MOST_BYTES].decode(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    found = parse(text, str(path))
    if found is None:
        raise UsageError(
            f"{path} has no matrix of GPUs; give what `nvidia-smi topo -m` prints"
            + (", and an XML file of lstopo to --lstopo" if "<topology" in text else "")
        )
    return found


def parse(text: str, place: str) -> Topology | None:
    """The matrix in a text; None without one."""
    lines = [_ESCAPE.sub("", line) for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.split()[:1] == ["GPU0"]), None)
    if start is None:
        return None
    head = [word for word in re.split(r"\s+", lines[start].strip()) if _DEVICE.fullmatch(word)]
    rows = dict(_rows(lines[start + 1 :], len(head)))
    names = _legend(lines)
    gpus = tuple(name for name in head if name.startswith("GPU") and name in rows)
    nics = tuple(name for name in head if not name.startswith("GPU"))
    if not gpus:
        return None
    levels = {
        (row, column): level
        for row in gpus
        for column, level in zip(head, rows[row][0], strict=False)
        if level != "X"
    }
    numa = {gpu: _numa_of(rows[gpu][1]) for gpu in gpus}
    return Topology(
        place=place,
        gpus=gpus,
        nics=tuple(names.get(nic, nic) for nic in nics),
        gpu_nic={(g, names.get(o, o)): level for (g, o), level in levels.items() if o in nics},
        gpu_gpu={pair: level for pair, level in levels.items() if pair[1] in gpus},
        numa=numa,
        numa_nodes=len({node for node in numa.values() if node is not None}) or 1,
    )


def _rows(lines: Sequence[str], columns: int) -> list[tuple[str, tuple[list[str], list[str]]]]:
    """Name of each row, its levels, and the words behind them."""
    found = []
    for line in lines:
        words = line.split()
        if words and _DEVICE.fullmatch(words[0]) and not words[0].endswith(":"):
            levels = words[1 : 1 + columns]
            if len(levels) == columns and all(map(_LEVEL.fullmatch, levels)):
                found.append((words[0], (levels, words[1 + columns :])))
    return found


def _numa_of(words: Sequence[str]) -> int | None:
    """NUMA affinity: the second word behind the levels, after the list of processors."""
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else None


def _legend(lines: Sequence[str]) -> Mapping[str, str]:
    """Names of adapters that the matrix only numbers."""
    return {match[1]: match[2] for line in lines if (match := _LEGEND.match(line))}
