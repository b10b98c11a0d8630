"""The folder of a sweep: its plan, a journal of finished simulations, and all rows as one table.

DIR/sweep.json       the plan; rows of another sweep are refused
DIR/journal.jsonl    a line for each finished simulation, as they finish
DIR/results.parquet  one row each, in order of the sweep (results.jsonl where DuckDB is absent)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evenstep.errors import UsageError
from evenstep.simulate.study.sweep import SweepPlan
from evenstep.trace.spool.files import write_whole
from evenstep.trace.store.layout import literal, reason

Row = dict[str, Any]


class SweepFolder:
    """The folder of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._plan, self._journal = path / "sweep.json", path / "journal.jsonl"

    def begin(self, plan: SweepPlan, *, force: bool) -> list[Row]:
        """Prepare the folder for this sweep; return the rows that an earlier run has finished.

        Raises `UsageError` where it holds another sweep; `force` replaces that.
        """
        asked = plan.described()
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file; give a folder for the sweep")
        held = _read(self._plan)
        if held is not None and held != asked:
            if not force:
                raise UsageError(
                    f"{self.path} has another sweep ({_name_of(held)}); choose another folder or "
                    "replace it with --force"
                )
            held = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create {self.path}: {error.strerror}") from error
        if held is None:
            self._journal.unlink(missing_ok=True)
            write_whole(self._plan, json.dumps(asked, indent=2) + "\n")
        return self._finished(plan)

    def _finished(self, plan: SweepPlan) -> list[Row]:
        """Rows of the journal that belong to the plan; a truncated line is left out."""
        wanted = {unit.number: unit.key for unit in plan.units}
        try:
            lines = self._journal.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
            write_whole(self._journal, b"".join(lines))
        rows: dict[int, Row] = {}
        for line in lines:
            row = _parse(line)
            number = row.get("number")
            if not isinstance(number, int) or row.get("key") != wanted.get(number, ""):
                continue
            if all(map(_is_plain, row.values())):
                rows[number] = row
        return list(rows.values())

    def add(self, row: Row) -> None:
        """Append a finished row to the journal."""
        with self._journal.open("a") as journal:
            journal.write(json.dumps(row) + "\n")

    def write_results(self, rows: Iterable[Row]) -> Path:
        """Write all rows as one table in order of their numbers, byte for byte reproducible."""
        ordered = sorted(rows, key=lambda row: int(row["number"]))
        lines = self.path / "results.jsonl"
        write_whole(lines, "".join(json.dumps(row) + "\n" for row in ordered))
        try:
            import duckdb
        except ModuleNotFoundError:
            return lines
        table, part = (self.path / f"results.{ending}" for ending in ("parquet", "part"))
        columns = ", ".join(f"{literal(n)}: '{t}'" for n, t in _columns(ordered).items())
        try:
            with duckdb.connect(config={"threads": 1}) as connection:
                connection.execute(
                    f"COPY (SELECT * FROM read_json({literal(lines)}, "
                    f"format='newline_delimited', columns={{{columns}}}) ORDER BY number) "
                    f"TO {literal(part)} (FORMAT parquet)"
                )
            part.replace(table)
        except duckdb.IOException as error:
            part.unlink(missing_ok=True)
            raise UsageError(f"cannot write {table}: {reason(error)}; run this again") from error
        finally:
            lines.unlink()
        return table


def _columns(rows: Sequence[Row]) -> dict[str, str]:
    found: dict[str, str] = {}
    names = {name.lower(): name for row in reversed(rows) for name in reversed(row)}
    for name in reversed(names.values()):  # the first of names that SQL takes as equal
        values = [row[name] for row in rows if row.get(name) is not None]
        whole = all(isinstance(value, int) for value in values) and values
        texts = any(isinstance(value, str) for value in values)
        found[name] = "BIGINT" if whole else "VARCHAR" if texts else "DOUBLE"
    return found


def _is_plain(value: Any) -> bool:
    small = type(value) is int and abs(value) < 1 << 63
    return small or isinstance(value, bool | str | float | None)


def _read(path: Path) -> dict[str, Any] | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return _parse(path.read_bytes())
    return None


def _parse(text: bytes) -> dict[str, Any]:
    """An object of JSON; empty where the text is none."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return found
    return {}


def _name_of(held: Mapping[str, Any]) -> str:
    varied = held.get("vary")
    known = varied.items() if isinstance(varied, dict) else ()
    parts = (f"{name}={','.join(map(str, v))}" for name, v in known if isinstance(v, list))
    return " ".join(parts) or "of another kind"
