"""What can be asked of a run in SQL: its tables, their columns, and what each means.

A table is a view of the records with words for numbers, as `tables.toml` has it. The records are a
store's files, of which a question reads no more than it needs, or a trace in memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from evenstep.trace.spool.layout import Actuator, DType, Flag, Kind, Op, Phase, ReduceOp
from evenstep.trace.spool.toml import read_toml


class Column(NamedTuple):
    """A column of a table."""

    name: str
    meaning: str
    sql: str = ""  # of a record's own columns; "" where it bears the same name


class StoreTable(NamedTuple):
    """A table that can be asked."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    kind: Kind | None = None  # its rows are the records of this kind; None: see `evenstep sql`


#: Words that stand for numbers, as lists whose first entry is that of 0.
WORDS: Mapping[str, type[IntEnum]] = {
    "kinds": Kind,
    "ops": Op,
    "phases": Phase,
    "dtypes": DType,
    "reductions": ReduceOp,
    "actuators": Actuator,
}


def words(members: type[IntEnum]) -> list[str]:
    """Names of an enumeration at the places of their numbers."""
    found = [""] * (max(int(member) for member in members) + 1)
    for member in members:
        found[int(member)] = member.name.lower()
    return found


_SHORT = {
    "took": "case when exit_ns > 0 then exit_ns - enter_ns end",
    "op": f"case when kind in ({int(Kind.COLLECTIVE)}, {int(Kind.POINT_TO_POINT)}) then $ops[op] "
    f"when kind = {int(Kind.PHASE)} then $phases[op] end",
    # a float64 from its bits (IEEE 754): the layout keeps measurements so
    "value": "case when (bytes_in >> 52) & 2047 = 2047 then null else "
    "(case when bytes_in >> 63 = 1 then -1.0 else 1.0 end) * "
    "pow(2.0, greatest((bytes_in >> 52) & 2047, 1)::int - 1075) * "
    "((bytes_in & 4503599627370495) + "
    "case when (bytes_in >> 52) & 2047 > 0 then 4503599627370496 else 0 end)::double end",
}
_LISTED = {name: ", ".join(filter(None, words(members))) for name, members in WORDS.items()}
_LISTED["flags"] = ", ".join(f"{int(flag)} {str(flag.name).lower()}" for flag in Flag)


def _sql(text: str) -> str:
    """What a column is worked out with; `$` stands before what is written once."""
    text = re.sub(r"\$(took|op|value)\b(?!\[)", lambda found: _SHORT[found[1]], text)
    text = re.sub(r"\$flag\[(\w+)\]", lambda found: f"(flags & {int(Flag[found[1]])}) <> 0", text)
    return re.sub(r"\$(\w+)\[(\w+)\]", r'(select \1 from lookup)["\2"::int + 1]', text)


def _column(row: list[str]) -> Column:
    meaning = re.sub(r"\$(\w+)", lambda found: _LISTED[found[1]], row[1])
    return Column(row[0], meaning, _sql(row[2]) if len(row) > 2 else "")


def _tables() -> tuple[StoreTable, ...]:
    told: dict[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
    shared = told.pop("shared")
    return tuple(
        StoreTable(
            name,
            table["meaning"],
            tuple(
                _column(shared[one] if isinstance(one, str) else one) for one in table["columns"]
            ),
            Kind[table["kind"]] if "kind" in table else None,
        )
        for name, table in told.items()
    )


TABLES = _tables()
EVENTS = TABLES[0]
OF_KINDS = tuple(table for table in TABLES if table.kind is not None)
FINDINGS = TABLES[-1]


def view(table: StoreTable) -> str:
    """The statement that makes a table of records."""
    columns = ", ".join(
        f'{column.sql or _quoted(column.name)} as "{column.name}"' for column in table.columns
    )
    where = "" if table.kind is None else f" where kind = {int(table.kind)}"
    return f"create view {table.name} as select {columns} from records{where}"


def _quoted(name: str) -> str:
    return f'"{name}"'
