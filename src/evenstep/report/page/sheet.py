"""Building blocks of pages: templates, style, script, content security policy, packed columns."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep import words
from evenstep.documents import plain
from evenstep.errors import MissingExtra, UsageError, refuse_as
from evenstep.trace.columns import Columns
from evenstep.trace.spool import files

PAGE = Path(__file__).parent / "assets"


class Chart(NamedTuple):
    """The data of a chart as the page's script reads it: columns, and names and scales."""

    tables: dict[str, Columns]
    facts: dict[str, Any]


_FILTERS = ("number", "duration", "percent", "interval", "measure", "plural", "printable")


@cache  # compiling one takes longer than all else that a page needs
def template(name: str, purpose: str, scripts: Sequence[str] = (), **known: Any) -> Any:
    """Return a template with autoescaping; its globals are `known`, all pages' style sheet, and the
    page's script and its hash. Raises `MissingExtra` for `purpose` without jinja2."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", extra="report", purpose=purpose) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for each in _FILTERS:
        environment.filters[each] = getattr(words, each)
    text = script(scripts)
    look = (PAGE / "page.css").read_text("utf-8")
    environment.globals.update(known, style=look, script=text, script_hash=content_hash(text))
    return environment.get_template(name)


@cache
def script(names: Sequence[str]) -> str:
    """Return the scripts as one; none for a page without."""
    parts = [(PAGE / name).read_text("utf-8") for name in names]
    return "" if not parts else '(async () => {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"


def content_hash(text: str) -> str:
    """Return the source expression that allows exactly this script (CSP level 3, §2.3.1)."""
    digest = hashlib.sha256(f"\n{text}".encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def embed(value: object) -> str:
    """Return JSON that is safe in a script element: ASCII, without `<`, NaN as null."""
    text = json.dumps(plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write(path: Path, text: str) -> None:
    """Write a page atomically. Raises `UsageError` if that fails."""
    with refuse_as(UsageError, f"cannot write {path}", "; name another path"):
        files.write_whole(path, text.encode(errors="xmlcharrefreplace"))


# -- columns ---------------------------------------------------------------------------------------
#
# One gzip stream in base64, and a directory of the columns in it. The page unpacks it with the
# browser's `DecompressionStream`. Columns are little-endian and aligned to 8 bytes, so that typed
# arrays need no copy.

ALIGNMENT_BYTES = 8

#: Element types for which browsers have typed arrays.
TYPES = {"f8", "f4", "i4", "u4", "u2", "u1"}


Directory = dict[str, dict[str, dict[str, Any]]]


def pack(tables: Mapping[str, Columns]) -> tuple[Directory, str]:
    """Pack tables deterministically into one stream, base64 of gzip; before it its directory, of
    each table and column {"type", "offset", "length"}. Raises `ValueError` for other types."""
    directory: Directory = {}
    raw = bytearray()
    for table, columns in tables.items():
        directory[table] = {}
        for name in columns:
            array = np.ascontiguousarray(columns[name])
            kind = array.dtype.str[1:]
            if kind not in TYPES:
                raise ValueError(f"column {table}.{name} has type {array.dtype}, not {TYPES}")
            directory[table][name] = {"type": kind, "offset": len(raw), "length": len(array)}
            raw += array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            raw += bytes(-len(raw) % ALIGNMENT_BYTES)
    data = gzip.compress(bytes(raw), compresslevel=6, mtime=0)
    return directory, base64.b64encode(data).decode("ascii")
