"""`evenstep sql`: query a run in SQL."""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from evenstep.cli import progress, traces
from evenstep.cli.terminal import print_json, say
from evenstep.errors import TraceError, UsageError
from evenstep.report.terminal.style import PLAIN, table
from evenstep.trace.spooled import OnDisk
from evenstep.trace.store import query as store_query
from evenstep.trace.store.layout import is_store
from evenstep.trace.store.query import TABLES, QueryResult
from evenstep.trace.store.writing import write_store
from evenstep.trace.trace import Trace
from evenstep.words import printable

SCHEMA = "evenstep.sql/1"
MOST_ROWS = 200  # of a printed table
WIDEST = 40  # characters of a cell
_NUMBERS = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?$|FLOAT|DOUBLE|DECIMAL")  # of DuckDB


def main(args: argparse.Namespace) -> int:
    if args.tables:
        _print_tables(as_json=args.json)
        return 0
    if args.query is None or args.run is None:
        raise UsageError('give a QUERY and a RUN: evenstep sql "select … from steps" RUN')
    if " " in str(args.run) and " " not in args.query:
        raise UsageError(f"QUERY comes first: evenstep sql QUERY {args.query}")
    with (
        _source(args.run) as source,
        store_query.open_tables(source, _findings(args, source)) as connection,
    ):
        with progress.ticking("querying"):
            answer = store_query.ask(connection, args.query)
        if args.json:
            _print_json(answer)
        elif args.csv:
            _print_csv(answer)
        else:
            _print_table(answer)
    return 0


@contextmanager
def _source(path: Path) -> Iterator[Path | Trace]:
    """Yield what to query: a store, a small run in memory, or a temporary store of a large run."""
    if is_store(path):
        yield path
        return
    trace = traces.read(path)
    if trace.operations is not None:
        raise TraceError(f"{path} is an operation table, not records of a run; query it directly")
    if not isinstance(trace.events, OnDisk):
        yield trace
        return
    with tempfile.TemporaryDirectory(prefix="evenstep-sql-") as folder:
        say(
            f"{path} is large: writing a temporary store for this query; "
            f"`evenstep export {path} --store DIR` writes one to keep"
        )
        with progress.counting("stored {} of {} parts") as report:
            stored = write_store(trace, Path(folder) / "store", progress=report).path
        yield stored


def _findings(args: argparse.Namespace, source: Path | Trace) -> list[dict[str, Any]]:
    """Diagnose the run if the query names the table `findings`."""
    if not re.search(r"\bfindings\b", args.query, re.IGNORECASE):
        return []
    known = traces.read_timed(args.run) if isinstance(source, Path) else (source,)
    return traces.judge(*known).rows()


# -- forms -----------------------------------------------------------------------------------------


def _print_json(answer: QueryResult) -> None:
    """Print the rows one by one as a JSON object: there may be many."""
    columns = [{"name": n, "type": t} for n, t in zip(answer.columns, answer.types, strict=True)]
    print(f'{{"schema": "{SCHEMA}", "columns": {json.dumps(columns)}, "rows": [', end="")
    between = "\n"
    for row in answer.rows():
        values = dict(zip(answer.columns, map(plain, row), strict=True))
        print(between + json.dumps(values, allow_nan=False), end="")
        between = ",\n"
    print("\n]}")


def _print_csv(answer: QueryResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([printable(name) for name in answer.columns])
    for row in answer.rows():
        values = (plain(value) for value in row)
        nested = (json.dumps(v) if isinstance(v, (list, dict, bool)) else v for v in values)
        writer.writerow([printable(v) if isinstance(v, str) else v for v in nested])


def _print_table(answer: QueryResult) -> None:
    rows = answer.rows()
    shown = [[_cell(value) for value in row] for row in islice(rows, MOST_ROWS)]
    names = [_cell(name) for name in answer.columns]
    left = {at for at, kind in enumerate(answer.types) if not _NUMBERS.match(kind)}
    lines = [line.rstrip() for line in table([names, *shown], left=left)]
    if max(map(len, lines)) > shutil.get_terminal_size().columns:  # else with one column a line
        parts = (table([*zip(names, row, strict=True)], left={0, 1}) for row in shown)
        named = ([f"row {at}", *(f"  {one}" for one in each)] for at, each in enumerate(parts, 1))
        lines = [line.rstrip() for each in named for line in each]
    print("\n".join(lines) if shown else f"{'  '.join(names)}\n0 rows")
    if next(rows, None) is not None:
        print(f"these are the first {MOST_ROWS} rows; --csv or --json for all", file=sys.stderr)


def plain(value: Any) -> Any:
    """A value of a row as JSON knows it; a number that is none is null."""
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    value = float(value) if isinstance(value, Decimal) else value
    if value is None or isinstance(value, (bool, int, str, float)):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    return value.hex() if isinstance(value, bytes) else str(value)


def _cell(value: Any) -> str:
    found = plain(value)
    if found is None:
        return "-"
    text = f"{found:.6g}" if isinstance(found, float) else printable(found)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _print_tables(*, as_json: bool) -> None:
    if as_json:
        found = {
            table.name: {
                "meaning": table.meaning,
                "columns": [{"name": one.name, "meaning": one.meaning} for one in table.columns],
            }
            for table in TABLES
        }
        print_json({"schema": SCHEMA, "tables": found})
        return
    for each in TABLES:
        print("\n".join(PLAIN.wrap(f"{each.name}: {each.meaning}")))
        width = max(len(column.name) for column in each.columns)
        for column in each.columns:
            head = f"  {column.name:{width}}  "
            print("\n".join(PLAIN.wrap(column.meaning, first=head, indent=len(head))))
        print()
    print('"group" is an SQL keyword: write the column in double quotes.')
