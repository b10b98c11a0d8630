"""Read an SQLite database of unknown origin safely.

It is opened read-only; only stored columns of plain tables are read, never views or virtual tables,
which compute; what is not a whole number where one is expected becomes -1.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evenstep.importers.compression import Stream

MAGIC = b"SQLite format 3\0"
MOST_ROWS = 10_000_000  # of a table: as many as fit into memory
_PIECE_ROWS = 100_000
_LONGEST_TEXT = 1_000
_MOST_TEXT = 256_000_000  # characters of all strings of a database together
_LONGEST_VALUE = 10_000_000  # bytes

Tables = Mapping[str, frozenset[str]]  # columns by table


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database read-only; a compressed one is unpacked into a temporary folder."""
    with path.open("rb") as file:
        plain = file.read(len(MAGIC)) == MAGIC
    if plain:
        with closing(_connect(path)) as database:
            yield database
        return
    with tempfile.TemporaryDirectory(prefix="evenstep-") as folder:
        unpacked = Path(folder) / "export.sqlite"
        with Stream(path) as stream, unpacked.open("wb") as file:
            file.writelines(stream.pieces())
        with closing(_connect(unpacked)) as database:
            yield database


def _connect(path: Path) -> sqlite3.Connection:
    place = quote(str(path.absolute()))
    database = sqlite3.connect(f"file:{place}?mode=ro&immutable=1", uri=True)
    for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
        database.execute(f"PRAGMA {setting}")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    return database


def tables_of(database: sqlite3.Connection, wanted: Collection[str]) -> dict[str, frozenset[str]]:
    """Columns of each wanted table that is a plain one."""
    plain = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
    return {
        name: frozenset(row[1] for row in database.execute(f'PRAGMA table_info("{name}")'))
        for (name,) in database.execute(plain).fetchall()
        if name in wanted
    }


def pieces(
    database: sqlite3.Connection, tables: Tables, table: str, numbers: Collection[str],
    values: Collection[str] = (), *, where: str = "1",
) -> Iterator[list[tuple[Any, ...]]]:  # fmt: skip
    """Yield rows of some columns of a table, piece by piece: whole numbers, -1 for anything else,
    then values of any type. A missing column is -1 or None."""
    known = tables[table]
    whole = 'CASE typeof("{0}") WHEN \'integer\' THEN "{0}" ELSE -1 END'
    picked = [whole.format(name) if name in known else "-1" for name in numbers]
    picked += [f'"{name}"' if name in known else "NULL" for name in values]
    query = f'SELECT {", ".join(picked)} FROM "{table}" WHERE {where} LIMIT {MOST_ROWS}'
    cursor = database.execute(query)
    while rows := cursor.fetchmany(_PIECE_ROWS):
        yield rows


class Names:
    """Texts numbered in order of appearance, given by id in the table of strings or by value."""

    def __init__(self, database: sqlite3.Connection, tables: Tables, table: str) -> None:
        self.listed = [""]  # by number
        self._numbers: dict[str, int] = {"": 0}
        self._by_id: dict[int, str] = {}
        self._room = _MOST_TEXT
        if {"id", "value"} <= tables.get(table, frozenset()):
            for rows in pieces(database, tables, table, ["id"], ["value"]):
                self._by_id |= {key: self._kept(text) for key, text in rows}

    def _kept(self, text: Any) -> str:
        """A text cut to the longest kept, and to the room that is left for all texts."""
        kept = str(text)[: min(_LONGEST_TEXT, self._room)]
        self._room -= len(kept)
        return kept

    def text(self, value: Any) -> str:
        """The text with an id, or the text itself."""
        if isinstance(value, str):
            return value[:_LONGEST_TEXT]
        return self._by_id.get(value, "") if isinstance(value, int) else ""

    def number(self, value: Any) -> int:
        """Number of a text, entered if new."""
        text = self.text(value)
        if text not in self._numbers:
            text = self._kept(text) if isinstance(value, str) else text
        if text not in self._numbers:
            self._numbers[text] = len(self.listed)
            self.listed.append(text)
        return self._numbers[text]
