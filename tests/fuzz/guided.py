"""Coverage-guided fuzzing of the same subjects, for as long as one likes. Needs atheris.

    python -m tests.fuzz.guided [SUBJECT…] [-- -max_total_time=60 -fork=2]

It starts from the subjects' own seeds and the public files beside the repository, and keeps what
reaches new code. Whatever a file holds, a reader gives something or raises an `EvenstepError`.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["evenstep"]):
    from evenstep.errors import EvenstepError
    from tests.fuzz.mutation import mutated
    from tests.fuzz.subjects import BY_NAME, MOST_SEED_BYTES, SHARED, SUBJECTS, Subject

    for subject in SUBJECTS:  # what a reader imports is followed as well
        with tempfile.TemporaryDirectory() as place, suppress(EvenstepError):
            path = Path(place) / subject.file
            path.write_bytes((subject.seeds() or [b""])[0])
            subject.read(path)


def main(arguments: Sequence[str]) -> None:
    """Fuzz the subjects named, all of them without a name; what follows `--` is libFuzzer's."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = [BY_NAME[name] for name in arguments[:cut]] or list(SUBJECTS)
    with tempfile.TemporaryDirectory() as folder:
        seeds, work = Path(folder) / "seeds", Path(folder) / "work"
        for each in (seeds, work):
            each.mkdir()
        _sow(seeds, chosen)
        atheris.Setup(
            [sys.argv[0], str(seeds), *arguments[cut + 1 :]],
            lambda data: _try(work, chosen, data),
            custom_mutator=_change,
        )
        atheris.Fuzz()


def _sow(folder: Path, chosen: Sequence[Subject]) -> None:
    """Seeds as libFuzzer keeps them: the subject's number, then the file."""
    for number, subject in enumerate(chosen):
        for at, data in enumerate(subject.seeds()):
            (folder / f"{number}-{at}").write_bytes(bytes([number]) + data)
        for path in sorted(SHARED.rglob("*")) if subject.name == "profile" else ():
            if path.is_file() and path.stat().st_size < MOST_SEED_BYTES:
                data = path.read_bytes()
                data = gzip.decompress(data) if path.suffix == ".gz" else data
                (folder / f"{number}-{path.name}").write_bytes(bytes([number]) + data[: 1 << 20])


def _change(data: bytes, most: int, seed: int) -> bytes:
    return (data[:1] + mutated(data[1:], Random(seed)))[:most]


def _try(work: Path, chosen: Sequence[Subject], data: bytes) -> None:
    if not data:
        return
    subject = chosen[data[0] % len(chosen)]
    folder = work / subject.name.replace(" ", "-")
    folder.mkdir(exist_ok=True)
    path = folder / subject.file
    path.write_bytes(data[1:])
    with suppress(EvenstepError):
        subject.read(path)


if __name__ == "__main__":
    main(sys.argv[1:])
