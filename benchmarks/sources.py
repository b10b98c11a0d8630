"""Public files of other tools: each count beside one made without evenstep, and what is said first.

The counts are SQL on the export, `json` on the profiles, `csv` on the tables. The truths are those
that stand beside the data.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Row
from benchmarks.ranks import ROOT

DATA = ROOT.parent / "shared" / "data"
COMMAND = "python -m benchmarks sources"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--files", type=Path, default=DATA, help="folder of the public files")


def run(args: argparse.Namespace) -> list[Row]:
    """A row per file: counts, and the headline."""
    data: Path = args.files
    if not data.is_dir():
        return [Row("public files", "each count equal", f"skipped: no {data}", None, COMMAND)]
    rows = []
    for name, checks in (
        ("nsys/mfu_2gpu_before.sqlite", _nsys),
        ("steps/pai_job_1.csv", _job_1),
        ("steps/pai_job_3.csv", _job_3),
        ("kineto/dlrm_kineto.tar.gz", _dlrm),
        ("kineto/nccl_data.json.gz", _one_rank),
        ("kineto/sampled_rank-0.json.gz", _sampled),
        ("what-if/trace-ST.parquet", _operations),
    ):
        for what, expected, found in checks(data / name):
            same = expected == found
            rows.append(Row(f"{name}: {what}", str(expected), str(found), same, COMMAND))
    return rows


Checks = Iterator[tuple[str, Any, Any]]  # what, as counted or known, as evenstep has it


def _opened(*paths: Path) -> Any:
    from evenstep.importers.opening import open_trace

    return open_trace(paths)


def _named(trace: Any) -> list[int]:
    """The ranks of the worst finding that names any, largest share first."""
    from evenstep.diagnose.engine import diagnose

    return next((list(f.where.ranks) for f in diagnose(trace).findings if f.where.ranks), [])


def _rows(trace: Any, *kinds: str) -> Any:
    from evenstep.trace.spool.layout import Kind

    return trace.of_kind(*(Kind[kind] for kind in kinds))


def _nsys(path: Path) -> Checks:
    query = """SELECT k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s
        ON s.id = k.shortName WHERE s.value LIKE 'nccl%' AND deviceId = ? ORDER BY k.start"""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        starts = [[row[0] for row in database.execute(query, (device,))] for device in (0, 1)]
    late = [one - zero for zero, one in zip(*starts, strict=True)]
    trace = _opened(path)
    rows = _rows(trace, "COLLECTIVE").sorted_by("group_seq", "rank")
    mine = rows.device_enter_ns.reshape(-1, 2)
    apart = (mine[:, 1] - mine[:, 0]).tolist()
    yield "pairs, of which device 1 late in", (33, 22), (len(apart), sum(by > 0 for by in apart))
    yield (
        "waits on either device, ns",
        *(
            (sum(max(by, 0) for by in each), sum(max(-by, 0) for by in each))
            for each in (late, apart)
        ),
    )
    yield "most is waited for device", 1, next(iter(_named(trace)), None)


def _times(path: Path) -> dict[int, dict[int, float]]:
    """Seconds by time, by worker."""
    table: dict[int, dict[int, float]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            worker, took = int(row["worker"]), float(row["batch_time_norm"])
            table.setdefault(int(row["time"]), {})[worker] = took
    return table


def _job_1(path: Path) -> Checks:
    table = _times(path)
    trace = _opened(path)
    yield "steps of workers", sum(map(len, table.values())), len(_rows(trace, "STEP"))
    yield "first named (0-2 steadily +10 %)", [0, 1, 2], sorted(_named(trace))
    order = [table[time] for time in sorted(table)]
    slow = [step for step, of in enumerate(order) if of.get(6, 0) > 1.4 * median(of.values())]
    from evenstep.diagnose.engine import diagnose

    when = [f.when.steps for f in diagnose(trace).findings if 6 in f.where.ranks]
    told = [step for stretch in (when or [[]])[0] for step in stretch]
    apart = max(abs(told[0] - slow[0]), abs(told[-1] - slow[-1])) if told else None
    text = f"steps {slow[0]} to {slow[-1]}, to 2"
    found = text if apart is not None and apart <= 2 else str(when)
    yield "worker 6 is slow in the middle", text, found


def _job_3(path: Path) -> Checks:
    trace = _opened(path)
    yield "steps of workers", sum(map(len, _times(path).values())), len(_rows(trace, "STEP"))
    yield "first named (0 and 1, +10 %)", [0, 1], sorted(_named(trace))


def _kernels(document: dict[str, Any]) -> int:
    return sum(
        event.get("cat") == "kernel" and event["name"].startswith("nccl")
        for event in document["traceEvents"]
    )


def _dlrm(path: Path) -> Checks:
    counted = 0
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                counted += _kernels(json.load(archive.extractfile(member)))  # type: ignore[arg-type]
    trace = _opened(path)
    yield "NCCL's kernels of 8 ranks", counted, len(_rows(trace, "COLLECTIVE", "POINT_TO_POINT"))
    yield "first named (76, 13, 11 % of the waiting)", [7, 5, 4], _named(trace)


def _one_rank(path: Path) -> Checks:
    counted = _kernels(json.loads(gzip.decompress(path.read_bytes())))
    trace = _opened(path)
    rows = _rows(trace, "COLLECTIVE", "POINT_TO_POINT")
    yield "NCCL's kernels of one rank", counted, int((rows.device_exit_ns > 0).sum())
    yield "one rank alone names nobody", [], _named(trace)


def _sampled(path: Path) -> Checks:
    both = [path, path.with_name(path.name.replace("-0", "-1"))]
    counted = sum(_kernels(json.loads(gzip.decompress(each.read_bytes()))) for each in both)
    trace = _opened(*both)
    rows = _rows(trace, "COLLECTIVE", "POINT_TO_POINT")
    yield "NCCL's kernels of two ranks", counted, int((rows.device_exit_ns > 0).sum())
    yield "ranks of the job", 128, trace.world


def _operations(path: Path) -> Checks:
    import duckdb

    query = "SELECT count(*), count(DISTINCT (rank, step)) FROM read_parquet(?)"
    counted = duckdb.connect().execute(query, [str(path)]).fetchall()[0]
    trace = _opened(path)
    yield "operations, steps of ranks", counted, (len(trace.operations), len(_rows(trace, "STEP")))
    said = json.loads(path.with_name("result-ST.json").read_text())["job_meta"]["world_size"]
    yield "ranks of the job", said, trace.run["world"]
    yield "first named (the last stage)", [6, 7], sorted(_named(trace))
