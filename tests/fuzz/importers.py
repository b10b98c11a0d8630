"""Coverage-guided fuzzing of the importers that read other tools' files; not part of the tests.

    python -m tests.fuzz.importers [FORMAT…] [-- -max_total_time=60]

Whatever bytes a file holds, an importer gives a trace (or a companion's facts) or raises an
`EvenstepError`; anything else stops the run with the input that did it. Needs atheris.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import atheris

FORMATS = (
    *("flight_recorder.flight_recorder", "nccl.inspector", "nccl.tests", "nccl.debug", "nsys.nsys"),
)
#: What a file of each format begins with, so that the first bytes need not be guessed.
BEGINNINGS = {
    "flight_recorder": (b"\x80\x02", b'{"version": "2.10", "entries": ['),
    "nccl_inspector": (b'{"header": {"id": "0x1", "rank": 0, "n_ranks": 2}, "metadata": ',),
    "nccl_tests": (b"# size count type redop root time algbw busbw #wrong\n", b'{"results": ['),
    "nccl_debug": (b"host:1:2 [0] NCCL INFO ",),
    "nsys": (b"SQLite format 3\0",),
}

with atheris.instrument_imports(include=["evenstep"]):
    from evenstep.errors import EvenstepError
    from evenstep.importers.format import Source

    MODULES = {name: importlib.import_module(f"evenstep.importers.{name}") for name in FORMATS}


def target(folder: Path, names: Sequence[str], data: bytes) -> None:
    """One file of a format that the first byte chooses, with one of its beginnings or none."""
    if len(data) < 2:
        return
    name = names[data[0] % len(names)]
    beginnings = (b"", *BEGINNINGS[name])
    content = beginnings[data[1] % len(beginnings)] + data[2:]
    path = folder / "nccl_trace_rank_0"
    path.write_bytes(content)
    source = Source(path, content[: 1 << 16])
    module = MODULES[name]
    with suppress(EvenstepError):
        module.FORMAT.recognises(source)
        module.FORMAT.read([source], lambda *_: None)


def main(arguments: Sequence[str]) -> None:
    """Fuzz the formats named, all of them without a name; what follows `--` is libFuzzer's."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names = tuple(arguments[:cut]) or FORMATS
    unknown = sorted(set(names) - set(FORMATS))
    if unknown:
        sys.exit(f"there is no format {', '.join(unknown)}; there are {', '.join(FORMATS)}")
    with tempfile.TemporaryDirectory() as folder:
        atheris.Setup(
            [sys.argv[0], *arguments[cut + 1 :]], lambda data: target(Path(folder), names, data)
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
