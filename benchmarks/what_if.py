"""The what-if analysis of an operation table as large as a published one: its time, its numbers."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.jobs.pipeline import NAMES, Pipeline
from benchmarks.measure import Row, Spread, spread
from evenstep.diagnose.predict.published import job, published_results
from evenstep.importers.content import SourceFile
from evenstep.importers.operations import operation_tables
from evenstep.trace.columns import Columns

BAR_S = 0.3  # the authors' own tool takes .7 to 1.5 s for its analysis alone
SAME = 1e-9
PUBLISHED = 1e-6  # of numbers that the authors print
DATA = Path(__file__).parents[2] / "shared" / "data" / "what-if"
COMMAND = "python -m benchmarks what_if"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40, help="of 2,976 operations each")
    parser.add_argument("--files", type=Path, default=DATA, help="folder of the published trace")


def run(args: argparse.Namespace) -> list[Row]:
    """64 ranks, 16 data-parallel × 4 stages: read, laid out, replayed with each part as it was."""
    pipeline = Pipeline(dp=16, pp=4, micro=8, steps=args.steps)
    durations = pipeline.durations()
    table = pipeline.table(durations)
    reading, analysing = [], []
    with TemporaryDirectory() as folder:
        source = _written(table, Path(folder) / "trace.parquet")
        for _ in range(args.rounds + 1):
            began = time.perf_counter()
            trace = operation_tables.read([source])
            read = time.perf_counter()
            assert trace.operations is not None
            found = published_results(job(trace.operations, trace.names))
            reading.append(read - began)
            analysing.append(time.perf_counter() - read)
    rows = _rows(len(table), spread(reading[1:]), spread(analysing[1:]), _off(found, pipeline))
    return [*rows, *published_rows(args.files)]


def published_rows(folder: Path) -> list[Row]:
    """The published trace beside all numbers its authors print of it; nothing without the files."""
    path = folder / "trace-ST.parquet"
    if not path.is_file():
        return []
    trace = operation_tables.read([SourceFile(path, path.read_bytes()[: 1 << 16])])
    assert trace.operations is not None
    ours = json.loads(json.dumps(published_results(job(trace.operations, trace.names))))
    theirs = json.loads((folder / "result-ST.json").read_text())
    wanted = {
        key: value for key, value in theirs.items() if key in ours and "launch_dec" not in key
    }
    wanted |= {key: json.loads((folder / f"{key}-ST.json").read_text()) for key in ("ms", "mw")}
    pairs = [(numbers_in(ours[key]), numbers_in(value)) for key, value in wanted.items()]
    off = [abs(mine[at] - want[at]) / abs(want[at] or 1.0) for mine, want in pairs for at in want]
    return [
        Row(
            "trace-ST beside its authors' numbers (Lin et al., 2025), launches' parts aside",
            f"within {PUBLISHED:.0e}",
            f"{len(off)} numbers, off by {max(off):.1e} at most, relative",
            max(off) < PUBLISHED,
            COMMAND,
        )
    ]


def numbers_in(value: Any, path: str = "") -> dict[str, float]:
    """Numbers of nested tables by their path."""
    if not isinstance(value, dict):
        return {path: value}
    parts = (numbers_in(item, f"{path}/{key}") for key, item in value.items())
    return {name: number for part in parts for name, number in part.items()}


def _written(table: Columns, path: Path) -> SourceFile:
    import duckdb

    columns = {name: table[name] for name in table if name not in ("role", "optype")}
    rows = {  # noqa: F841 - DuckDB finds it by its name
        **columns,
        "optype": np.array(NAMES)[table.optype],
        "start_ts": table.start_s,
        "duration": table.duration_s,
    }
    duckdb.sql(f"COPY (SELECT * FROM rows) TO '{path}' (FORMAT parquet)")
    return SourceFile(path, path.read_bytes()[: 1 << 16])


def _off(found: dict[str, Any], pipeline: Pipeline) -> float:
    """Largest deviation from the job run again, relative: as it was, and the ideal."""
    durations = pipeline.durations()
    by_type: dict[str, list[float]] = {}
    for (_, op), value in durations.items():
        by_type.setdefault(op[0], []).append(value)
    usual = {
        name: float(np.mean(values) if name in MEANS else np.median(values))
        for name, values in by_type.items()
    }
    ideal = pipeline.lengths({key: usual[key[1][0]] for key in durations})
    was = pipeline.lengths(durations)
    ours = [list(found[name].values()) for name in ("step_t_nodelay", "step_t_noblk")]
    return float(np.max(np.abs(np.array(ours) / [was, ideal] - 1)))


MEANS = ("forward-compute", "backward-compute", "gc", "optimizer")


def _rows(operations: int, reading: Spread, analysing: Spread, off: float) -> list[Row]:
    return [
        Row(
            "what-if analysis of an operation table of 64 ranks, every part alone, after imports",
            f"< {BAR_S} s",
            f"{1e3 * analysing.median:.0f} ms ({1e3 * analysing.low:.0f} to "
            f"{1e3 * analysing.high:.0f}) for {operations:,} operations; reading the file into a "
            f"trace before it {1e3 * reading.median:.0f} ms",
            analysing.median < BAR_S,
            COMMAND,
        ),
        Row(
            "its step times beside the same job run again event by event",
            "the same numbers",
            f"off by {off:.0e} at most, relative",
            off < SAME,
            COMMAND,
        ),
    ]
