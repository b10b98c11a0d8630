"""`docs/layout.md` says what the code does, to the byte."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from evenstep.trace.reader import RECORD, SUMMARY
from evenstep.trace.spool import layout, spool, summary

PAGE = (Path(__file__).parents[2] / "docs" / "layout.md").read_text()
TYPES = {"u64": "<u8", "i64": "<i8", "f64": "<f8", "u32": "<u4", "i32": "<i4"}
TYPES |= {"u16": "<u2", "i16": "<i2", "u8": "u1"}


def rows(mark):
    """Cells of the table that follows a mark, without its two head lines."""
    table = PAGE.partition(f"<!-- {mark} -->\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")[2:]]


def documented(mark):
    """{field: (offset, bytes, type)} of a table."""
    found = {}
    for offset, size, kind, field, *_ in rows(mark):
        number, _, base = kind.rpartition(" × ")
        dtype = np.dtype((TYPES[base], (int(number),))) if number else np.dtype(TYPES[base])
        found[field.strip("`")] = (int(offset), int(size), dtype)
    return found


def defined(dtype):
    """The same of a numpy dtype."""
    fields = ((name, dtype.fields[name]) for name in dtype.names)
    return {name: (where, kind.itemsize, kind) for name, (kind, where) in fields}


@pytest.mark.parametrize(("mark", "dtype"), [("record", RECORD), ("summary", SUMMARY)])
def test_the_documented_fields_lie_where_the_reader_looks(mark, dtype):
    assert documented(f"table: {mark}") == defined(dtype)


@pytest.mark.parametrize(("prefix", "size"), [("WORD_", 8), ("HALF_", 2)])
def test_what_is_patched_in_place_is_the_word_that_holds_the_field(prefix, size):
    names = [name for name in vars(layout) if name.startswith(prefix)]
    offsets = {field.removesuffix("_ns"): place[0]
               for field, place in documented("table: record").items()}  # fmt: skip
    assert names
    for name in names:
        assert getattr(layout, name) == offsets[name.removeprefix(prefix).lower()] // size


@pytest.mark.parametrize("dtype", [RECORD, SUMMARY])
def test_the_documented_sizes_are_those_of_the_code(dtype):
    last, offset = dtype.fields[dtype.names[-1]]
    end = offset + last.itemsize
    assert re.search(f"{end} bytes,? padded to {dtype.itemsize}", PAGE)


@pytest.mark.parametrize(
    ("mark", "head"), [("header", layout.HEADER), ("entry", layout.TABLE_ENTRY)]
)
def test_the_documented_heads_are_what_struct_packs(mark, head):
    sizes = [struct.calcsize(code) for code in re.findall(r"\d*[a-zA-Z]", head.format)]
    offsets = [sum(sizes[:index]) for index in range(len(sizes))]
    table = [(int(row[0]), int(row[1])) for row in rows(f"table: {mark}") if row[1]]
    packed = [row for row in table if row[0] < head.size]
    assert packed == list(zip(offsets, sizes, strict=True))
    assert set(table) - set(packed) <= {(layout.HEARTBEAT_OFFSET, 8)}


def test_the_identity_begins_where_the_page_says():
    offsets = [int(row[0]) for row in rows("table: header") if row[2] == "JSON"]
    assert offsets == [layout.HEADER_TEXT_OFFSET]


def test_the_regions_lie_where_the_page_says():
    regions = spool.Regions(ring_bytes=1 << 20, summary_bytes=1 << 20)
    assert f"| {layout.PAGE_BYTES:,} | tables" in PAGE
    assert f"| {regions.summary_offset:,} | step summaries, {layout.SUMMARY_BYTES} bytes" in PAGE
    assert f"ring of records, {layout.RECORD_BYTES} bytes each" in PAGE


ENUMS = (layout.Kind, layout.Op, layout.Phase, layout.Actuator, layout.Flag, layout.DType)


@pytest.mark.parametrize("enum", [*ENUMS, layout.ReduceOp], ids=lambda enum: enum.__name__)
def test_every_value_of_a_code_is_documented(enum):
    table = {row[1].strip("`"): int(row[0]) for row in rows(f"enum: {enum.__name__}")}
    assert table == {member.name: int(member) for member in enum}


def test_the_default_keeps_as_many_single_steps_as_the_page_says():
    capacity = 16_000_000 // layout.SUMMARY_BYTES
    assert f"the latest {summary.level_slots(capacity)[0][1]:,} steps" in PAGE
