"""The what-if analysis of an operation table as large as a published one: its time, its numbers."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.jobs.pipeline import NAMES, Pipeline
from benchmarks.measure import Row, Spread, spread
from evenstep.diagnose.operations.operations import job
from evenstep.diagnose.operations.what_if_operations import Slowdowns, published, slowdowns
from evenstep.importers.content import SourceFile
from evenstep.importers.operations.operation_tables import FORMAT
from evenstep.trace.columns import Columns

BAR_S = 0.3  # the authors' own tool takes .7 to 1.5 s for its analysis alone
SAME = 1e-9
COMMAND = "python -m benchmarks what_if"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40, help="of 2,976 operations each")


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
            trace = FORMAT.read([source], lambda *_: None)
            read = time.perf_counter()
            assert trace.operations is not None
            found = slowdowns(job(trace.operations, trace.names))
            published(found)
            reading.append(read - began)
            analysing.append(time.perf_counter() - read)
    return _rows(len(table), spread(reading[1:]), spread(analysing[1:]), _off(found, pipeline))


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


def _off(found: Slowdowns, pipeline: Pipeline) -> float:
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
    off = [np.abs(found.replayed_s / was - 1), np.abs(found.ideal_s / ideal - 1)]
    return float(np.max(off))


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
